"""The chunked transfer coding, decoded a whole read at a time."""

from __future__ import annotations

import re

__all__ = ["ChunkedDecoder"]

_SIZE = re.compile(rb"[0-9A-Fa-f]{1,15}")
_MAX_LINE = 16 * 1024
_MAX_TRAILERS = 64 * 1024


class ChunkedDecoder:
    """Takes the coding off a body; ``complete`` once its end was seen.

    Streams of small events come as one HTTP chunk an event. Handing these on one by one costs
    more than all that is done with them later, so what one read brought is joined.
    """

    __slots__ = ("_in_trailers", "_left", "_rest", "_trailing", "_wants_end", "complete")

    def __init__(self) -> None:
        self._rest = b""
        self._left = 0
        self._wants_end = False
        self._in_trailers = False
        self._trailing = 0
        self.complete = False

    @property
    def rest(self) -> bytes:
        """What came after the end of the body."""
        return self._rest if self.complete else b""

    def feed(self, data: bytes) -> bytes:
        """Return the part of the body that ``data`` brings.

        Raises:
            ValueError: the coding is broken.
        """
        if self._rest:
            data = self._rest + data
        at, size = 0, len(data)
        out: list[bytes] = []
        while not self.complete:
            if self._left:
                part = data[at : at + self._left]
                out.append(part)
                at += len(part)
                self._left -= len(part)
                if self._left:
                    break
                self._wants_end = True
            if self._wants_end:
                if size - at < 2:
                    break
                if data[at : at + 2] != b"\r\n":
                    raise ValueError("a chunk is longer than it says")
                at += 2
                self._wants_end = False
            end = data.find(b"\n", at)
            if end < 0:
                if size - at > _MAX_LINE:
                    raise ValueError("the size of a chunk does not end")
                break
            self._take_line(data[at:end])
            at = end + 1
        self._rest = data[at:]
        return out[0] if len(out) == 1 else b"".join(out)

    def _take_line(self, line: bytes) -> None:
        line = line.removesuffix(b"\r")
        if self._in_trailers:
            self.complete = not line
            self._trailing += len(line)
            if self._trailing > _MAX_TRAILERS:
                raise ValueError("the trailers after the last chunk do not end")
            return
        number = line.partition(b";")[0].strip()
        if not _SIZE.fullmatch(number):
            message = f"{line[:40]!r} is no size of a chunk"
            raise ValueError(message)
        self._left = int(number, 16)
        self._in_trailers = self._left == 0
