from __future__ import annotations

from typing import Any

import pytest
from tool_harness import Harness, code, echo, make_tool, text

from dsh.base.values import changed
from dsh.execution.prompt.service import AssembleContext, SystemPrompt
from dsh.execution.tools.events import TOOLS_CHANGE
from dsh.execution.tools.runtime import LayeredToolRuntime
from dsh.execution.tools.service import (
    EXCLUSIVE,
    PARALLEL,
    JsonSchemaError,
    ToolExecution,
    ToolRegistrationError,
    ToolRuntime,
)
from dsh.kernel import Context, ValidationError


def names(tools: ToolRuntime, scope: object | None = None) -> list[str]:
    return [schema["name"] for schema in tools.schemas(scope)]


async def test_a_tool_goes_with_the_plugin_that_added_it(harness: Harness) -> None:
    def plugin(ctx: Context) -> None:
        ctx.require(ToolRuntime).register(make_tool("mine"))

    fiber = await harness.root.inject([ToolRuntime], plugin)
    assert names(harness.tools) == ["mine"]

    await fiber.dispose()

    assert names(harness.tools) == []


async def test_a_registration_can_be_disposed_alone(harness: Harness) -> None:
    effect = harness.tools.register(make_tool("a"))
    harness.add("b")
    await effect.dispose()
    assert names(harness.tools) == ["b"]


@pytest.mark.parametrize("scoped_first", [True, False])
async def test_a_scoped_tool_shadows_the_global_one_in_either_order(
    harness: Harness, scoped_first: bool
) -> None:
    agent = harness.agent()
    mine = make_tool("read", description="mine")
    if scoped_first:
        agent.tools.register(mine)
    harness.add("read")
    if not scoped_first:
        agent.tools.register(mine)

    assert harness.tools.get("read", agent) is mine
    assert harness.tools.get("read") is not mine

    await agent.scope.dispose()

    assert harness.tools.get("read", agent) is harness.tools.get("read")


async def test_a_disposed_scope_leaves_no_layer(harness: Harness) -> None:
    agent = harness.agent()
    agent.tools.register(make_tool("a"))
    agent.tools.guard(lambda _: None)
    await agent.scope.dispose()
    assert names(harness.tools, agent) == []


async def test_a_name_is_taken_once_a_scope(harness: Harness) -> None:
    harness.add("read")
    with pytest.raises(ToolRegistrationError, match=r"agent\.ctx"):
        harness.add("read")


async def test_a_child_sees_what_its_ancestors_registered(harness: Harness) -> None:
    parent = harness.agent()
    child = harness.agent(parent=parent)
    parent.tools.register(make_tool("report"))
    assert names(harness.tools, child) == ["report"]
    assert names(harness.tools) == []


async def test_restrictions_of_the_whole_chain_intersect(harness: Harness) -> None:
    for name in ("a", "b", "c"):
        harness.add(name)
    parent = harness.agent()
    child = harness.agent(parent=parent)
    parent.tools.restrict(deny=["a"])
    child.tools.restrict(allow=["a", "b"])
    assert names(harness.tools, parent) == ["b", "c"]
    assert names(harness.tools, child) == ["b"]
    assert harness.tools.get("a", child) is None


async def test_own_tools_survive_every_filter(harness: Harness) -> None:
    harness.add("a")
    parent = harness.agent()
    child = harness.agent(parent=parent)
    child.tools.register(make_tool("own"))
    child.tools.restrict(allow=[])
    parent.tools.restrict(deny=["a"])
    assert names(harness.tools, child) == ["own"]


async def test_deny_admits_later_tools_and_allow_does_not(harness: Harness) -> None:
    harness.add("a")
    denying, allowing = harness.agent(), harness.agent()
    denying.tools.restrict(deny=["a"])
    allowing.tools.restrict(allow=["a"])
    harness.add("b")
    assert names(harness.tools, denying) == ["b"]
    assert names(harness.tools, allowing) == ["a"]


async def test_a_lifted_restriction_shows_the_tools_again(harness: Harness) -> None:
    harness.add("a")
    agent = harness.agent()
    await agent.tools.restrict(deny=["a"]).dispose()
    assert names(harness.tools, agent) == ["a"]


