"""The tree as a Mermaid flowchart: rows, groups around them, and who uses whose service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from dsh.loader.inspect import HOST
from dsh.product.tree.text import own_id

_STYLES: Final = {
    "active": "fill:#e6f4ea,stroke:#34803f",
    "failed": "fill:#fce8e6,stroke:#c5221f",
    "waiting": "fill:#fef7e0,stroke:#b06000",
    "disabled": "fill:#f1f3f4,stroke:#9aa0a6,color:#80868b",
    "absent": "fill:#ffffff,stroke:#c5221f,stroke-dasharray:4",
}
_CLASS_OF: Final = {
    "active": "active",
    "failed": "failed",
    "gone": "failed",
    "disabled": "disabled",
}


def flowchart(tree: Mapping[str, Any]) -> str:
    """Return a flowchart; an arrow goes from a service's provider to each dependant.

    Services that nobody provides, and the host, are nodes of their own where something needs them.
    """
    ids = {path: f"r{number}" for number, path in enumerate(_paths(tree["rows"]))}
    lines = ["flowchart LR", *_nodes(tree["rows"], ids, "  ")]
    edges, extra = _edges(tree["services"], ids)
    lines += [*extra, *edges]
    lines += [f"  classDef {name} {style}" for name, style in _STYLES.items()]
    return "\n".join(lines) + "\n"


def _paths(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for row in rows:
        yield row["id"]
        yield from _paths(row["rows"])


def _nodes(
    rows: Sequence[Mapping[str, Any]], ids: Mapping[str, str], indent: str, outer: str = ""
) -> Iterator[str]:
    for row in rows:
        node, name = ids[row["id"]], _text(own_id(row, outer))
        if row["rows"]:
            yield f'{indent}subgraph {node}["{name}"]'
            yield from _nodes(row["rows"], ids, indent + "  ", row["id"])
            yield f"{indent}end"
            continue
        state = row["state"]
        label = name if state == "active" else f"{name}<br/>{_text(state)}"
        yield f'{indent}{node}["{label}"]:::{_CLASS_OF.get(state, "waiting")}'


def _edges(
    services: Sequence[Mapping[str, Any]], ids: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """Return the edges, and the nodes that stand for no row."""
    edges: list[str] = []
    extra: list[str] = []
    for number, service in enumerate(services):
        name, source = _text(service["name"]), ids.get(service["provider"] or "")
        arrow = "-->"
        users = list(dict.fromkeys(each["row"] for each in service["dependants"]))
        users = [ids[user] for user in users if ids.get(user) not in {None, source}]
        if source is None and users:
            if service["provider"] == HOST:
                source = "host"
                extra += [] if '  host(["the host"])' in extra else ['  host(["the host"])']
            else:
                source, arrow = f"s{number}", "-.->"
                nobody = "the app's start" if service["app"] else "nobody"
                style = "waiting" if service["app"] else "absent"
                extra.append(f'  {source}(["{name}: {_text(nobody)}"]):::{style}')
        edges += [f'  {source} {arrow}|"{name}"| {user}' for user in users]
    return edges, extra


def _text(text: str) -> str:
    """Return a text that a quoted label may hold: what Mermaid reads is written as entities."""
    flat = " ".join(text.split())
    return "".join(
        each if each.isalnum() or each in " -_.:/@" else f"#{ord(each)};" for each in flat
    )
