"""Layers of patches: applied in order, with a note of what each made and changed."""

from __future__ import annotations

from binascii import crc32
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from dsh.loader.aliases import same_plugin
from dsh.loader.errors import PatchError
from dsh.loader.expr import detach
from dsh.loader.patch import PatchRun
from dsh.loader.rows import Row, holds_rows, same


class Layer(NamedTuple):
    """Patches with the name that dumps and warnings give them."""

    label: str
    patches: list[Row]
    quiet: bool = False
    """Skips what finds no target without a warning; for what the launcher itself adds."""


class Provenance(NamedTuple):
    """Where a top-level row comes from."""

    origin: str
    """Label of the layer that inserted it."""
    patched_by: tuple[str, ...]
    """Labels of the layers that changed it since, in order."""

    def __str__(self) -> str:
        if not self.patched_by:
            return self.origin
        return f"{self.origin}, patched by {', '.join(self.patched_by)}"


class Layered(NamedTuple):
    """What layers make."""

    rows: list[Row]
    """Each with an id, nested ones too."""
    provenance: list[Provenance]
    """One a top-level row."""
    unnamed: frozenset[str]
    """The ids that were made up, for rows that have none in their file."""


def apply_layers(layers: Sequence[Layer], warn: Callable[[str], None]) -> Layered:
    """Apply layers in one pass and note which of them made and changed each top-level row.

    A row without an id gets one from its layer's name and content and its place in it: the row
    is another as soon as its own file changes, and the same however others do.

    Raises:
        PatchError: a patch has a shape that no tree can take; names its layer.
    """
    run = PatchRun([], same_name=same_plugin)
    origins: list[str] = []
    changers: list[list[str]] = []
    unnamed: list[str] = []
    for layer in layers:
        before: list[Row] = detach(run.rows)
        _apply(run, layer, warn)
        unnamed += _name_rows(run.rows, layer)
        for index, old in enumerate(before):
            if not same(old, run.rows[index]):
                changers[index].append(layer.label)
        added = len(run.rows) - len(before)
        origins += [layer.label] * added
        changers += [[] for _ in range(added)]
    provenance = [
        Provenance(origin, tuple(changed))
        for origin, changed in zip(origins, changers, strict=True)
    ]
    return Layered(run.rows, provenance, frozenset(unnamed))


def _apply(run: PatchRun, layer: Layer, warn: Callable[[str], None]) -> None:
    def tell(text: str) -> None:
        if not layer.quiet:
            warn(f"[{layer.label}] {text}")

    try:
        for patch in layer.patches:
            run.apply(patch, tell)
    except PatchError as error:
        raise PatchError(f"[{layer.label}] {error}") from error


def _name_rows(rows: list[Row], layer: Layer) -> Iterator[str]:
    """Give an id to each row that has none, and yield these ids."""
    nameless = [row for row in all_rows(rows) if row.get("id") is None]
    if not nameless:
        return
    content = f"{layer.label}\n{layer.patches!r}".encode(errors="backslashreplace")
    start = crc32(content)
    for place, row in enumerate(nameless):
        row["id"] = f"{crc32(b'%d' % place, start):08x}"
        yield row["id"]


def all_rows(rows: Sequence[Any]) -> Iterator[Row]:
    """Yield rows and those of their groups, depth first; what is no row is passed over."""
    for row in rows:
        if isinstance(row, dict):
            yield row
            if holds_rows(row) and isinstance(row.get("config"), list):
                yield from all_rows(row["config"])


def without_ids(rows: Sequence[Row], ids: frozenset[str]) -> list[Row]:
    """Return rows as their files spell them: without these ids."""
    plain: list[Row] = detach(list(rows))
    for row in all_rows(plain):
        if row.get("id") in ids:
            del row["id"]
    return plain


def field_origins(layers: Sequence[Layer], id: str) -> dict[str, str]:
    """Tell which layer set each field of one row last.

    Args:
        layers: As `apply_layers` takes them.
        id: The row's; it may be in a group.

    Returns:
        Dotted path of a field (``config.policy.mode``) -> label of the layer; without fields that
        a later layer removed. Empty when there is no such row.
    """
    origins: dict[str, str] = {}
    before: dict[str, Any] = {}
    run = PatchRun([], same_name=same_plugin)
    for layer in layers:
        _apply(run, layer, lambda _: None)
        row = next((each for each in all_rows(run.rows) if each.get("id") == id), None)
        after = dict(_leaves(row, "")) if row is not None else {}
        for path, value in after.items():
            if path not in before or not same(before[path], value):
                origins[path] = layer.label
        before = after
    return {path: origins[path] for path in before}


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    else:
        yield path, detach(value)
