"""What a kernel must be able to do to be measured."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

Body = Callable[[Any], Any]


class Kernel(Protocol):
    """One kernel; ``ctx`` is its own context object."""

    name: str
    module: str

    def root(self) -> Any:
        """Make a root context."""

    def mount(self, ctx: Any, body: Body, needs: str | None) -> Any:
        """Mount a plugin that may need one service; returns its fiber."""

    async def settle(self, fiber: Any) -> None:
        """Wait until a fiber does nothing."""

    def dispose(self, fiber: Any) -> Awaitable[object]:
        """Request disposal; awaiting joins it."""

    def provide(self, ctx: Any, name: str, value: object) -> Any:
        """Provide a service."""

    def withdraw(self, provision: Any) -> Awaitable[object]:
        """Take a service back; awaiting joins the dependants' unload."""

    def on(self, ctx: Any, listener: Callable[..., Any], mode: str) -> None:
        """Listen to the benchmark's event of a mode."""

    def emitter(self, ctx: Any) -> Callable[[], object]:
        """Return what dispatches by emit."""

    def async_waterfall(self, ctx: Any) -> Callable[[], Awaitable[object]]:
        """Return what dispatches the asynchronous waterfall around ``1``."""

    def sync_waterfall(self, ctx: Any) -> Callable[[], object] | None:
        """Return what dispatches the synchronous one; None where there is none."""

    def effect_and_undo(self, ctx: Any) -> Callable[[], object]:
        """Return what registers one effect and undoes it."""
