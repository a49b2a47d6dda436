"""The calls of one program: started in its order, overlapping where they may, answered in order.

It is the scheduler of the loop once more, with one difference: nobody knows how many calls there
will be. A call waits for its turn, is prepared while no other is, and its body then runs beside
others. Results are judged, logged and handed to the program in the order of the calls.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Self

from dsh.base.json import JsonValue, snapshot
from dsh.base.signal import AbortController, AbortSignal
from dsh.execution.tools.code.errors import NestedCallFailed, ProgramEnded
from dsh.execution.tools.resources import ResourceQueue, Ticket
from dsh.execution.tools.service import ToolInput
from dsh.model.messages import CallId, create_user_message

if TYPE_CHECKING:
    from dsh.execution.tools.code.journal import Journal
    from dsh.execution.tools.service import (
        ExecutionMode,
        Staged,
        ToolResult,
        ToolRunContext,
        ToolRuntime,
    )

IMAGE_SOURCE = "tools-code-mode"
"""``plugin`` of the messages that carry images of a program's calls."""


class _Slot:
    """One call in its place among the calls of the program."""

    __slots__ = ("body", "input", "is_exclusive", "reply", "result", "staged", "ticket", "turn")

    def __init__(self, input: ToolInput) -> None:
        self.input = input
        self.reply: asyncio.Future[JsonValue] = asyncio.get_running_loop().create_future()
        self.is_exclusive = True
        self.staged: Staged | None = None
        self.ticket: Ticket | None = None
        self.turn = asyncio.Event()
        """Set when nobody uses the resources of this call against it any more."""
        self.body: asyncio.Task[ToolResult] | None = None
        self.result: ToolResult | None = None
        """What is known of the outcome before the last policies have seen it."""

    def refuse(self, error: Exception) -> None:
        if not self.reply.done():
            self.reply.set_exception(error)
            self.reply.exception()  # the program may be gone


