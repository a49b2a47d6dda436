"""Realms: which scope a row's ``isolate`` means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dsh.base.names import camel, snake
from dsh.kernel import Context, DuplicateService, Label, SyncNext
from dsh.loader.errors import LabelTaken
from dsh.loader.events import (
    LOADER_ENTRY_INIT,
    LOADER_PARTIAL_DISPOSE,
    LOADER_PATCH_CONTEXT,
    ContextPatching,
    EntryChanged,
)

if TYPE_CHECKING:
    from dsh.loader.entry import Entry


class Realms:
    """Scopes of services by the labels that rows give them.

    ``true`` is a scope of the row's own. A text is one scope for all rows that say it, in any
    group and file of the tree, for as long as one of them does.
    """

    def __init__(self, ctx: Context) -> None:
        self._shared: dict[tuple[str, str], _Realm] = {}
        ctx.on(LOADER_ENTRY_INIT, lambda event: self._join(event.entry))
        ctx.on(LOADER_PATCH_CONTEXT, self._patch)
        ctx.on(LOADER_PARTIAL_DISPOSE, self._collect)

    def __len__(self) -> int:
        return len(self._shared)

    def label_of(self, entry: Entry, name: str, value: str | bool) -> Label:
        """Return the scope that a row means by a value of its ``isolate``."""
        if isinstance(value, str):
            key = (name, value)
            realm = self._shared.get(key)
            if realm is None:
                realm = self._shared[key] = _Realm(Label(f"{name}@{value}"))
            realm.members[entry] = None
            return realm.label
        own = entry.private_labels.get(name)
        if own is None:
            own = entry.private_labels[name] = Label(f"{name}#{entry.id}")
        return own

    def _patch(self, event: ContextPatching, next: SyncNext[Context]) -> Context:
        entry = event.entry
        for name, value in _isolated(entry.options).items():
            event.isolate[name] = self.label_of(entry, name, value)
        try:
            return next()
        except DuplicateService as error:
            raise _taken(event, error) from error

    def _join(self, entry: Entry) -> None:
        for name, value in _isolated(entry.options).items():
            if isinstance(value, str):
                self.label_of(entry, name, value)

    def _collect(self, event: EntryChanged) -> None:
        entry = event.entry
        now = _isolated(entry.options) if event.active else {}
        if event.active:
            self._join(entry)
        for name, value in _isolated(event.legacy).items():
            if now.get(name) == value:
                continue
            if not isinstance(value, str):
                entry.private_labels.pop(name, None)
                continue
            realm = self._shared.get((name, value))
            if realm is not None:
                realm.members.pop(entry, None)
                if not realm.members:
                    del self._shared[name, value]


class _Realm:
    """One shared scope and the entries that are in it."""

    __slots__ = ("label", "members")

    def __init__(self, label: Label) -> None:
        self.label = label
        self.members: dict[Entry, None] = {}


def _isolated(row: Mapping[str, Any]) -> dict[str, str | bool]:
    declared = row.get("isolate") or {}
    return {snake(name): value for name, value in declared.items() if value is not False}


def _taken(event: ContextPatching, error: DuplicateService) -> LabelTaken:
    entry, name = event.entry, error.service
    label = event.isolate.get(name) or entry.group.ctx.label_of(name)
    shown = label.name if label is not None else "the tree's own scope"
    return LabelTaken(entry.full_id, camel(name), shown, _holder(entry, name, label))


def _holder(entry: Entry, name: str, label: Label | None) -> str:
    """Return who provides a service in a scope, by its row where it has one."""
    binding = entry.ctx.fiber.kernel.services.find(name, label)
    if binding is None:
        return "another plugin"
    row = entry.loader.locate(binding.owner)
    return f'row "{row}"' if row is not None else f"plugin {binding.owner.name!r}"
