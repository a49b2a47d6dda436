"""Real plugin files, rows that name them, and waiting for what becomes of them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

from dsh.kernel import Context
from dsh.loader.hmr.events import HMR_RELOAD, CodeReloaded
from dsh.loader.hmr.plugin import HotReload
from dsh.loader.hmr.reload import ReloadFailed
from dsh.loader.hmr.service import Hmr
from dsh.loader.loader import Loader, folder_url

DEADLINE_S = 10.0
LOG: list[Any] = []
"""What the plugins of a test did; their modules write here."""


class ManualReload(HotReload):
    """Looks only when a test says so."""

    def _begin(self) -> None:
        pass

    def _watch(self) -> None:
        pass


class Workshop:
    """A folder of plugin files and a tree that runs them."""

    def __init__(self, root: Context, folder: Path) -> None:
        self.root = root
        self.folder = folder
        self.errors: list[BaseException] = []
        self.reloads: list[CodeReloaded] = []
        root.set_reporter(lambda error, *_: self.errors.append(error))
        root.on(HMR_RELOAD, self.reloads.append)
        self.loader: Loader
        LOG.clear()

    def write(self, name: str, source: str) -> Path:
        """Write a file as an editor does; folders are made."""
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(source))
        return file

    def plugin(self, name: str, says: str, extra: str = "") -> dict[str, Any]:
        """Write a plugin that logs its coming and going; returns a row for it."""
        self.write(
            f"{name}.py",
            f"from hmr_support import LOG\n{dedent(extra)}\n"
            f"def apply(ctx, config):\n    LOG.append({says + ' up'!r})\n"
            f"    ctx.defer(lambda: LOG.append({says + ' down'!r}))\n",
        )
        return {"id": name, "name": f"./{name}.py"}

    async def start(
        self, *rows: dict[str, Any], watch: str = "hmr_support:ManualReload", **config: Any
    ) -> None:
        """Mount rows together with one of hot reload."""
        await self.root.extend(base_url=folder_url(self.folder)).plugin(Loader)
        self.loader = self.root.require(Loader)
        await self.loader.mount([{"id": "hmr", "name": watch, "config": config}, *rows])
        await self.loader.wait()

    @property
    def hmr(self) -> Hmr:
        return self.root.require(Hmr)

    async def edited(self) -> None:
        """Have edits noticed now, and wait for what they lead to."""
        await self.hmr.scan()
        await self.hmr.quiesce()
        await self.loader.quiesce()

    def refused(self) -> ReloadFailed:
        """Return the one reload that failed since the last call."""
        failed = [each for each in self.errors if isinstance(each, ReloadFailed)]
        self.errors.clear()
        assert len(failed) == 1
        return failed[0]

    def did(self) -> list[Any]:
        """What the plugins did since the last call."""
        done = list(LOG)
        LOG.clear()
        return done

    def log(self) -> list[Any]:
        """What the plugins did, without taking note of it."""
        return list(LOG)

    def forget(self) -> None:
        """Take the modules of the folder away."""
        for name, module in tuple(sys.modules.items()):
            if (getattr(module, "__file__", None) or "").startswith(str(self.folder)):
                del sys.modules[name]


async def wait_until(holds: Callable[[], object]) -> None:
    """Wait until something of the outside world holds; fail at a deadline."""
    async with asyncio.timeout(DEADLINE_S):
        while not holds():  # noqa: ASYNC110  # files and processes send no events
            await asyncio.sleep(0.005)
