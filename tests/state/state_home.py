"""A store and a persistence on a folder, for the tests here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from dsh.kernel import Context
from dsh.state.persistence.artifact.store import ArtifactStore
from dsh.state.persistence.jsonl import JsonlPersistence
from dsh.state.session.session import Session
from dsh.state.session.store import LocalSessionStore

HERE = Path(__file__).parent
_HOUR_MS = 3_600_000


def start_child(root: Path, compression: str = "zstd") -> subprocess.Popen[str]:
    """Start a process that appends to the session ``victim`` and prints how much is durable."""
    path = [str(HERE), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    command = [sys.executable, str(HERE / "appending_child.py"), str(root), compression]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=env, text=True)


class Home:
    """A root context with a store and a persistence that writes only when flushed."""

    def __init__(self, root: Context, folder: Path, **config: Any) -> None:
        self.root = root
        self.folder = folder
        self.config = {"root": str(folder), "writeBatchMaxDelayMs": _HOUR_MS, **config}

    async def open(self) -> Home:
        await self.root.plugin(LocalSessionStore)
        self.fiber = await self.root.plugin(JsonlPersistence, self.config)
        return self

    @property
    def store(self) -> LocalSessionStore:
        return self.root.require(LocalSessionStore)

    @property
    def persistence(self) -> JsonlPersistence:
        return self.root.require(JsonlPersistence)

    def stored(self, id: str) -> list[Any] | None:
        log = ArtifactStore(self.folder).load(id)
        return None if log is None else log.events

    def files(self) -> list[str]:
        """Name all files but the one that shows that this process is alive."""
        names = (path.name for path in self.folder.rglob("*") if path.is_file())
        return sorted(name for name in names if not name.startswith(".writer-"))

    async def settle(self) -> None:
        """Wait until nothing is written or given up in the background."""
        await self.persistence._coordinator._tasks.join()

    async def resume(self, id: str) -> Session:
        with await self.persistence.prepare(id) as preparation:
            self.store.enter(preparation.session, self.root)
            self.store.announce(preparation.session)
        return preparation.session
