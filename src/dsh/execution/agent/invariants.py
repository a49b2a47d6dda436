"""The row ``agent-invariants``: refuses an event that is routed past the agent it is about.

For tests, and to find a plugin that dispatches such events itself: with another agent's carrier a
listener in an agent's scope hears what is none of its business, and misses what is. It looks at
every dispatch, so it is off unless ``DSH_SESSION_INVARIANTS=1``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from dsh.base.errors import DshError
from dsh.kernel import INTERNAL_DISPATCH, carrier_key_of, is_scope_carrier

if TYPE_CHECKING:
    from dsh.kernel import Context, Dispatching

name = "agent-invariants"


class MisroutedEvent(DshError, AssertionError):
    """An event would reach the scope of another agent than its subject; a bug, not bad input."""

    code = "INVARIANT"

    def __init__(self, event: str, problem: str) -> None:
        super().__init__(
            f"event {event!r} breaks a rule: {problem}; dispatch it with the carrier of its "
            "subject, as agent_events does"
        )
        self.event, self.problem = event, problem


def _agent(payload: Any) -> object:
    return payload.agent


def _caller(payload: Any) -> object:
    return getattr(payload, "execution", payload).agent


def _assembled_for(payload: Any) -> object:
    return payload.context.scope


_SUBJECTS: Final[dict[str, Callable[[Any], object]]] = {
    "approval/request": _agent,
    "goal/changed": _agent,
    "system-prompt/assemble": _assembled_for,
    "tools/code-dispatch-log": _caller,
    "tools/execute": _caller,
    "tools/post-execute": _caller,
    "tools/pre-execute": _caller,
    "tools/result": _caller,
}
"""Whom a payload is about; ``agent/*`` events are about their agent."""

_CARRIED: Final = frozenset(
    {
        "session/created",
        "session/disposed",
        "session/event",
        "session/flush",
        "subagent/end",
        "subagent/start",
    }
)
"""Events that need a carrier of whatever scope."""


def apply(ctx: Context) -> None:
    """Check each dispatch before any listener hears of it."""
    ctx.on(INTERNAL_DISPATCH, _check)


def _check(event: Dispatching) -> None:
    if event.name in _CARRIED:
        if not is_scope_carrier(event.target):
            raise MisroutedEvent(event.name, "it has no scope carrier")
        return
    subject_of = _agent if event.name.startswith("agent/") else _SUBJECTS.get(event.name)
    if subject_of is None:
        return
    subject = subject_of(event.payload)
    if not is_scope_carrier(event.target):
        raise MisroutedEvent(event.name, "it has no scope carrier")
    # What nobody asked for has no scope to miss; its carrier keeps the scopes of others out.
    if subject is not None and carrier_key_of(event.target) is not subject:
        raise MisroutedEvent(event.name, f"its carrier is not that of its subject {subject!r}")
