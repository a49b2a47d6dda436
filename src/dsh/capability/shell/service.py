"""The shell seam: run one command line and say what came of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dsh.base.values import value
from dsh.kernel import Service

if TYPE_CHECKING:
    from dsh.base.signal import AbortSignal
    from dsh.capability.sandbox.service import Enforcement, ResolvedPolicy, SandboxMode
    from dsh.execution.tools.service import ToolExecution
    from dsh.kernel import Effect


@value(kw_only=True)
class ShellRequest:
    """What a caller wants run; everything left out has a default of the executor."""

    command: str
    workdir: str | None = None
    """Relative paths start at the policy's workspace root."""
    timeout_s: float | None = None
    max_output_bytes: int | None = None
    """Kept of each stream."""
    signal: AbortSignal | None = None
    stdin: str | bytes | None = None
    env: Mapping[str, str | None] = field(default_factory=dict)
    dsh_env: Mapping[str, str] = field(default_factory=dict)
    """``DSH_*`` variables, collected from `ShellEnv`."""
    policy: ResolvedPolicy | None = None


@value(kw_only=True)
class ShellSpec:
    """A request with every blank filled in."""

    command: str
    workdir: str
    timeout_s: float
    max_output_bytes: int
    signal: AbortSignal | None
    stdin: str | bytes | None
    env: Mapping[str, str | None]
    policy: ResolvedPolicy


@value
class StreamText:
    """What is left of one output stream."""

    text: str
    truncated: bool = False
    spill_path: Path | None = None
    """File with the whole stream; only with ``truncated``."""


@value
class SandboxOutcome:
    """What the sandbox had to do with the result."""

    mode: SandboxMode
    denied: bool
    enforcement: Enforcement | None = None
    """``None`` when the mode confines nothing."""
    runner_failed: bool = False
    """The sandbox broke down and the command never ran; only of background commands."""


@value(kw_only=True)
class ShellRunResult:
    """How a foreground command ended.

    ``timed_out`` and ``aborted`` exclude each other: the first cause counts.
    """

    exit_code: int | None
    signal: str | None
    timed_out: bool
    aborted: bool
    timeout_s: float
    stdout: StreamText
    stderr: StreamText
    sandbox: SandboxOutcome | None


@value
class ShellDelta:
    """Output of a background command since the last read."""

    delta: str
    lossy: bool
    stdout_spill_path: Path | None
    stderr_spill_path: Path | None


class ShellProcess(ABC):
    """A command that runs in the background."""

    status: Literal["running", "completed", "killed"]
    exit_code: int | None
    signal: str | None
    sandbox: SandboxOutcome | None

    @abstractmethod
    async def wait(self) -> None:
        """Return when the command and all it started are gone. Never raises for its failure."""

    @abstractmethod
    def read_output(self) -> ShellDelta:
        """Return what was written since the last read."""

    @abstractmethod
    def kill(self) -> None:
        """End the command with all it started. Idempotent."""


class ShellExecutor(Service, ABC):
    """Runs command lines in a fresh shell each."""

    name = "shell"

    @property
    @abstractmethod
    def sandbox_mode(self) -> SandboxMode | None:
        """The mode commands run in by default; ``None`` when this executor does not confine."""

    @property
    @abstractmethod
    def timeouts(self) -> tuple[float, float]:
        """Seconds that a command gets when the request names none, and the most it can get."""

    @abstractmethod
    def resolve(self, request: ShellRequest) -> ShellSpec:
        """Fill in defaults, clamp the timeout and settle the file policy."""

    @abstractmethod
    async def run(self, spec: ShellSpec) -> ShellRunResult:
        """Run a command to its end; no process of it is left when this returns.

        A non-zero exit, a timeout and an abort are results. Cancelling the caller ends the command
        before the cancellation goes on.

        Raises:
            AbortedError: the signal was aborted before the command started.
            SpawnFailed: the shell could not be started.
            SandboxUnavailable: nothing can confine the command, or the sandbox runner broke down.
        """

    @abstractmethod
    async def launch(self, spec: ShellSpec) -> ShellProcess:
        """Start a command in the background, without a timeout.

        Raises:
            AbortedError: the signal was aborted before the command started.
            SandboxUnavailable: nothing can confine the command.
        """


@value
class ShellVariable:
    """An environment variable as the model sees it described."""

    name: str
    description: str
    contributor: str


@value
class ShellEnvContributor:
    """Adds ``DSH_*`` variables to the commands that agents run."""

    name: str
    variables: Mapping[str, str]
    """Name to description. A name belongs to one contributor."""
    resolve: Callable[[ToolExecution], Mapping[str, str]]
    """Values for one call; a declared variable may be left out."""


class ShellEnv(Service, ABC):
    """Registry of the ``DSH_*`` variables that commands get."""

    name = "shell_env"

    @abstractmethod
    def register(self, contributor: ShellEnvContributor) -> Effect:
        """Add a contributor until the calling plugin unloads.

        Raises:
            ValueError: a name is malformed, reserved or taken.
        """

    @abstractmethod
    def collect(self, execution: ToolExecution) -> dict[str, str]:
        """Return every variable for one call.

        Raises:
            ValueError: a contributor returned a variable it did not declare, or no text.
        """

    @abstractmethod
    def all(self) -> tuple[ShellVariable, ...]:
        """Return every declared variable, built-in ones first."""
