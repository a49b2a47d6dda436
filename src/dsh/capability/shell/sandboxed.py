"""bash, confined by the policy of each call."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from dsh.base.signal import deadline
from dsh.capability.sandbox.service import (
    Confinement,
    SandboxMode,
    SandboxPolicy,
    SandboxProvider,
    SandboxUnavailable,
)
from dsh.capability.shell.background import BackgroundCommand
from dsh.capability.shell.classify import is_denial, runner_failure
from dsh.capability.shell.service import (
    SandboxOutcome,
    ShellExecutor,
    ShellProcess,
    ShellRequest,
    ShellRunResult,
    ShellSpec,
    StreamText,
)
from dsh.capability.subprocess.service import (
    Collect,
    CollectedOutput,
    ProcessExit,
    ProcessHandle,
    SpawnFailed,
    SpawnSpec,
    Spill,
    SubprocessRuntime,
)
from dsh.state.settings.service import LiveSection

if TYPE_CHECKING:
    from dsh.base.text import Keep
    from dsh.kernel import Context

_QUIET = {"NO_COLOR": "1", "TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat"}
_GAP = "\n[... {omitted} bytes left out ...]\n"
_MAX_TIMER_MS = 2147483647
_NAMESPACE = "shell"


class ShellConfig(BaseModel):
    """Limits of one command."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    cwd: Path | None = None
    """Where commands run that neither name a directory nor belong to a session."""
    timeout_ms: int = Field(default=120_000, gt=0, le=_MAX_TIMER_MS, alias="timeoutMs")
    max_timeout_ms: int = Field(default=600_000, gt=0, le=_MAX_TIMER_MS, alias="maxTimeoutMs")
    """Longer timeouts are cut down to this."""
    max_output_bytes: int = Field(default=64_000, gt=0, alias="maxOutputBytes")
    """Kept of each stream for the model: the first and the last half."""
    max_spill_bytes: int = Field(default=64 << 20, gt=0, alias="maxSpillBytes")
    """A longer stream is not saved at all."""
    grace_ms: int = Field(default=1000, ge=0, le=_MAX_TIMER_MS, alias="graceMs")
    """From SIGTERM to SIGKILL. Less than the ``graceMs`` of the row ``tools``, so that a cancelled
    command has ended before its call is given up."""


