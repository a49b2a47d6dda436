"""The subprocess seam: the only place that starts programs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dsh.base.errors import DshError
from dsh.base.values import value
from dsh.kernel import Service

if TYPE_CHECKING:
    import asyncio

    from dsh.base.signal import AbortSignal
    from dsh.base.text import Keep


class SubprocessError(DshError):
    """A program could not be started, fed or supervised."""

    code = "SUBPROCESS_ERROR"


class SpawnFailed(SubprocessError, OSError):
    """The program never ran.

    Attributes:
        stage: What failed: ``cwd``, ``confine`` (the file grants), ``exec`` or ``supervisor``.
        path: The folder or program at fault.
        errno: The system's error number; 0 when there is none.
    """

    code = "SPAWN_FAILED"

    def __init__(self, stage: str, path: str, *, errno: int, detail: str) -> None:
        where = {
            "cwd": f"the working directory {path!r} cannot be used",
            "confine": f"the process could not be confined before it ran {path!r}",
            "exec": f"{path!r} cannot be executed",
        }.get(stage, f"the supervisor could not start {path!r}")
        super().__init__(f"{where}: {detail}")
        self.stage, self.path, self.errno = stage, path, errno

    def __str__(self) -> str:
        return self.message


class ExecutableNotFound(SubprocessError, LookupError):
    """No executable file answers to a command name."""

    code = "EXECUTABLE_NOT_FOUND"

    def __init__(self, command: str, *, searched: str) -> None:
        super().__init__(f"no executable {command!r} {searched}")
        self.command = command


@value(kw_only=True)
class Spill:
    """Where the whole of a stream goes when memory keeps only a part of it."""

    max_bytes: int
    """A longer stream has its file deleted and its path withdrawn."""
    folder: Path
    """An existing folder of the caller's, who deletes it."""


@value(kw_only=True)
class Collect:
    """Keep a bounded part of an output stream in memory."""

    max_bytes: int
    keep: Keep = "tail"
    spill: Spill | None = None
    """Created only once the stream outgrows ``max_bytes``."""


OutputMode = Literal["pipe", "inherit", "ignore"] | Collect
"""``pipe`` hands the caller a reader, ``inherit`` shares dsh's own stream."""


@value
class FileGrants:
    """The only paths a confined process may touch; the kernel refuses everything else.

    Enforced by Landlock between fork and exec. A granted path that does not exist fails the spawn.
    """

    read: tuple[str, ...]
    write: tuple[str, ...]
    """Readable, too; a folder grants the tree below it."""


@value(kw_only=True)
class SpawnSpec:
    """One program to run. The spec says everything; nothing is taken from ambient state but env."""

    argv: Sequence[str]
    cwd: str | Path
    grace_s: float = 3.0
    """From SIGTERM to SIGKILL when terminated, and the bound of output drain after exit."""
    signal: AbortSignal | None = None
    """An abort terminates the process; a signal that is aborted already fails the spawn."""
    env: Mapping[str, str | None] = field(default_factory=dict)
    """Laid over the scrubbed environment of dsh; ``None`` removes an inherited name."""
    stdin: Literal["ignore", "pipe"] | bytes = "ignore"
    """Bytes are written, then the stream is closed; a program that does not read is no error."""
    stdout: OutputMode = "pipe"
    stderr: OutputMode = "pipe"
    pass_fds: Sequence[int] = ()
    """Descriptors the program inherits under the same numbers (3 or higher); dsh keeps its own."""
    grants: FileGrants | None = None
    runner: bool = False
    """``argv[0]`` is a sandbox runner: spare it while SIGTERM reaches what runs inside."""
    keep_descendants: bool = False
    """Let processes that the program left behind live on until `ProcessHandle.terminate`."""


@value
class ProcessExit:
    """How a program ended: exactly one of the two is set."""

    exit_code: int | None
    signal: str | None
    """Name such as ``SIGKILL``."""


