"""Replacing the code of running rows, as one step that succeeds or leaves all as it was."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dsh.base.errors import error_chain
from dsh.kernel import Context
from dsh.loader.entry import Entry
from dsh.loader.errors import EntryError, LoaderError
from dsh.loader.hmr.codeframe import code_frame, place_of
from dsh.loader.hmr.events import HMR_RELOAD, CodeReloaded, Reloaded
from dsh.loader.hmr.graph import ImportGraph, Plan, closure, plan
from dsh.loader.hmr.poll import Signature, look
from dsh.loader.hmr.roots import Roots
from dsh.loader.hmr.service import HmrError
from dsh.loader.hmr.swap import ModuleSwap
from dsh.loader.loader import Loader
from dsh.loader.resolve import base_folder, module_of

_log = logging.getLogger("dsh.hmr")


class ReloadFailed(HmrError):
    """Edited code cannot be used; what ran before goes on.

    Attributes:
        modules: The edited modules.
        stage: ``import`` or ``mount``.
        frame: The lines of code that it is about, if there are such; also a note of the error.
    """

    code = "HMR_RELOAD"

    def __init__(
        self, modules: Iterable[str], stage: str, cause: BaseException, where: object, frame: str
    ) -> None:
        what = f"{type(cause).__name__}: {error_chain(cause)}"
        super().__init__(
            f"cannot {stage} edited code, {where}: {what}; "
            "the former code goes on, correct the file to try again"
        )
        self.modules = tuple(modules)
        self.stage, self.frame = stage, frame
        self.__cause__ = cause
        if frame:
            self.add_note(frame)

    def release(self) -> None:
        """Let go of the frames, and with them of modules that were given up; errors are kept."""
        errors: list[BaseException | None] = [self]
        seen: set[int] = set()
        while errors:
            error = errors.pop()
            if error is not None and id(error) not in seen:
                seen.add(id(error))
                error.__traceback__ = None
                errors += [error.__cause__, error.__context__, *getattr(error, "exceptions", ())]


class Reloader:
    """Takes edited modules into the tree of a loader.

    Attributes:
        graph: Who imports whom.
        edited: Modules that were edited and are not in use yet.
    """

    def __init__(self, ctx: Context, loader: Loader, roots: Roots) -> None:
        self._ctx = ctx
        self._loader = loader
        self._roots = roots
        self._modules_of_rows: dict[tuple[str, str | None], str] = {}
        self.graph = ImportGraph(roots)
        self.edited: set[str] = set()

    async def look(self) -> None:
        """Find edited modules without having been told, and get to know new ones."""
        modules = self.graph.modules()
        self.edited |= await asyncio.to_thread(self.graph.edited, modules)
        await asyncio.to_thread(self.graph.learn, modules)

    async def notice(self, names: Iterable[str]) -> None:
        """Take modules for edited; it turns out later whether they differ from what is in use."""
        await asyncio.to_thread(self.graph.learn, self.graph.modules())
        self.edited.update(names)

    async def run(self) -> None:
        """Load what was edited and mount its rows again.

        Raises:
            ReloadFailed: the code cannot be used; it stays in ``edited`` for the next try.
        """
        edited, self.edited = self.edited, set()
        try:
            await self._take(edited)
        except ReloadFailed as error:
            self.edited.update(error.modules)
            raise
        except BaseException:
            self.edited |= edited
            raise

    async def _take(self, edited: set[str]) -> None:
        modules = self.graph.modules()
        files = {name: modules[name] for name in edited if name in modules}
        in_use = await asyncio.to_thread(self.graph.in_use, files)
        present = await asyncio.to_thread(_that_exist, files)
        # What is gone may come back, as it does when an editor replaces it.
        self.edited |= files.keys() - present.keys()
        await asyncio.to_thread(self.graph.learn, modules)
        await asyncio.to_thread(self.graph.read, modules, present)
        rows = self._rows()
        edges = self.graph.edges(modules)
        decided = plan(present.keys() - in_use, edges, rows, self._loader.externals)
        self._tell_left(decided)
        if decided.accepted:
            accepted = {name: modules[name] for name in decided.accepted}
            entries = [each for name in sorted(decided.rows) for each in rows[name]]
            changed = {name: file for name, file in present.items() if name in accepted}
            looks = await asyncio.to_thread(_looks_of, accepted)
            await self._replace(changed, accepted, looks, entries)

    async def _replace(
        self,
        edited: Mapping[str, str],
        accepted: Mapping[str, str],
        looks: Mapping[str, Signature],
        entries: list[Entry],
    ) -> None:
        known = self.graph.known(accepted)
        swap = ModuleSwap(accepted, self._roots)
        stage = "import"
        try:
            swap.begin()
            plugins = self._load(swap, accepted, looks, [each for each in entries if each.running])
            stage = "mount"
            if plugins:
                await self._loader.replace(plugins)
        except BaseException as error:
            failure = self._failure(edited, stage, error)
            swap.restore()
            self.graph.put_back(known)
            # No import waits for anything: what is raised there is the module's own.
            if stage == "mount" and not isinstance(error, Exception):
                raise
            raise failure from error
        self._announce(plugins)

    def _load(
        self,
        swap: ModuleSwap,
        accepted: Mapping[str, str],
        looks: Mapping[str, Signature],
        entries: list[Entry],
    ) -> dict[Entry, Any]:
        """Import modules of rows anew, with all that they use, and return the plugins."""
        starts = {name for entry in entries if (name := self._module_of(entry)) is not None}
        missing = sorted(starts)
        # Also what is imported inside functions: a mistake in it must show now.
        while missing:
            swap.load(missing)
            loaded = {name: file for name, file in accepted.items() if name in sys.modules}
            self.graph.renew(loaded, looks)
            reached = closure(starts, self.graph.edges({*self.graph.modules(), *accepted}))
            missing = sorted(each for each in reached if each in accepted and each not in loaded)
        return {
            entry: self._loader.import_(entry.name, entry.group.ctx.base_url) for entry in entries
        }

    def _rows(self) -> dict[str, list[Entry]]:
        rows: dict[str, list[Entry]] = {}
        for entry in self._loader.entries():
            if (name := self._module_of(entry)) is not None:
                rows.setdefault(name, []).append(entry)
        return rows

    def _module_of(self, entry: Entry) -> str | None:
        key = (entry.name, entry.group.ctx.base_url)
        name = self._modules_of_rows.get(key)
        if name is None:
            try:
                name = module_of(entry.name, base_folder(entry.group.ctx.base_url))
            except LoaderError:
                # Its file is gone; what it was loaded from goes on.
                return None
            if name in sys.modules:
                self._modules_of_rows[key] = name
        return name

    def _failure(self, edited: Mapping[str, str], stage: str, error: BaseException) -> ReloadFailed:
        cause = error
        while isinstance(cause, EntryError) and cause.__cause__ is not None:
            cause = cause.__cause__
        place = place_of(cause, self._roots)
        frame = code_frame(place) if place is not None else ""
        where = place or ", ".join(sorted(edited.values()))
        return ReloadFailed(sorted(edited), stage, cause, where, frame)

    def _tell_left(self, decided: Plan) -> None:
        if decided.unused:
            _log.info("edited, but used by no row: %s", ", ".join(sorted(decided.unused)))
        if not decided.declined:
            return
        names = ", ".join(sorted(decided.declined))
        if self._loader.restart is not None:
            _log.warning("edited: %s; it cannot be exchanged, so the host starts again", names)
            self._loader.restart()
        else:
            _log.warning("edited: %s; it cannot be exchanged, start dsh again to use it", names)

    def _announce(self, plugins: Mapping[Entry, Any]) -> None:
        told: dict[Any, Reloaded] = {}
        for entry, plugin in plugins.items():
            module = sys.modules.get(self._module_of(entry) or "")
            file = getattr(module, "__file__", None) or ""
            told[plugin] = Reloaded(file, self._ctx.registry.get(plugin))
        rows = ", ".join(entry.id for entry in plugins)
        _log.info("reloaded rows: %s", rows or "none; the code is used when its rows are mounted")
        self._ctx.emit(HMR_RELOAD, CodeReloaded(told))


def _that_exist(modules: Mapping[str, str]) -> dict[str, str]:
    return {name: file for name, file in modules.items() if Path(file).is_file()}


def _looks_of(modules: Mapping[str, str]) -> dict[str, Signature]:
    return {name: look(file, None) for name, file in modules.items()}
