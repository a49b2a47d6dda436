from __future__ import annotations

from types import ModuleType

import pytest

from dsh.kernel import Context, Inject, Label, Service
from dsh.kernel.inspect import ServiceInfo, fibers, promised, services


class Store(Service):
    name = "store"


def service(root: Context, name: str) -> ServiceInfo:
    (found,) = [each for each in services(root) if each.name == name]
    return found


async def test_every_fiber_is_shown_with_its_state_its_effects_and_its_children(
    root: Context,
) -> None:
    def outer(ctx: Context) -> None:
        ctx.defer(lambda: None, "outer.thing")
        ctx.plugin(inner)

    def inner(ctx: Context) -> None:
        ctx.defer(lambda: None)

    await root.plugin(outer)

    top = fibers(root)
    (shown,) = [each for each in top.children if each.name == "outer"]
    assert (top.uid, top.state, shown.state) == (0, "active", "active")
    assert [effect.label for effect in shown.effects] == ["outer.thing"]
    assert [(each.name, each.effects) for each in shown.children] == [("inner", ())]
    assert shown.site is not None
    assert "test_kernel_inspect.py:" in shown.site
    assert next(top.walk()).name == "root"


async def test_a_waiting_fiber_says_what_it_misses(root: Context) -> None:
    root.inject(["store"], lambda _: None)

    (waiting,) = fibers(root).children

    assert (waiting.state, waiting.needs) == ("pending", ("store",))
    assert [(each.service, each.reason) for each in waiting.missing] == [("store", "absent")]


async def test_a_failed_fiber_says_why(root: Context) -> None:
    def breaks(ctx: Context) -> None:
        raise ValueError("no luck")

    fiber = root.plugin(breaks)
    with pytest.raises(ValueError, match="no luck"):
        await fiber

    (failed,) = fibers(root).children
    assert (failed.state, failed.error) == ("failed", "no luck")


async def test_a_service_is_shown_with_its_provider_and_its_dependants(root: Context) -> None:
    await root.plugin(Store)
    await root.inject([Store, "clock"], lambda _: None).wait()
    await root.inject([Inject.optional("store")], lambda _: None)

    store, clock = service(root, "store"), service(root, "clock")

    assert (store.provider, store.state, store.available, store.label) == (
        "store",
        "active",
        True,
        None,
    )
    assert [(each.state, each.optional) for each in store.dependants] == [
        ("pending", False),
        ("active", True),
    ]
    assert (clock.provider, clock.state, clock.available) == (None, "absent", False)


async def test_scopes_of_a_name_are_services_of_their_own(root: Context) -> None:
    await root.plugin(Store)
    other = root.isolate("store", Label("other"))
    await other.plugin(Store)
    await other.inject([Store], lambda _: None)

    found = {each.label: each for each in services(root) if each.name == "store"}

    assert set(found) == {None, "other"}
    assert (len(found[None].dependants), len(found["other"].dependants)) == (0, 1)


async def test_a_service_that_says_no_is_not_available(root: Context) -> None:
    class Shy(Service):
        name = "shy"

        def check(self) -> bool:
            return False

    await root.plugin(Shy)

    assert not service(root, "shy").available


async def test_looking_changes_nothing(root: Context) -> None:
    await root.plugin(Store)
    root.inject([Store, "absent"], lambda _: None)
    before = root.census()

    fibers(root)
    services(root)

    assert root.census() == before


async def test_a_plugin_promises_its_service_before_it_runs(root: Context) -> None:
    class Late(Service):
        name = "late"
        inject = ("never",)

    def plain(ctx: Context) -> None:
        """Promise nothing."""

    late, silent = root.plugin(Late), root.plugin(plain)

    assert promised(late) == ("late",)
    assert promised(silent) == ()


async def test_a_module_promises_what_its_provide_lists(root: Context) -> None:
    module = ModuleType("shelf")
    vars(module).update(provide=(Store, "other"), inject=("never",), apply=lambda ctx: None)

    assert promised(root.plugin(module)) == ("store", "other")
