"""Confinement on this machine, by the first backend that is seen to work."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dsh.base.errors import DshError, message_of
from dsh.base.signal import deadline
from dsh.capability.sandbox.backends import Backend, Bubblewrap, Landlock, OperatorRunner
from dsh.capability.sandbox.service import (
    Confinement,
    ResolvedPolicy,
    SandboxProvider,
    SandboxUnavailable,
)
from dsh.capability.subprocess.service import Collect, SpawnSpec, SubprocessRuntime

if TYPE_CHECKING:
    from dsh.kernel import Context

_PROBE = 'true > /dev/null && ! (: > "$0") 2> /dev/null'
"""Succeeds when /dev/null can be written and the file named by the argument cannot."""


class SandboxConfig(BaseModel):
    """Which backends to try, or what to run instead of them."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    backends: tuple[Literal["bwrap", "landlock"], ...] = ("bwrap", "landlock")
    """Tried in this order; the first one that works is used from then on."""
    runner_command: tuple[str, ...] = Field(default=(), alias="runnerCommand")
    """A runner that takes bubblewrap's arguments; it replaces the backends."""
    runner_failure_signatures: tuple[str, ...] = Field(default=(), alias="runnerFailureSignatures")
    """Words on stderr that mean that the runner failed, not the command."""
    probe_timeout_ms: int = Field(default=5000, gt=0, alias="probeTimeoutMs")

    @model_validator(mode="after")
    def _runner_is_whole(self) -> Self:
        signatures = [text for text in self.runner_failure_signatures if text.strip()]
        if bool(self.runner_command) != bool(signatures):
            raise ValueError("runnerCommand and runnerFailureSignatures go together")
        return self


class LocalSandbox(SandboxProvider):
    """Tries the backends once, on the first command, and keeps to the verdict."""

    inject = (SubprocessRuntime,)
    Config = SandboxConfig

    def __init__(self, ctx: Context, config: SandboxConfig | None = None) -> None:
        super().__init__(ctx, config)
        self._config = config or SandboxConfig()
        self._choosing = asyncio.Lock()
        self._verdict: Backend | SandboxUnavailable | None = None

    async def confine(self, argv: Sequence[str], policy: ResolvedPolicy) -> Confinement:
        """See `SandboxProvider`."""
        if policy.mode == "danger-full-access":
            raise ValueError("danger-full-access confines nothing; run the command as it is")
        if self._verdict is None:
            async with self._choosing:
                if self._verdict is None:
                    self._verdict = await self._choose()
        if isinstance(self._verdict, SandboxUnavailable):
            raise SandboxUnavailable(self._verdict.message)
        return self._verdict.confine(argv, policy)

    async def _choose(self) -> Backend | SandboxUnavailable:
        config = self._config
        if config.runner_command:
            return OperatorRunner(config.runner_command, config.runner_failure_signatures)
        if sys.platform != "linux":
            return unavailable({f"{sys.platform}": "is not supported by the sandbox yet"})
        problems: dict[str, str] = {}
        for name in config.backends:
            backend, problem = await self._try(name)
            if problem is None:
                return backend
            problems[name] = problem
        return unavailable(problems)

    async def survey(self) -> dict[str, str | None]:
        """Try every configured backend, in order; say what is wrong with each, None where it works.

        The first that works is the one that is used. Empty when an operator's runner takes their
        place, or on a system without any.
        """
        if self._config.runner_command or sys.platform != "linux":
            return {}
        return {name: (await self._try(name))[1] for name in self._config.backends}

    async def _try(self, name: str) -> tuple[Backend, str | None]:
        """Return a backend and what is wrong with it, if anything is."""
        backend: Backend = Bubblewrap() if name == "bwrap" else Landlock()
        try:
            await backend.prepare(self.ctx.require(SubprocessRuntime))
            await self._probe(backend)
        except DshError as error:
            return backend, message_of(error)
        return backend, None

    async def _probe(self, backend: Backend) -> None:
        """Run a trivial command in ``read-only`` and see whether it is confined.

        Raises:
            SubprocessError: it could not be started.
            SandboxUnavailable: it did not do what it must.
        """
        target = _new_file_name()
        policy = ResolvedPolicy("read-only", target.parent, None, target.parent)
        confined = backend.confine(("/bin/sh", "-c", _PROBE, str(target)), policy)
        try:
            with deadline(None, self._config.probe_timeout_ms / 1000) as limit:
                process = self.ctx.require(SubprocessRuntime).spawn(
                    SpawnSpec(
                        argv=confined.argv,
                        cwd="/",
                        grace_s=1.0,
                        signal=limit.signal,
                        stdout="ignore",
                        stderr=Collect(max_bytes=1000),
                        grants=confined.grants,
                        runner=confined.runner is not None,
                        env=confined.runner_env,
                    )
                )
                ended = await process.wait()
                await process.wait_for_exit()
        finally:
            escaped = _remove(target)
        assert process.collected_stderr is not None
        words = process.collected_stderr.text().strip()
        if limit.expired:
            raise SandboxUnavailable("its trial run did not end in time")
        if escaped:
            raise SandboxUnavailable("its trial run wrote a file that it must not write")
        if ended.exit_code != 0:
            raise SandboxUnavailable(f"its trial run failed: {words or ended}")


plugin = LocalSandbox


def unavailable(problems: dict[str, str]) -> SandboxUnavailable:
    """Return the error that names each backend's problem and the ways out."""
    found = "; ".join(f"{name}: {problem}" for name, problem in problems.items())
    return SandboxUnavailable(
        f"no sandbox works on this machine ({found}), so nothing was run. install bubblewrap, or "
        "use a Linux kernel from 5.13 on with Landlock, or choose to run without confinement by "
        "DSH_PERMISSION_MODE=danger-full-access"
    )


def _new_file_name() -> Path:
    return Path(os.path.realpath(tempfile.gettempdir())) / f"dsh-probe-{uuid4().hex}"


def _remove(file: Path) -> bool:
    """Delete a file that should not be there; say whether it was."""
    try:
        os.unlink(file)
    except FileNotFoundError:
        return False
    return True
