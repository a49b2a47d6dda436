from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest
from loop_harness import Held, Loop, ScriptedModel, add_tool, events_of, mount, reasons, says, user

from dsh.control.budgets.keeper import BudgetKeeper
from dsh.control.budgets.service import AgentCapReached, Budgets
from dsh.execution.agent.service import (
    Agent,
    AgentHandle,
    AgentOptions,
    AgentRegistry,
    CreateAgent,
)
from dsh.execution.tools.service import ToolRunContext
from dsh.kernel import Context
from dsh.model.chunks import block_end, finish, usage_report
from dsh.model.messages import SessionId

ROUTE = AgentOptions(provider="scripted", model="m")


async def budgeted(root: Context, **config: Any) -> Loop:
    loop = await mount(root, ScriptedModel())
    await root.plugin(BudgetKeeper, config)

    async def look() -> str:
        return "same"

    add_tool(root, look)
    return loop


async def child_of(owner: Agent, id: str, **more: Any) -> AgentHandle:
    create = owner.ctx.require(AgentRegistry).create
    return await create(CreateAgent(session_id=SessionId(id), agent_options=ROUTE, **more))


def for_ever(tokens: int = 10) -> Any:
    count = 0

    async def play(_: Any) -> AsyncIterator[Any]:
        nonlocal count
        count += 1
        block = {"type": "tool-call", "id": f"r{count}", "name": "look", "arguments": "{}"}
        yield block_end(0, block)
        yield usage_report({"inputTokens": tokens, "outputTokens": 0})
        yield finish("tool-calls")

    return play


async def run(*agents: Agent) -> None:
    for agent in agents:
        agent.followup(user("go"))
    async with asyncio.timeout(15):
        for agent in agents:
            await agent.when_idle()


def code(agent: Agent) -> str | None:
    reason = reasons(agent)[-1]
    return reason["reason"].get("code") if reason["kind"] == "aborted" else None


async def test_a_tree_is_one_budget_for_all_its_agents(root: Context) -> None:
    loop = await budgeted(root, tree={"steps": 5})
    parent = await loop.agent("parent")
    child = (await child_of(parent, "child")).agent
    loop.model.will(says("one"), says("two"))
    await run(parent)
    await run(child)
    loop.model.otherwise = for_ever()

    await run(child)

    assert len(loop.model.requests) == 5
    assert code(child) == "BUDGET_STEPS"
    [reached] = events_of(child, "budget/reached")
    assert reached == {
        "turn": 2,
        "scope": "tree",
        "limit": "steps",
        "used": 5,
        "max": 5,
        "root": "parent",
    }
    assert "/budget tree steps" in reasons(child)[-1]["reason"]["reason"]
    await run(parent)
    assert code(parent) == "BUDGET_STEPS"
    assert len(loop.model.requests) == 5


async def test_another_tree_has_a_budget_of_its_own(root: Context) -> None:
    loop = await budgeted(root, tree={"steps": 3})
    one, two = await loop.agent("one"), await loop.agent("two")
    loop.model.otherwise = for_ever()
    await run(one)
    await run(two)
    assert len(loop.model.requests) == 6


async def test_two_siblings_that_reach_it_at_once_both_stop(root: Context) -> None:
    loop = await budgeted(root, tree={"tokens": 100})
    parent = await loop.agent("parent")
    one = (await child_of(parent, "one")).agent
    two = (await child_of(parent, "two")).agent
    loop.model.otherwise = for_ever(tokens=10)

    await run(one, two)

    assert [code(one), code(two)] == ["BUDGET_TOKENS", "BUDGET_TOKENS"]
    used = loop.ctx.require(Budgets).usage_of_tree(parent).tokens
    assert 100 <= used <= 100 + 10  # what the other one had in flight


async def test_the_wall_time_of_a_tree_stops_all_that_run(root: Context) -> None:
    loop = await budgeted(root, tree={"wallMs": 80})
    parent = await loop.agent("parent")
    children = [(await child_of(parent, f"c{n}")).agent for n in range(2)]
    loop.model.will(Held(), Held(), Held())
    await run(parent, *children)
    assert [code(agent) for agent in (parent, *children)] == ["BUDGET_WALL"] * 3


