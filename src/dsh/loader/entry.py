"""Entries: one row each, with the fiber that it became."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dsh.base.names import snake
from dsh.kernel import Context, Fiber, FiberState, Label
from dsh.loader.errors import EntryError, LoaderError
from dsh.loader.events import LOADER_ENTRY_INIT, LOADER_PATCH_CONTEXT, ContextPatching, EntryMade
from dsh.loader.expr import Expr, detach
from dsh.loader.rows import Row, is_group

if TYPE_CHECKING:
    from dsh.loader.group import EntryGroup
    from dsh.loader.loader import Loader

_REMOUNT = frozenset({"name", "inject", "group", "isolate", "intercept"})


class Entry:
    """One row of a tree.

    Attributes:
        id: The row's id.
        options: The row; expressions in it stay expressions.
        group: The group it is in.
        ctx: The context its plugin is mounted on, made at each mount.
        fiber: Its plugin's fiber while it is mounted; a failed one stays until it is replaced.
        subgroup: Its own rows, while its plugin is a group.
        left_out: Why a row of a third party was given up; None otherwise.
    """

    def __init__(self, loader: Loader, group: EntryGroup, options: Row) -> None:
        self.loader = loader
        self.group = group
        self.id = str(options["id"])
        self.options = options
        self.ctx: Context = group.ctx
        self.fiber: Fiber | None = None
        self.subgroup: EntryGroup | None = None
        self.left_out: BaseException | None = None
        loader.ctx.emit(LOADER_ENTRY_INIT, EntryMade(self))

    def __repr__(self) -> str:
        return f"<Entry {self.id} ({self.name})>"

    @property
    def name(self) -> str:
        """The plugin's name, as the row spells it."""
        return str(self.options.get("name", ""))

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

    def start(self) -> None:
        """Import and mount the plugin, without waiting for it.

        Raises:
            EntryError: the row cannot be decided on, imported or mounted; nothing is left.
        """
        stage = "apply"
        try:
            if not self.should_run:
                return
            stage = "import"
            plugin = self._import()
            stage = "apply"
            self._mount(plugin)
        except Exception as error:
            raise EntryError(stage, self.id, self.name, error) from error

    def _import(self) -> Any:
        try:
            return self.loader.import_(self.name, self.group.ctx.base_url)
        except SystemExit as error:
            # A module may end itself, but not the host of other rows.
            raise LoaderError(f"its module calls for an exit: SystemExit: {error}") from error

    async def settle(self) -> None:
        """Wait until the plugin runs, or waits for services.

        Raises:
            EntryError: its body failed; what it had registered is undone.
        """
        fiber = self.fiber
        if fiber is None:
            return
        try:
            await fiber
        except BaseException as error:
            # What its body raised is its failure, even a cancellation; ours is not.
            if error is not fiber.error and not isinstance(error, Exception):
                raise
            raise EntryError("apply", self.id, self.name, error) from error

    async def stop(self) -> None:
        """Unmount the plugin and wait until it is gone."""
        fiber, self.fiber = self.fiber, None
        if fiber is not None:
            await fiber.dispose()

    async def update(self, options: Row) -> None:
        """Take another version of the row; on failure the former one is back.

        Raises:
            EntryError: the new version cannot be used, or the former cannot be restored.
        """
        before = detach(self.options)
        changed = {key for key in {*before, *options} if before.get(key) != options.get(key)}
        if not changed:
            return
        former = self.fiber
        self._assign(options)
        try:
            await self._apply(changed)
        except Exception as error:
            failure = self._failure("apply", error)
            self._assign(before)
            await self._restore(failure, former)
            raise failure from failure.__cause__

    async def sync(self) -> None:
        """Mount or unmount as the row and its groups say now.

        Raises:
            EntryError: mounting failed.
        """
        if self.subgroup is not None and self.running:
            await self.subgroup.sync()
        elif self.should_run and not self.running:
            self.start()
            await self.settle()
        elif self.running and not self.should_run:
            await self.stop()

    def _assign(self, options: Row) -> None:
        """Change the row in place; others may hold it."""
        fresh = detach(options)
        self.options.clear()
        self.options.update(fresh)

    def _failure(self, stage: str, error: Exception) -> EntryError:
        if isinstance(error, EntryError):
            return error
        return EntryError(stage, self.id, self.name, error)

    async def _apply(self, changed: set[str]) -> None:
        if not self.running or not self.should_run:
            await self.sync()
            return
        if changed & _REMOUNT:
            await self._remount()
            return
        fiber = self.fiber
        assert fiber is not None  # running
        if "config" in changed:
            try:
                await fiber.update(self.options.get("config"), no_save=True)
            except Exception as error:
                raise EntryError("apply", self.id, self.name, error) from error
        if self.subgroup is not None:
            await self.subgroup.sync()

    async def _remount(self) -> None:
        try:
            # Import before the old plugin goes: a missing module costs nothing then.
            self._import()
        except Exception as error:
            raise EntryError("import", self.id, self.name, error) from error
        await self.stop()
        self.start()
        await self.settle()

    async def _restore(self, cause: EntryError, former: Fiber | None) -> None:
        """Bring back what ran before a failed update: the same fiber where it still lives."""
        config = self.options.get("config")
        try:
            if former is not None and former is self.fiber and former.uid is not None:
                if former.raw_config != config or former.state is FiberState.FAILED:
                    await former.update(config, no_save=True)
                return
            await self.stop()
            self.start()
            await self.settle()
        except Exception as error:
            both = ExceptionGroup("the update and its rollback failed", [cause, error])
            raise EntryError("rollback", self.id, self.name, both) from error

    def _mount(self, plugin: Any) -> None:
        self.ctx = self.group.ctx.waterfall_sync(
            LOADER_PATCH_CONTEXT, ContextPatching(self), self._base_context
        )
        with self.loader.mounting(self):
            self.fiber = self.ctx.plugin(plugin, self.options.get("config"))

    def _base_context(self) -> Context:
        """Return the group's context with the row's own scopes and service configs."""
        ctx = self.group.ctx.extend()
        for name, label in (self.options.get("isolate") or {}).items():
            ctx = ctx.isolate(snake(name), self._label(name, label))
        for name, config in (self.options.get("intercept") or {}).items():
            ctx = ctx.intercept(snake(name), config)
        return ctx

    def _label(self, name: str, label: Any) -> Label:
        if isinstance(label, str):
            return self.loader.shared_label(snake(name), label)
        return Label(f"{snake(name)}#{self.id}")

    def declare(self, fiber: Fiber) -> None:
        """Tie a new fiber to this entry and add the row's services to what it waits for."""
        fiber.entry = self
        declared = self.options.get("inject") or ()
        for name in declared:
            config = declared[name] if isinstance(declared, dict) else None
            fiber.inject[snake(name)] = config


async def stop_all(entries: list[Entry]) -> None:
    """Unmount entries in reverse; every one is tried."""
    for entry in reversed(entries):
        # The kernel reports what an undo raises; a rollback must reach them all.
        with suppress(Exception):
            await entry.stop()
