"""Entries: one row each, with the fiber that it became."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dsh.base.names import snake
from dsh.kernel import Context, Fiber, FiberState, Label, live_frames
from dsh.kernel.plugins import read_inject
from dsh.loader.aliases import GROUP, canonical
from dsh.loader.errors import EntryError, LoaderError, TreeBusy
from dsh.loader.events import (
    LOADER_ENTRY_INIT,
    LOADER_PARTIAL_DISPOSE,
    LOADER_PATCH_CONTEXT,
    ContextPatching,
    EntryChanged,
    EntryMade,
)
from dsh.loader.expr import Expr, holds_expr
from dsh.loader.patience import wait_within
from dsh.loader.rollback import Snapshot, bring_back, take_snapshot
from dsh.loader.rows import Row, is_group, same

if TYPE_CHECKING:
    from dsh.base.signal import AbortSignal
    from dsh.loader.group import EntryGroup
    from dsh.loader.tree import EntryTree

_REMOUNT = frozenset({"name", "inject", "group"})
_MOVING = (FiberState.LOADING, FiberState.UNLOADING)
_RELATIVE = ("./", "../")
_OWN: Any = object()
_log = logging.getLogger("dsh.loader")


class Entry:
    """One row of a tree.

    Attributes:
        id: The row's id, unique in its tree.
        options: The row, changed in place; expressions in it stay expressions.
        group: The group it is in.
        ctx: The context its plugin is mounted on; made once and put elsewhere by each change.
        fiber: Its plugin's fiber while it is mounted; a failed one stays until it is replaced.
        plugin: What is mounted, as the row's name resolved to it.
        subgroup: Its own rows, while its plugin is a group or an include.
        subtree: The tree of its file, while its plugin is an include.
        private_labels: Scopes that ``isolate: {x: true}`` gave it.
        applying: The loader itself is giving its fiber another config.
        unsaved: A raw config that its fiber got, and that is not to go into the row.
        left_out: Why a row of a third party was given up; None otherwise.
    """

    def __init__(self, group: EntryGroup, options: Row) -> None:
        self.loader = group.loader
        self.group = group
        self.id = str(options["id"])
        self.options = options
        self.ctx: Context = group.ctx.anchor()
        self._has_own_place = False
        self.fiber: Fiber | None = None
        self.plugin: Any = None
        self.subgroup: EntryGroup | None = None
        self.subtree: EntryTree | None = None
        self.private_labels: dict[str, Label] = {}
        self.applying = False
        self.unsaved: Any = None
        self.left_out: BaseException | None = None
        self.loader.ctx.emit(LOADER_ENTRY_INIT, EntryMade(self))

    def __repr__(self) -> str:
        return f"<Entry {self.full_id} ({self.name})>"

    @property
    def name(self) -> str:
        """The plugin's name, as the row spells it."""
        return str(self.options.get("name", ""))

    @property
    def tree(self) -> EntryTree:
        """The tree that its id is unique in."""
        return self.group.tree

    @property
    def full_id(self) -> str:
        """The id as messages show it, with those of the includes around it."""
        return self.tree.full_id(self.id)

    @property
    def is_group(self) -> bool:
        """Whether its config is a list of rows."""
        return is_group(self.options)

    @property
    def disabled(self) -> bool:
        """Whether the row, or a group around it, is switched off now.

        Raises:
            ExprError: an expression that decides it fails.
        """
        owner: Entry | None = self
        while owner is not None:
            flag = owner.options.get("disabled")
            if isinstance(flag, Expr):
                flag = self.loader.is_true(flag, owner, "disabled")
            if flag:
                return True
            owner = owner.group.owner
        return False

    @property
    def should_run(self) -> bool:
        """Whether the row is to be mounted; a group always is, its rows may not be."""
        return self.is_group or not self.disabled

    @property
    def running(self) -> bool:
        """Whether a plugin is mounted, in whatever state."""
        return self.fiber is not None and self.fiber.uid is not None

    def prepare(self) -> Any:
        """Import the plugin if the row is to run; returns None if it is not.

        Raises:
            EntryError: the row cannot be decided on or imported.
        """
        stage = "apply"
        try:
            if not self.should_run:
                return None
            stage = "import"
            return self._import()
        except Exception as error:
            raise self.failure(stage, error) from error

    def mount(self, plugin: Any, raw_config: Any = _OWN) -> None:
        """Put the context in its place and mount a plugin there, without waiting for it.

        Args:
            plugin: The plugin.
            raw_config: What it gets; the row's config when left out.

        Raises:
            EntryError: the plugin cannot be mounted; nothing is left.
        """
        config = self.options.get("config") if raw_config is _OWN else raw_config
        try:
            self.place()
            with self.loader.mounting(self):
                self.fiber = self.ctx.plugin(plugin, config)
        except Exception as error:
            self.fiber = None
            raise self.failure("apply", error) from error
        self.plugin, self.unsaved = plugin, config
        self.log("apply")

    async def settle(self, since: float | None = None) -> None:
        """Wait until the plugin runs, or waits for services; one that takes too long is reported.

        Args:
            since: The loop's time from which that counts; now when None.

        Raises:
            EntryError: its body failed; what it had registered is undone.
        """
        fiber = self.fiber
        if fiber is None:
            return
        try:
            if fiber.state in _MOVING:
                await self._wait(fiber, fiber.wait(), since)
            else:
                await fiber
        except BaseException as error:
            # What its body raised is its failure, even a cancellation; ours is not.
            if error is not fiber.error and not isinstance(error, Exception):
                raise
            raise EntryError("apply", self.full_id, self.name, error) from error

    async def settle_transition(self) -> None:
        """Wait as `settle` does, if the plugin is in transition; a former failure is none now.

        Raises:
            EntryError: its body failed.
        """
        if self.fiber is not None and self.fiber.state in _MOVING:
            await self.settle()

    async def bring_up(self) -> None:
        """Mount the plugin if the row is to run, and wait for it.

        Raises:
            EntryError: it failed; nothing of it is left.
        """
        plugin = self.prepare()
        if plugin is None:
            return
        self.mount(plugin)
        try:
            await self.settle()
        except EntryError:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Unmount the plugin and wait until it is gone.

        Raises:
            EntryError: it cannot be waited for.
        """
        fiber, self.fiber = self.fiber, None
        if fiber is None:
            return
        try:
            await self._wait(fiber, fiber.dispose(), stop=None)
        except Exception as error:
            raise self.failure("dispose", error) from error
        self.log("unload")

    def differs(self, options: Row) -> set[str]:
        """Return the fields that another version of the row changes."""
        own = self.options
        if own is options:
            return set()
        return {key for key in {*own, *options} if not same(own.get(key), options.get(key))}

    async def update(self, options: Row, group: EntryGroup | None = None) -> None:
        """Take another version of the row, or another group; on failure the former is back.

        Args:
            options: The whole row; its values become the entry's own.
            group: Where it belongs from now on; the caller keeps the lists of both groups.

        Raises:
            EntryError: the new version cannot be used, or the former cannot be restored.
            TreeBusy: called by code that is part of the plugin.
        """
        moved = group is not None and group is not self.group
        changed = self.differs(options)
        if not changed and not moved:
            return
        self.refuse_from_inside()
        before = take_snapshot(self)
        self.assign(options)
        self.group = group or self.group
        try:
            await self._apply(changed, before)
        except Exception as error:
            failure = self.failure("apply", error)
            await bring_back(self, before, failure)
            raise failure from failure.__cause__
        self.left_out = None
        self.announce(before.options)

    def transfer(self, group: EntryGroup) -> None:
        """Belong to another group from now on; what runs goes along, nothing is started.

        Raises:
            EntryError: a service inside cannot go to the scope it has there; nothing has changed.
        """
        former, self.group = self.group, group
        try:
            if self.running:
                self.place()
        except Exception as error:
            self.group = former
            raise self.failure("apply", error) from error

    async def sync(self) -> None:
        """Mount or unmount as the row and its groups say now.

        Raises:
            EntryError: mounting failed.
        """
        if not self._decide():
            await self.stop()
        elif not self.running:
            await self.bring_up()
        elif self.subgroup is not None:
            await self.subgroup.sync()

    async def release(self) -> None:
        """Unmount what is not to run any more, here and below.

        Raises:
            EntryError: it cannot be decided on or waited for.
        """
        if not self.running:
            return
        if not self._decide():
            await self.stop()
        elif self.subgroup is not None:
            await self.subgroup.release()

    def place(self) -> None:
        """Put the context where the row and its group say, with all that is mounted on it.

        Raises:
            LabelTaken: a service inside would go to a scope that has one already.
        """
        layers = self.options.get("intercept") or {}
        event = ContextPatching(self, {snake(name): each or {} for name, each in layers.items()})
        self.loader.ctx.waterfall_sync(LOADER_PATCH_CONTEXT, event, lambda: self._rebase(event))

    def announce(self, legacy: Mapping[str, Any], *, active: bool = True) -> None:
        """Tell that the row changed, or that the entry has left the tree."""
        event = EntryChanged(self, legacy, active)
        self.loader.ctx.emit(LOADER_PARTIAL_DISPOSE, event)

    def failure(self, stage: str, error: Exception) -> EntryError:
        """Return an error as this entry's, unless it is one already."""
        if isinstance(error, EntryError) and error.id == self.full_id:
            return error
        return EntryError(stage, self.full_id, self.name, error)

    def refuse_from_inside(self) -> None:
        """Refuse a change that would wait for the code that asks for it.

        Raises:
            TreeBusy: the running code is part of a transition of the plugin, or below it.
        """
        fiber = self.fiber
        for frame in live_frames() if fiber is not None else ():
            here: Fiber | None = frame.fiber
            while here is not None:
                if here is fiber:
                    raise TreeBusy(f'row "{self.full_id}" ({self.name})')
                here = here.parent_fiber

    def declare(self, fiber: Fiber) -> None:
        """Tie a new fiber to this entry and add the row's services to what it waits for."""
        fiber.entry = self
        declared = self.options.get("inject") or ()
        for name in declared:
            config = declared[name] if isinstance(declared, dict) else None
            fiber.inject[snake(name)] = config
        # What a plugin needs may depend on its config, which is known before it is validated.
        needs_of = getattr(fiber.runtime.callback, "inject_for", None) if fiber.runtime else None
        if needs_of is not None:
            fiber.inject.update(read_inject(needs_of(fiber.config)))

    def log(self, what: str) -> None:
        """Write what happens to the plugin to the log, if its tree wants that."""
        if self.tree.enable_logs and not self.is_group and canonical(self.name) != GROUP:
            _log.info("%s plugin %s", what, self.name)

    def _import(self) -> Any:
        try:
            return self.loader.import_(self.name, self.group.ctx.base_url)
        except SystemExit as error:
            # A module may end itself, but not the host of other rows.
            raise LoaderError(f"its module calls for an exit: SystemExit: {error}") from error

    def _decide(self) -> bool:
        try:
            return self.should_run
        except Exception as error:
            raise self.failure("apply", error) from error

    def assign(self, options: Row) -> None:
        """Change the row in place: others hold it. Values that are equal stay the same ones."""
        own = self.options
        if options is own:
            return
        fresh = {
            key: own[key] if key in own and same(own[key], value) else value
            for key, value in options.items()
        }
        own.clear()
        own.update(fresh)

    async def _wait(
        self,
        fiber: Fiber,
        work: Awaitable[object],
        since: float | None = None,
        *,
        stop: AbortSignal | None = _OWN,
    ) -> None:
        """Wait for a transition as long as is reasonable, or until all around it goes."""
        patience_s = self.loader.patience_for(self)
        if since is None:
            since = asyncio.get_running_loop().time()
        stop = self.group.ctx.stop if stop is _OWN else stop
        if await wait_within(work, since + patience_s, stop) or fiber.state not in _MOVING:
            return
        if stop is None or not stop.aborted:
            self.loader.note_overdue(self, fiber, patience_s)

    def _rebase(self, event: ContextPatching) -> Context:
        own = bool(event.isolate or event.intercept)
        if self.ctx.parent is self.group.ctx and not own and not self._has_own_place:
            return self.ctx  # most rows: they stand where their group stands
        self._has_own_place = own
        self.ctx.rebase(
            parent=self.group.ctx if self.ctx.parent is not self.group.ctx else None,
            isolate=event.isolate,
            intercept=event.intercept,
        )
        return self.ctx

    async def _apply(self, changed: set[str], before: Snapshot) -> None:
        if not self._decide():
            await self.stop()
            return
        if not self.running:
            await self.bring_up()
            return
        if changed & _REMOUNT or self._resolves_elsewhere(before):
            # Import before the old plugin goes: a missing module costs nothing then.
            plugin = self._imported()
            await self.stop()
            self.mount(plugin)
            await self.settle()
            return
        # What goes leaves its scopes before what stays comes to them.
        await self.release()
        self.place()
        if "config" in changed:
            self.log("reload")
            await self.give(self.options.get("config"))
        else:
            await self.settle_transition()
        if self.subgroup is not None:
            await self.subgroup.sync()

    def _imported(self) -> Any:
        try:
            return self._import()
        except Exception as error:
            raise self.failure("import", error) from error

    def _resolves_elsewhere(self, before: Snapshot) -> bool:
        """Whether a move changes what the row's relative names mean."""
        if before.group.ctx.base_url == self.group.ctx.base_url:
            return False
        config = self.options.get("config")
        return self.name.startswith(_RELATIVE) or self.subtree is not None or holds_expr(config)

    async def give(self, config: Any) -> None:
        """Give the fiber another config, and wait for what comes of it."""
        fiber = self.fiber
        assert fiber is not None  # running
        self.applying = True
        try:
            await self._wait(fiber, fiber.update(config, no_save=True))
        except Exception as error:
            raise EntryError("apply", self.full_id, self.name, error) from error
        finally:
            self.applying = False


async def stop_all(entries: list[Entry]) -> None:
    """Unmount entries in reverse; every one is tried."""
    for entry in reversed(entries):
        # The kernel reports what an undo raises; a rollback must reach them all.
        with suppress(Exception):
            await entry.stop()
