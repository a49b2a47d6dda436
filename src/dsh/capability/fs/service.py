"""What a filesystem is to everybody else: ``ctx.fs``, its values and its refusals."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from dsh.base.errors import DshError
from dsh.base.values import value
from dsh.kernel import Service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from dsh.base.signal import AbortSignal
    from dsh.capability.sandbox.service import ResolvedPolicy, SandboxMode

FsErrorCode: TypeAlias = Literal[
    "FS_NOT_FOUND",
    "FS_NOT_DIRECTORY",
    "FS_NOT_TEXT",
    "FS_NOT_REGULAR_FILE",
    "FS_TOO_LARGE",
    "FS_PERMISSION_DENIED",
    "FS_SANDBOX_DENIED",
    "FS_IO_ERROR",
    "FS_STALE_VERSION",
    "FS_NOT_OBSERVED",
    "FS_AMBIGUOUS_EDIT",
    "FS_EDIT_NOT_FOUND",
    "FS_ABORTED",
]
"""Every way a file operation is refused or fails; the set is closed."""

FsType = Literal["file", "directory", "other"]
"""What a path leads to, links followed. Whatever cannot be examined is ``other``."""


class FsError(DshError):
    """A file operation was refused or failed.

    Attributes:
        code: One of `FsErrorCode`; callers route by it.
    """

    code: str = "FS_IO_ERROR"

    def __init__(self, message: str, *, code: FsErrorCode) -> None:
        super().__init__(message, code=code)


@value
class FsTarget:
    """A resolved path, which need not exist."""

    target_key: str
    """Identity: aliases of one file share it. Policies compare it; nobody acts on it later."""
    display_path: str
    """Absolute path as it was asked for; what people and models see."""


@value
class FsInfo:
    """What is known of an existing target."""

    version: str
    """Opaque; differs as soon as the file was written, replaced, or had its attributes changed."""
    type: FsType
    size: int | None
    """Bytes; ``None`` where the provider cannot tell cheaply."""


@value
class FsLinkInfo:
    """As `FsInfo`, for the last path component itself instead of what it links to."""

    version: str
    type: Literal["file", "directory", "symlink", "other"]
    size: int | None


@value
class FsEntry:
    """One name in a directory."""

    name: str
    type: FsType
    target: FsTarget
    version: str | None
    size: int | None


@value
class FsText:
    """A path opened as text in one operation, so that its parts belong together."""

    target: FsTarget
    info: FsInfo | None
    """``None`` when nothing is there."""
    text: str | None
    """The whole content; ``None`` when nothing is there, or when it is at least as big as the
    caller's limit and should be streamed."""


@value
class CreateIfAbsent:
    """Publish only where nothing is; never replaces a competitor."""


@value
class ReplaceIfVersion:
    """Publish only over exactly this version of the target."""

    version: str


WriteExpectation: TypeAlias = CreateIfAbsent | ReplaceIfVersion | None
"""What must be true of the target when the content is published; ``None`` asks nothing."""

EditExpectation: TypeAlias = ReplaceIfVersion | None
"""What must be true of the target when an edit starts; ``None`` asks nothing."""


@value
class FsEdit:
    """A literal replacement; line ends in both strings may be written in any style."""

    old_string: str
    new_string: str
    replace_all: bool = False


@value
class FsWritten:
    """A published write. Texts have LF line ends and no byte order mark."""

    operation: Literal["create", "update"]
    version: str
    before: str | None
    """``None`` when there was no text, or when either side is too big to compare."""
    after: str


@value
class FsEdited:
    """A published edit; texts as in `FsWritten`."""

    version: str
    before: str | None
    after: str


