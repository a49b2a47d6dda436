"""A whole process of sessions with projections and their cache, on a folder; and some units."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from state_home import Home

from dsh.kernel import Context
from dsh.kernel.timer import Timer
from dsh.state.persistence.errors import SessionNotFound
from dsh.state.projections import ProjectionCache, ProjectionRegistry, ProjectionUnit
from dsh.state.projections import cache as projection_cache
from dsh.state.projections.cache import DOMAIN
from dsh.state.projections.registry import SessionProjections
from dsh.state.session.events import SessionEvent, SessionMeta
from dsh.state.session.session import Session
from dsh.state.storage import DomainFacility
from dsh.state.storage import hub as storage
from dsh.state.storage import json_files as storage_json
from dsh.state.storage.domain import facility as storage_domain

NEVER_MS = 2**31 - 1


def is_int(value: Any) -> None:
    if type(value) is not int:
        raise ValueError("it is no integer")


def is_texts(value: Any) -> None:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError("it is no list of texts")


def counting(key: str = "count", version: int = 1, *, only: str | None = None) -> Any:
    """How many events there are, or how many of one type."""

    def apply(count: int, event: SessionEvent) -> int:
        return count + 1 if only is None or event["type"] == only else count

    return ProjectionUnit[int](
        key,
        state_version=version,
        state_schema=is_int,
        init=lambda: 0,
        apply=apply,
        view=lambda count: count,
        view_schema=is_int,
    )


def recording(key: str = "types", version: int = 1) -> Any:
    """The types of the last events, in a state that is a list."""
    return ProjectionUnit[list[str]](
        key,
        state_version=version,
        state_schema=is_texts,
        init=list,
        apply=lambda types, event: [*types[-9:], event["type"]],
        view=lambda types: {"last": types[-1] if types else None},
    )


def hidden(key: str = "hidden") -> Any:
    """A unit without a view and without a stored state."""
    return ProjectionUnit[int](key, init=lambda: 0, apply=lambda state, event: event["seq"])


class Process:
    """Everything that a process with a cache has."""

    def __init__(
        self, folder: Path, *, events: int = NEVER_MS, interval_ms: int = NEVER_MS
    ) -> None:
        self.root = Context()
        self.folder = folder
        self.config = {"writeEveryEvents": events, "writeIntervalMs": interval_ms}
        self.home = Home(self.root, folder / "sessions")
        self._detach: dict[str, Callable[[], object]] = {}

    async def open(self) -> Process:
        await self.root.plugin(Timer)
        await self.root.plugin(SessionProjections)
        await self.home.open()
        await self.root.plugin(storage.plugin)
        await self.root.plugin(storage_json, {"root": str(self.folder / "storages")})
        await self.root.plugin(storage_domain, {"backend": "json"})
        ready = asyncio.Event()
        self.root.inject([ProjectionCache], lambda _: ready.set())
        self.cache_fiber = self.root.plugin(projection_cache.plugin, self.config)
        await ready.wait()
        return self

    async def close(self) -> None:
        await self.root.dispose()

    @property
    def registry(self) -> ProjectionRegistry:
        return self.root.require(ProjectionRegistry)

    @property
    def cache(self) -> ProjectionCache:
        return self.root.require(ProjectionCache)

    @property
    def kept(self) -> dict[str, Any]:
        domain = self.root.require(DomainFacility).get(DOMAIN.name)
        assert domain is not None
        return dict(domain.table("sessions").entries())

    async def idle(self) -> None:
        """Wait until no background write is under way."""
        await self.cache._queue.join()  # type: ignore[attr-defined]

    async def leave(self, session: Session) -> None:
        """Let a live session leave the store, as when its agent ends."""
        self._detach.pop(session.id)()
        await self.idle()
        try:
            await self.home.persistence.inspect(session.id)
        except SessionNotFound:
            return

    def session(self, id: str = "s", **meta: Any) -> Session:
        """Make a live session that `leave` can take out again."""
        return self._enter(self.home.store.prepare(id, meta=cast("SessionMeta", meta)))

    async def resume(self, id: str = "s") -> Session:
        with await self.home.persistence.prepare(id) as preparation:
            return self._enter(preparation.session)

    def _enter(self, session: Session) -> Session:
        self._detach[session.id] = self.home.store.enter(session, self.root)
        self.home.store.announce(session)
        return session
