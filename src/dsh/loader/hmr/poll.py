"""Whether single files changed, by looking at them again and again.

No notification of the operating system covers a file whose folders may not exist yet, that is
reached by links, or lies on a network. A few calls of ``stat`` a second cost next to nothing.
"""

from __future__ import annotations

import os
import stat
from hashlib import blake2b
from typing import Final, NamedTuple

from dsh.base.clock import SYSTEM_CLOCK, Clock

_COARSE_NS: Final = 2_000_000_000
"""The coarsest time stamps of file systems in use."""
_MS: Final = 1_000_000


class Signature(NamedTuple):
    """What a file looked like.

    Attributes:
        marks: What ``stat`` says; None for a file that does not exist.
        digest: Of its content, or why it cannot be read.
        settled: Whether a later write would show in the marks for certain.
    """

    marks: tuple[int, ...] | None
    digest: bytes
    settled: bool


ABSENT: Final = Signature(None, b"", True)


def look(path: str, before: Signature | None, clock: Clock = SYSTEM_CLOCK) -> Signature:
    """Return what a file looks like now; its content is read only when it may have changed."""
    now_ns = clock.now_ms() * _MS
    try:
        found = os.stat(path)  # noqa: PTH116  # called for every file four times a second
    except (OSError, ValueError):
        return ABSENT
    marks = (
        found.st_dev,
        found.st_ino,
        found.st_mode,
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
    )
    if before is not None and before.settled and before.marks == marks:
        return before
    # Two writes within one tick of the file system's clock leave the same marks.
    settled = abs(now_ns - max(found.st_mtime_ns, found.st_ctime_ns)) > _COARSE_NS
    return Signature(marks, _digest(path, found.st_mode), settled)


def differs(left: Signature, right: Signature) -> bool:
    """Tell whether a file is another: it came, went, or has other content."""
    return (left.marks is None) != (right.marks is None) or left.digest != right.digest


def _digest(path: str, mode: int) -> bytes:
    if not stat.S_ISREG(mode):
        return b"not a file: %d" % stat.S_IFMT(mode)
    made = blake2b(digest_size=16)
    try:
        with open(path, "rb") as file:
            while chunk := file.read(1 << 18):
                made.update(chunk)
    except OSError as error:
        return b"unreadable: %d" % (error.errno or 0)
    return made.digest()
