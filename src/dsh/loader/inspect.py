"""The picture of a mounted tree: its rows with their fibers, as data that is plain JSON.

No value of a row's config is in it. Texts of errors may quote one: the caller says how to hide it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dsh.base.names import camel
from dsh.kernel import EffectInfo, Fiber, FiberState, Missing
from dsh.kernel.inspect import FiberInfo, ServiceInfo, fiber_info, promised, services
from dsh.loader.audit import describe
from dsh.loader.entry import Entry
from dsh.loader.errors import ExprError
from dsh.loader.host import CmdlineArgs, CommandLine

if TYPE_CHECKING:
    from dsh.loader.compose import Provenance
    from dsh.loader.loader import Loader

__all__ = ["APP_STATE", "HOST", "snapshot"]

HOST: Final = "host"
"""What services are called to come from that no row provides."""

APP_STATE: Final = "app"
"""State of a row that waits for nothing but the app's command line, directly or through others."""

_OF_COMMAND_LINE: Final = frozenset((CommandLine.name, CmdlineArgs.name))


def snapshot(
    loader: Loader,
    *,
    provenance: Mapping[str, Provenance] | None = None,
    redact: Callable[[str], str] = str,
) -> dict[str, Any]:
    """Return the rows and services of a tree.

    ``counts`` says how many rows are in each state. ``rows`` has an object a row, in order:

    - ``id`` (``outer:inner`` in an included file), ``name``, ``enabled``, ``disabledBy``
    - ``state``: a fiber's, or ``disabled``, ``gone``, or `APP_STATE`; ``error``
    - ``waits``: ``service``, ``reason``, ``row`` (whose plugin says it provides it), and ``app``,
      whether it may come with the app's start
    - ``provides``: names; ``needs``: ``service``, ``by`` (a row's id or `HOST`), ``optional``
    - ``effects``: ``label``, ``children``; ``plugins``: mounted below it, ``name`` and ``state``
    - ``origin`` and ``patchedBy``: labels of layers; ``rows``: those of a group

    ``services`` has an object a service and scope: ``name``, ``scope``, ``provider`` (a row's id or
    `HOST`), ``state``, ``available``, ``app`` (it comes with the app's start), and ``dependants``
    (``row``, ``state``, ``optional``).

    Args:
        loader: Whose tree it is.
        provenance: Where top-level rows come from, by id.
        redact: Applied to texts that may quote a value.
    """
    seen = _Seen(loader, provenance or {}, redact)
    rows = [seen.row(entry) for entry in loader.group.entries]
    return {
        "counts": _counts(rows),
        "rows": rows,
        "services": [seen.service(each) for each in seen.services],
    }


class _Own(NamedTuple):
    """What one row's plugin, and plugins mounted by it, hold."""

    fibers: list[FiberInfo]
    """The row's own first; rows below a group are not among them."""

    @property
    def effects(self) -> list[dict[str, Any]]:
        return [_effect(each) for info in self.fibers for each in info.effects]

    @property
    def provides(self) -> list[str]:
        return sorted({camel(name) for info in self.fibers for name in info.provides})


