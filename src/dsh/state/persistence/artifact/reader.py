"""Reading a session's file: all of it, or only its header."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

from dsh.base.values import value
from dsh.state.persistence.artifact.frames import (
    FrameCorruption,
    decompress_cut,
    decompressed,
    first_frame_end,
)
from dsh.state.persistence.artifact.layout import Encoding, encoding_of
from dsh.state.persistence.artifact.records import RecordScanner, decode_header
from dsh.state.persistence.backend import StoredLog, Tail
from dsh.state.persistence.errors import (
    IncompleteArtifact,
    PersistenceError,
    SessionPersistenceCorruptionError,
    UnreadableLog,
)

if TYPE_CHECKING:
    from dsh.state.session.events import SessionHeader

_READ_SIZE = 8192
_LONGEST_HEADER = 16 * 1024 * 1024
_BLOCK = 1 << 18
_READ_ATTEMPTS = 8


@value
class FilePosition:
    """Which file, and how much of it, somebody knows."""

    path: Path
    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, path: Path, stat: os.stat_result) -> FilePosition:
        """Take the position from what the operating system says."""
        return cls(path, stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)

    @property
    def revision(self) -> str:
        """A text that changes whenever the file does."""
        return f"{self.device}:{self.inode}:{self.size}:{self.mtime_ns}:{self.ctime_ns}"


FileLog: TypeAlias = StoredLog[FilePosition]
"""A session as it is on disk."""


def read_log(path: Path) -> FileLog:
    """Read a whole file; change nothing, and hold no more of it than its events.

    Raises:
        SessionPersistenceCorruptionError: committed content is damaged, or the header is not whole.
        SessionFormatUnsupportedError: the version is not the one of this build.
        PersistenceError: somebody rewrites the file all the time.
        OSError: the file cannot be read.
    """
    for attempt in range(_READ_ATTEMPTS):
        with _opened(path) as file:
            before = FilePosition.of(path, os.fstat(file.fileno()))
            log: FileLog | None = None
            problem: PersistenceError | None = None
            try:
                log = _read(path, file, before)
            except FrameCorruption as error:
                problem = SessionPersistenceCorruptionError(str(error), path=path)
                problem.__cause__ = error
            except UnreadableLog as error:
                problem = error.at(path)
            after = FilePosition.of(path, os.fstat(file.fileno()))
        if before == after:
            if log is None:
                assert problem is not None
                raise problem
            return log
        # A log that others write all the time is never the same twice. What it held at first
        # will do when it is whole: logs only grow.
        if log is not None and log.tail is None and attempt and after.size > before.size:
            return log
    raise PersistenceError(f"{str(path)!r} changes all the time; close its other writer")


def read_header(path: Path) -> SessionHeader:
    """Read the header of a file and no more of it than that takes.

    Raises:
        IncompleteArtifact: not even the header is whole.
        SessionPersistenceCorruptionError: the header is damaged.
        SessionFormatUnsupportedError: the version is not the one of this build.
        OSError: the file cannot be read.
    """
    whole = _first_frame if encoding_of(path) is Encoding.ZSTD else _first_line
    data = b""
    try:
        with _opened(path) as file:
            while (line := whole(data)) is None:
                chunk = file.read(max(_READ_SIZE, len(data)))
                if not chunk or len(data) > _LONGEST_HEADER:
                    raise IncompleteArtifact
                data += chunk
        return decode_header(line)
    except FrameCorruption as error:
        raise SessionPersistenceCorruptionError(str(error), path=path) from error
    except UnreadableLog as error:
        raise error.at(path) from error


def _opened(path: Path) -> FileIO:
    """Open a file, and nothing that could wait for ever or never end."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return FileIO(fd, "rb")
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise SessionPersistenceCorruptionError("it is no regular file", path=path)


def _read(path: Path, file: BinaryIO, position: FilePosition) -> FileLog:
    source = _Source(file, position.size)
    if encoding_of(path) is Encoding.ZSTD:
        return _read_frames(path, source, position)
    return _read_lines(path, source, position)


