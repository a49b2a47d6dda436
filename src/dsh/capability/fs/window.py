"""A window of numbered lines on a text of any length."""

from __future__ import annotations

from typing import TypedDict

from dsh.base.values import value


class NumberedLine(TypedDict):
    """One line without its end."""

    number: int
    text: str


@value
class WindowLimits:
    """What a window may hold."""

    first: int
    """Number of its first line, from 1."""
    max_lines: int
    max_line_chars: int
    """A longer line is cut and says so."""
    max_bytes: int
    """UTF-8 bytes of all lines, each counted with its line end; one line always fits."""


class LineWindow:
    """Collects the lines of a window from a text that comes in pieces, and counts them all.

    Lines end with LF or CRLF. Memory is bounded by the window, not by the text.
    """

    def __init__(self, limits: WindowLimits) -> None:
        self._limits = limits
        self._complete_lines = 0
        self._open = ""
        self._bytes = 0
        self._full = False
        self.lines: list[NumberedLine] = []

    @property
    def total(self) -> int:
        """Lines so far; an unfinished one counts."""
        return self._complete_lines + (1 if self._open else 0)

    def feed(self, piece: str) -> None:
        """Take the next piece of the text."""
        ends = piece.count("\n")
        if not ends:
            self._extend(piece)
            return
        if self._full or self._complete_lines + ends < self._limits.first:
            self._complete_lines += ends
            self._open = ""
            self._extend(piece[piece.rindex("\n") + 1 :])
            return
        *complete, rest = piece.split("\n")
        for text in complete:
            self._end_line(self._open + text)
            self._open = ""
        self._extend(rest)

    def close(self) -> None:
        """The text is over: its last line ends here, too."""
        if self._open:
            self._end_line(self._open)
            self._open = ""

    def take(self, text: str) -> bool:
        """Take a whole text at once, if no line or byte of the window has to be cut.

        Returns:
            Whether it was taken; otherwise nothing has happened.
        """
        every = text.split("\n")
        if not every[-1]:
            every.pop()
        first = self._limits.first
        shown = every[first - 1 : first - 1 + self._limits.max_lines]
        if not self._fits(shown):
            return False
        if "\r" in text:
            shown = [line.removesuffix("\r") for line in shown]
        self.lines = [{"number": n, "text": line} for n, line in enumerate(shown, first)]
        self._complete_lines = len(every)
        return True

    def _fits(self, lines: list[str]) -> bool:
        longest = max(map(len, lines), default=0)
        size = sum(map(len, lines)) * 4 + len(lines)
        if size > self._limits.max_bytes:
            size = sum(len(line.encode()) for line in lines) + len(lines)
        return longest <= self._limits.max_line_chars and size <= self._limits.max_bytes

    def _extend(self, text: str) -> None:
        # What a cut line would lose need not be kept; two more characters show that it is cut.
        self._open = (self._open + text)[: self._limits.max_line_chars + 2]

    def _end_line(self, text: str) -> None:
        self._complete_lines += 1
        if self._full or self._complete_lines < self._limits.first:
            return
        text = self._cut(text.removesuffix("\r"))
        size = len(text.encode()) + 1
        if self.lines and self._bytes + size > self._limits.max_bytes:
            self._full = True
            return
        self._bytes += size
        self.lines.append({"number": self._complete_lines, "text": text})
        self._full = len(self.lines) >= self._limits.max_lines

    def _cut(self, text: str) -> str:
        longest = self._limits.max_line_chars
        if len(text) <= longest:
            return text
        return f"{text[:longest]}... (line cut after {longest} characters)"


def window_of(text: str, limits: WindowLimits) -> LineWindow:
    """Return the window on a text that is in memory.

    A text without a single LF whose lines end with CR alone is split there.
    """
    text = text if "\n" in text else text.replace("\r", "\n")
    window = LineWindow(limits)
    if not window.take(text):
        window.feed(text)
        window.close()
    return window
