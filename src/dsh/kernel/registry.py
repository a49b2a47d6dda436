"""The plugins of a root, keyed by their callables."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, KeysView, ValuesView
from typing import Any

from dsh.kernel.plugins import Plugin, Runtime, callable_of


class Registry:
    """Which plugins are mounted, each with its fibers."""

    __slots__ = ("_runtimes",)

    def __init__(self) -> None:
        self._runtimes: dict[Callable[..., Any], Runtime] = {}

    def __len__(self) -> int:
        return len(self._runtimes)

    @property
    def size(self) -> int:
        """How many different plugins are mounted."""
        return len(self._runtimes)

    def __contains__(self, plugin: Plugin) -> bool:
        return self.has(plugin)

    def get(self, plugin: Plugin) -> Runtime | None:
        """Return a mounted plugin's runtime."""
        return self._runtimes.get(callable_of(plugin))

    def has(self, plugin: Plugin) -> bool:
        """Whether a plugin is mounted."""
        return callable_of(plugin) in self._runtimes

    def delete(self, plugin: Plugin) -> Runtime | None:
        """Request disposal of all fibers of a plugin and forget it; they can be awaited."""
        runtime = self._runtimes.pop(callable_of(plugin), None)
        if runtime is not None:
            runtime.deleted = True
            for fiber in tuple(runtime.fibers):
                fiber.dispose()
        return runtime

    def keys(self) -> KeysView[Callable[..., Any]]:
        """The callables of mounted plugins."""
        return self._runtimes.keys()

    def values(self) -> ValuesView[Runtime]:
        """The runtimes of mounted plugins."""
        return self._runtimes.values()

    def items(self) -> ItemsView[Callable[..., Any], Runtime]:
        """Callables with their runtimes."""
        return self._runtimes.items()

    def obtain(self, plugin: Plugin) -> Runtime:
        """Return the runtime of a plugin that is being mounted, made by its first mount.

        Raises:
            InvalidPlugin: the value has no plugin shape.
        """
        callback = callable_of(plugin)
        runtime = self._runtimes.get(callback)
        if runtime is None:
            runtime = self._runtimes[callback] = Runtime(plugin, callback)
        return runtime

    def drop_if_unused(self, runtime: Runtime) -> None:
        """Forget a plugin whose last fiber is gone."""
        if not runtime.fibers and self._runtimes.get(runtime.callback) is runtime:
            del self._runtimes[runtime.callback]
