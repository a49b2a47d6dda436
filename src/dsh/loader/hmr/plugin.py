"""Row ``hmr``: edited code and configuration are taken into the running tree."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt

from dsh.kernel import Context
from dsh.loader.hmr.config_files import ConfigFiles
from dsh.loader.hmr.events import HMR_CHANGE, FileChanged
from dsh.loader.hmr.reload import Reloader, ReloadFailed
from dsh.loader.hmr.roots import IGNORED, Roots
from dsh.loader.hmr.service import HmrError
from dsh.loader.hmr.watch import FolderWatch
from dsh.loader.loader import Loader


class HmrConfig(BaseModel):
    """Which code is watched, and how."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    base: str | None = None
    """Folder that relative paths are relative to; the tree's own when it is not given."""
    root: list[str] = Field(default_factory=lambda: ["."])
    """Folders whose modules are loaded anew when they are edited."""
    ignored: list[str] = Field(default_factory=lambda: list(IGNORED))
    """Globs, relative to a root, of what is not watched."""
    debounce: NonNegativeInt = 100
    """Milliseconds without another edit that a reload waits for."""
    use_polling: bool = Field(default=False, alias="usePolling")
    """Look at all files again and again, for file systems that send no notifications."""


class RootMissing(HmrError, FileNotFoundError):
    """A folder that is to be watched does not exist."""

    code = "HMR_ROOT"

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"cannot watch {str(folder)!r}: no such folder; create it or correct root of row hmr"
        )
        self.folder = folder


class HotReload(ConfigFiles):
    """The service ``hmr`` with roots: it also exchanges the code of running rows.

    Attributes:
        watching: Set while changes below the roots are noticed.
    """

    inject = (Loader,)
    Config = HmrConfig

    def __init__(self, ctx: Context, config: HmrConfig) -> None:
        super().__init__(ctx, config)
        if config.base is not None:
            self.base_dir = (self.base_dir / config.base).absolute()
        self._loader = ctx.require(Loader)
        self._roots = Roots([self.base_dir / each for each in config.root], config.ignored)
        self._reloader = Reloader(ctx, self._loader, self._roots)
        self._noticed: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._reload: asyncio.Task[None] | None = None
        self._due = False
        self._missed = False
        self._settled = asyncio.Event()
        self._stopped = False
        self.watching = asyncio.Event()

    async def start(self) -> Any:
        """Get to know what is loaded, and begin to watch."""
        for folder in self._roots.folders:
            if not await asyncio.to_thread(Path(folder).is_dir):
                raise RootMissing(Path(folder))
        ctx = self.ctx
        ctx.defer(self._reloader.graph.recorder.install(), "hmr: recorder")
        await self._reloader.look()
        self._watch()
        return self._stop

    def linked(self, module: str) -> list[str]:
        """See `Hmr.linked`."""
        graph = self._reloader.graph
        modules = graph.modules()
        if module not in modules:
            return []
        graph.learn(modules)
        graph.read({module: modules[module]})
        return sorted(graph.edges(modules)[module])

    async def scan(self) -> None:
        """See `Hmr.scan`; a reload starts at once."""
        await super().scan()
        await self._reloader.look()
        if self._reloader.edited:
            self._fire()

    async def quiesce(self) -> None:
        """See `Hmr.quiesce`."""
        while self._timer is not None or self._reload is not None:
            await self._settled.wait()
        await super().quiesce()

    def _watch(self) -> None:
        if not self._roots.folders:
            return
        watch = FolderWatch(
            self._roots,
            self._on_files,
            self._on_gap,
            lambda error: self.ctx.report(error, label="watching folders"),
            polling=self.config.use_polling,
        )
        self.watching = watch.armed
        self.ctx.spawn(watch.run(), "hmr: folders")

    def _on_files(self, paths: Iterable[str]) -> None:
        modules = self._reloader.graph.by_file()
        for path in paths:
            if self.is_registered(path):
                self.look_soon()
            elif names := modules.get(path):
                self._noticed.update(names)
                self._schedule()
            else:
                self.ctx.emit(HMR_CHANGE, FileChanged(Path(path).as_uri()))

    def _on_gap(self) -> None:
        self._missed = True
        if self._timer is None:
            self._fire()

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._settled.clear()
        delay = self.config.debounce / 1000
        self._timer = asyncio.get_running_loop().call_later(delay, self._fire)

    def _fire(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._stopped:
            return
        self._due = True
        if self._reload is None:
            self._settled.clear()
            # The loader's, not this service's: a reload may wait for the loader while that one
            # unloads this very row.
            work = self._run()
            self._reload = self._loader.ctx.fiber.own_task(work, "hmr: reload", cancel=False)

    async def _run(self) -> None:
        try:
            while self._due and not self._stopped:
                self._due = False
                noticed, self._noticed = self._noticed, set()
                try:
                    await self._reloader.notice(noticed)
                    if self._missed:
                        self._missed = False
                        await self._reloader.look()
                    if self._reloader.edited:
                        await self._reloader.run()
                except Exception as error:
                    # A tree that goes takes the reload with it; that is no mistake in the code.
                    if not self._loader.ctx.stop.aborted:
                        self.ctx.report(error, label="reload")
                    if isinstance(error, ReloadFailed):
                        error.release()
        finally:
            self._reload = None
            if self._timer is None:
                self._settled.set()

    def _stop(self) -> None:
        super()._stop()
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._reload is None:
            self._settled.set()


plugin = HotReload
