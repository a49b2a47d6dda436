"""A command that runs while its caller does something else."""

from __future__ import annotations

import asyncio
from typing import Literal

from dsh.base.errors import DshError, message_of
from dsh.capability.sandbox.service import Confinement, SandboxMode
from dsh.capability.shell.classify import is_denial, runner_failure
from dsh.capability.shell.service import SandboxOutcome, ShellDelta, ShellProcess
from dsh.capability.subprocess.service import ProcessExit, ProcessHandle


class BackgroundCommand(ShellProcess):
    """Follows one process; the process itself belongs to whoever started it."""

    def __init__(
        self, process: ProcessHandle, confinement: Confinement | None, mode: SandboxMode
    ) -> None:
        self.status: Literal["running", "completed", "killed"] = "running"
        self.exit_code: int | None = None
        self.signal: str | None = None
        self.sandbox: SandboxOutcome | None = None
        self._process, self._confinement, self._mode = process, confinement, mode
        self._offsets = [0, 0]
        self._note = ""
        self._asked_to_end = False
        self._watch = asyncio.create_task(self._follow(), name="shell:background")

    async def wait(self) -> None:
        """See `ShellProcess`."""
        await asyncio.shield(self._watch)

    def kill(self) -> None:
        """See `ShellProcess`."""
        self._asked_to_end = True
        self._process.terminate()

    def read_output(self) -> ShellDelta:
        """See `ShellProcess`."""
        out, err = self._process.collected_stdout, self._process.collected_stderr
        assert out is not None
        assert err is not None
        first, second = out.read_from(self._offsets[0]), err.read_from(self._offsets[1])
        self._offsets = [first.next_offset, second.next_offset]
        note, self._note = self._note, ""
        return ShellDelta(
            delta=_lines(first.text, f"[stderr]\n{second.text}" if second.text else "", note),
            lossy=first.lossy or second.lossy,
            stdout_spill_path=first.spill_path,
            stderr_spill_path=second.spill_path,
        )

    async def _follow(self) -> None:
        try:
            ended = await self._process.wait()
        except DshError as error:
            self._note = f"[the command could not be run: {message_of(error)}]"
            self.status = "killed"
        else:
            self.exit_code, self.signal = ended.exit_code, ended.signal
            self.status = "killed" if self._asked_to_end or ended.signal else "completed"
        await self._process.wait_for_exit()
        self.sandbox = self._classify()

    def _classify(self) -> SandboxOutcome:
        confinement, stderr = self._confinement, self._process.collected_stderr
        assert stderr is not None
        if confinement is None or self.status != "completed":
            enforcement = confinement.enforcement if confinement else None
            return SandboxOutcome(self._mode, False, enforcement, runner_failed=bool(self._note))
        ended, words = ProcessExit(self.exit_code, self.signal), stderr.text()
        failed = runner_failure(confinement, ended, words) is not None
        denied = not failed and is_denial(confinement, ended, words)
        return SandboxOutcome(self._mode, denied, confinement.enforcement, runner_failed=failed)


def _lines(*parts: str) -> str:
    """Join parts so that each starts on a line of its own."""
    joined = ""
    for part in parts:
        joined += "\n" + part if joined and part and not joined.endswith("\n") else part
    return joined
