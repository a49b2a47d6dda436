"""One call on its way through the pipeline: what is known of it so far."""

from __future__ import annotations

from typing import Any

from dsh.execution.tools.results import aborted
from dsh.execution.tools.service import (
    Staged,
    ToolDefinition,
    ToolExecution,
    ToolFailure,
    ToolResult,
)
from dsh.kernel import Carrier
from dsh.model.messages import UserMessage


class Call(Staged):
    """The state behind `Staged`; made by the pipeline, which alone changes it."""

    __slots__ = (
        "_execution",
        "_result",
        "canonical",
        "carrier",
        "conclusions",
        "deferred",
        "definition",
        "dispatched",
        "finalizer",
        "finished",
        "in_time",
        "invoked",
        "judged",
        "parsed",
        "skip_post",
    )

    def __init__(
        self, execution: ToolExecution, definition: ToolDefinition | None, carrier: Carrier
    ) -> None:
        self._execution = execution
        self._result: ToolResult | None = None
        self.carrier = carrier
        self.finalizer = definition.finalize_content if definition is not None else None
        self.definition: ToolDefinition | None = None
        """Whose ``parse_arguments`` made ``parsed``."""
        self.parsed: Any = None
        self.invoked = False
        self.dispatched = False
        self.judged = False
        self.finished = False
        self.in_time = False
        """Whether the call succeeded before its caller's abort; its success stands then."""
        self.skip_post = False
        self.canonical: list[ToolResult] = []
        """Results that this call's own body made: they are checked already."""
        self.deferred: list[UserMessage] = []
        self.conclusions: list[bool] = []

    @property
    def execution(self) -> ToolExecution:
        """See `Staged.execution`."""
        return self._execution

    @property
    def result(self) -> ToolResult | None:
        """See `Staged.result`."""
        return self._result

    def settle(self, result: ToolResult, *, skip_post: bool = False) -> ToolResult:
        """Set what is known of the outcome; ``skip_post`` once set stays."""
        self._result = result
        self.skip_post = self.skip_post or skip_post
        return result

    def judge(self) -> None:
        """Note that the last policies get the result now.

        Raises:
            RuntimeError: they had it before.
        """
        if self.judged or self.finished:
            raise RuntimeError(f"call {self._execution.call_id!r} cannot be finalized (again)")
        self.judged = True

    def made(self, result: object) -> bool:
        """Whether a result is one of this call's own body, and not a wrapper's."""
        return any(result is own for own in self.canonical)

    def cancelled(self, contexts: tuple[UserMessage, ...] = ()) -> ToolFailure:
        """The failure of this call when it is cancelled now."""
        return aborted(invoked=self.invoked, contexts=contexts)

    def unless_cancelled(self, result: ToolResult) -> ToolResult:
        """Replace a success that came after its caller's abort; anything else stands."""
        if result.is_error or self.in_time or not self._execution.signal.aborted:
            return result
        return self.cancelled(result.additional_contexts)