class ShellSettings(BaseModel):
    """The limits of commands that a user may set."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, frozen=True)

    timeout_ms: int = Field(default=120_000, gt=0, le=_MAX_TIMER_MS, alias="timeoutMs")
    """How long a command may run that asks for no time of its own."""
    max_output_bytes: int = Field(default=64_000, gt=0, alias="maxOutputBytes")
    """Kept of each stream for the model."""


class SandboxedShell(ShellExecutor):
    """Runs ``bash -c`` through the sandbox that the policy of the call asks for."""

    inject = (SubprocessRuntime, SandboxProvider, SandboxPolicy)
    Config = ShellConfig

    def __init__(self, ctx: Context, config: ShellConfig | None = None) -> None:
        super().__init__(ctx, config)
        self._config = config or ShellConfig()
        row = self._config
        limits = {"timeoutMs": row.timeout_ms, "maxOutputBytes": row.max_output_bytes}
        self._limits = LiveSection(ctx, _NAMESPACE, ShellSettings, row=limits)

    @property
    def sandbox_mode(self) -> SandboxMode | None:
        """See `ShellExecutor`."""
        return self.ctx.require(SandboxPolicy).default_mode

    @property
    def timeouts(self) -> tuple[float, float]:
        """See `ShellExecutor`."""
        return self._limits.get().timeout_ms / 1000, self._config.max_timeout_ms / 1000

    def resolve(self, request: ShellRequest) -> ShellSpec:
        """See `ShellExecutor`."""
        config, (default_s, most_s) = self._config, self.timeouts
        policy = request.policy or self.ctx.require(SandboxPolicy).resolve()
        base = config.cwd if config.cwd and policy.session_id is None else policy.workspace_root
        return ShellSpec(
            command=request.command,
            workdir=os.path.join(base, request.workdir or ""),
            timeout_s=min(default_s if request.timeout_s is None else request.timeout_s, most_s),
            max_output_bytes=request.max_output_bytes or self._limits.get().max_output_bytes,
            signal=request.signal,
            stdin=request.stdin,
            env={**_QUIET, "TMPDIR": str(policy.temp_dir), **request.env, **request.dsh_env},
            policy=policy,
        )

    async def run(self, spec: ShellSpec) -> ShellRunResult:
        """See `ShellExecutor`."""
        confinement = await self._confine(spec)
        process = self._spawn(spec, confinement, keep="head_tail")
        try:
            ended, limit = await _follow(process, spec, confinement)
        except BaseException:
            process.terminate()
            raise
        finally:
            await process.wait_for_exit()
        stderr = _stream(process.collected_stderr)
        return ShellRunResult(
            exit_code=ended.exit_code,
            signal=ended.signal,
            timed_out=limit == "timeout",
            aborted=limit == "abort",
            timeout_s=spec.timeout_s,
            stdout=_stream(process.collected_stdout),
            stderr=stderr,
            sandbox=_outcome(spec, confinement, ended, stderr.text),
        )

    async def launch(self, spec: ShellSpec) -> ShellProcess:
        """See `ShellExecutor`."""
        confinement = await self._confine(spec)
        process = self._spawn(spec, confinement, keep="tail")
        return BackgroundCommand(process, confinement, spec.policy.mode)

    async def _confine(self, spec: ShellSpec) -> Confinement | None:
        if spec.signal is not None:
            spec.signal.throw_if_aborted()
        if spec.policy.mode == "danger-full-access":
            return None
        argv = ("bash", "-c", spec.command)
        return await self.ctx.require(SandboxProvider).confine(argv, spec.policy)

    def _spawn(
        self, spec: ShellSpec, confinement: Confinement | None, *, keep: Keep
    ) -> ProcessHandle:
        stdin = spec.stdin.encode() if isinstance(spec.stdin, str) else spec.stdin
        collect = Collect(
            max_bytes=spec.max_output_bytes,
            keep=keep,
            spill=Spill(max_bytes=self._config.max_spill_bytes, folder=spec.policy.temp_dir),
        )
        return self.caller.require(SubprocessRuntime).spawn(
            SpawnSpec(
                argv=confinement.argv if confinement else ("bash", "-c", spec.command),
                cwd=spec.workdir,
                grace_s=self._config.grace_ms / 1000,
                signal=spec.signal,
                env={**spec.env, **(confinement.runner_env if confinement else {})},
                stdin="ignore" if stdin is None else stdin,
                stdout=collect,
                stderr=collect,
                grants=confinement.grants if confinement else None,
                runner=confinement is not None and confinement.runner is not None,
            )
        )


plugin = SandboxedShell


async def _follow(
    process: ProcessHandle, spec: ShellSpec, confinement: Confinement | None
) -> tuple[ProcessExit, Literal["timeout", "abort"] | None]:
    """Wait for the command, and say what ended it if it did not end by itself.

    Its time counts from when it runs: putting the sandbox in place is not the command's doing.

    Raises:
        SandboxUnavailable: the sandbox could not be put in place.
        SpawnFailed: the shell could not be started for another reason.
        AbortedError: the signal was aborted before it ran.
    """
    try:
        await process.started()
    except SpawnFailed as error:
        if confinement is not None and _is_sandbox_failure(error, confinement):
            raise SandboxUnavailable(f"the sandbox failed: {error.message}") from error
        raise
    with deadline(spec.signal, spec.timeout_s) as limit:
        remove = limit.signal.add_listener(process.terminate, now=True)
        ended = await process.wait()
        remove()
        cause: Literal["timeout", "abort"] | None = None
        if limit.signal.aborted:
            cause = "timeout" if limit.expired else "abort"
    if cause is not None and confinement is not None and confinement.runner is not None:
        ended = _without_runner(ended)
    return ended, cause


def _is_sandbox_failure(error: SpawnFailed, confinement: Confinement) -> bool:
    return error.stage == "confine" or (error.stage == "exec" and error.path == confinement.runner)


def _without_runner(ended: ProcessExit) -> ProcessExit:
    """Return how the command ended where a runner told it by a shell's convention of 128 + n."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if ended.exit_code == 128 + number:
            return ProcessExit(None, number.name)
    return ended


def _outcome(
    spec: ShellSpec, confinement: Confinement | None, ended: ProcessExit, stderr: str
) -> SandboxOutcome:
    """Say what the sandbox had to do with the result.

    Raises:
        SandboxUnavailable: the runner failed, so that the command never ran.
    """
    if confinement is None:
        return SandboxOutcome(spec.policy.mode, denied=False)
    if (line := runner_failure(confinement, ended, stderr)) is not None:
        raise SandboxUnavailable(f"the sandbox failed, so the command was not run: {line}")
    return SandboxOutcome(
        spec.policy.mode, is_denial(confinement, ended, stderr), confinement.enforcement
    )


def _stream(collected: CollectedOutput | None) -> StreamText:
    assert collected is not None
    text = collected.text(gap=_GAP.format(omitted=collected.omitted_bytes))
    truncated = collected.omitted_bytes > 0
    return StreamText(text, truncated, collected.spill_path if truncated else None)
