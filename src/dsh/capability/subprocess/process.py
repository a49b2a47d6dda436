"""One program under supervision, as its caller sees it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from dsh.base.errors import message_of
from dsh.base.signal import AbortedError, AbortSignal
from dsh.capability.subprocess.collect import OutputWindow
from dsh.capability.subprocess.forkserver import ForkServer
from dsh.capability.subprocess.service import (
    Collect,
    OutputMode,
    ProcessExit,
    ProcessHandle,
    SpawnFailed,
    SpawnSpec,
    SubprocessError,
)
from dsh.capability.subprocess.streams import Intake, open_writer, pour, pump
from dsh.capability.subprocess.supervisor.wire import TERMINATE, Request, encode_request

_FIRST_BYTES = 32768
BEYOND_GRACE_S = 5.0
"""How long after the first SIGKILL a tree may take to vanish before it is given up."""


class LocalProcess(ProcessHandle):
    """Drives one supervisor. All of its tasks have ended when `join` returns."""

    def __init__(
        self,
        spec: SpawnSpec,
        env: dict[str, str],
        forks: ForkServer,
    ) -> None:
        self.pid = -1
        self.stdin = self.stdout = self.stderr = None
        self._windows = (
            _window(spec.stdout, "stdout"),
            _window(spec.stderr, "stderr"),
        )
        self.collected_stdout, self.collected_stderr = self._windows
        self._spec, self._env, self._forks = spec, env, forks
        loop = asyncio.get_running_loop()
        self._started: asyncio.Future[int] = loop.create_future()
        self._ended: asyncio.Future[ProcessExit] = loop.create_future()
        self._left = asyncio.Event()
        self._exit: ProcessExit | None = None
        self._tree_is_gone = False
        self._asked_to_end = False
        self._patience: asyncio.TimerHandle | None = None
        self._link: socket.socket | None = None
        self._moving: list[asyncio.Task[None]] = []
        self._intakes: list[Intake] = []
        self._main = asyncio.create_task(self._run(), name=f"subprocess:{spec.argv[0]}")

    async def started(self) -> int:
        """See `ProcessHandle`."""
        return await asyncio.shield(self._started)

    async def wait(self) -> ProcessExit:
        """See `ProcessHandle`."""
        return await asyncio.shield(self._ended)

    def terminate(self) -> None:
        """See `ProcessHandle`."""
        self._asked_to_end = True
        if self._patience is None and not self._left.is_set():
            self._patience = asyncio.get_running_loop().call_later(
                self._spec.grace_s + BEYOND_GRACE_S, self._give_up
            )
        if self._link is not None:
            with suppress(OSError):
                self._link.send(TERMINATE)

    async def wait_for_exit(self, signal: AbortSignal | None = None) -> bool:
        """See `ProcessHandle`."""
        if signal is None:
            await self._left.wait()
        else:
            with suppress(AbortedError):
                await signal.run(self._left.wait())
        return self._tree_is_gone

    @property
    def grace_s(self) -> float:
        """From SIGTERM to SIGKILL."""
        return self._spec.grace_s

    def when_left(self, callback: Callable[[], object]) -> None:
        """Call back once when the tree is gone, or nobody can tell any more."""
        self._main.add_done_callback(lambda _: callback())

    def close_output(self) -> None:
        """Drop what nobody has read from piped streams."""
        for intake in self._intakes:
            intake.close()

    async def join(self) -> None:
        """Wait until every task of this handle has ended; never raises for the program.

        That is when the tree is gone and piped output has been read to its end, or dropped.
        """
        await asyncio.wait([self._main])

    def abandon(self) -> None:
        """Give up waiting; the closing link tells the supervisor to end the tree regardless."""
        self._main.cancel()

    def _give_up(self) -> None:
        """Let go of those who wait for a process that SIGKILL does not end; keep listening."""
        self._settle(SubprocessError(f"process {self.pid} was killed and does not end"))
        self._left.set()

    async def _run(self) -> None:
        signal = self._spec.signal
        remove = signal.add_listener(self.terminate, now=True) if signal is not None else None
        try:
            await self._launch()
            await self._listen()
        except (SubprocessError, AbortedError) as error:
            self._settle(error)
        except OSError as error:
            self._settle(self._failed("supervisor", error.errno or 0, error.strerror or str(error)))
        except Exception as error:
            self._settle(SubprocessError(f"supervision failed: {message_of(error)}"))
            raise
        finally:
            if remove is not None:
                remove()
            if self._patience is not None:
                self._patience.cancel()
            if self._link is None:
                self._tree_is_gone = True  # nothing was started
            else:
                self._link.close()
                self._link = None
            try:
                await self._drain()
            finally:
                self._settle(AbortedError("the runtime gave the process up"))
                self._left.set()
            await self._see_output_taken()

    async def _launch(self) -> None:
        """Send the request; the descriptors of the program are closed here afterwards."""
        theirs: list[int] = []
        try:
            fds = await self._connect_streams(theirs)
            try:
                self._link = await self._send_request(fds)
            except (BrokenPipeError, ConnectionResetError):
                # The fork server died with the link in its hands: nothing can have run yet.
                self._link = await self._send_request(fds)
            if self._asked_to_end:
                self.terminate()
        finally:
            for fd in theirs:
                os.close(fd)

    async def _send_request(self, fds: list[int]) -> socket.socket:
        """Return the link to a supervisor that has been told what to run."""
        link = await self._forks.open_link()
        try:
            self._check_wanted()
            data = encode_request(self._request())
            sent = socket.send_fds(link, [data[:_FIRST_BYTES]], [*fds, *self._spec.pass_fds])
            await asyncio.get_running_loop().sock_sendall(link, data[sent:])
        except BaseException:
            link.close()
            raise
        return link

    def _check_wanted(self) -> None:
        if self._asked_to_end:
            raise AbortedError("the process was ended before it started")

    async def _listen(self) -> None:
        """Hear the supervisor out; returns when it says that the tree is gone."""
        assert self._link is not None
        loop, heard = asyncio.get_running_loop(), b""
        while True:
            try:
                data = await loop.sock_recv(self._link, 4096)
            except ConnectionResetError:
                data = b""
            if not data and self._exit is None:
                raise self._lost()
            if not data:
                return
            *lines, heard = (heard + data).split(b"\n")
            for line in lines:
                if self._hear(json.loads(line)):
                    return

    def _hear(self, message: dict[str, Any]) -> bool:
        match message:
            case {"started": int(pid)}:
                self.pid = pid
                if not self._started.done():
                    self._started.set_result(pid)
            case {"failed": [str(stage), int(number), str(detail)]}:
                self._settle(self._failed(stage, number, detail))
            case {"exited": [code, signal]}:
                self._exit = ProcessExit(code, signal)
                self._move(self._end(self._exit), "drain")
            case {"gone": _}:
                self._tree_is_gone = True
                return True
        return False

    async def _end(self, exit_: ProcessExit) -> None:
        """Publish how the program ended, once its output is in or the grace period is over."""
        pumps = [task for task in self._moving if task is not asyncio.current_task()]
        if pumps:
            _, late = await asyncio.wait(pumps, timeout=self._spec.grace_s)
            await _cancel(late)
        for window in self._windows:
            if window is not None:
                await window.close()
        if not self._ended.done():
            self._ended.set_result(exit_)

    async def _drain(self) -> None:
        """Let the drain finish, which is bounded; without an exit there is nothing to wait for."""
        try:
            if self._moving and self._exit is not None:
                await asyncio.wait(self._moving)
        finally:
            await _cancel(self._moving)
            if self.stdin is not None and not self.stdin.transport.is_closing():
                self.stdin.transport.abort()

    async def _see_output_taken(self) -> None:
        """Wait until the caller has read its pipes to the end; without an exit, close them."""
        try:
            if self._exit is not None:
                for intake in self._intakes:
                    await intake.closed.wait()
        finally:
            self.close_output()

    async def _connect_streams(self, theirs: list[int]) -> list[int]:
        """Return the program's descriptors 0, 1, 2; those to close afterwards go to ``theirs``."""
        spec = self._spec
        if spec.stdin == "ignore":
            stdin = _keep(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), theirs)
        else:
            readable, writable = os.pipe()
            stdin = _keep(readable, theirs)
            os.set_blocking(writable, False)
            if spec.stdin == "pipe":
                self.stdin = await open_writer(writable)
            else:
                self._move(pour(writable, bytes(spec.stdin)), "stdin", closing=writable)
        stdout, self.stdout = await self._connect_output(spec.stdout, 1, theirs)
        stderr, self.stderr = await self._connect_output(spec.stderr, 2, theirs)
        return [stdin, stdout, stderr]

    async def _connect_output(
        self, mode: OutputMode, own: int, theirs: list[int]
    ) -> tuple[int, asyncio.StreamReader | None]:
        if mode == "inherit":
            return own, None
        if mode == "ignore":
            return _keep(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), theirs), None
        readable, writable = os.pipe()
        _keep(writable, theirs)
        os.set_blocking(readable, False)
        if (window := self._windows[own - 1]) is not None:
            what = "stdout" if own == 1 else "stderr"
            self._move(pump(readable, window), what, closing=readable)
            return writable, None
        intake = Intake()
        self._intakes.append(intake)
        return writable, await intake.open(readable)

    def _move(
        self, work: Coroutine[Any, Any, None], what: str, *, closing: int | None = None
    ) -> None:
        """Start a task of this handle; ``closing`` is closed after it, even if it never ran."""
        task = asyncio.create_task(work, name=f"subprocess:{self._spec.argv[0]}:{what}")
        if closing is not None:
            task.add_done_callback(lambda _: os.close(closing))
        self._moving.append(task)

    def _request(self) -> Request:
        spec = self._spec
        return Request(
            argv=list(spec.argv),
            cwd=str(spec.cwd),
            env=self._env,
            fds=[0, 1, 2, *spec.pass_fds],
            grace_s=spec.grace_s,
            read=list(spec.grants.read) if spec.grants else [],
            write=list(spec.grants.write) if spec.grants else None,
            runner=spec.runner,
            keep_descendants=spec.keep_descendants,
        )

    def _failed(self, stage: str, number: int, detail: str) -> SpawnFailed:
        path = str(self._spec.cwd) if stage == "cwd" else self._spec.argv[0]
        return SpawnFailed(stage, path, errno=number, detail=detail)

    def _lost(self) -> SubprocessError:
        if self.pid < 0:
            return self._failed("supervisor", 0, "its supervisor ended before the program ran")
        return SubprocessError(
            f"the supervisor of {self._spec.argv[0]!r} (pid {self.pid}) was killed, "
            "so nobody knows how the command ended"
        )

    def _settle(self, error: Exception) -> None:
        """Fail whoever waits for what cannot happen any more."""
        for future in (self._started, self._ended):
            if not future.done():
                future.set_exception(error)
                future.exception()  # nobody has to be waiting


async def _cancel(tasks: set[asyncio.Task[None]] | list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _keep(fd: int, into: list[int]) -> int:
    into.append(fd)
    return fd


def _window(mode: OutputMode, label: str) -> OutputWindow | None:
    return OutputWindow(mode, label) if isinstance(mode, Collect) else None
