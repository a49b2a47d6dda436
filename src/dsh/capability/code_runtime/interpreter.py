"""One interpreter under supervision: started with nothing, ended with everything it started."""

from __future__ import annotations

import asyncio
import codecs
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsh.capability.code_runtime.confinement import Place
from dsh.capability.code_runtime.ledger import Ledger
from dsh.capability.code_runtime.protocol import Done
from dsh.capability.subprocess.service import (
    ProcessHandle,
    SpawnSpec,
    SubprocessError,
    SubprocessRuntime,
)

if TYPE_CHECKING:
    from dsh.base.signal import AbortSignal

_CHILD = Path(__file__).parent / "child" / "__main__.py"
_LOADER_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""An interpreter may not start without them; it drops them before the program runs."""
_FAREWELL_S = 0.05
"""How long an interpreter that is done may take to end by itself."""
_LAST_WORDS_S = 1.0
"""How long what it said may take to arrive once it is gone."""
_STATUS_OF_SIGNALS = 128
"""What a sandbox runner adds to the number of the signal that ended the command."""


def command(executable: str, fd: int) -> tuple[str, ...]:
    """Return the command line of an interpreter that talks over a descriptor."""
    return (executable, "-I", "-S", "-X", "utf8", str(_CHILD), str(fd))


class Interpreter:
    """A running interpreter, and what it writes past the protocol."""

    def __init__(self, process: ProcessHandle, ledger: Ledger, *, runner: bool) -> None:
        self._process, self._ledger, self._runner = process, ledger, runner
        self._copies = [
            asyncio.create_task(self._copy(stream), name="code run: output")
            for stream in (process.stdout, process.stderr)
            if stream is not None
        ]
        self._gone = asyncio.create_task(process.wait_for_exit(), name="code run: exit")

    async def hear_out(
        self, talk: Coroutine[Any, Any, Done | None], hang_up: Callable[[], object]
    ) -> Done | None:
        """Return what the program said last; ``None`` when its process ended without a word.

        Args:
            talk: Listens to the program.
            hang_up: Tells ``talk`` that nothing comes any more. The link may not say so itself:
                the program can have given its end to a process that is not ours.
        """
        talking = asyncio.create_task(talk, name="code run: talk")
        try:
            await asyncio.wait((talking, self._gone), return_when=asyncio.FIRST_COMPLETED)
            hang_up()
            done = await talking
            # Killed now, a sandbox runner could not tell any more how the interpreter ended.
            patience = _LAST_WORDS_S if done is None else _FAREWELL_S
            await asyncio.wait((self._gone,), timeout=patience)
            return done
        finally:
            await _cancel((talking,))

    async def end(self) -> None:
        """End the interpreter and all it started, and take what it has written."""
        self._process.terminate()
        try:
            await self._gone
            if self._copies:
                await asyncio.wait(self._copies, timeout=_LAST_WORDS_S)
        finally:
            await _cancel((self._gone, *self._copies))

    async def ended_by(self) -> str:
        """Return how the process ended: the name of a signal, or a phrase. Only after `end`."""
        try:
            ended = await self._process.wait()
        except SubprocessError as error:
            return error.message
        if ended.signal is not None:
            return ended.signal
        code = ended.exit_code or 0
        if self._runner and code > _STATUS_OF_SIGNALS:
            try:
                return signal.Signals(code - _STATUS_OF_SIGNALS).name
            except ValueError:
                pass
        return f"exit code {code}"

    async def _copy(self, stream: asyncio.StreamReader) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        held: list[str] = []
        length = 0
        while data := await stream.read(1 << 16):
            whole, newline, rest = decoder.decode(data).rpartition("\n")
            if newline:
                self._keep("".join([*held, whole]))
                held, length = [], 0
            held.append(rest)
            length += len(rest)
            if length > self._ledger.left:
                # Nothing that may still come makes this line fit.
                self._keep("".join(held))
                held, length = [], 0
        if last := "".join([*held, decoder.decode(b"", final=True)]):
            self._ledger.add(last)

    def _keep(self, text: str) -> None:
        if not self._ledger.add(text):
            self._process.terminate()


@asynccontextmanager
async def start(
    runtime: SubprocessRuntime,
    place: Place,
    theirs: socket.socket,
    ledger: Ledger,
    abort: AbortSignal,
) -> AsyncIterator[Interpreter]:
    """Start an interpreter; when left, it and all it started are gone.

    Args:
        runtime: Starts it.
        place: How.
        theirs: Its end of the link, under the number that its command line names; closed here.
        ledger: Takes what it writes to its standard streams.
        abort: Ends it.

    Raises:
        AbortedError: ``abort`` is aborted already.
        SubprocessError: it cannot be started.
    """
    kept = {name: os.environ[name] for name in _LOADER_VARIABLES if name in os.environ}
    with closing(theirs):
        process = runtime.spawn(
            SpawnSpec(
                argv=place.argv,
                cwd=place.folder,
                grace_s=0.0,
                signal=abort,
                env={**dict.fromkeys(runtime.environment()), **kept},
                pass_fds=(theirs.fileno(),),
                grants=place.grants,
                runner=place.runner,
            )
        )
        try:
            await process.started()
        except BaseException:
            process.terminate()
            await process.wait_for_exit()
            raise
    interpreter = Interpreter(process, ledger, runner=place.runner)
    try:
        yield interpreter
    finally:
        await interpreter.end()


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for them; what they raise has been seen or does not matter."""
    waiting: list[Awaitable[Any]] = []
    for task in tasks:
        task.cancel()
        waiting.append(task)
    await asyncio.gather(*waiting, return_exceptions=True)
