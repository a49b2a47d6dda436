"""Trees: entries by their ids, those of the composed profile and those of each included file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dsh.kernel import Context
from dsh.loader.errors import EntryMissing
from dsh.loader.group import EntryGroup

if TYPE_CHECKING:
    from dsh.loader.entry import Entry
    from dsh.loader.loader import Loader
    from dsh.loader.rows import Row


class EntryTree:
    """Rows whose ids are unique among each other.

    Attributes:
        owner: The row that includes this tree; None for the loader's own, and for one whose
            include is no row.
        root: The top-level rows.
        store: All entries by id, those of groups too, without those of included trees.
    """

    def __init__(self, loader: Loader, ctx: Context, owner: Entry | None = None) -> None:
        self.loader = loader
        self.owner = owner
        self.store: dict[str, Entry] = {}
        self.logs: bool | None = None
        self.root = EntryGroup(self, ctx, owner)

    @property
    def enable_logs(self) -> bool:
        """Whether coming and going of plugins is logged: its own say, else the outer tree's."""
        if self.logs is not None:
            return self.logs
        return self.owner is not None and self.owner.tree.enable_logs

    def entries(self) -> Iterator[Entry]:
        """Yield all entries, also of included trees, depth first, in the order of their rows."""
        return self.root.all_entries()

    def full_id(self, id: str) -> str:
        """Return an id as messages show it: ``outer:inner`` for a row of an included tree."""
        return id if self.owner is None else f"{self.owner.full_id}:{id}"

    def resolve(self, id: str) -> Entry:
        """Return an entry by its id; ``outer:inner`` names a row of an included tree.

        Raises:
            EntryMissing: there is no such row.
        """
        entry = self._find(id)
        if entry is None:
            raise EntryMissing(self.full_id(id))
        return entry

    def check(self, row: Row) -> None:
        """Refuse a row that the tree could not keep; one without a file keeps any."""

    def save(self) -> None:
        """Note that rows changed; a tree without a file has nowhere to write them."""

    def _find(self, id: str) -> Entry | None:
        entry = self.store.get(id)
        if entry is not None:
            return entry
        # An id may hold colons itself: try every split.
        at = id.find(":")
        while at >= 0:
            outer = self.store.get(id[:at])
            if outer is not None and outer.subtree is not None:
                found = outer.subtree._find(id[at + 1 :])
                if found is not None:
                    return found
            at = id.find(":", at + 1)
        return None
