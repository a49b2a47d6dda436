"""What an author says about a store, and the processes that use it in a test."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dsh.base.values import value
from dsh.kernel import Context
from dsh.state.persistence.service import SessionPersistence
from dsh.state.session.store import LocalSessionStore

if TYPE_CHECKING:
    from dsh.state.session.events import SessionEvent
    from dsh.state.session.session import Session

_NEVER_MS = 3_600_000


@value
class Medium:
    """A store under test. All hosts of a test are given the same config, so the same storage.

    Attributes:
        plugin: ``module:name`` of the provider.
        config: Its config.
        tear: Leaves a torn end behind the last record of a session, as a crash does; ``None``
            for a medium on which a commit is a whole or nothing.
        spoil: Damages what was committed of a session, before its last turn; ``None`` when
            a test cannot.
        environment: Variables that other processes need.
    """

    plugin: str
    config: Mapping[str, Any]
    tear: Callable[[str], object] | None = None
    spoil: Callable[[str], object] | None = None
    environment: Mapping[str, str] = {}

    def load(self) -> Any:
        """Import the provider."""
        module, _, name = self.plugin.partition(":")
        return getattr(importlib.import_module(module), name)

    @contextmanager
    def child(self, id: str, **config: Any) -> Iterator[subprocess.Popen[str]]:
        """Run a process that resumes or creates a session and writes a turn a line it is sent.

        It answers each with the number of durable events, or with the code of the error.
        """
        settings = json.dumps({**self.config, **config})
        command = [sys.executable, "-m", "dsh.testing.persistence.child", self.plugin, settings, id]
        pipe = subprocess.PIPE
        env = {**os.environ, **self.environment}
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env) as process:
            try:
                yield process
            finally:
                process.kill()


class Host:
    """What one process has: a session store and the provider, which writes only when flushed."""

    def __init__(self, medium: Medium, **config: Any) -> None:
        self.root = Context()
        self._medium = medium
        self._config = {"writeBatchMaxDelayMs": _NEVER_MS, **medium.config, **config}

    async def open(self) -> Host:
        """Mount both."""
        await self.root.plugin(LocalSessionStore)
        await self.mount()
        return self

    async def mount(self) -> None:
        """Mount the provider, again after `unload`."""
        self.fiber = await self.root.plugin(self._medium.load(), self._config)

    async def unload(self) -> None:
        """Unload the provider, while its sessions stay live."""
        await self.fiber.dispose()

    async def close(self) -> None:
        """End all of it."""
        await self.root.dispose()

    @property
    def store(self) -> LocalSessionStore:
        """The live sessions."""
        return self.root.require(LocalSessionStore)

    @property
    def persistence(self) -> SessionPersistence:
        """The provider."""
        return self.root.require(SessionPersistence)

    async def resume(self, id: str) -> Session:
        """Make a stored session live."""
        with await self.persistence.prepare(id) as preparation:
            self.store.enter(preparation.session, self.root)
            self.store.announce(preparation.session)
        return preparation.session

    async def stored(self, id: str) -> list[SessionEvent]:
        """Return what is in storage, without what closes an interrupted turn."""
        return (await self.persistence.read_from(id, 0))[1]

    async def flush(self, *sessions: Session) -> None:
        """Make sessions durable."""
        for session in sessions:
            await self.store.flush(session)


class Hosts:
    """The processes of one test."""

    def __init__(self, medium: Medium) -> None:
        self.medium = medium
        self._open: list[Host] = []

    async def open(self, **config: Any) -> Host:
        """Start one more."""
        host = await Host(self.medium, **config).open()
        self._open.append(host)
        return host

    async def pair(self) -> Sequence[Host]:
        """Start two."""
        return [await self.open(), await self.open()]

    async def close(self) -> None:
        """End those that are still there."""
        for host in self._open:
            await host.close()
