"""Results of calls that have none of their own: what the model reads in their place."""

from __future__ import annotations

from dsh.base.errors import message_of
from dsh.execution.tools.service import (
    ABORTED_BEFORE_DISPATCH,
    ABORTED_BEFORE_DISPATCH_TEXT,
    ToolError,
    ToolErrorInfo,
    ToolFailure,
)
from dsh.state.session.repair import TOOL_NOT_STARTED, TOOL_OUTCOME_UNKNOWN


def stopped_before_dispatch() -> ToolFailure:
    """The call was cancelled before its body ran."""
    return _failure(ABORTED_BEFORE_DISPATCH_TEXT, "AbortError", ABORTED_BEFORE_DISPATCH)


def never_started(cause: object) -> ToolFailure:
    """The scheduler failed before it came to this call."""
    return _failure(
        f"this call was not started ({message_of(cause)}); nothing happened, so call the tool "
        "again if its result is still needed",
        "ToolNotStartedError",
        TOOL_NOT_STARTED,
    )


def outcome_unknown(cause: object) -> ToolFailure:
    """The call was started and its result was lost."""
    return _failure(
        f"the result of this call was lost ({message_of(cause)}) and it may have taken effect; "
        "repeat it only if it just reads or may safely run twice, otherwise look at the state it "
        "would have changed first, or ask the user",
        "ToolOutcomeUnknownError",
        TOOL_OUTCOME_UNKNOWN,
    )


def _failure(text: str, name: str, code: str) -> ToolFailure:
    return ToolFailure(
        error=ToolError(text, ToolErrorInfo(name, code)),
        content=[{"type": "text", "text": f"Error: {text}"}],
    )