async def test_agents_that_work_side_by_side_use_the_same_wall_time(root: Context) -> None:
    loop = await budgeted(root)
    parent = await loop.agent("parent")
    children = [(await child_of(parent, f"c{n}")).agent for n in range(2)]
    held = [Held() for _ in children]
    loop.model.will(*held)
    for child in children:
        child.followup(user("go"))
    for each in held:
        await each.reached.wait()
    await asyncio.sleep(0.05)
    for each in held:
        each.go.set()
    for child in children:
        await child.when_idle()
    budgets = loop.ctx.require(Budgets)
    apart = [budgets.usage_of(child.session).wall_ms for child in children]
    tree = budgets.usage_of_tree(parent).wall_ms
    assert max(apart) <= tree + 2
    assert tree < sum(apart)
    await asyncio.sleep(0.03)
    assert budgets.usage_of_tree(parent).wall_ms == tree


async def test_agents_that_are_gone_still_count(root: Context) -> None:
    loop = await budgeted(root, tree={"steps": 4})
    parent = await loop.agent("parent")
    handle = await child_of(parent, "child")
    loop.model.will(says("a"), says("b"), says("c"))
    for _ in range(3):
        await run(handle.agent)
    await handle.dispose()
    loop.model.otherwise = for_ever()
    await run(parent)
    assert code(parent) == "BUDGET_STEPS"
    assert len(loop.model.requests) == 4


async def test_an_agent_that_comes_back_is_not_counted_twice(root: Context) -> None:
    loop = await budgeted(root, tree={"steps": 100})
    parent = await loop.agent("parent")
    handle = await child_of(parent, "child")
    loop.model.otherwise = says("hello")
    await run(handle.agent)
    events = list(handle.agent.session.events)
    await handle.dispose()
    back = (await child_of(parent, "child", seed=events)).agent
    assert loop.ctx.require(Budgets).usage_of_tree(parent).steps == 1
    await run(back)
    assert loop.ctx.require(Budgets).usage_of_tree(parent).steps == 2


async def test_what_children_used_is_known_after_a_resume_of_the_root(root: Context) -> None:
    price = {"scripted/*": {"input": 1_000_000, "output": 0}}
    loop = await budgeted(root, tree={"tokens": 1000, "money": 1000}, prices=price)
    parent = await loop.agent("parent")
    child = (await child_of(parent, "child")).agent
    grandchild = (await child_of(child, "grandchild")).agent
    loop.model.otherwise = says("hello")
    await run(child)
    await run(grandchild)
    await run(child)
    before = loop.ctx.require(Budgets).usage_of_tree(parent)
    assert (before.turns, before.steps, before.tokens, before.cost) == (3, 3, 45, 30)

    resumed = await loop.agent("parent-again", seed=list(parent.session.events))

    after = loop.ctx.require(Budgets).usage_of_tree(resumed)
    assert (after.turns, after.steps, after.tokens, after.cost) == (3, 3, 45, 30)
    assert after.wall_ms == before.wall_ms


async def test_what_children_worked_before_a_resume_is_wall_time_of_the_tree(root: Context) -> None:
    loop = await budgeted(root, tree={"wallMs": 60})
    parent = await loop.agent("parent")
    loop.model.will(Held())
    await run((await child_of(parent, "child")).agent)
    resumed = await loop.agent("parent-again", seed=list(parent.session.events))

    await run((await child_of(resumed, "other")).agent)

    assert len(loop.model.requests) == 1


async def test_the_root_hears_once_of_each_rest_of_an_agent_below(root: Context) -> None:
    loop = await budgeted(root)
    parent = await loop.agent("parent")
    child = (await child_of(parent, "child")).agent
    loop.model.otherwise = says("hello")
    await run(parent)
    await run(child)
    await run(child)
    spent = events_of(parent, "budget/spent")
    assert [(each["session"], each["steps"]) for each in spent] == [("child", 1), ("child", 2)]
    assert spent[-1]["tokens"] == [
        {"route": "scripted/m", "input": 20, "cacheRead": 0, "cacheWrite": 0, "output": 10}
    ]
    assert events_of(child, "budget/spent") == []


