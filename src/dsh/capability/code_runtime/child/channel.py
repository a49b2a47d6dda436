"""Frames between the interpreter of a run and dsh: JSON, one line each, over one socket."""

from __future__ import annotations

import io
import os
from _thread import allocate_lock

from .values import decode, fitting, json_size, to_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CHUNK = 1 << 18


class Channel:
    """Sends and receives frames. Any thread may send, one receives."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._sending = allocate_lock()
        self._heard = bytearray()
        self._lines: list[bytes] = []

    def send(self, frame: dict[str, Any]) -> None:
        """Send a frame that is JSON for sure."""
        self.send_line(to_bytes(frame))

    def send_line(self, line: bytes) -> None:
        """Send one line; when dsh is gone, so is this process."""
        left = memoryview(line + b"\n")
        try:
            with self._sending:
                while left:
                    left = left[os.write(self.fd, left) :]
        except OSError:
            os._exit(1)

    def receive(self) -> dict[str, Any]:
        """Return the next frame; waits for it."""
        while not self._lines:
            self.read()
        frame: dict[str, Any] = decode(self._lines.pop(0))
        return frame

    def arrived(self) -> list[dict[str, Any]]:
        """Read once and return all whole frames."""
        self.read()
        lines, self._lines = self._lines, []
        return [decode(line) for line in lines]

    def read(self) -> None:
        """Read some bytes; waits for them."""
        data = os.read(self.fd, _CHUNK)
        if not data:
            os._exit(1)
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._lines.append(bytes(self._heard + line))
            self._heard.clear()
        self._heard += rest


class Output(io.TextIOBase):
    """A text stream whose lines become ``log`` frames at once.

    A line without its end waits for it, also when it is flushed: each frame is a line to the model.
    """

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, channel: Channel, budget: Budget) -> None:
        self._channel, self._budget = channel, budget
        self._held: list[str] = []
        self._lock = allocate_lock()

    def writable(self) -> bool:
        """See `io.IOBase`."""
        return True

    def write(self, text: str) -> int:
        """See `io.TextIOBase`."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        whole, newline, rest = text.rpartition("\n")
        with self._lock:
            if newline:
                self._tell("".join([*self._held, whole]))
                self._held = [rest] if rest else []
            elif text:
                self._held.append(text)
        return len(text)

    def finish(self) -> None:
        """Send what stands on an unfinished line."""
        with self._lock:
            if self._held:
                self._tell("".join(self._held))
                self._held = []

    def _tell(self, text: str) -> None:
        kept, truncated = self._budget.take(text)
        if kept is not None:
            frame: dict[str, Any] = {"type": "log", "text": kept}
            if truncated:
                frame["truncated"] = True
            self._channel.send(frame)


class Budget:
    """How much all streams together may still say."""

    def __init__(self, max_bytes: int) -> None:
        self._left = max_bytes
        self._lock = allocate_lock()
        self._told = False

    def take(self, text: str) -> tuple[str | None, bool]:
        """Return what may be sent of a text, ``None`` for nothing, and whether it was cut."""
        with self._lock:
            if self._told:
                return None, True
            size = json_size(text)
            if size <= self._left:
                self._left -= size
                return text, False
            self._told = True
            return fitting(text, self._left), True
