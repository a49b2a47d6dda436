"""cordis-python, from the package index; needs Python 3.12."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any


class Adapter:
    name = "cordis-python"
    module = "cordis_py"

    def __init__(self) -> None:
        import cordis_py

        self.k = cordis_py

    def root(self) -> Any:
        return self.k.Context()

    def mount(self, ctx: Any, body: Callable[[Any], Any], needs: str | None) -> Any:
        def apply(inner: Any, config: object) -> Any:
            return body(inner)

        return ctx.plugin(SimpleNamespace(inject=[needs] if needs else [], apply=apply))

    async def settle(self, fiber: Any) -> None:
        await fiber

    def dispose(self, fiber: Any) -> Awaitable[object]:
        return fiber.dispose()

    def provide(self, ctx: Any, name: str, value: object) -> Any:
        return ctx.provide(name, value)

    async def withdraw(self, provision: Any) -> None:
        rest = provision()
        if inspect.isawaitable(rest):
            await rest

    def on(self, ctx: Any, listener: Callable[..., Any], mode: str) -> None:
        ctx.on(f"bench/{mode}", listener)

    def emitter(self, ctx: Any) -> Callable[[], object]:
        return lambda: ctx.emit("bench/emit", 1)

    def async_waterfall(self, ctx: Any) -> Callable[[], Awaitable[object]]:
        async def inner(*_: object) -> int:
            return 1

        return lambda: ctx.waterfall("bench/waterfall", 1, fallback=inner)

    def sync_waterfall(self, ctx: Any) -> Callable[[], object] | None:
        return None

    def effect_and_undo(self, ctx: Any) -> Callable[[], object]:
        def undo() -> None: ...

        def run() -> None:
            rest = ctx.effect(lambda: undo, "bench")()
            if inspect.iscoroutine(rest):
                with contextlib.suppress(StopIteration):
                    rest.send(None)

        return run
