from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from loop_harness import (
    Held,
    Loop,
    Reply,
    ScriptedModel,
    add_tool,
    assert_balanced,
    calls,
    events_of,
    mount,
    reasons,
    says,
    user,
)

from dsh.control.budgets.keeper import BudgetKeeper, Config
from dsh.control.budgets.limits import Limits
from dsh.control.budgets.service import Budgets
from dsh.execution.agent.events import AGENT_REQUEST_ERROR, Retry
from dsh.execution.agent.service import Agent, AgentRegistry
from dsh.execution.tools.service import ToolRunContext
from dsh.kernel import Context
from dsh.model.chunks import block_end, finish, finish_failure, usage_report

ROUTE = "scripted/m"
PRICES = {ROUTE: {"input": 1_000_000, "output": 2_000_000}}
"""One unit an input token, two an output token."""


async def budgeted(root: Context, **config: Any) -> Loop:
    loop = await mount(root, ScriptedModel())
    await root.plugin(BudgetKeeper, config)
    add_tool(root, same, name="look")
    return loop


@pytest.fixture(autouse=True)
async def balanced(root: Context) -> AsyncIterator[None]:
    yield
    agents = root.get(AgentRegistry)
    for agent in [] if agents is None else agents.all():
        await agent.when_idle()
        assert_balanced(agent.session)


async def same() -> str:
    return "same"


def reply(text: str = "", *tools: str, usage: dict[str, int] | None = None, id: str = "c") -> Reply:
    async def play(_: Any) -> AsyncIterator[Any]:
        if text:
            yield block_end(0, {"type": "text", "text": text})
        for index, tool in enumerate(tools, 1):
            block = {"type": "tool-call", "id": f"{id}{index}", "name": tool, "arguments": "{}"}
            yield block_end(index, block)
        yield usage_report(usage or {"inputTokens": 10, "outputTokens": 5})
        yield finish("tool-calls" if tools else "stop")

    return play


def for_ever() -> Reply:
    count = 0

    async def play(options: Any) -> AsyncIterator[Any]:
        nonlocal count
        count += 1
        async for chunk in reply("", "look", id=f"r{count}-")(options):
            yield chunk

    return play


async def run(agent: Agent, text: str = "go") -> None:
    agent.followup(user(text))
    async with asyncio.timeout(15):
        await agent.when_idle()


def ask_again(_: Any, next: Any) -> Retry:
    return Retry()


def budgets(loop: Loop) -> Budgets:
    return loop.ctx.require(Budgets)


def end(agent: Agent) -> dict[str, Any]:
    last: dict[str, Any] = reasons(agent)[-1]
    assert last["kind"] == "aborted", last
    cause: dict[str, Any] = last["reason"]
    assert cause["kind"] == "hook"
    return cause


async def test_without_limits_nothing_is_stopped_and_all_is_counted(root: Context) -> None:
    loop = await budgeted(root)
    agent = await loop.agent()
    loop.model.will(reply("", "look"), reply("done"))
    await run(agent)
    assert reasons(agent) == [{"kind": "completed"}]
    used = budgets(loop).usage_of(agent.session)
    assert (used.turns, used.steps, used.tokens, used.cost) == (1, 2, 30, None)
    assert used.unpriced == ROUTE
    assert events_of(agent, "budget/spent") == []


async def test_steps_end_the_turn_before_the_next_request(root: Context) -> None:
    loop = await budgeted(root, session={"steps": 3})
    agent = await loop.agent()
    loop.model.otherwise = for_ever()

    await run(agent)

    assert len(loop.model.requests) == 3
    cause = end(agent)
    assert cause["code"] == "BUDGET_STEPS"
    assert "3 steps of 3 steps" in cause["reason"]
    assert "/budget steps" in cause["reason"]
    assert events_of(agent, "budget/reached") == [
        {"turn": 1, "scope": "session", "limit": "steps", "used": 3, "max": 3}
    ]


async def test_a_prompt_without_raising_ends_at_once_for_the_same_reason(root: Context) -> None:
    loop = await budgeted(root, session={"steps": 3})
    agent = await loop.agent()
    loop.model.otherwise = for_ever()
    await run(agent)
    first = end(agent)

    await run(agent, "again")
    await run(agent, "and again")

    assert len(loop.model.requests) == 3
    assert reasons(agent)[1:] == [{"kind": "aborted", "reason": first}] * 2
    assert budgets(loop).usage_of(agent.session).steps == 3


