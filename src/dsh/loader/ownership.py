"""Which rows and fields are a file's own, when patches were applied to what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dsh.loader.expr import detach
from dsh.loader.rows import Row, is_group, same


class Overlay:
    """What patches made of a file's rows: kept out of the file when rows are written to it.

    Args:
        file: The rows of the file, each with an id.
        mounted: The same after the patches.
    """

    def __init__(self, file: Sequence[Row] = (), mounted: Sequence[Row] = ()) -> None:
        ours, theirs = rows_by_id(file), rows_by_id(mounted)
        self._inserted = theirs.keys() - ours.keys()
        self._gone = ours.keys() - theirs.keys()
        self._fields = {
            own: {
                key for key in {*row, *theirs[own]} if not same(row.get(key), theirs[own].get(key))
            }
            for own, row in ours.items()
            if own in theirs
        }

    def own_rows(self, live: Sequence[Row], file: Sequence[Row]) -> list[Row]:
        """Return what to write, so that reading and patching it gives the live rows.

        What a patch inserted stays out, and a field that a patch set keeps what the file says:
        written down, the patch would seem to be the file's own.

        Args:
            live: The rows as they are now.
            file: The rows of the file as it is now.
        """
        return self._rows(live, rows_by_id(file))

    def _rows(self, live: Sequence[Row], file: Mapping[str, Row]) -> list[Row]:
        return [self._row(row, file) for row in live if row["id"] not in self._inserted]

    def _row(self, row: Row, file: Mapping[str, Row]) -> Row:
        original = file.get(row["id"], {})
        patched = self._fields.get(row["id"], ())
        owned: Row = {}
        for key in (*original, *(key for key in row if key not in original)):
            if key == "config" and _is_list(row):
                owned[key] = self._inner(row, original, file)
            elif key in patched:
                if key in original:
                    owned[key] = detach(original[key])
            elif key in row:
                owned[key] = detach(row[key])
        return owned

    def _inner(self, row: Row, original: Row, file: Mapping[str, Row]) -> Any:
        if _is_list(original) and any(each["id"] in self._gone for each in original["config"]):
            # A patch replaced the whole list.
            return detach(original["config"])
        return self._rows(row["config"], file)


def rows_by_id(rows: Sequence[Row]) -> dict[str, Row]:
    """Return all rows, those of groups too, by their ids."""
    found: dict[str, Row] = {}
    for row in rows:
        found[row["id"]] = row
        if _is_list(row):
            found |= rows_by_id(row["config"])
    return found


def _is_list(row: Row) -> bool:
    return is_group(row) and isinstance(row.get("config"), list)
