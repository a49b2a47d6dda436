"""deepseek-cordis, from the package index."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any


class Adapter:
    name = "deepseek-cordis"
    module = "deepseek_cordis"

    def __init__(self) -> None:
        import deepseek_cordis

        self.k = deepseek_cordis

    def root(self) -> Any:
        return self.k.Context()

    def mount(self, ctx: Any, body: Callable[[Any], Any], needs: str | None) -> Any:
        def apply(inner: Any, config: object) -> Any:
            return body(inner)

        return ctx.plugin(SimpleNamespace(inject=[needs] if needs else [], apply=apply))

    async def settle(self, fiber: Any) -> None:
        await fiber.wait()

    def dispose(self, fiber: Any) -> Awaitable[object]:
        return fiber.dispose()

    def provide(self, ctx: Any, name: str, value: object) -> Any:
        return ctx.provide(name, value)

    async def withdraw(self, provision: Any) -> None:
        rest = provision()
        if rest is not None:
            await rest

    def on(self, ctx: Any, listener: Callable[..., Any], mode: str) -> None:
        ctx.on(f"bench/{mode}", listener)

    def emitter(self, ctx: Any) -> Callable[[], object]:
        return lambda: ctx.emit("bench/emit", 1)

    def async_waterfall(self, ctx: Any) -> Callable[[], Awaitable[object]]:
        async def inner() -> int:
            return 1

        return lambda: ctx.waterfall("bench/waterfall", 1, next_=inner)

    def sync_waterfall(self, ctx: Any) -> Callable[[], object] | None:
        return lambda: ctx.waterfall("bench/waterfall_sync", 1, next_=lambda: 1)

    def effect_and_undo(self, ctx: Any) -> Callable[[], object]:
        def undo() -> None: ...

        return lambda: ctx.effect(lambda: undo, "bench")()
