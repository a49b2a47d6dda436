from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loop_harness import Loop, ScriptedModel, assert_balanced, calls, events_of, mount, says, user

from dsh.base.json import dumps_str
from dsh.base.signal import AbortController
from dsh.capability.todo import tool_todo
from dsh.capability.todo.projection import after, todos_unit
from dsh.capability.todo.tool_todo import Config
from dsh.execution.agent.service import Agent
from dsh.execution.tools.service import ToolInput, ToolRuntime
from dsh.kernel import Context
from dsh.kernel.errors import ValidationError
from dsh.model.messages import CallId
from dsh.state.projections.registry import plugin as projections
from dsh.state.projections.service import ProjectionRegistry


@pytest.fixture
async def loop(root: Context) -> AsyncIterator[Loop]:
    made = await mount(root, ScriptedModel())
    await root.plugin(projections)
    await root.plugin(tool_todo, {"allowParallelInProgress": True})
    yield made
    for agent in made.agents.all():
        await agent.when_idle()
        assert_balanced(agent.session)


def items(*given: str) -> list[dict[str, str]]:
    return [dict(zip(("content", "status"), each.split(":"), strict=True)) for each in given]


async def write(loop: Loop, agent: Agent, *todos: list[dict[str, str]]) -> list[Any]:
    asked = [dumps_str({"todos": each}) for each in todos]
    loop.model.will(
        *[calls((f"c{n}", "todo_write", arguments)) for n, arguments in enumerate(asked)],
        says("done"),
    )
    agent.followup(user("go"))
    await agent.when_idle()
    blocks = [event["message"]["content"][0] for event in events_of(agent, "tool/result")]
    return [
        (block.get("isError", False), block["content"][0]["text"])
        for block in blocks[-len(todos) :]
    ]


async def test_a_list_is_logged_whole_and_counted_for_the_model(loop: Loop) -> None:
    agent = await loop.agent()

    told = await write(loop, agent, items("a:completed", "b:in_progress", "c:in_progress"))

    assert told == [(False, "Updated todo list: 0 pending, 2 in progress, 1 completed.")]
    [logged] = events_of(agent, "todo/write")
    assert logged == {"todos": items("a:completed", "b:in_progress", "c:in_progress")}


@pytest.mark.parametrize(
    ("todos", "problem"),
    [
        (items("a:pending", " :pending"), "todos[1].content is empty"),
        (items("a:pending", " a :completed"), "'a' is in the list 2 times"),
        ([{"content": "a", "status": "later"}], "status"),
        ([{"content": "a", "status": "pending", "id": "1"}], "id"),
    ],
)
async def test_a_list_that_makes_no_sense_is_refused_and_not_logged(
    loop: Loop, todos: list[dict[str, str]], problem: str
) -> None:
    agent = await loop.agent()

    [(failed, text)] = await write(loop, agent, todos)

    assert failed
    assert problem in text
    assert events_of(agent, "todo/write") == []


async def test_a_row_may_allow_one_thing_at_a_time_only(root: Context) -> None:
    loop = await mount(root, ScriptedModel())
    await root.plugin(tool_todo, {"allowParallelInProgress": False})
    agent = await loop.agent()

    told = await write(
        loop, agent, items("a:in_progress", "b:in_progress"), items("a:in_progress", "b:pending")
    )

    assert [failed for failed, _ in told] == [True, False]
    assert "2 items are in_progress; at most one may be" in told[0][1]
    [schema] = root.require(ToolRuntime).schemas()
    assert "At most one item" in schema["description"]


async def test_a_call_of_no_agent_is_refused(loop: Loop, root: Context) -> None:
    result = await root.require(ToolRuntime).execute(
        ToolInput(CallId("c"), "todo_write", {"todos": []}, AbortController().signal)
    )

    assert result.is_error
    assert "belongs to an agent" in result.error.message


async def test_the_projection_is_the_list_of_the_newest_turn(loop: Loop, root: Context) -> None:
    agent = await loop.agent()
    views = root.require(ProjectionRegistry)

    await write(loop, agent, items("a:pending"), items("a:completed"))
    assert views.snapshot(agent.session)["values"]["todos"] == items("a:completed")

    loop.model.will(says("hello"))
    agent.followup(user("something else"))
    await agent.when_idle()
    assert views.snapshot(agent.session)["values"]["todos"] is None


@given(st.lists(st.sampled_from(["turn/start", "turn/end", "todo/write", "step/start"])))
def test_the_fold_keeps_the_last_list_since_the_last_turn_began(types: list[str]) -> None:
    unit = todos_unit()
    state = unit.init()
    for seq, kind in enumerate(types):
        state = after(state, {"type": kind, "seq": seq, "data": {"todos": [seq]}})  # type: ignore[typeddict-item]

    begun = max((n for n, kind in enumerate(types) if kind == "turn/start"), default=-1)
    written = max((n for n, kind in enumerate(types) if kind == "todo/write"), default=-1)
    assert state == ([written] if written > begun else None)


@pytest.mark.parametrize("config", [None, {}, {"allowParallelInProgress": "yes"}, {"other": True}])
def test_a_row_says_whether_several_things_may_be_in_progress(config: object) -> None:
    with pytest.raises(ValidationError, match="allowParallelInProgress"):
        Config.validate(config)


async def test_unloading_takes_the_tool_and_the_projection_along(loop: Loop, root: Context) -> None:
    agent = await loop.agent()
    registry = root.registry.get(tool_todo)
    assert registry is not None
    for fiber in list(registry.fibers):
        await fiber.dispose()

    assert root.require(ToolRuntime).get("todo_write") is None
    assert "todos" not in root.require(ProjectionRegistry).snapshot(agent.session)["values"]
