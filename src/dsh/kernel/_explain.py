"""Why a fiber waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from dsh.kernel._shapes import is_fiber
from dsh.kernel.plugins import OptionalNeed
from dsh.kernel.states import ACTIVE

if TYPE_CHECKING:
    from dsh.kernel._services import Binding
    from dsh.kernel.fiber import Fiber

Promised: TypeAlias = "dict[str, list[Fiber]]"


class Missing(NamedTuple):
    """Why a declared service does not count as there."""

    service: str
    reason: str


def explain(fiber: Fiber) -> list[Missing]:
    """See ``Fiber.explain``."""
    unmet = list(_unmet(fiber))
    promised = _promised(fiber) if unmet else {}
    return [Missing(name, _reason(fiber, name, promised)) for name in unmet]


def _unmet(fiber: Fiber) -> Iterator[str]:
    """Yield the services that a fiber needs and does not have."""
    for name, need in (fiber._inject or {}).items():
        if isinstance(need, OptionalNeed):
            continue
        binding = fiber.kernel.services.find(name, fiber.ctx.label_of(name))
        if binding is None or not binding.available(fiber.ctx):
            yield name


def _reason(fiber: Fiber, name: str, promised: Promised) -> str:
    services = fiber.kernel.services
    binding = services.find(name, fiber.ctx.label_of(name))
    if binding is None:
        if (others := _other_scopes(services.scopes_of(name))) is not None:
            return others
        return _waits(fiber, name, promised) or _absent(fiber, name, promised)
    owner = binding.owner
    if owner.state is not ACTIVE:
        return f"its provider {owner.title!r} is {owner.state.label}"
    return f"{owner.title!r} says it is not available"


def _other_scopes(bindings: list[Binding]) -> str | None:
    owners = sorted(binding.owner.title for binding in bindings)
    return f"provided only in another scope, by {', '.join(owners)}" if owners else None


def _absent(fiber: Fiber, name: str, promised: Promised) -> str:
    from dsh.base.text import did_you_mean

    return f"absent{did_you_mean(name, [*fiber.kernel.services.names(), *promised])}"


def _waits(fiber: Fiber, name: str, promised: Promised) -> str | None:
    """Tell who would provide a service but waits itself, and whether for this very fiber."""
    start = _promiser(fiber, name, promised)
    if start is None:
        return None
    if start is fiber:
        return "only this plugin itself says that it provides it"
    came: dict[Fiber, tuple[Fiber, str] | None] = {start: None}
    queue = [start]
    for here in queue:
        for need in _unmet(here):
            further = _promiser(here, need, promised)
            if further is fiber:
                return _circle(here, need, came)
            if further is not None and further not in came:
                came[further] = (here, need)
                queue.append(further)
    needs = ", ".join(_unmet(start))
    state = f"waits for {needs}" if needs else f"is {start.state.label}"
    return f"{start.title!r} would provide it, but {state}"


def _circle(last: Fiber, need: str, came: dict[Fiber, tuple[Fiber, str] | None]) -> str:
    text = f"{last.title!r}, which waits for {need!r} of this plugin"
    step = came[last]
    while step is not None:
        before, name = step
        text = f"{before.title!r}, which waits for {name!r} of {text}"
        step = came[before]
    return f"a circle: it would come from {text}"


def _promised(fiber: Fiber) -> Promised:
    """Return who says that it provides which service, and does not do so yet."""
    found: Promised = {}
    stack = [fiber.kernel.root_fiber]
    while stack:
        here = stack.pop()
        stack += [item for item in here._effects.values() if is_fiber(item)]
        if here.runtime is not None and here.state is not ACTIVE:
            for name in here.runtime.provides:
                found.setdefault(name, []).append(here)
    return found


def _promiser(fiber: Fiber, name: str, promised: Promised) -> Fiber | None:
    label = fiber.ctx.label_of(name)
    same = (item for item in promised.get(name, ()) if item.ctx.label_of(name) is label)
    return next(same, None)
