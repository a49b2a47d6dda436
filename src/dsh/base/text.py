"""Text that must fit: UTF-8 safe cuts, bounded retention of output, near misses."""

from __future__ import annotations

from collections import deque
from typing import Literal

Keep = Literal["head", "tail", "head_tail"]
"""Which end of a stream a retainer keeps."""


def cut_utf8(text: str, max_bytes: int) -> str:
    """Return the longest prefix of ``text`` that fits in ``max_bytes`` of UTF-8."""
    if len(text) * 4 <= max_bytes:
        return text
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= max_bytes:
        return text
    cut = data[:max_bytes]
    return cut[: max_bytes - unfinished(cut)].decode("utf-8", "surrogatepass")


def replace_surrogates(text: str) -> str:
    """Return ``text`` with lone surrogates replaced by U+FFFD, so that it encodes."""
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def nearest(word: str, words: list[str] | tuple[str, ...]) -> str | None:
    """Return the word most like ``word``, when one is alike enough to be a typo of it."""
    from difflib import get_close_matches

    found = get_close_matches(word, words, n=1, cutoff=0.6)
    return found[0] if found else None


def did_you_mean(word: str, words: list[str] | tuple[str, ...]) -> str:
    """Return `` (did you mean '...'?)``, or nothing when no word is near."""
    near = nearest(word, words)
    return f" (did you mean {near!r}?)" if near else ""


class TextRetainer:
    """Keeps a bounded part of a byte stream and counts what it leaves out.

    Cuts fall between characters of valid UTF-8. A stream that fits exactly is kept whole.
    """

    __slots__ = ("_head", "_head_max", "_tail", "_tail_max", "_tail_size", "total_bytes")

    def __init__(self, kind: Keep, max_bytes: int) -> None:
        if max_bytes < 0:
            raise ValueError(f"max_bytes must not be negative, got {max_bytes}")
        self._head_max = {"head": max_bytes, "tail": 0, "head_tail": max_bytes // 2}[kind]
        self._tail_max = max_bytes - self._head_max
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self.total_bytes = 0

    def feed(self, data: bytes) -> None:
        """Add the next bytes of the stream."""
        self.total_bytes += len(data)
        room = self._head_max - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data or not self._tail_max:
            return
        self._tail.append(data[-self._tail_max :])
        self._tail_size += len(self._tail[-1])
        while (surplus := self._tail_size - self._tail_max) > 0:
            first = self._tail.popleft()
            if len(first) > surplus:
                self._tail.appendleft(first[surplus:])
            self._tail_size -= min(surplus, len(first))

    @property
    def kept_bytes(self) -> int:
        """Bytes of the stream that are held."""
        return len(self._head) + self._tail_size

    @property
    def head(self) -> bytes:
        """The first bytes, as they came; may end inside a character."""
        return bytes(self._head)

    @property
    def tail(self) -> bytes:
        """The last bytes, as they came; may begin inside a character."""
        return b"".join(self._tail)

    @property
    def omitted_bytes(self) -> int:
        """Bytes of the stream that `text` leaves out."""
        head, tail = self._parts()
        return self.total_bytes - len(head) - len(tail)

    def text(self, *, gap: str = "") -> str:
        """Return what was kept, decoded; undecodable bytes become U+FFFD.

        Args:
            gap: Stands between head and tail when something was left out there.
        """
        head, tail = self._parts()
        if len(head) + len(tail) == self.total_bytes:
            return (head + tail).decode("utf-8", "replace")
        return head.decode("utf-8", "replace") + gap + tail.decode("utf-8", "replace")

    def _parts(self) -> tuple[bytes, bytes]:
        head, tail = self.head, self.tail
        if len(head) + len(tail) < self.total_bytes:
            head = head[: len(head) - unfinished(head)]
            tail = tail[inside_character(tail) :]
        return head, tail


def unfinished(data: bytes) -> int:
    """Return how many bytes at the end start a character that more bytes could complete."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        width = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return back if width > back else 0
    return 0


def inside_character(data: bytes) -> int:
    """Return how many bytes at the start continue a character that began before them."""
    cut = 0
    while cut < min(3, len(data)) and data[cut] & 0xC0 == 0x80:
        cut += 1
    return cut
