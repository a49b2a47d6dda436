"""R24: a plugin that is broken or in the way harms its own row, and no turn that runs."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest
from loop_harness import Loop, ScriptedModel, add_tool, calls, mount, reasons, results, ticks, user

from dsh.execution.tools.events import TOOLS_EXECUTE
from dsh.execution.tools.service import ToolError, ToolFailure, ToolRunContext, ToolRuntime
from dsh.kernel import Context, FiberState
from dsh.loader.errors import EntryError
from dsh.loader.hmr.plugin import HotReload
from dsh.loader.hmr.service import Hmr
from dsh.loader.loader import Loader, folder_url


class ManualReload(HotReload):
    """Looks at its files only when a test says so."""

    def _begin(self) -> None:
        pass

    def _watch(self) -> None:
        pass


class Shop:
    """A loop with a tree of rows beside it whose plugins offer tools."""

    def __init__(self, loop: Loop, folder: Path) -> None:
        self.loop, self.folder = loop, folder
        self.tree: Loader
        self.errors: list[str] = []
        self.modules: list[str] = []
        loop.root.set_reporter(lambda error, *_: self.errors.append(str(error)))

    async def open(self, *rows: dict[str, Any]) -> None:
        await self.loop.root.extend(base_url=folder_url(self.folder)).plugin(Loader)
        self.tree = self.loop.root.require(Loader)
        await self.tree.mount(list(rows))
        await self.tree.quiesce()

    def row(self, name: str, apply: Callable[..., Any]) -> dict[str, Any]:
        module = ModuleType(f"shop_{name}")
        vars(module).update(apply=apply, inject=("tools",))
        sys.modules[module.__name__] = module
        self.modules.append(module.__name__)
        return {"id": name, "name": module.__name__}

    def state(self, id: str) -> FiberState:
        fiber = self.tree.resolve(id).fiber
        assert fiber is not None
        return fiber.state

    def reason(self, id: str) -> str:
        fiber = self.tree.resolve(id).fiber
        assert fiber is not None
        return str(fiber.error)

    def tools(self) -> list[str]:
        return [schema["name"] for schema in self.loop.root.require(ToolRuntime).schemas()]

    async def turn(self, *asked: tuple[str, str, str]) -> list[str]:
        """Run a turn in an agent of its own; return the texts of its results."""
        agent = await self.loop.agent(f"s{len(self.loop.model.requests)}")
        self.loop.model.will(calls(*asked), "end")
        agent.followup(user("go"))
        await agent.when_idle()
        assert reasons(agent) == [{"kind": "completed"}]
        return [text for _, _, text, _ in results(agent)]


@pytest.fixture
async def shop(root: Context, model: ScriptedModel, tmp_path: Path) -> Any:
    made = Shop(await mount(root, model), tmp_path)
    yield made
    for name in made.modules:
        del sys.modules[name]


def says(word: str, name: str = "say", **options: Any) -> Callable[..., None]:
    async def say() -> str:
        return word

    def apply(ctx: Context, config: Any) -> None:
        add_tool(ctx, say, name=name, **options)

    return apply


def bad_output(ctx: Context, config: Any) -> None:
    says("bad", "bad", output={"type": ["string", "null"]})(ctx, config)


def half_way(ctx: Context, config: Any) -> None:
    says("half", "half")(ctx, config)
    raise RuntimeError("no licence")


@pytest.mark.parametrize(
    ("apply", "reason"),
    [
        (says("second"), "tool 'say' is registered in this scope already; unload its plugin"),
        (says("reserved", "run_code"), "the tool name 'run_code' is reserved"),
        (bad_output, "output of tool 'bad': unsupported JSON schema: schema.type"),
        (half_way, "no licence"),
    ],
)
async def test_a_broken_plugin_fails_its_row_with_a_reason_and_costs_no_request(
    shop: Shop, apply: Any, reason: str
) -> None:
    await shop.open(shop.row("good", says("first")), shop.row("other", says("fine", "other")))
    with pytest.raises(EntryError, match=re.escape(reason)):
        await shop.tree.create(shop.row("broken", apply))
    assert shop.tools() == ["other", "say"]

    await shop.tree.replace({shop.tree.resolve("other"): plugin(apply)})

    assert shop.state("other") is FiberState.FAILED
    assert reason in shop.reason("other")
    assert shop.tools() == ["say"]
    assert await shop.turn(("1", "say", "{}")) == ["first"]


async def test_what_a_tool_or_a_wrapper_made_up_fails_its_call_and_not_the_turn(loop: Loop) -> None:
    made: dict[str, Any] = {
        "message": ToolFailure(error=ToolError("x"), content=[], additional_contexts=("no",)),  # type: ignore[arg-type]
        "error": ToolFailure(error=None, content=[]),  # type: ignore[arg-type]
        "content": ToolFailure(error=ToolError("x"), content="no"),  # type: ignore[arg-type]
    }

    async def body(run: ToolRunContext) -> str:
        run.defer_context("no message")  # type: ignore[arg-type]
        return "x"

    async def wrap(request: Any, next: Any) -> Any:
        return made.get(request.execution.call_id) or await next()

    add_tool(loop.root, body)
    loop.root.on(TOOLS_EXECUTE, wrap)
    agent = await loop.agent()
    loop.model.will(calls(*((call, "body", "{}") for call in (*made, "body"))), "done")
    agent.followup(user("go"))
    await agent.when_idle()
    assert [failed for _, failed, _, _ in results(agent)] == [True] * 4
    assert reasons(agent) == [{"kind": "completed"}]


async def test_a_plugin_that_fails_to_unload_takes_its_tools_away_all_the_same(shop: Shop) -> None:
    def sticky(ctx: Context, config: Any) -> None:
        ctx.defer(lambda: 1 / 0)
        says("sticky", "sticky")(ctx, config)

    await shop.open(shop.row("good", says("first")), shop.row("sticky", sticky))
    assert shop.tools() == ["say", "sticky"]

    await shop.tree.remove("sticky")

    assert shop.tools() == ["say"]
    assert any("division by zero" in error for error in shop.errors)
    assert await shop.turn(("1", "say", "{}"), ("2", "sticky", "{}")) == [
        "first",
        "Error: unknown tool 'sticky'",
    ]


async def test_a_running_turn_keeps_the_tools_it_began_with(shop: Shop) -> None:
    reached, go = asyncio.Event(), asyncio.Event()

    async def say() -> str:
        reached.set()
        await go.wait()
        return "old"

    shop.loop.root.set_lease_grace(3600)

    def apply(ctx: Context, config: Any) -> None:
        add_tool(ctx, say)

    await shop.open(shop.row("plugin", apply))
    turn = asyncio.create_task(shop.turn(("1", "say", "{}"), ("2", "say", "{}")))
    await reached.wait()

    swap = asyncio.create_task(
        shop.tree.replace({shop.tree.resolve("plugin"): plugin(says("new"))})
    )
    await ticks(20)
    assert not swap.done()
    go.set()

    assert await turn == ["old", "old"]
    await swap
    assert await shop.turn(("1", "say", "{}")) == ["new"]


def plugin(apply: Any) -> Any:
    apply.inject = ("tools",)
    return apply


async def test_a_swap_that_cannot_be_mounted_leaves_the_tools_there_were(shop: Shop) -> None:
    await shop.open(shop.row("plugin", says("old")))
    with pytest.raises(EntryError):
        await shop.tree.replace({shop.tree.resolve("plugin"): 5})
    assert await shop.turn(("1", "say", "{}")) == ["old"]


SOURCE = """
from dsh.execution.tools.author import tool