async def test_after_raising_the_session_goes_on_and_no_prompt_is_lost(root: Context) -> None:
    loop = await budgeted(root, session={"steps": 3})
    agent = await loop.agent()
    loop.model.otherwise = for_ever()
    await run(agent)
    await run(agent, "first question")
    budgets(loop).set_limit(agent, "session", "steps", 10)
    loop.model.otherwise = says("done")

    await run(agent, "second question")

    assert reasons(agent)[-1] == {"kind": "completed"}
    heard = [
        block["text"]
        for message in loop.model.requests[-1].messages
        for block in message["content"]
        if message["source"]["kind"] == "user"
    ]
    assert heard == ["go", "first question", "second question"]


async def test_turns_count_when_they_come_to_a_step(root: Context) -> None:
    loop = await budgeted(root, session={"turns": 2})
    agent = await loop.agent()
    loop.model.otherwise = says("hello")
    for _ in range(4):
        await run(agent)
    assert [each["kind"] for each in reasons(agent)] == ["completed"] * 2 + ["aborted"] * 2
    assert end(agent)["code"] == "BUDGET_TURNS"
    assert len(loop.model.requests) == 2
    assert budgets(loop).usage_of(agent.session).turns == 2


async def test_a_turn_limit_does_not_cut_the_last_turn_short(root: Context) -> None:
    loop = await budgeted(root, session={"turns": 1})
    agent = await loop.agent()
    loop.model.will(reply("", "look", id="a"), reply("", "look", id="b"), reply("done"))
    await run(agent)
    assert reasons(agent) == [{"kind": "completed"}]


async def test_tokens_count_input_cached_or_not_and_output(root: Context) -> None:
    loop = await budgeted(root, session={"tokens": 100})
    agent = await loop.agent()
    usage = {
        "inputTokens": 10,
        "cacheReadTokens": 20,
        "cacheWriteTokens": 15,
        "outputTokens": 5,
        "reasoningTokens": 3,
    }
    loop.model.will(reply("", "look", usage=usage, id="a"), reply("", "look", usage=usage, id="b"))
    await run(agent)
    assert end(agent)["code"] == "BUDGET_TOKENS"
    assert budgets(loop).usage_of(agent.session).tokens == 100


async def test_an_attempt_that_failed_is_counted_before_the_next_one(root: Context) -> None:
    loop = await budgeted(root, session={"tokens": 100})
    agent = await loop.agent()

    async def broken(_: Any) -> AsyncIterator[Any]:
        yield usage_report({"inputTokens": 70, "outputTokens": 0})
        yield usage_report({"inputTokens": 99, "outputTokens": 1})
        yield finish_failure({"message": "busy", "code": "SERVER"})

    root.on(AGENT_REQUEST_ERROR, ask_again)
    loop.model.otherwise = broken
    await run(agent)
    assert len(loop.model.requests) == 1
    assert end(agent)["code"] == "BUDGET_TOKENS"
    assert budgets(loop).usage_of(agent.session).tokens == 100


async def test_retried_attempts_count_once_each_beside_the_reply(root: Context) -> None:
    loop = await budgeted(root)
    agent = await loop.agent()

    async def broken(_: Any) -> AsyncIterator[Any]:
        yield usage_report({"inputTokens": 100, "outputTokens": 0})
        yield finish_failure({"message": "busy", "code": "SERVER"})

    root.on(AGENT_REQUEST_ERROR, ask_again)
    loop.model.will(broken, broken, reply("done"))
    await run(agent)
    assert budgets(loop).usage_of(agent.session).tokens == 215


# money


async def test_money_ends_the_turn(root: Context) -> None:
    loop = await budgeted(root, session={"money": 40}, prices=PRICES, currency="EUR")
    agent = await loop.agent()
    loop.model.otherwise = for_ever()

    await run(agent)

    assert len(loop.model.requests) == 2
    assert end(agent)["code"] == "BUDGET_MONEY"
    assert "40.0000 EUR" in end(agent)["reason"]
    [reached] = events_of(agent, "budget/reached")
    assert (reached["used"], reached["max"], reached["currency"]) == (40, 40, "EUR")


async def test_cached_input_has_a_price_of_its_own(root: Context) -> None:
    price = {"input": 10, "cachedInput": 1, "cacheWrite": 20, "output": 100}
    loop = await budgeted(root, prices={ROUTE: price, "other/*": {"input": 3, "output": 0}})
    usage: Any = {
        "inputTokens": 1000,
        "cacheReadTokens": 1000,
        "cacheWriteTokens": 1000,
        "outputTokens": 1000,
    }
    cost = budgets(loop).cost_of
    assert cost("scripted", "m", usage) == pytest.approx(0.131)
    assert cost("other", "any", usage) == pytest.approx(0.009)
    assert cost("scripted", "n", usage) is None


