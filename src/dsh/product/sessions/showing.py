"""``dsh sessions show``: a session as a person saw it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dsh.product.sessions.terminal import Colours, label, one_line, printable, when
from dsh.state.log_export.transcript import transcript

if TYPE_CHECKING:
    from dsh.state.log_export.transcript import Entry

_WIDTH = 100


def transcript_lines(
    header: Mapping[str, Any],
    events: Sequence[Mapping[str, Any]],
    title: str | None,
    colours: Colours,
) -> Iterator[str]:
    """Yield the lines of a transcript: a head, then what was said and done."""
    head = [label(header["id"]), when(header["createdAt"]), label(header.get("cwd", ""))]
    yield colours.dim("  ".join(filter(None, head)))
    if title:
        yield colours.bold(one_line(title, _WIDTH))
    last = ""
    for entry in transcript(events):
        if entry.kind != "call" or last != "call":
            yield ""
        last = entry.kind
        yield from _entry(entry, colours)


def _entry(entry: Entry, colours: Colours) -> Iterator[str]:
    match entry.kind:
        case "user":
            for line in printable(entry.text).split("\n"):
                yield colours.bold(f"> {line}".rstrip())
        case "assistant":
            yield from printable(entry.text).split("\n")
        case "note":
            yield colours.dim(f"[{one_line(entry.name, 30)}] {one_line(entry.text, _WIDTH)}")
        case "call":
            yield colours.dim(f"  {one_line(entry.name, 30)} {one_line(entry.text, _WIDTH)}")
            yield _result(entry, colours)
        case "end":
            yield colours.red(f"[{one_line(entry.text, _WIDTH)}]")


def _result(entry: Entry, colours: Colours) -> str:
    if entry.result is None:
        return colours.dim("    (no result)")
    lines = entry.result.strip().splitlines()
    first = one_line(lines[0], _WIDTH) if lines else "(empty)"
    more = f"  (+{len(lines) - 1} lines)" if len(lines) > 1 else ""
    if entry.failed:
        return colours.red(f"    failed: {first}{more}")
    return colours.dim(f"    {first}{more}")
