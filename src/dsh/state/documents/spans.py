"""Where the nodes of a YAML text begin and end."""

from __future__ import annotations

import re
from typing import Any, Final

__all__ = ["Pair", "Spans", "compose"]

_COLON: Final = re.compile(r"\s*:")
_ALIAS: Final = re.compile(r"\s*:\s*(\*[^\s,\[\]{}]+)")

Pair = tuple[Any, Any]
"""The key and the value node of one entry."""


def compose(text: str) -> Any:
    """Return the node graph of a text, or None for one without content.

    Raises:
        yaml.YAMLError: it is not YAML.
    """
    import yaml

    loader = yaml.BaseLoader(text)
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()


class Spans:
    """Answers where things stand in one text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.newline = "\r\n" if "\r\n" in text else "\n"

    def line_start(self, at: int) -> int:
        """Return where the line of a place begins."""
        return self.text.rfind("\n", 0, at) + 1

    def line_end(self, at: int) -> int:
        """Return where the line of a place ends, before its line break."""
        end = self.text.find("\n", at)
        if end < 0:
            return len(self.text)
        return end - 1 if self.text[end - 1 : end] == "\r" and end > at else end

    def after_colon(self, pair: Pair) -> int:
        """Return the place behind an entry's colon."""
        found = _COLON.match(self.text, pair[0].end_mark.index)
        return pair[0].end_mark.index if found is None else found.end()

    def value(self, pair: Pair) -> tuple[int, int]:
        """Return where an entry's value begins and ends, without comments around it."""
        alias = self._alias(pair)
        if alias is not None:
            return alias
        return pair[1].start_mark.index, self.end(pair[1])

    def pair_end(self, pair: Pair) -> int:
        """Return where an entry ends."""
        return max(self.after_colon(pair), self.value(pair)[1])

    def end(self, node: Any) -> int:
        """Return where the content of a node ends; a block's end mark lies far behind it."""
        end: int = node.end_mark.index
        if node.id == "scalar":
            return len(self.text[:end].rstrip()) if node.style in ("|", ">") else end
        if node.flow_style or not node.value:
            return end
        if node.id == "mapping":
            return self.pair_end(node.value[-1])
        last = node.value[-1]
        if last.start_mark.index < node.start_mark.index or last in node.value[:-1]:
            return self._before_comments(end)
        return self.end(last)

    def leading_comment(self, at: int) -> int:
        """Return where the comment directly above a line begins; the line's start without one.

        A comment that opens the file belongs to the file.
        """
        start = self.line_start(at)
        column = at - start
        above = start
        while above > 0:
            previous = self.line_start(above - 1)
            line = self.text[previous:above]
            if line[: column + 1] != " " * column + "#":
                return above
            above = previous
        return start

    def _alias(self, pair: Pair) -> tuple[int, int] | None:
        if pair[1].start_mark.index >= pair[0].end_mark.index:
            return None
        found = _ALIAS.match(self.text, pair[0].end_mark.index)
        return None if found is None else found.span(1)

    def _before_comments(self, at: int) -> int:
        """Go back from a place over blank lines and lines that only comment."""
        while at > 0:
            start = self.line_start(at)
            line = self.text[start:at].strip()
            if line and not line.startswith("#"):
                return start + len(self.text[start:at].rstrip())
            at = start - 1
        return 0
