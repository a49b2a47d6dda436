"""Runs of one runtime: each in an interpreter of its own, within its budget."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Self

from dsh.base.errors import DshError, message_of
from dsh.base.signal import AbortController, AbortedError, AbortSignal, Deadline, deadline
from dsh.capability.code_runtime.bindings import check_bindings, functions_of
from dsh.capability.code_runtime.confinement import place_for, private_folder
from dsh.capability.code_runtime.conversation import Conversation
from dsh.capability.code_runtime.interpreter import Interpreter, command, start
from dsh.capability.code_runtime.ledger import Ledger
from dsh.capability.code_runtime.link import Link
from dsh.capability.code_runtime.protocol import Done, Unfit, boot_frame
from dsh.capability.code_runtime.service import BindingNamespace, CodeError, CodeResult, CodeRun
from dsh.capability.subprocess.service import SubprocessRuntime

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from dsh.base.json import JsonValue
    from dsh.capability.code_runtime.config import CodeRuntimeConfig
    from dsh.kernel import Context, Effect

_FRAME_BYTES = 4096
"""Room in a frame beside the value, text or arguments that it carries."""
_LEAST_UNSENT = 64 << 20
_OUT_OF_TIME = frozenset({"SIGPROF", "SIGXCPU"})


async def run(ctx: Context, request: CodeRun, budget: CodeRuntimeConfig) -> CodeResult:
    """Run a program; see `CodeRuntime.run`.

    Args:
        ctx: The runtime's own context; unloading it ends the run.
        request: The program.
        budget: What it may use up.
    """
    spaces = check_bindings(request.bindings)
    if request.signal is not None and request.signal.aborted:
        return CodeResult(error=_aborted(request.signal.reason))
    with _Unloading(ctx) as unloading:
        callers = (request.signal,) if request.signal is not None else ()
        fused, unlink = AbortSignal.any_of(*callers, unloading.signal)
        try:
            with deadline(fused, budget.max_wall_s) as limit:
                return await _Run(ctx, request, spaces, budget, limit, unloading).result()
        finally:
            unlink()


class _Run:
    """One program from its folder to its result."""

    def __init__(
        self,
        ctx: Context,
        request: CodeRun,
        spaces: tuple[BindingNamespace, ...],
        budget: CodeRuntimeConfig,
        limit: Deadline,
        unloading: _Unloading,
    ) -> None:
        self._ctx, self._request, self._spaces = ctx, request, spaces
        self._budget, self._limit, self._unloading = budget, limit, unloading
        self._ledger = Ledger(budget.max_output_bytes)

    async def result(self) -> CodeResult:
        """Run the program and say what came of it."""
        value: JsonValue = None
        try:
            async with private_folder(self._ctx, self._request.session) as folder:
                value, error = await self._outcome(folder)
        except (DshError, OSError) as failed:
            if self._limit.signal.aborted:
                error = self._stopped()
            elif isinstance(failed, AbortedError):
                # The unload has ended its process and comes to the run itself only now.
                error = _aborted(failed)
            else:
                problem = f"the program was not run: {message_of(failed)}"
                error = CodeError("worker-exit", problem)
        return self._ledger.close(value, error)

    async def _outcome(self, folder: str) -> tuple[JsonValue, CodeError | None]:
        ours, theirs = socket.socketpair()
        with closing(ours), closing(theirs):
            argv = command(sys.executable, theirs.fileno())
            place = await place_for(self._ctx, argv, folder, self._request.session)
            runtime = self._ctx.require(SubprocessRuntime)
            abort = self._limit.signal
            async with start(runtime, place, theirs, self._ledger, abort) as interpreter:
                self._unloading.watch()
                link = self._link(ours)
                done = await interpreter.hear_out(self._talk(link), link.hang_up)
        if done is None:
            return None, await self._cause(interpreter)
        if isinstance(done.value, Unfit):
            return None, CodeError("invalid-output", "the program returned no lossless JSON")
        return done.value, done.error

    def _link(self, ours: socket.socket) -> Link:
        most = self._budget.max_output_bytes
        return Link(ours, max_line=most + _FRAME_BYTES, max_unsent=max(_LEAST_UNSENT, most))

    async def _talk(self, link: Link) -> Done | None:
        budget = self._budget
        boot = boot_frame(
            self._spaces,
            cpu_s=budget.compute_s,
            memory_bytes=budget.memory_bytes,
            max_output_bytes=budget.max_output_bytes,
        )
        talk = Conversation(link, functions_of(self._spaces), self._ledger, self._limit.signal)
        return await talk.hold(boot, self._request.program)

    async def _cause(self, interpreter: Interpreter) -> CodeError:
        """Say why a program ended without an outcome of its own."""
        if self._limit.signal.aborted:
            return self._stopped()
        ended = await interpreter.ended_by()
        if ended in _OUT_OF_TIME:
            spent = f"the program used up its {self._budget.compute_s:g} s of processor time"
            return CodeError("timeout", spent)
        return CodeError("worker-exit", f"the program's process ended before it was done: {ended}")

    def _stopped(self) -> CodeError:
        if self._limit.expired:
            return CodeError("timeout", f"the program did not end in {self._budget.max_wall_s:g} s")
        return _aborted(self._limit.signal.reason)


class _Unloading:
    """Ends a run when the runtime unloads, and makes the unload wait for that."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._controller = AbortController()
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._effects: list[Effect] = []

    @property
    def signal(self) -> AbortSignal:
        """Aborts when the runtime unloads."""
        return self._controller.signal

    def watch(self) -> None:
        """Be told before everything that the context has come to own by now is undone.

        A process that was started meanwhile would end first, and the run would seem to crash.
        """
        self._effects.append(self._ctx.defer(self._end, "code run"))

    def __enter__(self) -> Self:
        self.watch()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set_result(None)
        for effect in self._effects:
            effect.forget()

    def _end(self) -> Awaitable[object]:
        self._controller.abort("the code runtime was unloaded")
        return asyncio.wait((self._over,))


def _aborted(reason: object) -> CodeError:
    # The cause of a cancelled turn is data of the log, and no sentence.
    says_nothing = reason is None or isinstance(reason, Mapping)
    detail = "" if says_nothing else f": {message_of(reason)}"
    return CodeError("abort", f"the program was aborted{detail}")
