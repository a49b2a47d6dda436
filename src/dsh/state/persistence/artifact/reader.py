"""Reading a session's file: all of it, or only its header."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from dsh.base.values import changed, value
from dsh.state.persistence.artifact.frames import (
    FrameCorruption,
    decompress,
    decompress_cut,
    first_frame_end,
    scan_frames,
)
from dsh.state.persistence.artifact.layout import Encoding, encoding_of
from dsh.state.persistence.artifact.records import RecordScanner, decode_header
from dsh.state.persistence.errors import (
    IncompleteArtifact,
    PersistenceError,
    SessionPersistenceCorruptionError,
    UnreadableLog,
)

if TYPE_CHECKING:
    from dsh.state.session.events import SessionEvent, SessionHeader

_READ_SIZE = 8192
_LONGEST_HEADER = 16 * 1024 * 1024
_READ_ATTEMPTS = 8


@value
class Tail:
    """The end of a file that a crash left behind.

    Attributes:
        keep: How many bytes of the file stay.
        recovered: Events that could be had from beyond them, to be written again.
        reason: What is wrong with the tail.
        lost_bytes: How many bytes are no whole record.
    """

    keep: int
    recovered: tuple[SessionEvent, ...]
    reason: str
    lost_bytes: int


@value
class StoredLog:
    """A session as it is on disk, with what can still be had from a damaged end.

    Attributes:
        path: The file.
        header: Its header.
        events: All events that can be read, ``tail.recovered`` included.
        position: The file as it was when it was read.
        tail: What a repair has to cut off; ``None`` for a whole file.
        repeated: How many stored events were written twice.
    """

    path: Path
    header: SessionHeader
    events: list[SessionEvent]
    position: Position
    tail: Tail | None
    repeated: int

    def repaired(self, position: Position, closers: Iterable[SessionEvent]) -> StoredLog:
        """Return the log as it is after a repair that appended ``closers``."""
        events = [*self.events, *closers]
        return changed(self, events=events, position=position, tail=None)


@value
class Position:
    """Which file, and how much of it, somebody knows."""

    path: Path
    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, path: Path, stat: os.stat_result) -> Position:
        """Take the position from what the operating system says."""
        return cls(path, stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)

    @property
    def revision(self) -> str:
        """A text that changes whenever the file does."""
        return f"{self.device}:{self.inode}:{self.size}:{self.mtime_ns}:{self.ctime_ns}"


def read_log(path: Path) -> StoredLog:
    """Read a whole file; change nothing.

    Raises:
        SessionPersistenceCorruptionError: committed content is damaged, or the header is not whole.
        SessionFormatUnsupportedError: the version is not the one of this build.
        OSError: the file cannot be read.
    """
    data, position = _read_settled(path)
    try:
        if encoding_of(path) is Encoding.ZSTD:
            return _read_frames(path, data, position)
        return _read_lines(path, data, position)
    except FrameCorruption as error:
        raise SessionPersistenceCorruptionError(str(error), path=path) from error
    except UnreadableLog as error:
        raise error.at(path) from error


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
        with path.open("rb") as file:
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


def _read_settled(path: Path) -> tuple[bytes, Position]:
    """Read until nobody changed the file meanwhile."""
    for _ in range(_READ_ATTEMPTS):
        with path.open("rb") as file:
            before = Position.of(path, os.fstat(file.fileno()))
            data = file.read()
            after = Position.of(path, os.fstat(file.fileno()))
        if before == after and len(data) == after.size:
            return data, after
    raise PersistenceError(f"{str(path)!r} changes all the time; close its other writer")


def _read_lines(path: Path, data: bytes, position: Position) -> StoredLog:
    line = _first_line(data)
    if line is None:
        raise IncompleteArtifact
    scanner = RecordScanner(decode_header(line))
    start = keep = len(line) + 1
    end = data.rfind(b"\n") + 1
    for row in data[start : end - 1].split(b"\n") if end > start else ():
        start += len(row) + 1
        if scanner.read(row):
            keep = start
    if end < len(data):
        scanner.tear("the file ends inside a line")
    tail = None
    if scanner.issue is not None:
        tail = Tail(keep, (), scanner.issue.problem, len(data) - keep)
    return _stored(path, scanner, position, tail)


def _read_frames(path: Path, data: bytes, position: Position) -> StoredLog:
    scan = scan_frames(data)
    if not scan.frames:
        raise IncompleteArtifact
    head, *batches = scan.frames
    scanner = RecordScanner(decode_header(_header_line(data[head[0] : head[1]])))
    tear: tuple[int, int] | None = None
    for start, end in batches:
        known = len(scanner.events)
        whole = True
        for line in _frame_lines(decompress(data[start:end])):
            whole = scanner.read(line)
        if not whole and tear is None:
            tear = (start, known)
    if scan.torn_start is not None:
        known = len(scanner.events)
        if tear is None:
            tear = (scan.torn_start, known)
        cut = decompress_cut(data[scan.torn_start :])
        for line in cut[: cut.rfind(b"\n") + 1].split(b"\n")[:-1]:
            scanner.read(line)
        scanner.tear("the file ends inside a frame")
    return _stored(path, scanner, position, _frames_tail(scanner, tear, len(data)))


def _frames_tail(scanner: RecordScanner, tear: tuple[int, int] | None, size: int) -> Tail | None:
    if tear is None or scanner.issue is None:
        return None
    keep, known = tear
    recovered = tuple(scanner.events[known:])
    return Tail(keep, recovered, scanner.issue.problem, size - keep)


def _stored(path: Path, scanner: RecordScanner, position: Position, tail: Tail | None) -> StoredLog:
    return StoredLog(path, scanner.header, scanner.events, position, tail, scanner.repeated)


def _first_line(data: bytes) -> bytes | None:
    end = data.find(b"\n")
    return None if end < 0 else data[:end]


def _first_frame(data: bytes) -> bytes | None:
    end = first_frame_end(data)
    return None if end is None else _header_line(data[:end])


def _header_line(frame: bytes) -> bytes:
    lines = _frame_lines(decompress(frame))
    if len(lines) != 1:
        raise FrameCorruption("the first frame is not exactly the header")
    return lines[0]


def _frame_lines(content: bytes) -> list[bytes]:
    if not content.endswith(b"\n"):
        raise FrameCorruption("a frame does not end with its last line")
    return content[:-1].split(b"\n")
