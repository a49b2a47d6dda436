"""What plugin authors test with: calls of tools, proof of reversal, a whole tree."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dsh.base.errors import DshError
from dsh.execution.tools.author import tool
from dsh.execution.tools.service import ToolRuntime
from dsh.kernel import Context
from dsh.testing.author import assert_reversible, mount_tools, settle
from dsh.testing.headless import run_headless


def doubling(ctx: Context) -> None:
    """Offer a tool that fails on demand."""

    @tool
    def double(number: int) -> int:
        """Double a number."""
        if number < 0:
            raise DshError("no negative numbers")
        return 2 * number

    ctx.require(ToolRuntime).register(double)


async def test_tools_are_called_as_the_loop_calls_them(root: Context) -> None:
    tools = await mount_tools(root)
    await root.inject([ToolRuntime], doubling)
    assert tools.names() == ["double"]
    assert await tools.call("double", number=4) == "8"
    assert (await tools.result("double", number=-1)).is_error
    with pytest.raises(AssertionError, match=r"tool 'double' failed: .*no negative numbers"):
        await tools.call("double", number=-1)
    with pytest.raises(AssertionError, match="tool 'double' failed"):
        await tools.call("double", number="x")


async def test_a_plugin_that_undoes_all_is_reversible(root: Context) -> None:
    def body(ctx: Context) -> None:
        ctx.defer(lambda: None, "held")

    await assert_reversible(root, body)


async def test_what_a_plugin_leaves_is_found(root: Context) -> None:
    def body(ctx: Context) -> None:
        root.defer(lambda: None, "left on the root")

    with pytest.raises(AssertionError, match="the plugin left something"):
        await assert_reversible(root, body)


async def test_a_plugin_that_waits_is_not_called_reversible(root: Context) -> None:
    class Waiting:
        inject = (ToolRuntime,)

        def __init__(self, ctx: Context, config: object) -> None: ...

    with pytest.raises(AssertionError, match=r"not active; it waits for: tools"):
        await assert_reversible(root, Waiting)


async def test_settling_waits_for_what_comes_up_and_not_for_what_is_missing(root: Context) -> None:
    done: list[str] = []

    async def slow(ctx: Context) -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        done.append("up")

    root.plugin(slow)
    root.inject([ToolRuntime], lambda ctx: done.append("never"))
    await settle(root)
    assert done == ["up"]


async def test_settling_leaves_a_failure_to_the_test(root: Context) -> None:
    async def failing(ctx: Context) -> None:
        await asyncio.sleep(0)
        raise RuntimeError("broken")

    fiber = root.plugin(failing)
    await settle(root)
    with pytest.raises(RuntimeError, match="broken"):
        await fiber


def test_a_whole_tree_plays_a_script(tmp_path: Path) -> None:
    patch = tmp_path / "patch.yml"
    patch.write_text("- {id: system-prompt, config: {persona: 'a test'}}\n")
    done = run_headless({"replies": [{"text": "hello"}]}, patches=[patch], task="greet")
    assert (done.code, done.out, done.err) == (0, "hello\n", "")
    assert [event["type"] for event in done.log if event["type"].startswith("turn/")] == [
        "turn/start",
        "turn/end",
    ]


def test_a_script_that_is_not_met_fails_the_run() -> None:
    script = {
        "replies": [
            {"calls": [{"name": "glob", "arguments": {"pattern": "*"}}]},
            {"expect": {"contains": "not there"}, "text": "found"},
        ]
    }
    done = run_headless(script)
    assert done.code == 1
    assert "REHEARSAL_MISMATCH" in done.err
