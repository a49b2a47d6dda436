"""Run the tool calls of one reply: bodies overlap, policies and results keep the model's order.

Whatever happens, each call that the reply holds ends up with a ``tool/call`` and a ``tool/result``
in the log: a history with an unanswered call would be refused by every later request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsh.execution.agent.service import DISPOSED_CANCEL, DuplicateMessage
from dsh.execution.loop.outcomes import never_started, outcome_unknown, stopped_before_dispatch
from dsh.execution.loop.patience import Overdue, Patience
from dsh.execution.loop.phase import is_outer_cancel
from dsh.execution.tools.resources import ResourceQueue
from dsh.execution.tools.service import ToolInput, parse_call
from dsh.model.messages import CallId, create_tool_result_message
from dsh.state.session.events import TOOL_CALL, TOOL_RESULT

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsh.execution.loop.agent import LoopAgent
    from dsh.execution.loop.phase import Running
    from dsh.execution.tools.resources import Ticket
    from dsh.execution.tools.service import (
        ExecutionMode,
        Resource,
        Staged,
        ToolFailure,
        ToolResult,
    )
    from dsh.model.messages import ToolCallBlock
    from dsh.state.session.events import ToolCallData, ToolResultData

_log = logging.getLogger("dsh.agent")


class _Slot:
    """One call in its place among the calls of the reply."""

    __slots__ = ("answered", "block", "dispatched", "input", "result", "seq", "staged", "ticket")

    def __init__(self, block: ToolCallBlock, input: ToolInput) -> None:
        self.block = block
        self.input = input
        self.seq: int | None = None
        """Of its ``tool/call``, once it started."""
        self.staged: Staged | None = None
        self.ticket: Ticket | None = None
        """Its place among the calls that use resources, until it is answered."""
        self.dispatched = False
        """Whether its body may have begun."""
        self.result: ToolResult | None = None
        """What is known before the last policies have seen it."""
        self.answered = False
        """Whether its ``tool/result`` is in the log."""


class ToolCalls:
    """The calls of one reply, from first start to last result."""

    def __init__(self, agent: LoopAgent, phase: Running, calls: Sequence[ToolCallBlock]) -> None:
        self._agent = agent
        self._phase = phase
        self._signal = phase.abort.signal
        self._session = agent.session
        self._tools = agent.services.tools
        self._slots = [_Slot(block, self._input(block)) for block in calls]
        self._running: dict[asyncio.Task[ToolResult], _Slot] = {}
        self._waiting: list[_Slot] = []
        """Prepared calls whose resources are in use by earlier ones, in the model's order."""
        self._resources = ResourceQueue()
        self._cursor = 0
        self._concluded = False
        self._cancelled: BaseException | None = None

    async def run(self) -> bool:
        """Run all calls; say whether one of them concluded the turn.

        After an abort nothing new starts, what runs is stopped and awaited, and the calls that
        never started are answered as such.

        Raises:
            CancelledError: the task was cancelled from outside; all calls are answered.
            Exception: the scheduler itself failed, such as on an append that was refused; all calls
                are answered as far as the log accepts it.
        """
        try:
            await self._run_groups()
            await self._drain()
            await self._answer_rest(stopped_before_dispatch)
        except (Exception, asyncio.CancelledError) as error:
            await self._give_up(error)
            raise self._cancelled or error from None
        except BaseException as error:
            # The process or this coroutine ends here and now: nothing can be awaited any more.
            self._abandon(error)
            raise
        if self._cancelled is not None:
            raise self._cancelled
        return self._concluded

    def _input(self, block: ToolCallBlock) -> ToolInput:
        return ToolInput(
            call_id=CallId(block["id"]),
            name=block["name"],
            arguments=parse_call(block["arguments"]),
            signal=self._signal,
            agent=self._agent,
        )

    async def _run_groups(self) -> None:
        first = 0
        while first < len(self._slots) and not self._signal.aborted:
            if self._mode(first).kind == "parallel":
                limit = self._agent.services.max_parallel_tool_calls()
                first = await self._run_pool(first, limit)
            else:
                await self._start(self._slots[first], ())
                await self._drain()
                first += 1

    async def _run_pool(self, first: int, limit: int) -> int:
        """Run calls from ``first`` on until a barrier or an abort; return where to go on."""
        upcoming, closed = first, False
        while not self._signal.aborted:
            self._launch_waiting(limit)
            if not closed and upcoming < len(self._slots) and len(self._running) < limit:
                # Asked before each start: an earlier result may have changed the registry.
                mode = self._mode(upcoming)
                closed = mode.kind != "parallel"
                if not closed:
                    await self._start(self._slots[upcoming], mode.resources)
                    upcoming += 1
            elif self._cursor < upcoming:
                await self._proceed()
            else:
                break
        return upcoming

    def _mode(self, index: int) -> ExecutionMode:
        return self._tools.execution_mode(self._slots[index].input)

    async def _proceed(self) -> None:
        if self._running:
            await self._settle_some()
        await self._answer_ready()

    def _launch_waiting(self, limit: int) -> None:
        for slot in list(self._waiting):
            if len(self._running) >= limit:
                return
            if slot.ticket is None or slot.ticket.is_ready:
                self._waiting.remove(slot)
                self._launch(slot)

    async def _start(self, slot: _Slot, resources: tuple[Resource, ...]) -> None:
        self._log_call(slot)
        if resources:
            slot.ticket = self._resources.enter(resources)
        try:
            with self._agent.patience(self._signal):
                staged = await self._tools.prepare(slot.input)
        except Overdue:
            slot.result = stopped_before_dispatch()
            return
        except asyncio.CancelledError as error:
            if not self._heed(error):
                raise
            slot.result = stopped_before_dispatch()
            return
        slot.staged = staged
        if staged.result is not None:
            slot.result = staged.result
        elif slot.ticket is None or slot.ticket.is_ready:
            self._launch(slot)
        else:
            self._waiting.append(slot)

    def _launch(self, slot: _Slot) -> None:
        assert slot.staged is not None  # only prepared calls are launched
        slot.dispatched = True
        task = asyncio.create_task(
            self._tools.dispatch(slot.staged), name=f"call {slot.input.name} {slot.input.call_id}"
        )
        self._running[task] = slot
        self._agent.inner_tasks.add(task)
        task.add_done_callback(self._agent.inner_tasks.discard)

    async def _settle_some(self) -> None:
        """Wait until a body ended; take what all ended ones left, in the order of their start."""
        try:
            # Bodies have a grace period of their own, so this is for the wrappers around them.
            with Patience(self._signal, 2 * self._agent.services.grace_s):
                await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
        except Overdue:
            for task in self._running:
                task.cancel()
        except asyncio.CancelledError as error:
            if not self._heed(error):
                raise
        for task in [task for task in self._running if task.done()]:
            slot = self._running.pop(task)
            slot.result = _result_of(task)
            if slot.result is None:
                known = slot.staged.result if slot.staged is not None else None
                slot.result = known or outcome_unknown("its task was cancelled")

    async def _answer_ready(self) -> None:
        """Log results from the cursor on, up to the first call that has none yet."""
        while self._cursor < len(self._slots):
            slot = self._slots[self._cursor]
            if slot.result is None:
                return
            await self._finalize(slot)
            self._log_result(slot, slot.result)
            self._cursor += 1
            if slot.ticket is not None:
                self._resources.leave(slot.ticket)

    async def _finalize(self, slot: _Slot) -> None:
        """Let the last policies judge a result, once."""
        staged, slot.staged = slot.staged, None
        if staged is None or slot.result is None:
            return
        try:
            with self._agent.patience(self._signal):
                slot.result = await self._tools.finalize(staged, slot.result)
        except Overdue:
            slot.result = staged.result or slot.result
        except asyncio.CancelledError as error:
            if not self._heed(error):
                raise
            slot.result = staged.result or slot.result

    async def _drain(self) -> None:
        """Wait for what runs; what waits for resources is left where it is."""
        await self._answer_ready()
        while self._running:
            await self._proceed()

    async def _answer_rest(self, missing: Callable[[], ToolFailure]) -> None:
        """Answer every call that is left: with its result, or with what ``missing`` says."""
        for slot in self._slots[self._cursor :]:
            if slot.answered:
                continue
            if slot.result is None:
                slot.result = missing()
            await self._finalize(slot)
            if slot.seq is None:
                self._log_call(slot)
            self._log_result(slot, slot.result)
            self._cursor += 1

    async def _give_up(self, error: BaseException) -> None:
        """After a failure of our own: wait for what runs, keep its results, answer the rest."""
        _log.error("scheduling the calls of agent %s failed", self._agent.id, exc_info=error)
        while self._running:
            try:
                await self._settle_some()
            except Exception:
                _log.exception("a tool call of agent %s left no result", self._agent.id)
        for slot in self._slots:
            if slot.result is not None and not slot.answered:
                try:
                    await self._finalize(slot)
                except Exception:
                    _log.exception("the result of call %s was not finalized", slot.input.call_id)
        self._answer_plainly(error)

    def _abandon(self, error: BaseException) -> None:
        for task in self._running:
            task.cancel()
        self._answer_plainly(error)

    def _answer_plainly(self, error: BaseException) -> None:
        """Answer what is unanswered without awaiting anything; refusals are logged."""
        for slot in self._slots:
            if slot.answered:
                continue
            known = slot.result
            missing = outcome_unknown(error) if slot.dispatched else never_started(error)
            for result in (missing,) if known is None else (known, missing):
                try:
                    if slot.seq is None:
                        self._log_call(slot)
                    self._log_result(slot, result)
                except Exception:
                    _log.exception("call %s could not be answered", slot.input.call_id)
                else:
                    break

    def _log_call(self, slot: _Slot) -> None:
        data: ToolCallData = {
            "turn": self._phase.turn,
            "step": self._phase.step,
            "callId": slot.block["id"],
            "name": slot.block["name"],
            "arguments": slot.block["arguments"],
        }
        slot.seq = self._session.append(TOOL_CALL, data)["seq"]

    def _log_result(self, slot: _Slot, result: ToolResult) -> None:
        message = create_tool_result_message(slot.block["id"], result.content, result.is_error)
        data: ToolResultData = {
            "turn": self._phase.turn,
            "step": self._phase.step,
            "message": message,
        }
        if result.is_error and result.error.info is not None:
            data["error"] = {"name": result.error.info.name, "code": result.error.info.code}
        if result.meta is not None:
            data["meta"] = result.meta
        self._session.append(
            TOOL_RESULT,
            data,
            surface_op="append",
            source_event_seqs=None if slot.seq is None else [slot.seq],
        )
        slot.answered = True
        self._concluded = self._concluded or result.concludes_turn
        for context in result.additional_contexts:
            try:
                self._agent.inbox.append("next-step", context)
            except DuplicateMessage:
                _log.warning("call %s repeats a message that waits already", slot.input.call_id)

    def _heed(self, error: asyncio.CancelledError) -> bool:
        """Turn a cancellation of the driver's task into an abort; it is raised again at the end."""
        if not is_outer_cancel(error):
            return False
        self._cancelled = error
        self._phase.abort.abort(DISPOSED_CANCEL)
        return True


def _result_of(task: asyncio.Task[ToolResult]) -> ToolResult | None:
    if task.cancelled():
        return None
    error = task.exception()
    if isinstance(error, Exception):
        raise error
    # The event loop has raised what ends the program already; twice would break its own end.
    return task.result() if error is None else outcome_unknown(error)
