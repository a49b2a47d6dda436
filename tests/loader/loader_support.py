"""Plugins in memory, so that a test's rows can name them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from dsh.kernel import Context
from dsh.loader.loader import Loader

Body = Callable[..., Any]


class Shelf:
    """Modules that rows can name, and what their bodies did."""

    def __init__(self) -> None:
        self.log: list[tuple[str, Any]] = []
        self._names: list[str] = []

    def module(self, name: str, /, **members: Any) -> str:
        """Add a module; returns its name."""
        module = ModuleType(name)
        vars(module).update(members)
        sys.modules[name] = module
        self._names.append(name)
        return name

    def recorder(self, name: str) -> str:
        """Add a plugin that logs its config when it comes up, and that it goes."""

        def apply(ctx: Context, config: Any) -> None:
            self.log.append((f"{name} up", config))
            ctx.defer(lambda: self.log.append((f"{name} down", None)))

        return self.module(name, apply=apply)

    def provider(self, name: str, service: str, value: Any) -> str:
        """Add a plugin that provides a service."""

        def apply(ctx: Context, config: Any) -> None:
            ctx.provide(service, value)

        return self.module(name, apply=apply)

    def failing(self, name: str, error: Exception) -> str:
        """Add a plugin whose body raises."""

        def apply(ctx: Context, config: Any) -> None:
            raise error

        return self.module(name, apply=apply)

    def clear(self) -> None:
        """Take all modules away."""
        for name in self._names:
            sys.modules.pop(name, None)

    def did(self) -> list[str]:
        """What happened since the last call, without configs."""
        done = [what for what, _ in self.log]
        self.log.clear()
        return done


@contextmanager
def shelf() -> Iterator[Shelf]:
    """A shelf whose modules go with the test."""
    made = Shelf()
    try:
        yield made
    finally:
        made.clear()


async def loader_on(root: Context) -> Loader:
    """Mount a loader on a root; contained errors are expected here and stay silent."""
    root.set_reporter(lambda *_: None)
    await root.plugin(Loader)
    return root.require(Loader)


def states(loader: Loader) -> dict[str, str | None]:
    """The state of each row."""
    return {
        entry.id: entry.fiber.state.label if entry.running and entry.fiber else None
        for entry in loader.entries()
    }
