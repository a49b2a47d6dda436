from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from loop_harness import Held, Loop, ScriptedModel, events_of, mount, reasons, says, user

from dsh.control.budgets.keeper import BudgetKeeper
from dsh.control.budgets.reached import duration
from dsh.control.budgets.service import Budgets
from dsh.control.commands.runtime import LayeredCommands
from dsh.control.commands.service import CommandResult, CommandRuntime
from dsh.execution.agent.service import Agent
from dsh.kernel import Context
from dsh.state.settings import SettingsProvider, SettingsRefused
from dsh.state.settings.file import FileSettings


async def commanded(root: Context, **config: Any) -> Loop:
    loop = await mount(root, ScriptedModel())
    await root.plugin(BudgetKeeper, config)
    await root.plugin(LayeredCommands)
    await root.fiber
    return loop


async def enter(agent: Agent, line: str) -> CommandResult:
    commands = agent.ctx.get(CommandRuntime)
    assert commands is not None
    done = await commands.execute(agent, line)
    assert done is not None
    return done.result


async def run(agent: Agent) -> None:
    agent.followup(user("go"))
    await agent.when_idle()


async def test_budget_shows_what_was_used_of_what(root: Context) -> None:
    price = {"scripted/m": {"input": 10_000, "output": 10_000}}
    loop = await commanded(root, session={"steps": 9, "money": 2}, tree={"agents": 4}, prices=price)
    agent = await loop.agent()
    loop.model.will(says("hello"))
    await run(agent)

    result = await enter(agent, "/budget")

    assert result.kind == "success"
    own, tree = (result.text or "").splitlines()
    assert own.startswith("this session: 1 turns · 1 steps of 9 steps · 15 tokens · 0.1500 USD of ")
    assert tree.startswith("with its agents: 1 turns")
    assert tree.endswith("at most 4 agents")


async def test_budget_says_which_route_has_no_price(root: Context) -> None:
    loop = await commanded(root)
    agent = await loop.agent()
    loop.model.will(says("hello"))
    await run(agent)
    result = await enter(agent, "/budget")
    assert "cost unknown: scripted/m has no price" in (result.text or "")


async def test_budget_raises_a_limit_that_was_reached(root: Context) -> None:
    loop = await commanded(root, session={"steps": 1})
    agent = await loop.agent()
    loop.model.otherwise = says("hello")
    await run(agent)
    await run(agent)
    assert reasons(agent)[-1]["kind"] == "aborted"

    result = await enter(agent, "/budget steps 2")

    assert result.kind == "success"
    assert result.source_event_seq is not None
    assert agent.session.events[result.source_event_seq]["type"] == "budget/limit"
    await run(agent)
    assert reasons(agent)[-1] == {"kind": "completed"}


@pytest.mark.parametrize(
    ("line", "scope", "limit", "most"),
    [
        ("/budget steps 20", "session", "steps", 20),
        ("/budget session tokens 2m", "session", "tokens", 2_000_000),
        ("/budget tokens 1,500", "session", "tokens", 1500),
        ("/budget money 1.5", "session", "money", 1.5),
        ("/budget tree wall 30m", "tree", "wallMs", 1_800_000),
        ("/budget wall 90", "session", "wallMs", 90_000),
        ("/budget wall 1.5h", "session", "wallMs", 5_400_000),
        ("/budget tree agents 8", "tree", "agents", 8),
        ("/budget tree depth 0", "tree", "depth", 0),
        ("/budget steps off", "session", "steps", None),
    ],
)
async def test_limits_are_set_in_words(
    root: Context, line: str, scope: str, limit: str, most: float | None
) -> None:
    loop = await commanded(root, session={"steps": 3})
    agent = await loop.agent()
    assert (await enter(agent, line)).kind == "success"
    assert events_of(agent, "budget/limit") == [{"scope": scope, "limit": limit, "max": most}]
    limits = loop.ctx.require(Budgets).limits_of(agent, scope)  # type: ignore[arg-type]
    assert limits.get(limit) == most  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "line",
    [
        "/budget steps",
        "/budget steps many",
        "/budget steps -3",
        "/budget steps 0",
        "/budget steps 1.5",
        "/budget steps 3h",
        "/budget agents 3",
        "/budget pages 3",
        "/budget tree",
        "/budget steps 3 4",
    ],
)
async def test_what_is_no_limit_is_explained_and_changes_nothing(root: Context, line: str) -> None:
    loop = await commanded(root)
    agent = await loop.agent()
    result = await enter(agent, line)
    assert result.kind == "error"
    assert "usage: /budget" in result.text
    assert events_of(agent, "budget/limit") == []


async def test_the_command_goes_with_its_plugin(root: Context) -> None:
    loop = await mount(root, ScriptedModel())
    await root.plugin(LayeredCommands)
    fiber = await root.plugin(BudgetKeeper, {})
    await root.fiber
    agent = await loop.agent()
    commands = root.require(CommandRuntime)
    assert commands.find(agent, "budget") is not None
    await fiber.dispose()
    assert commands.find(agent, "budget") is None


# settings


async def stored(root: Context, folder: Path, **config: Any) -> Loop:
    await root.plugin(FileSettings, {"path": str(folder / "settings.yaml")})
    loop = await mount(root, ScriptedModel())
    await root.plugin(BudgetKeeper, config)
    return loop


async def test_settings_raise_a_limit_without_a_restart(root: Context, tmp_path: Path) -> None:
    loop = await stored(root, tmp_path, session={"steps": 1}, currency="EUR")
    agent = await loop.agent()
    loop.model.otherwise = says("hello")
    await run(agent)
    await run(agent)
    assert reasons(agent)[-1]["kind"] == "aborted"
    section = {"session": {"steps": 2}, "prices": {"scripted/*": {"input": 1, "output": 1}}}
    await root.require(SettingsProvider).update("budgets", section)
    await run(agent)
    assert reasons(agent)[-1] == {"kind": "completed"}
    used = root.require(Budgets).usage_of(agent.session)
    assert used.cost == pytest.approx(30e-6)
    assert used.currency == "EUR"


async def test_settings_that_set_a_wall_time_end_what_runs(root: Context, tmp_path: Path) -> None:
    loop = await stored(root, tmp_path)
    agent = await loop.agent()
    held = Held()
    loop.model.will(held)
    agent.followup(user("go"))
    await held.reached.wait()
    await root.require(SettingsProvider).update("budgets", {"session": {"wallMs": 1}})
    await agent.when_idle()
    assert reasons(agent)[-1]["reason"]["code"] == "BUDGET_WALL"


async def test_settings_that_are_no_limits_are_refused(root: Context, tmp_path: Path) -> None:
    await stored(root, tmp_path)
    with pytest.raises(SettingsRefused, match=r"-1 is no limit session\.steps"):
        await root.require(SettingsProvider).update("budgets", {"session": {"steps": -1}})


@pytest.mark.parametrize(
    ("ms", "text"),
    [(1500, "1.5 s"), (60_000, "1 min 0 s"), (59_990, "1 min 0 s"), (3_600_000, "1 h 0 min")],
)
def test_durations_are_told_in_words(ms: float, text: str) -> None:
    assert duration(ms) == text
