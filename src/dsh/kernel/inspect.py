"""Looks at a living root: every fiber with what it holds, every service with who is behind it.

What is returned is a picture of one moment. Taking it starts and stops nothing; it asks services
with a ``check`` whether they are available, as the kernel does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import TYPE_CHECKING

from dsh.base.errors import error_chain
from dsh.base.values import value
from dsh.kernel._explain import Missing
from dsh.kernel.disposal import EffectInfo
from dsh.kernel.fiber import Fiber
from dsh.kernel.plugins import OptionalNeed
from dsh.kernel.states import ACTIVE

if TYPE_CHECKING:
    from dsh.kernel._services import Binding
    from dsh.kernel.context import Context
    from dsh.kernel.keys import Label

__all__ = [
    "Dependant",
    "FiberInfo",
    "ServiceInfo",
    "fiber_info",
    "fibers",
    "promised",
    "services",
]


@value(kw_only=True)
class FiberInfo:
    """One mounted plugin and those mounted below it."""

    uid: int | None
    """0 for the root; None while it goes."""
    name: str
    """Its plugin's name, or where a plugin without one is written."""
    state: str
    """Label of its state: ``pending``, ``loading``, ``active``, ``failed``, ``unloading``."""
    error: str | None
    """What its last body raised, with its causes; may hold what a config holds."""
    missing: tuple[Missing, ...]
    """Declared services that are not there, while it does not run."""
    effects: tuple[EffectInfo, ...]
    """Live, labelled effects, oldest first; mounted plugins are ``children`` instead."""
    provides: tuple[str, ...]
    needs: tuple[str, ...]
    """Declared services that gate it."""
    site: str | None
    """``file:line`` of the call that mounted it."""
    children: tuple[FiberInfo, ...]
    fiber: Fiber = field(repr=False)
    """The fiber itself, for what is not shown here."""

    def walk(self) -> Iterator[FiberInfo]:
        """Yield this and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


@value(kw_only=True)
class Dependant:
    """A fiber that declared a service."""

    name: str
    uid: int | None
    state: str
    optional: bool
    """It runs without the service, too."""
    fiber: Fiber = field(repr=False)


@value(kw_only=True)
class ServiceInfo:
    """One service name in one scope: who provides it and who declared it."""

    name: str
    label: str | None
    """Name of the scope; None for the root's."""
    provider: str | None
    """Name of the fiber that provides it; None when nobody does."""
    provider_uid: int | None
    state: str
    """The provider's state; ``absent`` when there is none."""
    available: bool
    """Whether dependants may load against it."""
    dependants: tuple[Dependant, ...]
    fiber: Fiber | None = field(repr=False)
    """The provider itself."""


def fibers(ctx: Context) -> FiberInfo:
    """Return the tree of all fibers of a context's root."""
    return fiber_info(ctx.fiber.kernel.root_fiber)


def fiber_info(fiber: Fiber) -> FiberInfo:
    """Return one fiber and all below it."""
    held = list(fiber._effects.values())
    error = fiber.error
    return FiberInfo(
        uid=fiber.uid,
        name=fiber.title,
        state=fiber.state.label,
        error=None if error is None else error_chain(error),
        missing=() if fiber.state is ACTIVE else tuple(fiber.explain()),
        effects=tuple(
            item.info()
            for item in held
            if not isinstance(item, Fiber) and not item.done and item.label != "anonymous"
        ),
        provides=tuple(sorted({each.name for each in fiber._provided or ()})),
        needs=_gating(fiber),
        site=_site(fiber),
        children=tuple(fiber_info(item) for item in held if isinstance(item, Fiber)),
        fiber=fiber,
    )


def services(ctx: Context) -> list[ServiceInfo]:
    """Return all services of a context's root, sorted by name.

    A name that fibers declared and nobody provides in their scope is there too, as ``absent``.
    """
    table = ctx.fiber.kernel.services
    places: dict[tuple[str, Label | None], Binding | None] = {}
    for name in table.names():
        places.update({(name, binding.label): binding for binding in table.scopes_of(name)})
    for name, declared in table.dependants.items():
        for fiber in declared:
            places.setdefault((name, fiber.ctx.label_of(name)), None)
    found = [_service(ctx, name, label, binding) for (name, label), binding in places.items()]
    return sorted(found, key=lambda each: (each.name, each.label or ""))


def promised(fiber: Fiber) -> tuple[str, ...]:
    """Return the services that a fiber's plugin says it provides, whether or not it runs."""
    return fiber.runtime.provides if fiber.runtime is not None else ()


def _service(ctx: Context, name: str, label: Label | None, binding: Binding | None) -> ServiceInfo:
    owner = None if binding is None else binding.owner
    return ServiceInfo(
        name=name,
        label=None if label is None else label.name,
        provider=None if owner is None else owner.title,
        provider_uid=None if owner is None else owner.uid,
        state="absent" if owner is None else owner.state.label,
        available=binding is not None and binding.available(binding.owner.ctx),
        dependants=tuple(_dependants(ctx, name, label)),
        fiber=owner,
    )


def _dependants(ctx: Context, name: str, label: Label | None) -> Iterator[Dependant]:
    for fiber in ctx.fiber.kernel.services.dependants.get(name, ()):
        if fiber.ctx.label_of(name) is label:
            yield Dependant(
                name=fiber.title,
                uid=fiber.uid,
                state=fiber.state.label,
                optional=isinstance((fiber._inject or {}).get(name), OptionalNeed),
                fiber=fiber,
            )


def _gating(fiber: Fiber) -> tuple[str, ...]:
    needs = fiber._inject or {}
    return tuple(name for name, need in needs.items() if not isinstance(need, OptionalNeed))


def _site(fiber: Fiber) -> str | None:
    if fiber.site is None:
        return None
    code, line = fiber.site
    return f"{code.co_filename}:{line}"
