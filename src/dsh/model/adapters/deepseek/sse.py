"""A fast parser of server-sent events: bytes in, the data of whole events out."""

from __future__ import annotations

from dsh.model.failures import LlmError

__all__ = ["DONE", "MAX_EVENT_BYTES", "SseParser"]

DONE = b"[DONE]"
"""The data of the event that ends a chat-completions stream."""
MAX_EVENT_BYTES = 64 * 1024 * 1024
"""Largest event that is collected before the stream counts as broken."""

_BOM = b"\xef\xbb\xbf"


class SseParser:
    """Cuts a byte stream into events and returns their data, still encoded.

    Works on bytes, so that a read may end inside a character. Line ends may be LF, CRLF or CR;
    several data lines of one event are joined by LF; comments and other fields are dropped.
    ``[DONE]`` is an event of its own even where the blank line around it is missing.
    """

    __slots__ = ("_data", "_gathered", "_pieces", "_size", "_started")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self._data: list[bytes] = []
        self._gathered = 0
        self._started = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of the events that ``chunk`` completes.

        Raises:
            LlmError: ``MALFORMED_RESPONSE``, an event is larger than `MAX_EVENT_BYTES`.
        """
        if b"\n" not in chunk and b"\r" not in chunk:
            self._keep(chunk)
            return []
        if self._pieces:
            self._pieces.append(chunk)
            chunk = b"".join(self._pieces)
            self._pieces.clear()
            self._size = 0
        if not self._started:
            self._started = True
            chunk = chunk.removeprefix(_BOM)
        held = b""
        if b"\r" in chunk:
            if chunk.endswith(b"\r"):  # the LF of a CRLF may come with the next read
                held, chunk = b"\r", chunk[:-1]
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = chunk.split(b"\n")
        rest = lines.pop() + held
        if rest:
            self._keep(rest)
        events = self._take(lines)
        same = bool(self._data) and not events
        self._gathered = self._gathered + len(chunk) if same else 0
        if self._gathered > MAX_EVENT_BYTES:
            raise _too_large()
        return events

    def close(self) -> list[bytes]:
        """Return the last events if the stream ended with ``[DONE]``, lacking its blank line.

        Other data without its blank line is incomplete and is dropped, as the standard says.
        """
        rest = b"".join(self._pieces).rstrip(b"\r")
        self._pieces.clear()
        events = self._take([rest]) if rest else []
        self._data.clear()
        return events if events and events[-1] == DONE else []

    def _take(self, lines: list[bytes]) -> list[bytes]:
        events: list[bytes] = []
        data = self._data
        for line in lines:
            if not line:
                if data:
                    events.append(data[0] if len(data) == 1 else b"\n".join(data))
                    data.clear()
            elif line.startswith(b"data:"):
                value = line[6:] if line.startswith(b"data: ") else line[5:]
                if value.startswith(DONE):
                    if data:
                        events.append(b"\n".join(data))
                        data.clear()
                    events.append(DONE)
                else:
                    data.append(value)
        return events

    def _keep(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > MAX_EVENT_BYTES:
            raise _too_large()


def _too_large() -> LlmError:
    return LlmError(
        f"the reply has an event of more than {MAX_EVENT_BYTES} bytes", code="MALFORMED_RESPONSE"
    )
