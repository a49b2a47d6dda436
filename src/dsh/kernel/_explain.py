"""Why a fiber waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dsh.kernel.plugins import OptionalNeed
from dsh.kernel.states import ACTIVE

if TYPE_CHECKING:
    from dsh.kernel.fiber import Fiber


class Missing(NamedTuple):
    """Why a declared service does not count as there."""

    service: str
    reason: str


def explain(fiber: Fiber) -> list[Missing]:
    """See ``Fiber.explain``."""
    found: list[Missing] = []
    for name, need in (fiber._inject or {}).items():
        if isinstance(need, OptionalNeed):
            continue
        reason = _reason(fiber, name)
        if reason is not None:
            found.append(Missing(name, reason))
    return found


def _reason(fiber: Fiber, name: str) -> str | None:
    services = fiber.kernel.services
    binding = services.find(name, fiber.ctx.label_of(name))
    if binding is None:
        others = sorted(other.owner.name for other in services.scopes_of(name))
        return f"provided only in another scope, by {', '.join(others)}" if others else "absent"
    owner = binding.owner
    if owner.state is not ACTIVE:
        return f"its provider {owner.name!r} is {owner.state.label}"
    if not binding.available(fiber.ctx):
        return f"{owner.name!r} says it is not available"
    return None