async def test_restrict_refuses_what_cannot_mean_anything(harness: Harness) -> None:
    harness.add("read")
    agent = harness.agent()
    agent.tools.register(make_tool("own"))
    with pytest.raises(ToolRegistrationError, match="needs a scope"):
        harness.tools.restrict(deny=["read"])
    with pytest.raises(ToolRegistrationError, match="needs allow, deny"):
        agent.tools.restrict()
    with pytest.raises(ToolRegistrationError, match="did you mean 'read'"):
        agent.tools.restrict(deny=["raed"])
    with pytest.raises(ToolRegistrationError, match="not inherited"):
        agent.tools.restrict(deny=["own"])
    with pytest.raises(ToolRegistrationError, match="reserved"):
        agent.tools.restrict(deny=["run_code"])


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": "run_code"}, "reserved"),
        ({"name": ""}, "needs a name"),
        ({"description": None}, "description must be text"),
        ({"parameters": []}, "must be a JSON object"),
        ({"parameters": {"type": "string"}}, "must have the type 'object', got 'string'"),
        ({"cancel": "never"}, "cancel must be 'task' or 'signal'"),
        ({"execute": None}, "execute must be callable"),
        ({"render": None}, "render must be callable"),
        ({"meta": 1}, "presentation_meta must be callable"),
        ({"render": echo}, "render must not be async"),
        ({"parse_arguments": 1}, "parse_arguments must be callable"),
        ({"is_concurrency_safe": True}, "is_concurrency_safe must be callable"),
        ({"resources": echo}, "resources must not be async"),
        ({"present_call": echo}, "present_call must not be async"),
        ({"finalize_content": echo}, "finalize_content must not be async"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": 10**400}, "timeout_s"),
        ({"timeout_s": float("inf")}, "timeout_s"),
    ],
)
async def test_unusable_definitions_are_refused(
    harness: Harness, changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ToolRegistrationError, match=problem):
        harness.tools.register(make_tool(**changes))


async def test_an_output_schema_outside_the_subset_is_refused(harness: Harness) -> None:
    with pytest.raises(JsonSchemaError, match=r"output of tool 'odd': .*\$ref is not supported"):
        harness.add("odd", schema={"$ref": "#"})


async def test_a_failing_change_listener_rolls_the_registration_back(harness: Harness) -> None:
    harness.add("a")
    agent = harness.agent()

    def refuse(_: object) -> None:
        raise RuntimeError("no")

    listener = harness.ctx.on(TOOLS_CHANGE, refuse)
    with pytest.raises(RuntimeError, match="no"):
        harness.add("b")
    with pytest.raises(RuntimeError, match="no"):
        agent.tools.restrict(deny=["a"])
    with pytest.raises(RuntimeError, match="no"):
        agent.tools.present_as("native")
    await listener.dispose()

    assert names(harness.tools) == ["a"]
    assert names(harness.tools, agent) == ["a"]
    agent.tools.present_as("native")


async def test_every_change_is_announced(harness: Harness) -> None:
    changes: list[object] = []
    harness.ctx.on(TOOLS_CHANGE, changes.append)
    effect = harness.tools.register(make_tool("a"))
    await effect.dispose()
    assert len(changes) == 2


async def test_changes_in_any_scope_are_told_to_everybody(harness: Harness) -> None:
    mine, other = harness.agent(), harness.agent()
    heard: list[str] = []
    for who, ctx in [("all", harness.ctx), ("mine", mine.scope.ctx), ("other", other.scope.ctx)]:
        ctx.on(TOOLS_CHANGE, lambda _, who=who: heard.append(who))  # type: ignore[misc]
    harness.add("a")
    mine.tools.restrict(deny=["a"])
    assert sorted(heard) == ["all", "all", "mine", "mine", "other", "other"]


async def test_a_restriction_keeps_the_names_it_was_given(harness: Harness) -> None:
    harness.add("a")
    harness.add("b")
    agent = harness.agent()
    kept = ["a"]
    agent.tools.restrict(allow=kept)
    kept.append("b")
    assert names(harness.tools, agent) == ["a"]


async def test_presentation_is_chosen_once_a_scope(harness: Harness) -> None:
    agent = harness.agent()
    agent.tools.present_as("native")
    with pytest.raises(ToolRegistrationError, match="already"):
        agent.tools.present_as("native")
    with pytest.raises(ToolRegistrationError, match="one of native, code, both"):
        agent.tools.present_as("odd")  # type: ignore[arg-type]
    with pytest.raises(ToolRegistrationError, match="needs a scope"):
        harness.tools.present_as("native")


async def test_schemas_hold_only_what_a_model_may_see(harness: Harness) -> None:
    parameters = {"type": "object", "properties": {"x": {"type": "string"}}}
    harness.add("b", parameters=parameters, timeout_s=1)
    harness.add("a")
    parameters["type"] = "changed"
    first, second = harness.tools.schemas()
    assert [first["name"], second["name"]] == ["a", "b"]
    assert set(second) == {"name", "description", "parameters"}


async def test_a_schema_that_cannot_be_sent_is_refused_with_its_tool(harness: Harness) -> None:
    with pytest.raises(ToolRegistrationError, match=r"'odd': its parameter .* at"):
        harness.add("odd", parameters={"x": (1,)})
    assert harness.tools.schemas() == []