inject = ("tools",)

@tool
async def say() -> {returned}:
    {doc}
    return "{word}"

def apply(ctx):
    ctx.require("tools").register(say)
"""


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(tmp_path)

    def write(word: str, *, doc: str = '"Say it."', returned: str = "str") -> None:
        text = dedent(SOURCE).format(word=word, doc=doc, returned=returned)
        (tmp_path / "shop_edited.py").write_text(text)

    yield write
    sys.modules.pop("shop_edited", None)


async def test_an_edit_that_is_no_tool_is_refused_and_the_former_code_goes_on(
    shop: Shop, sources: Any
) -> None:
    sources("old")
    await shop.open(
        {"id": "hmr", "name": f"{__name__}:ManualReload", "config": {"root": ["."]}},
        {"id": "edited", "name": "./shop_edited.py"},
    )
    assert await shop.turn(("1", "say", "{}")) == ["old"]

    for word, broken in [("bad", {"doc": "pass"}), ("worse", {"returned": "'Nowhere'"})]:
        shop.errors.clear()
        sources(word, **broken)
        await edited(shop)
        assert "tool 'say'" in "".join(shop.errors)
        assert await shop.turn(("1", "say", "{}")) == ["old"]

    sources("newer")
    await edited(shop)
    assert await shop.turn(("1", "say", "{}")) == ["newer"]


async def edited(shop: Shop) -> None:
    hmr = shop.loop.root.require(Hmr)
    await hmr.scan()
    await hmr.quiesce()
    await shop.tree.quiesce()
