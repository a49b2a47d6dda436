"""Who asks, and what they may see: their own session, and those of the same working directory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dsh.base.values import value
from dsh.capability.session_query.failures import refusal
from dsh.state.query.service import IdIs

if TYPE_CHECKING:
    from dsh.execution.tools.service import ToolRunContext
    from dsh.state.query.service import SessionQuery
    from dsh.state.session.session import Session


@value
class Caller:
    """The agent's session."""

    session: Session

    @property
    def id(self) -> str:
        """The id of its session."""
        return self.session.id

    @property
    def cwd(self) -> str | None:
        """Its working directory."""
        return self.session.header.get("cwd")

    def may_see(self, header: Mapping[str, Any]) -> bool:
        """Whether a session is for this caller to look into."""
        own = self.cwd
        return header["id"] == self.id or (own is not None and header.get("cwd") == own)

    def check(self, header: Mapping[str, Any]) -> None:
        """Refuse a session that is not for this caller.

        Raises:
            SessionQueryToolError: ``UNAUTHORIZED``.
        """
        if not self.may_see(header):
            raise refusal("SESSION_QUERY_TOOL_UNAUTHORIZED")


def caller_of(run: ToolRunContext) -> Caller:
    """Return who makes a call.

    Raises:
        SessionQueryToolError: ``MISSING_AGENT``.
    """
    if run.agent is None:
        raise refusal("SESSION_QUERY_TOOL_MISSING_AGENT")
    return Caller(run.agent.session)


async def admitted(query: SessionQuery, caller: Caller, session_id: str | None) -> str:
    """Return the id of the session to look into, after a look at its header.

    What is read of it later must be checked again: the answer may be of another session that took
    the id meanwhile.

    Raises:
        SessionQueryToolError: ``UNAUTHORIZED``.
        SessionQueryError: the sessions cannot be listed.
    """
    if session_id is None or session_id == caller.id:
        return caller.id
    for record in await query.filter_sessions([IdIs((session_id,))]):
        caller.check(record.header)
    return session_id