class _Seen:
    """One look at a tree: who provides what, and which rows wait for the command line."""

    def __init__(
        self, loader: Loader, provenance: Mapping[str, Provenance], redact: Callable[[str], str]
    ) -> None:
        self._provenance = provenance
        self._redact = redact
        self.services = services(loader.ctx)
        self._providers = {
            (each.name, each.label): self._place(each.fiber)
            for each in self.services
            if each.fiber is not None
        }
        entries = list(loader.entries())
        self._app_rows, self._of_app = _waiting_for_app(entries)
        self._promised = {
            name: each.full_id
            for each in entries
            if each.fiber is not None
            for name in promised(each.fiber)
        }
        self._unsaid = any(_promises_nothing(each, self._app_rows) for each in entries)

    def row(self, entry: Entry) -> dict[str, Any]:
        own = _Own(_own_fibers(entry.fiber))
        origin = self._provenance.get(entry.full_id)
        inner = entry.subgroup.entries if entry.subgroup is not None else []
        state, error = self._state(entry)
        return {
            "id": entry.full_id,
            "name": entry.name,
            "enabled": state != "disabled",
            "disabledBy": self._disabled_by(entry) if state == "disabled" else None,
            "state": state,
            "error": None if error is None else self._redact(error),
            "waits": self._waits(entry, state),
            "provides": own.provides,
            "needs": self._needs(entry.fiber),
            "effects": own.effects,
            "plugins": [{"name": each.name, "state": each.state} for each in own.fibers[1:]],
            "origin": None if origin is None else origin.origin,
            "patchedBy": [] if origin is None else list(origin.patched_by),
            "rows": [self.row(each) for each in inner],
        }

    def service(self, info: ServiceInfo) -> dict[str, Any]:
        return {
            "name": camel(info.name),
            "scope": info.label,
            "provider": self._providers.get((info.name, info.label)),
            "state": info.state,
            "available": info.available,
            "app": info.provider is None and info.name in self._of_app,
            "dependants": [
                {"row": self._place(each.fiber), "state": each.state, "optional": each.optional}
                for each in info.dependants
            ],
        }

    def _state(self, entry: Entry) -> tuple[str, str | None]:
        """Return a row's state and what is wrong with it."""
        fiber = entry.fiber
        if entry.left_out is not None:
            return "failed", describe(entry.left_out.__cause__ or entry.left_out)
        try:
            if not entry.should_run:
                return "disabled", None
        except ExprError as error:
            return "failed", describe(error)
        if fiber is None or fiber.uid is None:
            return "gone", "its plugin is gone"
        if fiber.state is FiberState.FAILED and fiber.error is not None:
            return "failed", describe(fiber.error)
        if id(entry) in self._app_rows:
            return APP_STATE, None
        return fiber.state.label, None

    def _disabled_by(self, entry: Entry) -> str:
        owner: Entry | None = entry
        while owner is not None and not owner.options.get("disabled"):
            owner = owner.group.owner
        if owner is None or owner is entry:
            return "its own row"
        return f"group {owner.full_id}"

    def _waits(self, entry: Entry, state: str) -> list[dict[str, Any]]:
        if entry.fiber is None or state not in {"pending", APP_STATE}:
            return []
        return [
            {
                "service": camel(each.service),
                "reason": each.reason,
                "row": self._promised.get(each.service),
                # Who waits for the words may provide what it did not promise.
                "app": state == APP_STATE or self._may_come(each),
            }
            for each in entry.fiber.explain()
        ]

    def _may_come(self, missing: Missing) -> bool:
        known = missing.service in self._promised
        return missing.service in self._of_app or (
            self._unsaid and not known and missing.reason.startswith("absent")
        )

    def _needs(self, fiber: Fiber | None) -> list[dict[str, Any]]:
        if fiber is None or fiber.uid is None:
            return []
        gating = set(fiber_info(fiber).needs)
        found = []
        for name in fiber.inject:
            label = fiber.ctx.label_of(name)
            by = self._providers.get((name, None if label is None else label.name))
            found.append({"service": camel(name), "by": by, "optional": name not in gating})
        return found

    def _place(self, fiber: Fiber) -> str:
        """Return the row that a fiber belongs to, directly or through a parent."""
        here: Fiber | None = fiber
        while here is not None:
            if isinstance(here.entry, Entry):
                return here.entry.full_id
            here = here.parent_fiber
        return HOST


def _own_fibers(fiber: Fiber | None) -> list[FiberInfo]:
    """Return a row's fiber and those below it that are no rows themselves."""
    if fiber is None or fiber.uid is None:
        return []

    def below(info: FiberInfo) -> list[FiberInfo]:
        own = [each for each in info.children if not isinstance(each.fiber.entry, Entry)]
        return [info, *(inner for each in own for inner in below(each))]

    return below(fiber_info(fiber))


def _waiting_for_app(entries: list[Entry]) -> tuple[set[int], set[str]]:
    """Return the entries that nothing but the app's command line keeps from running.

    With them, the services that come with it: what such a row promises is as good as there then.
    """
    pending = {
        id(each): each.fiber
        for each in entries
        if each.fiber is not None and each.fiber.state is FiberState.PENDING and each.fiber.uid
    }
    coming = set(_OF_COMMAND_LINE)
    found: set[int] = set()
    while True:
        fresh = {
            key
            for key, fiber in pending.items()
            if key not in found and _misses_only(fiber, coming)
        }
        if not fresh:
            return found, coming
        found |= fresh
        coming.update(name for key in fresh for name in promised(pending[key]))


def _promises_nothing(entry: Entry, app_rows: set[int]) -> bool:
    return id(entry) in app_rows and entry.fiber is not None and not promised(entry.fiber)


def _misses_only(fiber: Fiber, coming: set[str]) -> bool:
    missing = fiber.explain()
    return bool(missing) and all(each.service in coming for each in missing)


def _effect(info: EffectInfo) -> dict[str, Any]:
    return {"label": info.label, "children": [_effect(each) for each in info.children]}


def _counts(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["state"]] = counts.get(row["state"], 0) + 1
        for state, number in _counts(row["rows"]).items():
            counts[state] = counts.get(state, 0) + number
    return counts
