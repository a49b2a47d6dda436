"""One run as a conversation: limits and program out; calls, logs and the outcome in."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, assert_never

from dsh.base.errors import message_of
from dsh.base.json import JsonValue, NotLossless
from dsh.capability.code_runtime.ledger import TOO_LARGE, Ledger
from dsh.capability.code_runtime.link import BrokenRules, Link
from dsh.capability.code_runtime.protocol import (
    BootAck,
    Called,
    Done,
    Frame,
    Logged,
    Unfit,
    failure_frame,
    has_too_many_values,
    marks_in,
    parse_frame,
    run_frame,
    success_frame,
)
from dsh.capability.code_runtime.service import Binding, CodeError

if TYPE_CHECKING:
    from dsh.base.signal import AbortSignal

_LARGE = 1 << 18
_TURN_S = 0.005
"""How long lines are read before others on the loop have their turn."""
MOST_CALLS = 1000
"""Calls of one program that may be under way at once; more of them fail at once."""
MOST_PENDING_BYTES = 256 << 20
"""What the arguments of calls that are under way may take; more than one call only."""
_BYTES_OF_VALUE = 64
"""What a small value takes beside its text."""


class Conversation:
    """Talks to the interpreter of one run. All of its tasks have ended when `hold` returns.

    Args:
        link: Leads to it.
        functions: What its program may call.
        ledger: Keeps what the program prints.
        abort: What the program says afterwards is only the echo of calls that were stopped.
    """

    def __init__(
        self,
        link: Link,
        functions: Mapping[tuple[str, str], Binding],
        ledger: Ledger,
        abort: AbortSignal,
    ) -> None:
        self._link, self._functions, self._ledger = link, functions, ledger
        self._abort = abort
        self._calls: set[asyncio.Task[None]] = set()
        self._pending_bytes = 0
        self._last_id: float | None = None
        self._program: str | None = None
        self._is_running = False
        self._broken: BrokenRules | None = None

    async def hold(self, boot: bytes, program: str) -> Done | None:
        """Run a program; ``None`` when the interpreter fell silent before it was done."""
        self._program = program
        sending = asyncio.create_task(self._link.pump(), name="code run: send")
        loop = asyncio.get_running_loop()
        try:
            self._link.send(boot)
            while (lines := await self._link.lines()) is not None:
                since = loop.time()
                for line in lines:
                    if loop.time() - since > _TURN_S:
                        await asyncio.sleep(0)
                        since = loop.time()
                    frame = await _parsed(line)
                    if self._abort.aborted:
                        return None
                    if (done := self._hear(frame, line)) is not None:
                        return done
            return None
        except BrokenRules as error:
            return Done(error=CodeError("worker-exit", f"the program was ended: {error}"))
        finally:
            await _cancel({sending, *self._calls})

    def _hear(self, frame: Frame | None, line: bytes) -> Done | None:
        if self._broken is not None:
            raise self._broken
        match frame:
            case None:
                return None
            case BootAck():
                if self._program is not None:
                    self._link.send(run_frame(self._program))
                    self._program, self._is_running = None, True
            case _ if not self._is_running:
                return None
            case Called():
                self._take_call(frame, len(line) + _BYTES_OF_VALUE * marks_in(line))
            case Logged():
                if not self._ledger.add(frame.text, truncated=frame.truncated):
                    return Done(error=TOO_LARGE)
            case Done():
                return frame
            case _:
                assert_never(frame)
        return None

    def _take_call(self, call: Called, size: int) -> None:
        # Numbers only grow, so that nothing must be remembered to know a repeated one.
        if self._last_id is not None and call.id <= self._last_id:
            return
        self._last_id = call.id
        function = self._functions.get((call.namespace, call.name))
        if function is None:
            problem = f"there is no function {call.namespace}[{call.name[:200]!r}]"
        elif isinstance(call.args, Unfit):
            problem = "the arguments are not lossless JSON"
        elif len(self._calls) >= MOST_CALLS:
            problem = f"{MOST_CALLS} calls are under way already"
        elif self._calls and self._pending_bytes + size > MOST_PENDING_BYTES:
            problem = "the arguments of the calls that are under way are too much together"
        else:
            work = self._serve(call.id, function, call.args)
            task = asyncio.create_task(work, name=f"code run: {call.name}")
            self._calls.add(task)
            self._pending_bytes += size
            task.add_done_callback(lambda task: self._forget(task, size))
            return
        self._link.send(failure_frame(call.id, problem))

    def _forget(self, task: asyncio.Task[None], size: int) -> None:
        self._calls.discard(task)
        self._pending_bytes -= size

    async def _serve(self, id: float, function: Binding, args: JsonValue) -> None:
        try:
            reply = success_frame(id, await function(args))
        except NotLossless as error:
            reply = failure_frame(id, f"its result cannot be told: {error.message}")
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            reply = failure_frame(id, "it cancelled its own work and returned nothing")
        except Exception as error:
            reply = failure_frame(id, message_of(error))
        try:
            self._link.send(reply)
        except BrokenRules as error:
            self._broken = error


async def _parsed(line: bytes) -> Frame | None:
    """Read a line, beside the loop when that takes long.

    Raises:
        BrokenRules: it holds too many values.
    """
    if len(line) < _LARGE:
        return parse_frame(line)
    if await asyncio.to_thread(has_too_many_values, line):
        raise BrokenRules("it sent a message of too many values")
    return await asyncio.to_thread(parse_frame, line)


def _is_cancelled() -> bool:
    """Whether somebody cancels the current task, rather than what it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
