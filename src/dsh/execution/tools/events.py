"""Events around a tool call, and the decisions their listeners make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from dsh.base.json import JsonValue
from dsh.base.signal import AbortSignal
from dsh.base.values import value
from dsh.execution.tools.service import ToolExecution, ToolResult
from dsh.kernel import Emit, Waterfall
from dsh.model.messages import ContentBlock, UserMessage


@value
class Allow:
    """Let the call go on; guards may still deny it."""


@value
class Deny:
    """Refuse the call; the model reads the reason."""

    reason: str


@value
class Ask:
    """Put the call to whoever may approve it; without one it is refused."""

    reason: str | None = None


PreToolDecision: TypeAlias = Allow | Deny | Ask


class _Keep:
    """Marks a part of a result that a decision leaves alone (``None`` is a value)."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "KEEP"


KEEP = _Keep()
"""Default of ``Accept.content`` and ``Accept.value``: leave it as it is."""


@value(kw_only=True)
class Accept:
    """Let the result stand, or replace its content or its value (not both).

    A new ``content`` changes only what the model reads; value and meta stay, so it does not keep
    anything secret. A new ``value`` is checked and rendered again.
    """

    content: Sequence[ContentBlock] | _Keep = KEEP
    value: JsonValue | _Keep = KEEP
    additional_contexts: tuple[UserMessage, ...] = ()


@value(kw_only=True)
class Block:
    """Turn the result into a failure whose content is the feedback."""

    feedback: Sequence[ContentBlock]
    additional_contexts: tuple[UserMessage, ...] = ()


PostToolDecision: TypeAlias = Accept | Block


class ToolDispatch:
    """A call about to run; a wrapper may replace ``signal`` and must put it back.

    The body stops for the caller's signal and for the one found here.
    """

    __slots__ = ("_execution", "signal")

    def __init__(self, execution: ToolExecution, signal: AbortSignal) -> None:
        self._execution = execution
        self.signal = signal

    @property
    def execution(self) -> ToolExecution:
        """The call; the same for everybody."""
        return self._execution


@value
class ToolPostExecute:
    """A call that has an outcome which is not final yet."""

    execution: ToolExecution
    result: ToolResult


@value
class ToolSettled:
    """A call and its final result, frozen: the object that the caller gets."""

    execution: ToolExecution
    result: ToolResult


@value
class ToolsChanged:
    """Tools, restrictions or presentations changed somewhere."""


TOOLS_PRE_EXECUTE = Waterfall[ToolExecution, PreToolDecision]("tools/pre-execute")
"""May this call run? Scoped by its agent; without listeners it may."""

TOOLS_EXECUTE = Waterfall[ToolDispatch, ToolResult]("tools/execute")
"""Around the body: deadlines, retries, metrics. Its exceptions are results already."""

TOOLS_POST_EXECUTE = Waterfall[ToolPostExecute, PostToolDecision]("tools/post-execute")
"""Does this result stand? Also for denials, failures and cancelled calls."""

TOOLS_RESULT = Emit[ToolSettled]("tools/result", errors="contain")
"""The final outcome, once per call."""

TOOLS_CHANGE = Emit[ToolsChanged]("tools/change")
"""The registry changed; a listener that raises rolls the change back."""
