"""For tests of plugins: a tool runtime to call, and proof that a plugin leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dsh.base.signal import AbortController
from dsh.execution.prompt.assembly import LayeredSystemPrompt
from dsh.execution.tools.runtime import LayeredToolRuntime
from dsh.execution.tools.service import ToolInput, ToolResult, ToolRuntime
from dsh.kernel import Context, Fiber, FiberState
from dsh.model.messages import CallId

__all__ = ["ToolBench", "assert_reversible", "mount_tools", "settle"]


class ToolBench:
    """The tools that are mounted on a root, called as the loop calls them."""

    def __init__(self, root: Context) -> None:
        self._root = root

    def names(self) -> list[str]:
        """Return the names of the tools that a model would see."""
        return [schema["name"] for schema in self._tools().schemas()]

    async def result(self, name: str, /, **arguments: Any) -> ToolResult:
        """Call a tool and return all that came of it; a failure is a result, too."""
        call = ToolInput(
            call_id=CallId("call-1"),
            name=name,
            arguments=arguments,
            signal=AbortController().signal,
        )
        return await self._tools().execute(call)

    async def call(self, name: str, /, **arguments: Any) -> str:
        """Call a tool and return the text that a model would read.

        Raises:
            AssertionError: the call failed; has that text.
        """
        result = await self.result(name, **arguments)
        text = "".join(block["text"] for block in result.content if block["type"] == "text")
        assert not result.is_error, f"tool {name!r} failed: {text}"
        return text

    def _tools(self) -> ToolRuntime:
        tools = self._root.get(ToolRuntime)
        assert tools is not None, "no tool runtime is mounted"
        return tools


async def mount_tools(root: Context) -> ToolBench:
    """Mount what a plugin with tools needs, and return what calls them."""
    await root.plugin(LayeredSystemPrompt)
    await root.plugin(LayeredToolRuntime)
    return ToolBench(root)


async def settle(root: Context) -> None:
    """Wait until no plugin is coming up or going down; those that wait for a service stay so."""
    while (busy := next(_in_transition(root.fiber), None)) is not None:
        try:
            await busy.wait()
        except Exception:
            # It is settled: FAILED, which is for the test to look at.
            continue


async def assert_reversible(root: Context, plugin: Any, config: Any = None) -> None:
    """Mount a plugin, take it away, and check that the root is as it was.

    Args:
        root: Where; what the plugin injects must be mounted there, so that its body runs.
        plugin: As a row would name it.
        config: For the plugin.

    Raises:
        AssertionError: the body did not run, or effects, listeners, services or tasks are left.
        Exception: what the body raised.
    """
    await settle(root)
    before = root.census()
    fiber = await root.plugin(plugin, {} if config is None else config)
    waits = ", ".join(str(each.service) for each in fiber.explain())
    assert fiber.state is FiberState.ACTIVE, f"the plugin is not active; it waits for: {waits}"
    await settle(root)
    await fiber.dispose()
    await settle(root)
    after = root.census()
    assert after == before, f"the plugin left something: {before} became {after}"


def _in_transition(fiber: Fiber) -> Iterator[Fiber]:
    if fiber.state in (FiberState.LOADING, FiberState.UNLOADING):
        yield fiber
    for item in list(fiber._effects.values()):
        if isinstance(item, Fiber):
            yield from _in_transition(item)
