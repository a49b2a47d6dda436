"""Programs on this machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict

from dsh.base.names import camel
from dsh.capability.subprocess.environment import Scrubber
from dsh.capability.subprocess.forkserver import ForkServer
from dsh.capability.subprocess.process import LocalProcess
from dsh.capability.subprocess.service import (
    ExecutableNotFound,
    ProcessHandle,
    SpawnSpec,
    SubprocessError,
    SubprocessRuntime,
)
from dsh.capability.subprocess.supervisor.wire import MAX_PASS_FDS

if TYPE_CHECKING:
    from dsh.base.signal import AbortSignal
    from dsh.kernel import Context, Effect


class SubprocessConfig(BaseModel):
    """What programs get to see of dsh's environment."""

    model_config = ConfigDict(extra="forbid", alias_generator=camel, populate_by_name=True)

    scrub: tuple[str, ...] = ()
    """More patterns of variable names that hold secrets; regular expressions, in any case."""
    keep: tuple[str, ...] = ()
    """Exact names of variables to hand on although they look like secrets."""


class LocalSubprocess(SubprocessRuntime):
    """Starts programs through one fork server and ends every one of them when it unloads."""

    Config = SubprocessConfig

    def __init__(self, ctx: Context, config: SubprocessConfig | None = None) -> None:
        super().__init__(ctx, config)
        config = config or SubprocessConfig()
        self._scrubber = Scrubber(config.scrub, config.keep)
        self._forks = ForkServer()
        self._live: set[LocalProcess] = set()
        self._closed = False

    def start(self) -> Callable[[], Awaitable[None]]:
        """Nothing runs yet; the undo ends everything that was started."""
        return self._close

    def environment(self, extra: Mapping[str, str | None] | None = None) -> dict[str, str]:
        """See `SubprocessRuntime`."""
        return self._scrubber.environment(os.environ, extra)

    def grants_enforcement(self) -> Literal["full", "partial"] | None:
        """See `SubprocessRuntime`."""
        from dsh.capability.subprocess.supervisor import landlock

        abi = landlock.abi_version()
        if abi == 0:
            return None
        return "full" if abi >= landlock.FULL_ABI else "partial"

    async def resolve_executable(
        self,
        command: str,
        *,
        env: Mapping[str, str | None] | None = None,
        signal: AbortSignal | None = None,
    ) -> str:
        """See `SubprocessRuntime`."""
        if signal is not None:
            signal.throw_if_aborted()
        if os.path.isabs(command):
            if not _is_executable(command):
                raise ExecutableNotFound(command, searched="exists")
            return command
        if os.sep in command or not command:
            raise ExecutableNotFound(command, searched="is looked up: give a name or a whole path")
        found = _look_up(command, self.environment(env).get("PATH", os.defpath))
        if found is None:
            raise ExecutableNotFound(command, searched="is on PATH")
        return found

    def spawn(self, spec: SpawnSpec) -> ProcessHandle:
        """See `SubprocessRuntime`."""
        if spec.signal is not None:
            spec.signal.throw_if_aborted()
        if self._closed:
            raise SubprocessError("the subprocess runtime has been unloaded")
        _check(spec.argv, spec.pass_fds)
        process = LocalProcess(spec, self.environment(spec.env), self._forks)
        self._live.add(process)
        ending = self.caller.defer(partial(self._end, process), f"subprocess.spawn({spec.argv[0]})")
        process.when_left(partial(self._forget, process, ending))
        return process

    def _end(self, process: LocalProcess) -> Awaitable[None] | None:
        """Undo of a spawn; nothing to wait for when the process has ended already."""
        if process not in self._live:
            return None
        process.terminate()
        return _join(process)

    def _forget(self, process: LocalProcess, ending: Effect) -> None:
        self._live.discard(process)
        ending.dispose()

    async def _close(self) -> None:
        self._closed = True
        live = tuple(self._live)
        for process in live:
            process.terminate()
        results = await asyncio.gather(*map(_join, live), return_exceptions=True)
        await self._forks.close()
        if failures := [result for result in results if isinstance(result, Exception)]:
            raise ExceptionGroup("programs outlive the subprocess runtime", failures)


plugin = LocalSubprocess


async def _join(process: LocalProcess) -> None:
    """Wait for a process that was asked to end, but not for ever.

    Raises:
        SubprocessError: it could not be ended.
    """
    try:
        gone = await process.wait_for_exit()
    finally:
        process.close_output()
        process.abandon()
        await process.join()
    if not gone and process.pid > 0:
        raise SubprocessError(f"process {process.pid} cannot be killed, or nobody can tell")


def _check(argv: Sequence[str], pass_fds: Sequence[int]) -> None:
    if not argv or not argv[0]:
        raise SubprocessError("a program needs a name: argv is empty")
    if any("\0" in argument for argument in argv):
        raise SubprocessError(f"an argument of {argv[0]!r} contains a NUL character")
    if len(set(pass_fds)) != len(pass_fds) or any(fd < 3 for fd in pass_fds):
        raise SubprocessError("pass_fds must be different descriptors from 3 on")
    if len(pass_fds) > MAX_PASS_FDS:
        raise SubprocessError(f"pass_fds holds {len(pass_fds)} descriptors, {MAX_PASS_FDS} can go")


def _look_up(name: str, folders: str) -> str | None:
    # A relative folder would be one of the workspace, where anybody may have put the program.
    paths = (
        os.path.join(folder, name) for folder in folders.split(os.pathsep) if os.path.isabs(folder)
    )
    return next(filter(_is_executable, paths), None)


def _is_executable(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)
