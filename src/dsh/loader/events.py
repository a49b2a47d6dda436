"""Events of the loader and the host; their wire names are facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dsh.kernel.context import Context
from dsh.kernel.events import Emit, Parallel, WaterfallSync

if TYPE_CHECKING:
    from dsh.kernel.keys import Label
    from dsh.loader.entry import Entry
    from dsh.loader.tree import EntryTree


class EntryMade:
    """An entry object was made for a row; it is not mounted yet."""

    __slots__ = ("entry",)

    def __init__(self, entry: Entry) -> None:
        self.entry = entry


class ContextPatching:
    """An entry's context is about to be put in its place; listeners may edit what it gets.

    Attributes:
        entry: The entry; its options and group are the new ones.
        isolate: Scopes of services, by the service's key.
        intercept: Config layers of services, by the service's key.
    """

    __slots__ = ("entry", "intercept", "isolate")

    def __init__(self, entry: Entry, intercept: dict[str, Mapping[str, Any]]) -> None:
        self.entry = entry
        self.isolate: dict[str, Label] = {}
        self.intercept = intercept


class EntryChanged:
    """An entry's row changed, or the entry has left the tree.

    Attributes:
        entry: The entry, changed already.
        legacy: Its row before.
        active: Whether the entry is still in the tree.
    """

    __slots__ = ("active", "entry", "legacy")

    def __init__(self, entry: Entry, legacy: Mapping[str, Any], active: bool) -> None:
        self.entry, self.legacy, self.active = entry, legacy, active


class TreeWriting:
    """The rows of a file are about to be written to it."""

    __slots__ = ("tree",)

    def __init__(self, tree: EntryTree) -> None:
        self.tree = tree


class HostExit:
    """The host is about to dispose of the tree.

    Attributes:
        signal: Name of the signal that asked for it; None when the app did.
        code: The exit code that was asked for.
    """

    __slots__ = ("code", "signal")

    def __init__(self, signal: str | None, code: int) -> None:
        self.signal, self.code = signal, code


LOADER_ENTRY_INIT = Emit[EntryMade]("loader/entry-init", errors="contain")
"""After an entry object was made."""
LOADER_PATCH_CONTEXT = WaterfallSync[ContextPatching, Context]("loader/patch-context")
"""Around the placing of an entry's context, at each mount and change; realms hook in here."""
LOADER_PARTIAL_DISPOSE = Emit[EntryChanged]("loader/partial-dispose", errors="contain")
"""After a row changed or an entry left the tree: what only it used may be forgotten."""
LOADER_CONFIG_UPDATE = Emit[TreeWriting]("loader/config-update", errors="contain")
"""Before the rows of a file are written to it."""
HOST_EXIT = Parallel[HostExit]("exit")
"""Before the tree is disposed of; listeners may finish what must be seen, within the grace."""