class _Source:
    """The beginning of a file, read in order.

    Args:
        file: The file, at its beginning.
        size: How much of it there is.

    Attributes:
        at: How much was taken.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.at = 0
        self._file = file
        self._left = size
        self._buffer = b""

    def more(self) -> bool:
        """Read on, at least as much again as is held; say whether there was anything."""
        part = self._file.read(min(self._left, max(_BLOCK, len(self._buffer))))
        self._left -= len(part)
        self._buffer += part
        return bool(part)

    def peek(self) -> bytes:
        """Return what is held."""
        return self._buffer

    def take(self, size: int) -> bytes:
        """Take some of what is held."""
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        self.at += size
        return taken


def _read_lines(path: Path, source: _Source, position: FilePosition) -> FileLog:
    lines = _whole_lines(source)
    line = next(lines, None)
    if line is None:
        raise IncompleteArtifact
    scanner = RecordScanner(decode_header(line))
    at = keep = len(line) + 1
    for row in lines:
        at += len(row) + 1
        if scanner.read(row):
            keep = at
    if source.peek():
        scanner.tear("the file ends inside a line")
    tail = None
    if scanner.issue is not None:
        tail = Tail(keep, (), scanner.issue.problem, position.size - keep)
    return _stored(path, scanner, position, tail)


def _whole_lines(source: _Source) -> Iterator[bytes]:
    """Take all whole lines; a line that is cut stays in the source."""
    searched = 0
    while source.more():
        held = source.peek()
        end = held.rfind(b"\n", searched) + 1
        searched = len(held) - end
        if end:
            yield from source.take(end)[:-1].split(b"\n")


def _read_frames(path: Path, source: _Source, position: FilePosition) -> FileLog:
    head = _next_frame(source)
    if head is None:
        raise IncompleteArtifact
    scanner = RecordScanner(decode_header(_header_line(head)))
    tear: tuple[int, int] | None = None
    start, known = source.at, 0
    while (frame := _next_frame(source)) is not None:
        whole = True
        for line in _frame_lines(frame):
            whole = scanner.read(line)
        if not whole and tear is None:
            tear = (start, known)
        start, known = source.at, len(scanner.events)
    if source.peek():
        if tear is None:
            tear = (start, known)
        cut = decompress_cut(source.peek())
        for line in cut[: cut.rfind(b"\n") + 1].split(b"\n")[:-1]:
            scanner.read(line)
        scanner.tear("the file ends inside a frame")
    return _stored(path, scanner, position, _frames_tail(scanner, tear, position.size))


def _next_frame(source: _Source) -> bytes | None:
    """Take the next whole frame; when there is none, the rest of the file is held.

    A rest of zero bytes is none: that is how a file looks whose end was never written.
    """
    while True:
        held = source.peek()
        try:
            end = first_frame_end(held) if held else None
        except FrameCorruption:
            if held.strip(b"\0"):
                raise FrameCorruption(f"no frame begins at byte {source.at}") from None
            end = None
        if end is not None:
            return source.take(end)
        if not source.more():
            return None


def _frames_tail(scanner: RecordScanner, tear: tuple[int, int] | None, size: int) -> Tail | None:
    if tear is None or scanner.issue is None:
        return None
    keep, known = tear
    recovered = tuple(scanner.events[known:])
    return Tail(keep, recovered, scanner.issue.problem, size - keep)


def _stored(
    path: Path, scanner: RecordScanner, position: FilePosition, tail: Tail | None
) -> FileLog:
    return StoredLog(path, scanner.header, scanner.events, position, tail, scanner.repeated)


def _first_line(data: bytes) -> bytes | None:
    end = data.find(b"\n")
    return None if end < 0 else data[:end]


def _first_frame(data: bytes) -> bytes | None:
    end = first_frame_end(data)
    return None if end is None else _header_line(data[:end])


def _header_line(frame: bytes) -> bytes:
    lines = list(_frame_lines(frame))
    if len(lines) != 1:
        raise FrameCorruption("the first frame is not exactly the header")
    return lines[0]


def _frame_lines(frame: bytes) -> Iterator[bytes]:
    rest = b""
    for part in decompressed(frame):
        end = part.rfind(b"\n") + 1
        if end:
            yield from (rest + part[: end - 1]).split(b"\n")
            rest = part[end:]
        else:
            rest += part
    if rest:
        raise FrameCorruption("a frame does not end with its last line")