async def test_a_limit_of_money_on_a_route_without_a_price_asks_no_model(root: Context) -> None:
    loop = await budgeted(root, session={"money": 40}, prices={"scripted/n": PRICES[ROUTE]})
    agent = await loop.agent()

    await run(agent)

    assert loop.model.requests == []
    cause = end(agent)
    assert cause["code"] == "BUDGET_UNPRICED"
    assert "scripted/m has no price" in cause["reason"]
    assert "/budget money off" in cause["reason"]
    [reached] = events_of(agent, "budget/reached")
    assert reached["unpriced"] == ROUTE
    assert "used" not in reached


async def test_what_an_unpriced_route_has_used_closes_a_later_limit_of_money(root: Context) -> None:
    loop = await budgeted(root)
    agent = await loop.agent()
    loop.model.will(reply("done"))
    await run(agent)
    budgets(loop).set_limit(agent, "session", "money", 5)
    await run(agent)
    assert end(agent)["code"] == "BUDGET_UNPRICED"
    budgets(loop).set_limit(agent, "session", "money", None)
    loop.model.will(reply("done"))
    await run(agent)
    assert reasons(agent)[-1] == {"kind": "completed"}


# wall time


async def test_wall_time_aborts_what_runs(root: Context) -> None:
    loop = await budgeted(root, session={"wallMs": 60})
    agent = await loop.agent()
    loop.model.will(Held())

    await run(agent)

    assert end(agent)["code"] == "BUDGET_WALL"
    await run(agent)
    assert len(loop.model.requests) == 1
    assert end(agent)["code"] == "BUDGET_WALL"


async def test_wall_time_aborts_a_tool_that_runs(root: Context) -> None:
    loop = await budgeted(root, session={"wallMs": 60})
    agent = await loop.agent()

    async def hang(run: ToolRunContext) -> str:
        await asyncio.Event().wait()
        return ""

    add_tool(root, hang)
    loop.model.will(calls(("c", "hang", "{}")))
    await run(agent)
    assert end(agent)["code"] == "BUDGET_WALL"
    assert events_of(agent, "tool/result")[0]["error"]["code"] == "ABORTED"


async def test_idle_time_is_no_wall_time(root: Context) -> None:
    loop = await budgeted(root, session={"wallMs": 10_000})
    agent = await loop.agent()
    loop.model.otherwise = says("hello")
    await run(agent)
    used = budgets(loop).usage_of(agent.session).wall_ms
    await asyncio.sleep(0.05)
    assert budgets(loop).usage_of(agent.session).wall_ms == used


async def test_raising_the_wall_time_while_a_step_runs_lets_it_run(root: Context) -> None:
    loop = await budgeted(root, session={"wallMs": 100})
    agent = await loop.agent()
    held = Held()
    loop.model.will(held)
    agent.followup(user("go"))
    await held.reached.wait()
    budgets(loop).set_limit(agent, "session", "wallMs", 60_000)
    await asyncio.sleep(0.15)
    assert agent.status == "running"
    held.go.set()
    await agent.when_idle()
    assert reasons(agent) == [{"kind": "completed"}]


async def test_a_wall_time_that_is_set_while_a_step_runs_ends_it(root: Context) -> None:
    loop = await budgeted(root)
    agent = await loop.agent()
    held = Held()
    loop.model.will(held)
    agent.followup(user("go"))
    await held.reached.wait()
    budgets(loop).set_limit(agent, "session", "wallMs", 1)
    await agent.when_idle()
    assert end(agent)["code"] == "BUDGET_WALL"


async def test_no_timer_outlives_the_plugin(root: Context) -> None:
    loop = await mount(root, ScriptedModel())
    fiber = await root.plugin(BudgetKeeper, {"session": {"wallMs": 40}})
    agent = await loop.agent()
    held = Held()
    loop.model.will(held)
    agent.followup(user("go"))
    await held.reached.wait()
    await fiber.dispose()
    await asyncio.sleep(0.08)
    held.go.set()
    await agent.when_idle()
    assert reasons(agent) == [{"kind": "completed"}]


# what is kept


async def again(loop: Loop, agent: Agent, **meta: Any) -> Agent:
    """Another process resumes the session: nothing but the log is left."""
    events = list(agent.session.events)
    return await loop.agent(f"{agent.id}-again", seed=events, meta=meta)


async def test_a_resumed_session_has_used_what_it_had_used(root: Context) -> None:
    loop = await budgeted(root, session={"steps": 3})
    agent = await loop.agent()
    loop.model.otherwise = for_ever()
    await run(agent)
    before = budgets(loop).usage_of(agent.session)

    resumed = await again(loop, agent)

    assert budgets(loop).usage_of(resumed.session) == before
    await run(resumed)
    assert end(resumed)["code"] == "BUDGET_STEPS"
    assert len(loop.model.requests) == 3


