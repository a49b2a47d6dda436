"""The registry of mounted plugins, and what is read from a plugin."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import SimpleNamespace
from typing import Any

import pytest

from dsh.kernel import Context, Inject, Service, ServiceKey, plugin


async def test_registry_is_keyed_by_the_callable(root: Context) -> None:
    def apply(ctx: Context) -> None: ...

    module = SimpleNamespace(name="module", apply=apply)
    fiber = await root.plugin(module)
    registry = root.registry
    assert registry.get(module) is registry.get(apply) is fiber.runtime
    assert module in registry
    assert (len(registry), registry.size) == (1, 1)
    assert list(registry.keys()) == [apply]
    assert [runtime.name for runtime in registry.values()] == ["module"]
    assert [name for name, _ in registry.items()] == [apply]
    assert list(fiber.runtime.fibers) == [fiber] if fiber.runtime else False


async def test_runtime_goes_with_its_last_fiber(root: Context) -> None:
    def body(ctx: Context) -> None: ...

    one, two = await root.plugin(body), await root.plugin(body)
    await one.dispose()
    assert root.registry.has(body)
    await two.dispose()
    assert not root.registry.has(body)


@pytest.mark.parametrize("declared", ["foo", ("foo",), ["foo"], {"foo": None}, ServiceKey("foo")])
async def test_inject_takes_every_spelling(root: Context, declared: Any) -> None:
    fiber = root.inject(declared, lambda ctx: None)
    assert list(fiber.inject) == ["foo"]


async def test_decorated_function_has_its_metadata(root: Context) -> None:
    @plugin(name="decorated", inject=["foo", Inject.optional("bar")])
    def body(ctx: Context) -> None: ...

    fiber = root.plugin(body)
    assert (fiber.name, list(fiber.inject)) == ("decorated", ["foo", "bar"])
    assert [missing.service for missing in fiber.explain()] == ["foo"]


async def test_body_may_leave_out_the_config(root: Context, log: list[object]) -> None:
    class Methods:
        def one(self, ctx: Context) -> None:
            log.append("one")

        def two(self, ctx: Context, config: object) -> None:
            log.append(config)

    await root.plugin(Methods().one, 1)
    await root.plugin(Methods().two, 2)
    await root.plugin(lambda *args: log.append(len(args)), 3)
    assert log == ["one", 2, 2]


async def test_interface_is_the_key_of_its_providers(root: Context) -> None:
    class Store(Service, ABC):
        name = "store"

        @abstractmethod
        def read(self) -> str:
            """Read."""

    class Memory(Store):
        def read(self) -> str:
            return "from memory"

    user = root.inject([Store], lambda ctx: None)
    await root.plugin(Memory)
    await user
    store = user.ctx.require(Store)
    assert store.read() == "from memory"
    assert (isinstance(store, Memory), root.get(Memory) == store) == (True, True)