class FileSystem(Service, ABC):
    """The files an agent works on.

    Operations raise `FsError` and nothing else for what the world refuses. They have no
    timeouts. An aborted ``signal`` ends them with ``FS_ABORTED``; a mutation heeds it up to the
    moment it is published, and once published it counts as done. Cancelling the task waits for
    the step under way, so nothing of an operation runs on after it.
    """

    name: ClassVar[str] = "fs"

    @property
    @abstractmethod
    def sandbox_mode(self) -> SandboxMode | None:
        """The mode that holds without an override; ``None`` when this provider does not confine."""

    @abstractmethod
    async def resolve(
        self, path: str, *, cwd: str | None = None, signal: AbortSignal | None = None
    ) -> FsTarget:
        """Find the identity of a path; a relative one starts at ``cwd``.

        Links are followed; what does not exist is named below its nearest existing ancestor.

        Raises:
            FsError: ``FS_NOT_FOUND`` for a blank or impossible path.
        """

    @abstractmethod
    def process_path(self, target: FsTarget) -> str:
        """Return the path under which a child process of the same world finds the target."""

    @abstractmethod
    def file_url(self, target: FsTarget) -> str:
        """Return the ``file:`` URL of the target."""

    @abstractmethod
    def contains(self, parent: FsTarget, child: FsTarget) -> bool:
        """Whether ``child`` is ``parent`` or lies below it, by identity."""

    @abstractmethod
    async def stat(self, target: FsTarget, *, signal: AbortSignal | None = None) -> FsInfo | None:
        """Examine a target, links followed; ``None`` when nothing is there."""

    @abstractmethod
    async def lstat(
        self, path: str, *, cwd: str | None = None, signal: AbortSignal | None = None
    ) -> FsLinkInfo | None:
        """Examine a path without following its last component; ``None`` when nothing is there."""

    @abstractmethod
    async def open_text(
        self,
        path: str,
        *,
        cwd: str | None = None,
        stream_from: int | None = None,
        signal: AbortSignal | None = None,
    ) -> FsText:
        """Resolve, examine and read a text file in one operation.

        Args:
            path: As for `resolve`.
            cwd: As for `resolve`.
            stream_from: Leave the content to `stream_text` from this many bytes on.
            signal: Ends the operation.

        Raises:
            FsError: as for `read_text`, except that a missing file is a result.
        """

    @abstractmethod
    async def read_text(self, target: FsTarget, *, signal: AbortSignal | None = None) -> str:
        """Return the whole text, without a byte order mark, line ends as they are.

        Raises:
            FsError: ``FS_NOT_FOUND``, ``FS_NOT_REGULAR_FILE``, or ``FS_NOT_TEXT`` when there is a
                NUL near the start or an invalid UTF-8 sequence anywhere.
        """

    @abstractmethod
    def stream_text(
        self, target: FsTarget, *, signal: AbortSignal | None = None
    ) -> AsyncIterator[str]:
        """Yield the text in pieces; closing the iterator early releases the file.

        Raises:
            FsError: as for `read_text`, when the offending piece is reached.
        """

    @abstractmethod
    async def read_bytes(
        self, target: FsTarget, *, max_bytes: int, signal: AbortSignal | None = None
    ) -> bytes:
        """Return the whole content.

        Raises:
            FsError: ``FS_TOO_LARGE`` when it has, or grows to, more than ``max_bytes``.
        """

    @abstractmethod
    async def list_dir(
        self, target: FsTarget, *, signal: AbortSignal | None = None
    ) -> list[FsEntry]:
        """Return the entries of a directory by name.

        Raises:
            FsError: ``FS_NOT_FOUND`` or ``FS_NOT_DIRECTORY``.
        """

    @abstractmethod
    async def write_text(
        self,
        target: FsTarget,
        content: str,
        *,
        expected: WriteExpectation = None,
        signal: AbortSignal | None = None,
        sandbox_policy: ResolvedPolicy | None = None,
    ) -> FsWritten:
        """Replace the whole content atomically, or create the file and its parents.

        The content is written as it is, except that a byte order mark the file has is kept. An
        existing file keeps its mode; a new one gets what the umask leaves of 0666.

        Args:
            target: Where; a link is followed.
            content: The new text.
            expected: Checked together with the publication.
            signal: Ends the operation.
            sandbox_policy: What this one call may do; otherwise the provider's own default.

        Raises:
            FsError: ``FS_NOT_OBSERVED`` when something is there against `CreateIfAbsent`,
                ``FS_STALE_VERSION`` when `ReplaceIfVersion` does not hold,
                ``FS_NOT_REGULAR_FILE`` when it is not a file, ``FS_SANDBOX_DENIED``.
        """

    @abstractmethod
    async def edit_text(
        self,
        target: FsTarget,
        edit: FsEdit,
        *,
        expected: EditExpectation = None,
        signal: AbortSignal | None = None,
        sandbox_policy: ResolvedPolicy | None = None,
    ) -> FsEdited:
        """Replace a piece of a text file atomically; bytes outside the change stay as they are.

        Args:
            target: An existing text file.
            edit: What to replace; a single replacement must match exactly once.
            expected: Checked before anything is matched, and again with the publication.
            signal: Ends the operation.
            sandbox_policy: As for `write_text`.

        Raises:
            FsError: ``FS_STALE_VERSION`` when the file is missing or not the expected version,
                ``FS_EDIT_NOT_FOUND`` when nothing matches or nothing would change,
                ``FS_AMBIGUOUS_EDIT`` when a single replacement matches more than once,
                ``FS_NOT_TEXT``, ``FS_NOT_REGULAR_FILE``, ``FS_SANDBOX_DENIED``.
        """
