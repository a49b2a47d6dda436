"""The row ``tool-invariants``: refuses what the tool pipeline itself must never do.

For tests, and to find a plugin that breaks a rule: each stage of a call is checked before its
listeners hear of it, each record of a nested call before it is committed. It is off unless
``DSH_SESSION_INVARIANTS=1``. A broken rule fails the call it belongs to and is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from dsh.base.errors import DshError
from dsh.base.json import snapshot
from dsh.execution.tools.events import (
    TOOLS_EXECUTE,
    TOOLS_POST_EXECUTE,
    TOOLS_PRE_EXECUTE,
    TOOLS_RESULT,
)
from dsh.execution.tools.service import ExecutionToken, ToolRuntime
from dsh.kernel import INTERNAL_DISPATCH
from dsh.state.session.events import SESSION_CREATED, SESSION_EVENT
from dsh.state.session.nesting import BrokenInvariant
from dsh.state.session.service import SessionStore

if TYPE_CHECKING:
    from dsh.execution.tools.service import ToolExecution
    from dsh.kernel import Context, Dispatching
    from dsh.state.session.events import SessionCreated, SessionEventAppended
    from dsh.state.session.session import Session

name = "tool-invariants"
inject = (ToolRuntime, SessionStore)

_log = logging.getLogger("dsh.tools")

_MAY_FOLLOW: Final[dict[str, frozenset[str | None]]] = {
    TOOLS_PRE_EXECUTE.name: frozenset({None}),
    TOOLS_EXECUTE.name: frozenset({TOOLS_PRE_EXECUTE.name}),
    TOOLS_POST_EXECUTE.name: frozenset({TOOLS_PRE_EXECUTE.name, TOOLS_EXECUTE.name}),
    TOOLS_RESULT.name: frozenset(
        {None, TOOLS_PRE_EXECUTE.name, TOOLS_EXECUTE.name, TOOLS_POST_EXECUTE.name}
    ),
}
"""Which stage of a call comes after which; ``None`` is its beginning."""


class BrokenStage(DshError, AssertionError):
    """A call went through the pipeline in a way that no call may; a bug, not bad input."""

    code = "INVARIANT"

    def __init__(self, execution: ToolExecution, stage: str, problem: str) -> None:
        super().__init__(
            f"{stage} of call {execution.call_id!r} ({execution.name!r}) breaks a rule: {problem}"
        )
        self.stage, self.problem = stage, problem


def apply(ctx: Context) -> None:
    """Check all calls and all sessions from now on, and the history of those that are live.

    Raises:
        BrokenInvariant: the history of a live session breaks a rule.
    """
    stages, logs = _Stages(), _Logs()
    for session in ctx.require(SessionStore).all():
        logs.follow(session)

    def dispatching(event: Dispatching) -> None:
        if event.name in _MAY_FOLLOW:
            stages.check(event.name, event.payload)
        elif event.name == SESSION_EVENT.name:
            logs.check(event.payload)

    ctx.on(SESSION_CREATED, logs.created)
    ctx.on(INTERNAL_DISPATCH, dispatching)


class _Stages:
    """How far each live call came."""

    def __init__(self) -> None:
        self._last: WeakKeyDictionary[ExecutionToken, str] = WeakKeyDictionary()
        self._begun = ExecutionToken().number

    def check(self, stage: str, payload: Any) -> None:
        """Refuse a stage that cannot come now, or whose parts could still change."""
        execution: ToolExecution = getattr(payload, "execution", payload)
        last = self._last.get(execution.token)
        problem = _unnamed(execution)
        # Of a call that is older than the row nobody knows how far it had come.
        is_known = last is not None or execution.token.number > self._begun
        if is_known and last not in _MAY_FOLLOW[stage]:
            problem = f"it comes after {last or 'nothing'}"
        elif stage == TOOLS_RESULT.name and not _is_final(payload.result):
            problem = "its result is not frozen"
        if problem is not None:
            error = BrokenStage(execution, stage, problem)
            _log.error("%s", error)
            raise error
        self._last[execution.token] = stage


def _unnamed(execution: ToolExecution) -> str | None:
    if not execution.name:
        return "it has no name"
    if not execution.call_id:
        return "it has no call id"
    return None if snapshot(execution.arguments) is execution.arguments else "its arguments change"


def _is_final(result: Any) -> bool:
    parts = [result.content, result.meta, None if result.is_error else result.value]
    return all(snapshot(part) is part for part in parts)


class _Logs:
    """The rules of nested calls in each log."""

    def __init__(self) -> None:
        self._nested: WeakKeyDictionary[Session, NestedCalls] = WeakKeyDictionary()

    def follow(self, session: Session) -> NestedCalls:
        """Read what was committed since the last look, however late that is."""
        nested = self._nested.setdefault(session, NestedCalls())
        for event in session.events[nested.count :]:
            self._refuse(session, event, nested)
            nested.read(event)
        return nested

    def created(self, event: SessionCreated) -> None:
        """Refuse a session whose history breaks a rule."""
        self.follow(event.session)

    def check(self, appended: SessionEventAppended) -> None:
        """Refuse an event before it is committed."""
        self._refuse(appended.session, appended.event, self.follow(appended.session))

    def _refuse(self, session: Session, event: Mapping[str, Any], nested: NestedCalls) -> None:
        if (problem := nested.problem(event)) is not None:
            raise BrokenInvariant(session.id, event["seq"], event["type"], problem)


class NestedCalls:
    """The calls that programs of the model made, as a log tells of them.

    Attributes:
        count: How many events were read.
    """

    def __init__(self) -> None:
        self.count = 0
        self._in_turn = False
        self._roots: dict[str, str] = {}
        """Of each nested call that was started in this step."""
        self._settled: set[str] = set()
        self._steps: dict[str, Callable[[Mapping[str, Any]], str | None]] = {
            "tool/code-dispatch-start": self._start_problem,
            "tool/code-dispatch": self._end_problem,
        }

    def problem(self, event: Mapping[str, Any]) -> str | None:
        """Say why an event cannot be the next one; change nothing."""
        check = self._steps.get(event["type"])
        if check is None:
            return None
        data = event["data"]
        if not self._in_turn:
            return "no turn is open"
        for key in ("rootCallId", "parentCallId", "subCallId", "name"):
            if not data.get(key):
                return f"its {key} is empty"
        return check(data)

    def read(self, event: Mapping[str, Any]) -> None:
        """Take an event that is in the log."""
        self.count += 1
        match event["type"]:
            case "turn/start" | "turn/end":
                self._in_turn = event["type"] == "turn/start"
            case "step/start":
                # Models number their calls anew with each reply.
                self._roots.clear()
                self._settled.clear()
            case "tool/code-dispatch-start":
                self._roots[event["data"]["subCallId"]] = event["data"]["rootCallId"]
            case "tool/code-dispatch":
                self._settled.add(event["data"]["subCallId"])

    def _start_problem(self, data: Mapping[str, Any]) -> str | None:
        sub, parent, root = data["subCallId"], data["parentCallId"], data["rootCallId"]
        if sub in self._roots:
            return f"nested call {sub!r} was started before"
        if parent != root and self._roots.get(parent) != root:
            return f"its parent {parent!r} is no call of root {root!r}"
        return None

    def _end_problem(self, data: Mapping[str, Any]) -> str | None:
        sub = data["subCallId"]
        if sub not in self._roots:
            return f"nested call {sub!r} was not started"
        if sub in self._settled:
            return f"nested call {sub!r} has its result already"
        if self._roots[sub] != data["rootCallId"]:
            return f"nested call {sub!r} belongs to root {self._roots[sub]!r}"
        return None