@value
class OutputSlice:
    """A part of a collected stream, by absolute byte position."""

    text: str
    next_offset: int
    lossy: bool
    """Bytes of the requested range were dropped."""
    spill_path: Path | None


class CollectedOutput(ABC):
    """What memory keeps of one output stream."""

    total_bytes: int
    """Length of the stream so far."""

    @property
    @abstractmethod
    def omitted_bytes(self) -> int:
        """Bytes of the stream that memory does not hold."""

    @property
    @abstractmethod
    def spill_path(self) -> Path | None:
        """File with the whole stream, when one is kept and complete so far."""

    @abstractmethod
    def read_from(self, offset: int) -> OutputSlice:
        """Return what is kept from ``offset`` on; undecodable bytes become U+FFFD.

        A character that is not complete yet is left for the next read.
        """

    @abstractmethod
    def text(self, *, gap: str = "") -> str:
        """Return what is kept; ``gap`` stands where bytes are left out between head and tail."""


class ProcessHandle(ABC):
    """A program under supervision, with everything it starts.

    A stream in ``pipe`` mode is there once `started` has returned. Read it to its end: what has
    not been read stays available after the exit, and keeps the handle registered with its plugin.
    """

    pid: int
    """-1 until the program runs, and for ever when it could not be started."""
    stdin: asyncio.StreamWriter | None
    stdout: asyncio.StreamReader | None
    stderr: asyncio.StreamReader | None
    collected_stdout: CollectedOutput | None
    collected_stderr: CollectedOutput | None

    @abstractmethod
    async def started(self) -> int:
        """Return the pid once the program runs.

        Raises:
            SpawnFailed: it could not be started.
        """

    @abstractmethod
    async def wait(self) -> ProcessExit:
        """Return how the program ended, after its collected output was drained.

        Drain is bounded by the grace period, so a descendant that holds a stream open cannot
        hang the caller. Cancelling the wait leaves the program alone.

        Raises:
            SpawnFailed: it could not be started.
        """

    @abstractmethod
    def terminate(self) -> None:
        """Ask the whole tree to end: SIGTERM, and SIGKILL after the grace period. Idempotent.

        From here on `wait` and `wait_for_exit` return within the grace period and a few seconds,
        even for a process that not even SIGKILL ends.
        """

    @abstractmethod
    async def wait_for_exit(self, signal: AbortSignal | None = None) -> bool:
        """Wait until the program and every descendant are gone and reaped.

        Returns:
            True when they are; False when ``signal`` aborted first or nobody can tell any more.
        """


class SubprocessRuntime(Service, ABC):
    """Starts programs with a scrubbed environment and supervises all that they start."""

    name = "subprocess"

    @abstractmethod
    async def resolve_executable(
        self,
        command: str,
        *,
        env: Mapping[str, str | None] | None = None,
        signal: AbortSignal | None = None,
    ) -> str:
        """Return the absolute path of an executable.

        Args:
            command: An absolute path, or a bare name looked up in the absolute folders of PATH.
            env: Laid over the scrubbed environment, as in `SpawnSpec`.
            signal: Checked before the search.

        Raises:
            ExecutableNotFound: nothing executable answers, or ``command`` is a relative path.
        """

    @abstractmethod
    def spawn(self, spec: SpawnSpec) -> ProcessHandle:
        """Start a program that lives at most as long as the calling plugin.

        Returns at once; a program that cannot be started makes `ProcessHandle.wait` raise.

        Raises:
            AbortedError: ``spec.signal`` is aborted already; nothing runs.
            SubprocessError: the spec makes no sense, or the runtime has been disposed.
        """

    @abstractmethod
    def grants_enforcement(self) -> Literal["full", "partial"] | None:
        """Say how much of `SpawnSpec.grants` can be enforced here; ``None``: nothing can.

        A spawn with grants where nothing can be enforced fails; it never runs unconfined.
        """

    @abstractmethod
    def environment(self, extra: Mapping[str, str | None] | None = None) -> dict[str, str]:
        """Return the scrubbed environment of dsh with ``extra`` laid over it."""
