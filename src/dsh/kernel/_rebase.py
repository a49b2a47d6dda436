"""Moving an anchor: new scopes, config layers and parents for what runs below it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dsh.kernel._transition import link_stop
from dsh.kernel.errors import DuplicateService, RebaseError
from dsh.kernel.keys import Label, service_name
from dsh.kernel.plugins import OptionalNeed

if TYPE_CHECKING:
    from dsh.kernel._place import Place
    from dsh.kernel._services import Binding
    from dsh.kernel.context import Anchored, Context
    from dsh.kernel.fiber import Fiber


def rebase(
    context: Context,
    parent: Context | None,
    isolate: Mapping[str, Label],
    intercept: Mapping[str, Mapping[str, Any]],
) -> None:
    """See ``Context.rebase``."""
    anchor, place = _check(context, parent)
    kernel = context.root.fiber.kernel
    up = place.up if parent is None else parent._place
    labels = {service_name(name): label for name, label in isolate.items()}
    changed = _changes(place, up, labels)
    moves = _plan(context, place, changed)
    if any(kernel.services.dependants.get(name) for name in changed):
        kernel.bind_loop("the anchor")
    layers = {service_name(name): (config,) for name, config in intercept.items()}
    place.put(up, labels, layers)
    kernel.hub.forget_routes()
    for binding, label in moves:
        kernel.services.relabel(binding, label)
    moved = [] if parent is None else _move(anchor, parent)
    for name, (old, new) in changed.items():
        kernel.services.notify(name, old)
        kernel.services.notify(name, new)
    for fiber in moved:
        _recheck_optional(fiber)
    kernel.recheck_waits()


def _check(context: Context, parent: Context | None) -> tuple[Anchored, Place]:
    place = context._place
    if getattr(context, "_anchor", context) is not None or place is None:
        raise RebaseError("it is no anchor; make one with ctx.anchor()")
    context.root.fiber.kernel.check_loop("the anchor")
    if parent is not None:
        if parent.root is not context.root:
            raise RebaseError("the new parent belongs to another root")
        if parent._place is not None and parent._place.is_below(place):
            raise RebaseError(f"plugin {parent.fiber.title!r}, the new parent, is below it")
        parent.fiber.check_active()
    return context, place  # type: ignore[return-value]  # only anchored contexts have an anchor


def _changes(
    place: Place, up: Place | None, labels: Mapping[str, Label]
) -> dict[str, tuple[Label | None, Label | None]]:
    """Return the names that mean another scope at the anchor from now on, with both scopes."""
    old = place.labels or {}
    new = {**((up.labels if up is not None else None) or {}), **labels}
    return {
        name: (old.get(name), new.get(name))
        for name in dict.fromkeys((*old, *new))
        if old.get(name) is not new.get(name)
    }


def _plan(
    anchor: Context, place: Place, changed: Mapping[str, tuple[Label | None, Label | None]]
) -> list[tuple[Binding, Label | None]]:
    """Return what goes to which scope.

    Whatever follows the anchor in a name has one scope before and one after, so that there is
    one service at most to go, and none that goes could make room for another.
    """
    services = anchor.root.fiber.kernel.services
    moves: list[tuple[Binding, Label | None]] = []
    for name, (old, new) in changed.items():
        binding = services.find(name, old)
        if binding is None or binding.place is None or not binding.place.inherits(name, place):
            continue
        if (taken := services.find(name, new)) is not None:
            raise DuplicateService(name, taken.owner.title)
        moves.append((binding, new))
    return moves


def _move(anchor: Anchored, parent: Context) -> list[Fiber]:
    """Put the anchor below another context; returns the fibers that have another owner now."""
    old, new = anchor.fiber, parent.fiber
    object.__setattr__(anchor, "parent", parent)
    if old is new:
        return []
    moved = [item for item in old._effects.values() if _hangs_on(item, anchor)]
    for fiber in moved:
        del old._effects[fiber._serial]
        fiber.kernel.serial += 1
        fiber._serial = fiber.kernel.serial
        fiber.parent_fiber = new
        new._effects[fiber._serial] = fiber
        if fiber._stop is not None:
            link_stop(fiber, fiber._stop)
    return moved


def _hangs_on(item: Any, anchor: Anchored) -> bool:
    """Whether this is a fiber, not on its way out, that was mounted on the anchor."""
    if not getattr(type(item), "is_fiber", False) or item.uid is None:
        return False
    ctx: Any = item.parent
    while (above := getattr(ctx, "_anchor", ctx)) is not ctx:
        found = ctx if above is None else above
        if found is anchor:
            return True
        ctx = found.parent
    return False


def _recheck_optional(fiber: Fiber) -> None:
    """Let those look again that could not take a service because its provider rested on them."""
    services = fiber.kernel.services
    stack = [fiber]
    while stack:
        here = stack.pop()
        stack += [item for item in here._effects.values() if getattr(type(item), "is_fiber", False)]
        for binding in here._provided or ():
            for other in tuple(services.dependants.get(binding.name, ())):
                if isinstance((other._inject or {}).get(binding.name), OptionalNeed):
                    other.refresh()
