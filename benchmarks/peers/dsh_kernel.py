"""This project's kernel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any


class Adapter:
    name = "dsh"
    module = "dsh.kernel"

    def __init__(self) -> None:
        import dsh.kernel as kernel

        self.k = kernel
        self.events = {
            "emit": kernel.Emit[int]("bench/emit"),
            "waterfall": kernel.Waterfall[int, int]("bench/waterfall"),
            "waterfall_sync": kernel.WaterfallSync[int, int]("bench/waterfall-sync"),
        }

    def root(self) -> Any:
        return self.k.Context()

    def mount(self, ctx: Any, body: Callable[[Any], Any], needs: str | None) -> Any:
        if needs is not None:
            body.inject = [needs]  # type: ignore[attr-defined]
        return ctx.plugin(body)

    async def settle(self, fiber: Any) -> None:
        await fiber

    def dispose(self, fiber: Any) -> Awaitable[object]:
        return fiber.dispose()

    def provide(self, ctx: Any, name: str, value: object) -> Any:
        return ctx.provide(name, value)

    def withdraw(self, provision: Any) -> Awaitable[object]:
        return provision.dispose()

    def on(self, ctx: Any, listener: Callable[..., Any], mode: str) -> None:
        ctx.on(self.events[mode], listener)

    def emitter(self, ctx: Any) -> Callable[[], object]:
        event = self.events["emit"]
        return lambda: ctx.emit(event, 1)

    def async_waterfall(self, ctx: Any) -> Callable[[], Awaitable[object]]:
        event = self.events["waterfall"]

        async def inner() -> int:
            return 1

        return lambda: ctx.waterfall(event, 1, inner)

    def sync_waterfall(self, ctx: Any) -> Callable[[], object] | None:
        event = self.events["waterfall_sync"]
        return lambda: ctx.waterfall_sync(event, 1, lambda: 1)

    def effect_and_undo(self, ctx: Any) -> Callable[[], object]:
        def undo() -> None: ...

        return lambda: ctx.effect(lambda: undo, "bench").dispose()