async def test_the_root_hears_nothing_of_a_turn_that_used_nothing(root: Context) -> None:
    loop = await budgeted(root, session={"steps": 1})
    parent = await loop.agent("parent")
    child = (await child_of(parent, "child")).agent
    loop.model.will(says("hello"))
    for _ in range(3):
        await run(child)
    assert code(child) == "BUDGET_STEPS"
    assert len(events_of(parent, "budget/spent")) == 1


async def test_a_limit_of_the_tree_stands_in_the_log_of_its_root(root: Context) -> None:
    loop = await budgeted(root, tree={"steps": 1})
    parent = await loop.agent("parent")
    child = (await child_of(parent, "child")).agent
    loop.ctx.require(Budgets).set_limit(child, "tree", "steps", 2)
    assert events_of(child, "budget/limit") == []
    assert events_of(parent, "budget/limit") == [{"scope": "tree", "limit": "steps", "max": 2}]
    loop.model.otherwise = for_ever()
    await run(child)
    assert len(loop.model.requests) == 2
    resumed = await loop.agent("again", seed=list(parent.session.events))
    assert loop.ctx.require(Budgets).limits_of(resumed, "tree") == {"steps": 2}


# runaway delegation


async def test_no_more_agents_live_in_a_tree_than_may(root: Context) -> None:
    loop = await budgeted(root, tree={"agents": 3})
    parent = await loop.agent("parent")
    first = await child_of(parent, "one")
    await child_of(first.agent, "two")
    with pytest.raises(AgentCapReached, match="3 live agents") as refused:
        await child_of(parent, "three")
    assert refused.value.code == "BUDGET_AGENTS"
    assert loop.agents.get(SessionId("three")) is None
    await loop.agent("another tree")
    await first.dispose()
    await child_of(parent, "three")


async def test_a_cap_that_was_set_for_a_tree_holds_from_the_first_agent_after_a_resume(
    root: Context,
) -> None:
    loop = await budgeted(root)
    parent = await loop.agent("parent")
    loop.ctx.require(Budgets).set_limit(parent, "tree", "depth", 0)
    resumed = await loop.agent("parent-again", seed=list(parent.session.events))
    with pytest.raises(AgentCapReached):
        await child_of(resumed, "child")


async def test_a_tree_is_no_deeper_than_it_may_be(root: Context) -> None:
    loop = await budgeted(root, tree={"depth": 1})
    parent = await loop.agent("parent")
    child = (await child_of(parent, "child")).agent
    with pytest.raises(AgentCapReached, match="1 levels deep") as refused:
        await child_of(child, "grandchild")
    assert refused.value.code == "BUDGET_DEPTH"


async def test_a_model_that_always_delegates_is_held_by_the_caps(root: Context) -> None:
    loop = await budgeted(root, tree={"agents": 20, "depth": 3, "steps": 60})

    async def delegate(run: ToolRunContext) -> str:
        assert run.agent is not None
        handle = await child_of(run.agent, f"{run.agent.id}.{run.call_id}")
        handle.agent.followup(user("delegate"))
        await handle.agent.when_idle()
        await handle.dispose()
        return "done"

    add_tool(root, delegate)
    count = 0

    async def always(_: Any) -> AsyncIterator[Any]:
        nonlocal count
        count += 1
        block = {"type": "tool-call", "id": f"d{count}", "name": "delegate", "arguments": "{}"}
        yield block_end(0, block)
        yield finish("tool-calls")

    loop.model.otherwise = always
    agent = await loop.agent("r")
    await run(agent)
    assert code(agent) == "BUDGET_STEPS"
    assert len(loop.model.requests) == 60
    assert len(loop.agents.all()) == 1