async def test_a_limit_that_was_set_for_a_session_outlives_the_process(root: Context) -> None:
    loop = await budgeted(root, session={"steps": 1})
    agent = await loop.agent()
    budgets(loop).set_limit(agent, "session", "steps", 2)
    budgets(loop).set_limit(agent, "session", "tokens", 10_000)
    resumed = await again(loop, agent)
    assert budgets(loop).limits_of(resumed, "session") == {"steps": 2, "tokens": 10_000}
    loop.model.otherwise = for_ever()
    await run(resumed)
    assert len(loop.model.requests) == 2


async def test_a_fork_begins_with_nothing_used_and_the_configured_limits(root: Context) -> None:
    loop = await budgeted(root, session={"steps": 3})
    agent = await loop.agent()
    budgets(loop).set_limit(agent, "session", "steps", 4)
    loop.model.otherwise = for_ever()
    await run(agent)

    fork = await again(loop, agent, seedLength=agent.session.seq)

    used = budgets(loop).usage_of(fork.session)
    assert (used.turns, used.steps, used.tokens, used.wall_ms) == (0, 0, 0, 0)
    assert budgets(loop).limits_of(fork, "session") == {"steps": 3}
    loop.model.requests.clear()
    await run(fork)
    assert len(loop.model.requests) == 3


async def test_a_reloaded_plugin_counts_what_live_agents_had_used(root: Context) -> None:
    loop = await mount(root, ScriptedModel())
    add_tool(root, same, name="look")
    fiber = await root.plugin(BudgetKeeper, {"session": {"steps": 2}})
    agent = await loop.agent()
    loop.model.otherwise = for_ever()
    await run(agent)
    await fiber.dispose()
    await root.plugin(BudgetKeeper, {"session": {"steps": 3}})
    await run(agent)
    assert len(loop.model.requests) == 3


async def test_usage_of_a_session_without_an_agent_is_that_of_its_log(root: Context) -> None:
    loop = await budgeted(root)
    handle = await loop.create()
    loop.model.will(reply("done"))
    await run(handle.agent)
    session = handle.agent.session
    used = budgets(loop).usage_of(session)
    await handle.dispose()
    assert budgets(loop).usage_of(session) == used


@pytest.mark.parametrize(
    ("scope", "limit", "most"),
    [
        ("session", "agents", 2),
        ("session", "steps", 0),
        ("session", "steps", True),
        ("session", "steps", 10**400),
        ("session", "money", float("inf")),
        ("session", "money", float("nan")),
        ("session", "wallMs", 2**53),
        ("tree", "depth", 1.5),
        ("tree", "x", 1),
    ],
)
async def test_what_is_no_limit_is_refused_and_not_logged(
    root: Context, scope: Any, limit: Any, most: float
) -> None:
    loop = await budgeted(root)
    agent = await loop.agent()
    with pytest.raises(ValueError, match="limit"):
        budgets(loop).set_limit(agent, scope, limit, most)
    assert events_of(agent, "budget/limit") == []


@pytest.mark.parametrize(
    "config",
    [
        {"session": {"steps": 0}},
        {"session": {"steps": "3"}},
        {"session": {"wallMs": 10**400}},
        {"session": {"agents": 2}},
        {"session": {"money": -1}},
        {"session": {"money": float("inf")}},
        {"tree": {"depth": -1}},
        {"prices": {ROUTE: {"input": 1}}},
        {"prices": {ROUTE: {"input": float("nan"), "output": 1}}},
        {"prices": {ROUTE: {"input": -1, "output": 1}}},
        {"prices": {ROUTE: {"input": 1, "output": 1, "cached": 1}}},
        {"prices": {ROUTE: 3}},
        {"currency": ""},
        {"steps": 3},
    ],
)
def test_unusable_limits_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        Config.model_validate(config)


def test_null_is_no_limit() -> None:
    limits = Limits(Config.model_validate({"session": {"steps": None}, "tree": {"depth": 0}}))
    assert limits.configured == {"session": {}, "tree": {"depth": 0}}


def test_a_settings_editor_is_told_what_can_be_limited_and_priced() -> None:
    fields = Config.model_json_schema()["properties"]
    assert list(fields["tree"]["properties"]) == [
        *fields["session"]["properties"],
        "agents",
        "depth",
    ]
    assert fields["prices"]["additionalProperties"]["required"] == ["input", "output"]
