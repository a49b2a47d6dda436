"""The tree as text for people: a line a row, and who stands behind each service."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any, Final, NamedTuple, TextIO

from dsh.loader.inspect import APP_STATE, HOST
from dsh.loader.say import flat

Tree = Mapping[str, Any]
"""What `dsh.loader.inspect.snapshot` returns, with the profile's name."""

_WIDEST: Final = 100
_NARROWEST: Final = 72
_ID_WIDTH: Final = 30
_STATE_WIDTH: Final = 8
_RED, _GREEN, _YELLOW, _DIM, _BOLD = "31", "32", "33", "2", "1"
_MARKS: Final[dict[str, tuple[str, str, str]]] = {
    "active": ("●", "*", _GREEN),
    "failed": ("✗", "x", _RED),
    "gone": ("✗", "x", _RED),
    "disabled": ("○", "-", _DIM),
    APP_STATE: ("◌", "~", _YELLOW),
}
_OTHER: Final = ("◐", "?", _YELLOW)
_SHOWN_STATES: Final = {
    APP_STATE: "for the app's command line",
    "pending": "for services",
}


class Page(NamedTuple):
    """What the text is written on."""

    width: int = 96
    colour: bool = False
    unicode: bool = True

    @classmethod
    def of(cls, stream: TextIO) -> Page:
        """Return the page that a stream is: colour is for terminals alone."""
        columns = shutil.get_terminal_size((_WIDEST, 24)).columns
        terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        encoding = (stream.encoding or "ascii").lower()
        return cls(
            width=max(_NARROWEST, min(columns, _WIDEST)),
            colour=terminal and not os.environ.get("NO_COLOR"),
            unicode=encoding.startswith("utf"),
        )

    def paint(self, text: str, style: str) -> str:
        """Return the text in a style, where there is colour."""
        return f"\x1b[{style}m{text}\x1b[0m" if self.colour and style else text

    def column(self, text: str, width: int, style: str) -> str:
        """Return the text in a style, followed by what fills the column."""
        return self.paint(text, style) + " " * (width - len(text))

    def mark(self, state: str) -> str:
        """Return the sign of a state."""
        rich, plain, style = _MARKS.get(state, _OTHER)
        return self.paint(rich if self.unicode else plain, style)


def render(tree: Tree, page: Page, *, effects: bool = False, services: bool = False) -> str:
    """Return the tree as lines of text.

    Args:
        tree: The snapshot.
        page: How wide and colourful.
        effects: List each row's effects below it.
        services: Show the services only.
    """
    lines = [page.paint(f"profile {tree['profile']}", _BOLD) + f": {summary(tree)}"]
    if not services:
        lines += _rows(tree["rows"], page, effects)
    lines += ["", *_services(tree["services"], page)]
    if tree.get("remarks"):
        lines += ["", page.paint("remarks", _BOLD)]
        lines += [line for each in tree["remarks"] for line in _wrapped(flat(each), page, 2)]
    return "\n".join(lines) + "\n"


def summary(tree: Tree) -> str:
    """Return how many rows there are and in which states, in words."""
    counts = dict(tree["counts"])
    total = sum(counts.values())
    parts = [f"{counts.pop('active', 0)} active"]
    for state, words in _SHOWN_STATES.items():
        number = counts.pop(state, 0)
        if number:
            parts.append(f"{number} {'waits' if number == 1 else 'wait'} {words}")
    parts += [f"{number} {state}" for state, number in sorted(counts.items())]
    return f"{total} {'row' if total == 1 else 'rows'}, {', '.join(parts)}"


def _rows(rows: Sequence[Tree], page: Page, effects: bool) -> Iterator[str]:
    width = min(_ID_WIDTH, max((len(each) for each in _names(rows, 0)), default=0))
    shown: object = None
    for row in rows:
        origin = (row["origin"], row["patchedBy"])
        if origin != shown:
            yield ""
            yield page.paint(_origin(row), _BOLD)
        shown = origin
        yield from _row(row, page, effects, width, 0)


def _names(rows: Sequence[Tree], depth: int, outer: str = "") -> Iterator[str]:
    for row in rows:
        yield "  " * depth + own_id(row, outer)
        yield from _names(row["rows"], depth + 1, row["id"])


def own_id(row: Tree, outer: str) -> str:
    """Return a row's id without that of the include that it stands below."""
    return flat(row["id"].removeprefix(f"{outer}:") if outer else row["id"])


def _origin(row: Tree) -> str:
    origin = flat(row["origin"] or "rows")
    if not row["patchedBy"]:
        return origin
    return f"{origin}, patched by {', '.join(map(flat, row['patchedBy']))}"