class Lane:
    """Runs the calls of one program until it is left; then everything has ended and is logged."""

    def __init__(
        self, tools: ToolRuntime, run: ToolRunContext, journal: Journal, most_bodies: int
    ) -> None:
        self._tools, self._run, self._journal = tools, run, journal
        self._most = most_bodies
        self._abort = AbortController()
        self._submitted = 0
        self._waiting: deque[_Slot] = deque()
        self._open: deque[_Slot] = deque()
        """Started and not answered yet, in order."""
        self._running = 0
        self._resources = ResourceQueue()
        self._tickets: dict[Ticket, _Slot] = {}
        self._logging: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._ended = False
        self._driver: asyncio.Task[None] | None = None

    @property
    def signal(self) -> AbortSignal:
        """Aborts with the call of ``run_code``, and when the program has ended."""
        return self._abort.signal

    async def __aenter__(self) -> Self:
        outer = self._run.signal
        self._unlink = outer.add_listener(lambda: self._abort.abort(outer.reason), now=True)
        self._driver = asyncio.create_task(self._drive(), name=f"lane {self._run.call_id}")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop what runs, and wait until every started call is answered and logged.

        Raises:
            Exception: the lane itself failed, such as on an append that was refused.
        """
        self._unlink()
        self._ended = True
        self._abort.abort("the program has ended")
        self._changed.set()
        assert self._driver is not None
        await _through(self._driver)

    async def call(self, name: str, arguments: JsonValue) -> JsonValue:
        """Make a call and return its value.

        Raises:
            NestedCallFailed: it failed; the message is what the model would have read.
            ProgramEnded: the program was over before its turn came.
        """
        if self._ended or self.signal.aborted:
            raise ProgramEnded
        self._submitted += 1
        slot = _Slot(
            ToolInput(
                call_id=CallId(f"{self._run.call_id}:code:{self._submitted}"),
                name=name,
                arguments=snapshot(arguments),
                signal=self.signal,
                agent=self._run.agent,
                root_call_id=self._run.root_call_id,
                parent=self._run.token,
            )
        )
        self._waiting.append(slot)
        self._changed.set()
        return await slot.reply

    async def _drive(self) -> None:
        remove = self.signal.add_listener(self._changed.set, now=True)
        try:
            while await self._advance():
                pass
        except BaseException as error:
            self._ended = True
            self._abort.abort(error)
            await self._give_up()
            raise
        finally:
            remove()
            self._abandon_waiting()
            await self._logged(at_most=0)

    async def _advance(self) -> bool:
        """Do the next thing that is due, or wait for it; False when nothing will come any more."""
        self._changed.clear()
        if self.signal.aborted:
            self._abandon_waiting()
        if self._open and self._is_ready(self._open[0]):
            await self._answer(self._open[0])
            self._open.popleft()
        elif self._waiting and (mode := self._admits(self._waiting[0])) is not None:
            await self._start(self._waiting.popleft(), mode)
        elif self._ended and not self._open:
            return False
        else:
            await self._changed.wait()
        return True

    def _admits(self, slot: _Slot) -> ExecutionMode | None:
        """Return how the next call may start now; ``None`` when it must wait."""
        if self._open and self._open[-1].is_exclusive:
            return None
        # Asked at the start: an earlier call may have changed the registry.
        mode = self._tools.execution_mode(slot.input)
        if mode.kind == "exclusive":
            return None if self._open else mode
        return mode if self._running < self._most else None

    async def _start(self, slot: _Slot, mode: ExecutionMode) -> None:
        slot.is_exclusive = mode.kind == "exclusive"
        self._open.append(slot)
        self._journal.started(slot.input)
        staged = slot.staged = await self._tools.prepare(slot.input)
        if staged.result is not None:
            slot.result = staged.result
            return
        slot.ticket = self._resources.enter(mode.resources)
        self._tickets[slot.ticket] = slot
        if slot.ticket.is_ready:
            slot.turn.set()
        self._running += 1
        slot.body = asyncio.create_task(
            self._run_body(slot, staged), name=f"call {slot.input.name} {slot.input.call_id}"
        )

    async def _run_body(self, slot: _Slot, staged: Staged) -> ToolResult:
        assert slot.ticket is not None
        try:
            await slot.turn.wait()
            return await self._tools.dispatch(staged)
        finally:
            self._running -= 1
            del self._tickets[slot.ticket]
            for ready in self._resources.leave(slot.ticket):
                self._tickets[ready].turn.set()
            self._changed.set()

    def _is_ready(self, slot: _Slot) -> bool:
        return slot.result is not None or (slot.body is not None and slot.body.done())

    async def _answer(self, slot: _Slot) -> None:
        """Let the last policies judge a result, and give the program its value."""
        assert slot.staged is not None
        result = slot.result if slot.body is None else slot.body.result()
        assert result is not None
        result = await self._tools.finalize(slot.staged, result)
        self._hand_on(result)
        if result.is_error:
            slot.refuse(NestedCallFailed(result.error.message))
        elif not slot.reply.done():
            slot.reply.set_result(result.value)
        await self._logged(at_most=self._most - 1)
        task = asyncio.create_task(
            self._journal.settled(slot.input, result), name=f"log {slot.input.call_id}"
        )
        self._logging.add(task)
        task.add_done_callback(self._logging.discard)

    def _hand_on(self, result: ToolResult) -> None:
        """Pass on to the call of ``run_code`` what is not for the program."""
        if not result.is_error and any(block["type"] == "image" for block in result.content):
            source = {"kind": "plugin", "plugin": IMAGE_SOURCE, "form": "attachment"}
            self._run.defer_context(create_user_message(list(result.content), source))
        for context in result.additional_contexts:
            self._run.defer_context(context)
        if result.concludes_turn:
            self._run.conclude_turn()

    def _abandon_waiting(self) -> None:
        while self._waiting:
            self._waiting.popleft().refuse(ProgramEnded())

    async def _logged(self, *, at_most: int) -> None:
        """Wait until no more than so many results are still to be logged."""
        while len(self._logging) > at_most:
            await asyncio.wait(self._logging, return_when=asyncio.FIRST_COMPLETED)

    async def _give_up(self) -> None:
        """After a failure of the lane itself: wait for what runs, and answer nobody."""
        bodies = [slot.body for slot in self._open if slot.body is not None]
        if bodies:
            await asyncio.wait(bodies)
        for slot in self._open:
            slot.refuse(ProgramEnded())
        for body in bodies:
            if not body.cancelled():
                body.exception()


async def _through(task: asyncio.Task[None]) -> None:
    """Wait for a task to end, also when the waiting is cancelled, which is raised afterwards."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()
        raise cancelled
    task.result()
