"""Events of the loader and the host; their wire names are facts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh.kernel.context import Context
from dsh.kernel.events import Emit, Parallel, WaterfallSync

if TYPE_CHECKING:
    from dsh.loader.entry import Entry


class EntryMade:
    """An entry object was made for a row; it is not mounted yet."""

    __slots__ = ("entry",)

    def __init__(self, entry: Entry) -> None:
        self.entry = entry


class ContextPatching:
    """An entry's context is about to be made from its group's; listeners return another."""

    __slots__ = ("entry",)

    def __init__(self, entry: Entry) -> None:
        self.entry = entry


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
"""Around the making of an entry's context; scopes hook in here."""
HOST_EXIT = Parallel[HostExit]("exit")
"""Before the tree is disposed of; listeners may finish what must be seen, within the grace."""