def _row(
    row: Tree, page: Page, effects: bool, width: int, depth: int, outer: str = ""
) -> Iterator[str]:
    name = own_id(row, outer)
    indent = 4 + width + 2 + _STATE_WIDTH + 2
    state = "waits" if row["state"] in _SHOWN_STATES else row["state"]
    head = f"  {'  ' * depth}{page.mark(row['state'])} "
    style = _DIM if state == "active" else ""
    head += f"{name:<{max(0, width - 2 * depth)}}  {page.column(state, _STATE_WIDTH, style)}  "
    notes = _wrapped(_note(row, effects), page, indent)
    first = notes[0].strip() if notes else ""
    if len(name) + 2 * depth > width:
        yield head.rstrip()
        yield from notes
    else:
        yield (head + first).rstrip()
        yield from notes[1:]
    if effects:
        for each in row["effects"]:
            yield from _effect(each, page, 8 + 2 * depth)
    for inner in row["rows"]:
        yield from _row(inner, page, effects, width, depth + 1, row["id"])


def _note(row: Tree, effects: bool) -> str:
    """Return what is to be said of a row beside its state."""
    if row["error"] is not None:
        return flat(row["error"])
    if row["disabledBy"] is not None:
        return f"by {row['disabledBy']}"
    if row["waits"]:
        return "; ".join(_wait(each, row["state"]) for each in row["waits"])
    parts = []
    if row["provides"]:
        parts.append(f"provides {', '.join(row['provides'])}")
    # What a row provides is an effect, too, but it is told already.
    others = [each for each in row["effects"] if not each["label"].startswith("ctx.provide(")]
    if others and not effects:
        parts.append(f"{len(others)} {'effect' if len(others) == 1 else 'effects'}")
    return ", ".join(parts)


def _wait(wait: Tree, state: str) -> str:
    if state == APP_STATE:
        if wait["service"] in {"cmdline", "cmdlineArgs"}:
            return "for the app's command line"
        return f"for {wait['service']}, which the app's start provides"
    reason = flat(wait["reason"])
    if wait["app"]:
        reason = "it may come with the app's start"
    elif reason.startswith("absent"):
        reason = reason.replace("absent", "no row provides it", 1)
    return f"for {wait['service']}: {reason}"


def _effect(effect: Tree, page: Page, indent: int) -> Iterator[str]:
    for line in _wrapped(flat(effect["label"]), page, indent):
        yield page.paint(line, _DIM)
    for child in effect["children"]:
        yield from _effect(child, page, indent + 2)


def _services(services: Sequence[Tree], page: Page) -> Iterator[str]:
    names = [_service_name(each) for each in services]
    providers = [_provider(each) for each in services]
    first = min(_ID_WIDTH, max(map(len, ("name", *names))))
    second = min(_ID_WIDTH, max(map(len, ("provided by", *providers))))
    indent = 2 + first + 2 + second + 2
    yield page.paint("services", _BOLD)
    head = f"  {'name':<{first}}  {'provided by':<{second}}  used by (? can do without)"
    yield page.paint(head, _DIM)
    for service, name, provider in zip(services, names, providers, strict=True):
        dependants = ", ".join(map(_dependant, service["dependants"]))
        lines = _wrapped(dependants, page, indent)
        bad = service["state"] in {"failed", "absent"} and not service["app"]
        shown = page.column(provider, second, _YELLOW if bad else "")
        yield f"  {name:<{first}}  {shown}  {lines[0].strip() if lines else ''}".rstrip()
        yield from lines[1:]


def _service_name(service: Tree) -> str:
    scope = service["scope"]
    return flat(service["name"] if scope is None else f"{service['name']} [{scope}]")


def _provider(service: Tree) -> str:
    if service["provider"] is None:
        return "the app's start" if service["app"] else "nobody"
    state = service["state"]
    if state == "active" and not service["available"]:
        state = "not available"
    provider = "the host" if service["provider"] == HOST else flat(service["provider"])
    return provider if state == "active" else f"{provider} ({state})"


def _dependant(dependant: Tree) -> str:
    name = flat(dependant["row"])
    if dependant["state"] != "active":
        state = "waits" if dependant["state"] == "pending" else dependant["state"]
        name = f"{name} ({state})"
    return f"{name}?" if dependant["optional"] else name


def _wrapped(text: str, page: Page, indent: int) -> list[str]:
    room = max(20, page.width - indent)
    return [f"{' ' * indent}{line}" for line in wrap(text, room, break_on_hyphens=False)]
