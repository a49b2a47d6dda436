"""A session as a Markdown document, to read and to pass on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from dsh.state.log_export.transcript import Entry, transcript

_HEADS = {"user": "User", "assistant": "Assistant"}


def markdown_lines(
    header: Mapping[str, Any], events: Sequence[Mapping[str, Any]], title: str | None = None
) -> Iterator[str]:
    """Yield the lines of the document, without line ends.

    The words of user and model are Markdown themselves and stay as they are; what tools got and
    gave is fenced.
    """
    yield f"# {' '.join((title or header['id']).split())}"
    yield ""
    yield f"Session `{header['id']}`, {_when(header['createdAt'])}" + (
        f", in `{header['cwd']}`" if "cwd" in header else ""
    )
    last = ""
    for entry in transcript(events):
        yield ""
        # A reply that goes on after its calls is still the same reply.
        if entry.kind in _HEADS and entry.kind != last:
            yield f"## {_HEADS[entry.kind]}"
            yield ""
        if entry.kind != "call":
            last = entry.kind
        yield from _body(entry)


def _body(entry: Entry) -> Iterator[str]:
    match entry.kind:
        case "user" | "assistant":
            yield from entry.text.splitlines()
        case "note":
            yield f"> {entry.name}: " + " ".join(entry.text.split())[:200]
        case "end":
            yield f"*The turn ended: {' '.join(entry.text.split())}*"
        case "call":
            yield f"Tool `{entry.name}`" + (" (failed)" if entry.failed else "")
            yield ""
            yield from _fenced(entry.text, "json")
            if entry.result:
                yield ""
                yield from _fenced(entry.result)


def _fenced(text: str, language: str = "") -> Iterator[str]:
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    yield fence + language
    yield from text.splitlines()
    yield fence


def _when(milliseconds: int) -> str:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):
        return str(milliseconds)
