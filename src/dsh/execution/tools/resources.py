"""Calls that touch one thing keep their order, and others overlap.

This knows neither calls nor whoever schedules them, so that every lane can use it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Final

from dsh.execution.tools.service import Resource

FILE_KIND: Final = "file"
"""Kind of the resources whose names are paths of the file system."""


MAX_RESOURCES: Final = 100
"""How many resources one call may name; whoever touches more had better run alone."""


def file_resource(path: str, *, shared: bool = False) -> Resource:
    """Name a file, or a folder with all below it. A relative path starts at the session's folder.

    Links and ``..`` need no care: `canonical` follows them.
    """
    return Resource(f"{FILE_KIND}:{path}", shared)


def canonical(used: Resource | str, base: str | None) -> Resource:
    """Return a resource under the one key that all its names share.

    A ``file:`` path is made absolute and its links are followed as far as they exist; this looks at
    the disk. The name of any other resource counts as it is, but for the form of an absolute path.

    Args:
        used: A plain string stands for exclusive use.
        base: Where a relative path starts; ``None`` is the folder of the process.

    Raises:
        ValueError: the key is not ``kind:name``, or no path can have this name.
        TypeError: it is no resource at all.
    """
    resource = Resource(used) if isinstance(used, str) else used
    if not isinstance(resource, Resource):
        raise TypeError(f"a resource is a Resource or a text, got {type(used).__name__}")
    kind, colon, name = resource.key.partition(":")
    if not (kind and colon and name):
        raise ValueError(f"a resource is named 'kind:name', got {resource.key!r}")
    if kind == FILE_KIND:
        name = os.path.realpath(Path(base or ".", name))
    elif name.startswith("/"):
        name = os.path.normpath(name)
    return Resource(f"{kind}:{name}", resource.shared)


def canonical_all(used: Iterable[Resource | str], base: str | None) -> tuple[Resource, ...]:
    """Return what one call says it uses, each as `canonical` does.

    Raises:
        ValueError: as `canonical`, or there are more than `MAX_RESOURCES`.
        TypeError: as `canonical`, or it is no list.
    """
    if isinstance(used, str):
        raise TypeError("resources are a list, not one text")
    given = list(islice(used, MAX_RESOURCES + 1))
    if len(given) > MAX_RESOURCES:
        raise ValueError(f"a call names at most {MAX_RESOURCES} resources")
    return tuple(canonical(each, base) for each in given)


class Ticket:
    """The place of one call in a `ResourceQueue`."""

    __slots__ = ("_blocked", "_uses", "_waits_for")

    def __init__(self, uses: Mapping[str, bool]) -> None:
        self._uses = uses
        self._waits_for: set[Ticket] = set()
        self._blocked: list[Ticket] = []

    @property
    def is_ready(self) -> bool:
        """Whether nobody who came earlier still uses a resource of this call against it."""
        return not self._waits_for


class ResourceQueue:
    """Who uses which resources, in the order of arrival.

    Whoever shares a resource waits for earlier exclusive use of it, whoever wants it alone waits
    for all earlier use. Use of ``kind:/a`` and use of ``kind:/a/b`` are use of the same thing. As
    everybody waits only for those who came earlier, nobody waits in a circle.
    """

    def __init__(self) -> None:
        self._at: dict[str, dict[Ticket, bool]] = {}
        self._below: dict[str, dict[Ticket, bool]] = {}
        """Under each folder, who uses something inside of it."""

    def enter(self, resources: Iterable[Resource]) -> Ticket:
        """Take a place for a call that uses ``resources``; their keys are `canonical`."""
        uses: dict[str, bool] = {}
        for resource in resources:
            uses[resource.key] = resource.shared and uses.get(resource.key, True)
        ticket = Ticket(uses)
        for key, shared in uses.items():
            for earlier, sharing in self._others(key):
                if not (shared and sharing) and earlier not in ticket._waits_for:
                    ticket._waits_for.add(earlier)
                    earlier._blocked.append(ticket)
        for key, shared in uses.items():
            self._at.setdefault(key, {})[ticket] = shared
            for folder in _folders(key):
                within = self._below.setdefault(folder, {})
                within[ticket] = shared and within.get(ticket, True)
        return ticket

    def leave(self, ticket: Ticket) -> list[Ticket]:
        """Give a place up; return who became ready by this, in the order of arrival."""
        ready = []
        for later in ticket._blocked:
            later._waits_for.discard(ticket)
            if later.is_ready:
                ready.append(later)
        ticket._blocked = []
        for earlier in ticket._waits_for:
            earlier._blocked.remove(ticket)
        ticket._waits_for.clear()
        for key in ticket._uses:
            _remove(self._at, key, ticket)
            for folder in _folders(key):
                _remove(self._below, folder, ticket)
        return ready

    def __len__(self) -> int:
        """How many keys are in use."""
        return len(self._at)

    def _others(self, key: str) -> Iterator[tuple[Ticket, bool]]:
        yield from self._at.get(key, {}).items()
        yield from self._below.get(key, {}).items()
        for folder in _folders(key):
            yield from self._at.get(folder, {}).items()


def _folders(key: str) -> Iterator[str]:
    """The keys of the folders that hold an absolute path, nearest first."""
    kind, _, name = key.partition(":")
    while name.startswith("/") and name != "/":
        name = name.rpartition("/")[0] or "/"
        yield f"{kind}:{name}"


def _remove(index: dict[str, dict[Ticket, bool]], key: str, ticket: Ticket) -> None:
    users = index.get(key)
    if users is not None:
        users.pop(ticket, None)
        if not users:
            del index[key]
