"""What a google-style docstring says of a function and of its parameters."""

from __future__ import annotations

import re
from inspect import cleandoc
from itertools import pairwise

_SECTION = re.compile(
    r"^(Args|Arguments|Parameters|Returns|Return|Raises|Yields|Examples?|Notes?|Attributes):\s*$"
)
_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")


def parse_docstring(text: str | None) -> tuple[str, dict[str, str]]:
    """Split a docstring into its prose and the descriptions of its ``Args`` section.

    The prose ends where the first section starts; line breaks inside a paragraph become spaces.
    """
    if not text:
        return "", {}
    lines = cleandoc(text).splitlines()
    starts = [index for index, line in enumerate(lines) if _SECTION.match(line)]
    prose = lines[: starts[0]] if starts else lines
    described: dict[str, str] = {}
    for start, end in pairwise([*starts, len(lines)]):
        if lines[start].rstrip().rstrip(":") in ("Args", "Arguments", "Parameters"):
            described.update(_entries(lines[start + 1 : end]))
    return _unwrapped(prose), described


def _unwrapped(lines: list[str]) -> str:
    paragraphs = re.split(r"\n\s*\n", "\n".join(lines).strip())
    return "\n\n".join(_paragraph(text) for text in paragraphs)


def _paragraph(text: str) -> str:
    """Join a paragraph's lines, unless it is indented or a list."""
    lines = text.splitlines()
    if any(re.match(r"\s|[-*] |\d+[.)] ", line) for line in lines):
        return text
    return " ".join(line.strip() for line in lines)


def _entries(lines: list[str]) -> dict[str, str]:
    described: dict[str, list[str]] = {}
    current: list[str] | None = None
    margin: int | None = None
    for line in lines:
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        margin = indent if margin is None else margin
        match = _ENTRY.match(line.strip()) if indent <= margin else None
        if match:
            current = described.setdefault(match[1], [])
            current.append(match[2].strip())
        elif current is not None:
            current.append(line.strip())
    return {name: " ".join(filter(None, parts)) for name, parts in described.items()}
