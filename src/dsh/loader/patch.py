"""Apply patches to rows: pure, and the same for boot, live reload and dumps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dsh.base.text import nearest
from dsh.loader.errors import PatchError
from dsh.loader.expr import detach
from dsh.loader.rows import (
    PATCH_FIELDS,
    ROW_FIELDS,
    Row,
    check_fields,
    is_group,
    label_of,
    unknown_fields,
)

Patch = Mapping[str, Any]
"""One patch: ``insert`` rows, or override fields of the row with this ``id``.

``merge`` changes single fields of the row's config, where ``config`` replaces it whole.
"""

Warn = Callable[[str], None]
"""Is told why a patch was skipped."""

SameName = Callable[[str, str], bool]
"""Tells whether two plugin names mean the same plugin."""


def merge(base: object, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping with changes merged into it; neither argument is changed or shared.

    Mappings merge field by field. Everything else, lists and expressions too, replaces what was
    there, and null removes the field.
    """
    merged: dict[str, Any] = detach(base) if isinstance(base, dict) else {}
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            merged[key] = merge(merged.get(key), value)
        else:
            merged[key] = detach(value)
    return merged


def apply_patches(
    rows: Sequence[Row],
    patches: Iterable[Patch],
    warn: Warn,
    *,
    same_name: SameName = str.__eq__,
) -> list[Row]:
    """Return the rows after all patches, in order, in one pass.

    Neither argument is changed and the result shares nothing with them. A patch that finds no
    target is skipped with a warning, so that one overlay fits several trees.

    Args:
        rows: The tree before.
        patches: Later ones see what earlier ones inserted.
        warn: Called with a sentence for each patch that is skipped.
        same_name: How a patch's ``name`` guard compares with the row's.

    Raises:
        PatchError: a patch has a shape that no tree can take.
    """
    run = PatchRun(rows, same_name=same_name)
    for patch in patches:
        run.apply(patch, warn)
    return run.rows


class PatchRun:
    """One pass of patches over a private copy of some rows.

    Attributes:
        rows: The tree so far; top-level rows keep their place for the whole pass.
    """

    def __init__(self, rows: Sequence[Row], *, same_name: SameName = str.__eq__) -> None:
        self.rows: list[Row] = detach(list(rows))
        self._same_name = same_name
        self._by_id: dict[str, Row] = {}
        self._index(self.rows)

    def apply(self, patch: Patch, warn: Warn) -> None:
        """Apply one patch, or tell why it is skipped.

        Raises:
            PatchError: its shape is unusable.
        """
        check_fields(patch, f'patch "{patch.get("id", "?")}"')
        for remark in unknown_fields(patch, PATCH_FIELDS):
            warn(f'patch "{patch.get("id", "?")}": {remark}')
        if "insert" in patch:
            self._insert(patch, warn)
        else:
            self._override(patch, warn)

    def _insert(self, patch: Patch, warn: Warn) -> None:
        inserted = patch["insert"]
        if not isinstance(inserted, list) or not all(isinstance(row, dict) for row in inserted):
            raise PatchError("patch insert: insert must be a list of rows")
        fresh: list[Row] = detach(inserted)
        for row in fresh:
            for remark in unknown_fields(row, ROW_FIELDS):
                warn(f'row "{label_of(row)}": {remark}')
        into = patch.get("id")
        if into is None:
            self.rows.extend(fresh)
        else:
            target = self._by_id.get(into)
            if target is None:
                warn(f'patch insert: entry "{into}" not found{self._near(into)}')
                return
            if not is_group(target):
                warn(f'patch insert: entry "{into}" is not a group')
                return
            if not isinstance(target.get("config"), list):
                target["config"] = []
            target["config"].extend(fresh)
        self._index(fresh)

    def _override(self, patch: Patch, warn: Warn) -> None:
        wanted = patch.get("id")
        if wanted is None:
            warn("patch: id is required for non-insert patches")
            return
        target = self._by_id.get(wanted)
        if target is None:
            warn(f'patch: entry "{wanted}" not found{self._near(wanted)}')
            return
        guard = patch.get("name")
        if guard is not None and not self._same_name(guard, target.get("name", "")):
            found = target.get("name")
            warn(
                f'patch: name mismatch for "{wanted}" (expected "{guard}", got "{found}"), skipping'
            )
            return
        for key, value in patch.items():
            if key not in {"id", "name", "merge"}:
                target[key] = detach(value)
        # After `config`, wherever it stands: the order of keys means nothing.
        if patch.get("merge") is not None:
            target["config"] = self._merged(wanted, target.get("config"), patch["merge"])

    def _merged(self, wanted: str, config: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
        if config is not None and not isinstance(config, dict):
            kind = "a list" if isinstance(config, list) else "one value"
            raise PatchError(
                f'patch "{wanted}": merge needs a config that is a mapping, and that of this row '
                f"is {kind}; replace it by config instead"
            )
        return merge(config, changes)

    def _index(self, rows: list[Row]) -> None:
        for row in rows:
            own = row.get("id")
            if isinstance(own, str):
                self._by_id[own] = row
            if is_group(row) and isinstance(row.get("config"), list):
                self._index([each for each in row["config"] if isinstance(each, dict)])

    def _near(self, id: str) -> str:
        near = nearest(id, list(self._by_id))
        return f', did you mean "{near}"?' if near else ""