async def test_a_schema_stays_as_it_was_registered(harness: Harness) -> None:
    parameters: dict[str, Any] = {"type": "object"}
    harness.add("odd", parameters=parameters)
    parameters["x"] = (1,)
    (schema,) = harness.tools.schemas()
    assert schema["parameters"] == {"type": "object"}


async def test_prompts_get_the_visible_tools(harness: Harness) -> None:
    harness.add("b")
    harness.add("a")
    agent = harness.agent()
    agent.tools.restrict(deny=["b"])
    prompt = harness.root.require(SystemPrompt)
    everything = await prompt.assemble()
    scoped = await prompt.assemble(AssembleContext(scope=agent))
    assert [schema["name"] for schema in everything.tools] == ["a", "b"]
    assert [schema["name"] for schema in scoped.tools] == ["a"]


@pytest.mark.parametrize(
    ("classifier", "mode"),
    [
        (None, EXCLUSIVE),
        (lambda _: True, PARALLEL),
        (lambda _: False, EXCLUSIVE),
        (lambda _: 1, EXCLUSIVE),
        (lambda _: 1 / 0, EXCLUSIVE),
    ],
)
async def test_only_exactly_true_is_parallel(harness: Harness, classifier: Any, mode: Any) -> None:
    harness.add(is_concurrency_safe=classifier)
    assert harness.tools.execution_mode(harness.input()) is mode


async def test_unknown_and_hidden_tools_are_exclusive(harness: Harness) -> None:
    harness.add("a", is_concurrency_safe=lambda _: True)
    agent: Any = harness.agent()
    agent.tools.restrict(deny=["a"])
    assert harness.tools.execution_mode(harness.input("nope")) is EXCLUSIVE
    assert harness.tools.execution_mode(harness.input("a", agent=agent)) is EXCLUSIVE


async def test_registration_changes_count_between_two_calls(harness: Harness) -> None:
    async def second(args: Any, run: Any) -> str:
        return "second"

    effect = harness.tools.register(make_tool(body=echo))
    before = await harness.call()
    await effect.dispose()
    harness.add(body=second)
    assert (text(before), text(await harness.call())) == ("done", "second")


async def test_guards_run_global_first_then_from_the_farthest_scope(harness: Harness) -> None:
    harness.add()
    parent = harness.agent()
    child: Any = harness.agent(parent=parent)
    order: list[str] = []
    child.tools.guard(lambda _: order.append("child"))
    parent.tools.guard(lambda _: order.append("parent"))
    harness.tools.guard(lambda _: order.append("global"))
    await harness.call(agent=child)
    assert order == ["global", "parent", "child"]


async def test_a_scoped_guard_gates_only_its_agent(harness: Harness) -> None:
    harness.add()
    mine: Any = harness.agent()
    other: Any = harness.agent()
    mine.tools.guard(lambda _: "not here")
    assert text(await harness.call(agent=mine)) == "Error: not here"
    assert not (await harness.call(agent=other)).is_error
    assert not (await harness.call()).is_error


async def test_a_guard_added_by_a_guard_is_seen(harness: Harness) -> None:
    harness.add()

    def first(_: ToolExecution) -> str | None:
        if not added:
            added.append(harness.tools.guard(lambda _: "late"))
        return None

    added: list[object] = []
    harness.tools.guard(first)
    assert text(await harness.call()) == "Error: late"


async def test_the_same_guard_twice_is_two_registrations(harness: Harness) -> None:
    harness.add()
    seen: list[str] = []

    def count(execution: ToolExecution) -> None:
        seen.append(execution.name)

    effect = harness.tools.guard(count)
    harness.tools.guard(count)
    await harness.call()
    await effect.dispose()
    await harness.call()
    assert len(seen) == 3


@pytest.mark.parametrize("config", [{"graceMs": -1}, {"mode": "other"}, {"nope": 1}])
async def test_a_wrong_config_fails_at_load(root: Context, config: dict[str, Any]) -> None:
    from dsh.execution.prompt.assembly import LayeredSystemPrompt

    await root.plugin(LayeredSystemPrompt)
    with pytest.raises(ValidationError):
        await root.plugin(LayeredToolRuntime, config)


async def test_an_unknown_tool_names_the_nearest(harness: Harness) -> None:
    harness.add("read")
    result = await harness.call("raed")
    assert code(result) == "UNKNOWN_TOOL"
    assert text(result) == "Error: unknown tool 'raed'; did you mean 'read'?"


def test_definitions_are_values() -> None:
    definition = make_tool()
    assert changed(definition) == definition