async def test_a_refused_agent_is_a_result_that_the_model_reads(root: Context) -> None:
    loop = await budgeted(root, tree={"depth": 0})

    async def delegate(run: ToolRunContext) -> str:
        assert run.agent is not None
        await child_of(run.agent, "child")
        return "done"

    add_tool(root, delegate)
    agent = await loop.agent("r")

    async def once(_: Any) -> AsyncIterator[Any]:
        block = {"type": "tool-call", "id": "d", "name": "delegate", "arguments": "{}"}
        yield block_end(0, block)
        yield finish("tool-calls")

    loop.model.will(once, says("then alone"))
    await run(agent)
    [result] = events_of(agent, "tool/result")
    assert result["error"]["code"] == "BUDGET_DEPTH"
    assert "do the work without another agent" in str(result["message"])
    assert reasons(agent) == [{"kind": "completed"}]


async def test_members_and_timers_go_with_their_agents(root: Context) -> None:
    loop = await budgeted(root, tree={"wallMs": 60_000})
    parent = await loop.create("p")
    loop.model.otherwise = says("hello")
    for n in range(5):
        handle = await child_of(parent.agent, f"c{n}")
        await run(handle.agent)
        await handle.dispose()
    session = weakref.ref(parent.agent.session)
    await parent.dispose()
    keeper: Any = loop.ctx.require(Budgets)
    assert keeper._members == {}
    del parent, handle
    loop.model.requests.clear()
    await asyncio.sleep(0)
    gc.collect()
    assert session() is None


async def test_what_is_asked_about_an_agent_that_is_gone_is_not_kept(root: Context) -> None:
    loop = await budgeted(root)
    handle = await loop.create("p")
    await handle.dispose()
    keeper: Any = loop.ctx.require(Budgets)
    assert keeper.usage_of_tree(handle.agent).steps == 0
    assert keeper._members == {}


async def test_money_of_a_tree_is_that_of_all_its_routes(root: Context) -> None:
    price = {"scripted/m": {"input": 1_000_000, "output": 0}}
    loop = await budgeted(root, tree={"money": 30}, prices=price)
    parent = await loop.agent("parent")
    child = (await child_of(parent, "child")).agent
    loop.model.otherwise = for_ever(tokens=10)
    await run(child)
    assert code(child) == "BUDGET_MONEY"
    assert len(loop.model.requests) == 3
    other = (
        await parent.ctx.require(AgentRegistry).create(
            CreateAgent(
                session_id=SessionId("other"),
                agent_options=AgentOptions(provider="scripted", model="dear"),
            )
        )
    ).agent
    loop.ctx.require(Budgets).set_limit(parent, "tree", "money", 1000)
    await run(other)
    assert code(other) == "BUDGET_UNPRICED"
    assert len(loop.model.requests) == 3


async def test_what_a_route_without_a_price_has_used_closes_the_money_of_a_tree(
    root: Context,
) -> None:
    loop = await budgeted(root, prices={"scripted/m": {"input": 0, "output": 0}})
    parent = await loop.agent("parent")
    dear = AgentOptions(provider="scripted", model="dear")
    create = parent.ctx.require(AgentRegistry).create
    child = await create(CreateAgent(session_id=SessionId("child"), agent_options=dear))
    loop.model.will(says("hello"))
    await run(child.agent)
    loop.ctx.require(Budgets).set_limit(parent, "tree", "money", 1000)

    await run(parent)

    assert code(parent) == "BUDGET_UNPRICED"
    assert len(loop.model.requests) == 1


async def test_who_made_an_agent_is_known_while_it_lives(root: Context) -> None:
    loop = await budgeted(root)
    parent = await loop.agent("parent")
    handle = await child_of(parent, "child")
    assert loop.agents.owner_of(handle.agent.id) is parent
    assert AgentRegistry.owner_of(loop.agents, handle.agent.id) is parent  # any other registry
    assert loop.agents.owner_of(parent.id) is None
    await handle.dispose()
    assert loop.agents.owner_of(handle.agent.id) is None
