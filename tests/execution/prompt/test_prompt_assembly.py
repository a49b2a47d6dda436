from __future__ import annotations

from typing import Any

import pytest

from dsh.execution.prompt.assembly import IDENTITY, LayeredSystemPrompt
from dsh.execution.prompt.events import (
    SYSTEM_PROMPT_ASSEMBLE,
    SYSTEM_PROMPT_CHANGE,
    PromptAssembling,
)
from dsh.execution.prompt.service import (
    AssembleContext,
    PromptAssembly,
    PromptContext,
    PromptError,
    PromptPart,
    PromptSection,
    SystemPrompt,
    ToolContribution,
    render_prompt,
)
from dsh.kernel import Context, Scope, ValidationError, create_scope


class Key:
    """A scope key."""


async def mount(root: Context, **config: Any) -> SystemPrompt:
    await root.plugin(LayeredSystemPrompt, {"includeHarnessIdentity": False, **config})
    held: list[Context] = []
    await root.inject([SystemPrompt], held.append)
    return held[0].require(SystemPrompt)


def scoped(prompt: SystemPrompt, parent: object | None = None) -> tuple[Scope, SystemPrompt]:
    scope = create_scope(prompt.caller, Key(), parent)
    return scope, scope.ctx.require(SystemPrompt)


def schema(name: str, **more: Any) -> Any:
    return {"name": name, "description": f"{name}.", "parameters": {"type": "object"}, **more}


def parts(found: list[PromptPart]) -> list[tuple[str, str]]:
    return [(part.name, part.text) for part in found]


async def test_the_row_contributes_identity_and_persona(root: Context) -> None:
    prompt = await mount(root, includeHarnessIdentity=True, persona="I am {{name}}.")
    prompt.variable("name", lambda _: "P")
    assembly = await prompt.assemble()
    assert [part.name for part in assembly.sections] == ["harness:identity", "deployment:persona"]
    assert render_prompt(assembly) == f"{IDENTITY}\n\nI am P."


async def test_sections_follow_their_order_and_ties_their_registration(root: Context) -> None:
    prompt = await mount(root)
    for name, order in (("c", 2), ("a", 1), ("b", 1), ("z", -1.5)):
        prompt.section(PromptSection(name, order, name))
    assert [part.name for part in (await prompt.assemble()).sections] == ["z", "a", "b", "c"]


async def test_a_contribution_goes_with_its_plugin(root: Context) -> None:
    prompt = await mount(root)

    def plugin(ctx: Context) -> None:
        mine = ctx.require(SystemPrompt)
        mine.section(PromptSection("s", 0, "s"))
        mine.context(PromptContext("c", 0, "c"))
        mine.variable("v", lambda _: "v")
        mine.tools(lambda _: [schema("t")])
        mine.suppress_runtime_context()

    fiber = await root.inject([SystemPrompt], plugin)
    loaded = await prompt.assemble()
    assert (len(loaded.sections), len(loaded.tools), loaded.variables) == (1, 1, {"v": "v"})
    await fiber.dispose()
    assert await prompt.assemble() == PromptAssembly()


@pytest.mark.parametrize("order", [float("nan"), float("inf"), True, "1"])
async def test_an_order_must_be_a_finite_number(root: Context, order: Any) -> None:
    prompt = await mount(root)
    with pytest.raises(TypeError, match="finite"):
        prompt.section(PromptSection("s", order, ""))
    with pytest.raises(TypeError, match="finite"):
        prompt.context(PromptContext("s", order, ""))


@pytest.mark.parametrize("name", ["", "A", "1a", "a-b", "a b", "é", "a\n"])
async def test_variable_names_are_checked(root: Context, name: str) -> None:
    prompt = await mount(root)
    with pytest.raises(PromptError, match="cannot be called"):
        prompt.variable(name, lambda _: "")


async def test_names_are_taken_once_a_scope(root: Context) -> None:
    prompt = await mount(root)
    prompt.section(PromptSection("s", 0, ""))
    prompt.context(PromptContext("s", 0, ""))
    prompt.variable("s", lambda _: "")
    with pytest.raises(PromptError, match=r"section 's'.*agent\.ctx"):
        prompt.section(PromptSection("s", 0, ""))
    with pytest.raises(PromptError, match="context 's'"):
        prompt.context(PromptContext("s", 0, ""))
    with pytest.raises(PromptError, match="variable 's'"):
        prompt.variable("s", lambda _: "")


async def test_nearer_parts_shadow_before_any_text_is_made(root: Context) -> None:
    prompt = await mount(root)
    prompt.section(PromptSection("s", 0, lambda _: pytest.fail("shadowed")))
    prompt.context(PromptContext("c", 0, lambda _: pytest.fail("shadowed")))
    parent, outer = scoped(prompt)
    child, inner = scoped(prompt, parent.key)
    outer.section(PromptSection("s", 5, "outer"))
    outer.context(PromptContext("c", 5, "outer"))
    inner.section(PromptSection("s", 1, "inner"))
    mine = await prompt.assemble(AssembleContext(scope=child.key))
    theirs = await prompt.assemble(AssembleContext(scope=parent.key))
    assert parts(mine.sections) == [("s", "inner")]
    assert parts(mine.contexts) == [("c", "outer")]
    assert parts(theirs.sections) == [("s", "outer")]


async def test_texts_and_variables_see_for_whom_they_are_made(root: Context) -> None:
    prompt = await mount(root)
    prompt.section(PromptSection("s", 0, lambda context: str(context.scope is None)))
    prompt.variable("v", lambda context: None if context.scope is None else "scoped")
    scope, inner = scoped(prompt)
    inner.variable("w", lambda _: "mine")
    nobody = await prompt.assemble()
    somebody = await prompt.assemble(AssembleContext(scope=scope.key))
    assert (parts(nobody.sections), nobody.variables) == ([("s", "True")], {"v": None})
    assert parts(somebody.sections) == [("s", "False")]
    assert somebody.variables == {"v": "scoped", "w": "mine"}


async def test_a_variable_added_by_a_variable_is_seen(root: Context) -> None:
    prompt = await mount(root)

    def first(_: AssembleContext) -> str:
        if not added:
            added.append(prompt.variable("second", lambda _: "2"))
        return "1"

    added: list[object] = []
    prompt.variable("first", first)
    assert (await prompt.assemble()).variables == {"first": "1", "second": "2"}


async def test_providers_must_give_text(root: Context) -> None:
    prompt = await mount(root)
    effect = prompt.variable("v", lambda _: 1)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="variable 'v' must be text"):
        await prompt.assemble()
    await effect.dispose()
    prompt.section(PromptSection("s", 0, lambda _: None))  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="part 's' must be text"):
        await prompt.assemble()


async def test_tools_are_reduced_detached_and_in_stable_order(root: Context) -> None:
    prompt = await mount(root)
    given = schema("b", execute="secret")
    prompt.tools(lambda _: [schema("c"), given])
    prompt.tools(lambda _: ToolContribution((schema("a"), schema("Z"))))
    assembly = await prompt.assemble()
    given["parameters"]["type"] = "changed"
    assert [tool["name"] for tool in assembly.tools] == ["Z", "a", "b", "c"]
    assert assembly.tools[2] == schema("b")


async def test_a_schema_that_is_not_json_names_its_tool(root: Context) -> None:
    prompt = await mount(root)
    prompt.tools(lambda _: [{**schema("odd"), "parameters": {1: 2}}])
    with pytest.raises(PromptError, match="'odd'"):
        await prompt.assemble()


async def test_the_configured_order_places_tools(root: Context) -> None:
    prompt = await mount(root, toolOrder=["write", "<unlisted-tools>", "read"])
    prompt.tools(lambda _: [schema(name) for name in ("b", "read", "a", "write")])
    names = [tool["name"] for tool in (await prompt.assemble()).tools]
    assert names == ["write", "a", "b", "read"]


async def test_the_order_may_list_restricted_tools_but_no_unknown_ones(root: Context) -> None:
    prompt = await mount(root, toolOrder=["read", "<unlisted-tools>"])
    effect = prompt.tools(lambda _: ToolContribution((schema("a"),), ("a", "read")))
    assert [tool["name"] for tool in (await prompt.assemble()).tools] == ["a"]
    await effect.dispose()
    prompt.tools(lambda _: [schema("raed")])
    with pytest.raises(PromptError, match=r"did you mean 'raed'.*known: raed"):
        await prompt.assemble()


async def test_no_tool_may_be_called_as_the_placeholder(root: Context) -> None:
    prompt = await mount(root)
    prompt.tools(lambda _: [schema("<unlisted-tools>")])
    with pytest.raises(PromptError, match="cannot be called"):
        await prompt.assemble()


@pytest.mark.parametrize(
    "config",
    [
        {"toolOrder": []},
        {"toolOrder": ["a"]},
        {"toolOrder": ["<unlisted-tools>", "<unlisted-tools>"]},
        {"toolOrder": ["a", "a", "<unlisted-tools>"]},
        {"unknown": 1},
    ],
)
async def test_a_wrong_row_fails_at_load(root: Context, config: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        await root.plugin(LayeredSystemPrompt, config)


async def test_a_complete_section_is_the_whole_prompt(root: Context) -> None:
    prompt = await mount(root)
    prompt.section(PromptSection("other", 0, lambda _: pytest.fail("not needed")))
    prompt.section(PromptSection("all", 9, "everything", complete=True))

    async def rewrite(event: PromptAssembling, next: Any) -> PromptAssembly:
        made: PromptAssembly = await next()
        made.sections.append(PromptPart("more", "more"))
        return made

    prompt.caller.on(SYSTEM_PROMPT_ASSEMBLE, rewrite)
    assert parts((await prompt.assemble()).sections) == [("all", "everything")]


async def test_two_complete_sections_contradict_each_other(root: Context) -> None:
    prompt = await mount(root)
    prompt.section(PromptSection("one", 0, "", complete=True))
    effect = prompt.section(PromptSection("two", 0, "", complete=True))
    with pytest.raises(PromptError, match="'one', 'two'"):
        await prompt.assemble()
    await effect.dispose()
    _, inner = scoped(prompt)
    inner.section(PromptSection("one", 0, "shadow"))
    await prompt.assemble()


@pytest.mark.parametrize("where", ["row", "global", "ancestor"])
async def test_suppressed_runtime_context_is_not_even_evaluated(root: Context, where: str) -> None:
    prompt = await mount(root, includeRuntimeContext=where != "row")
    prompt.context(PromptContext("c", 0, lambda _: pytest.fail("suppressed")))
    parent, outer = scoped(prompt)
    child, _ = scoped(prompt, parent.key)
    if where == "global":
        prompt.suppress_runtime_context()
    elif where == "ancestor":
        outer.suppress_runtime_context()

    async def add(event: PromptAssembling, next: Any) -> PromptAssembly:
        made: PromptAssembly = await next()
        made.contexts.append(PromptPart("more", "more"))
        return made

    prompt.caller.on(SYSTEM_PROMPT_ASSEMBLE, add)
    assert (await prompt.assemble(AssembleContext(scope=child.key))).contexts == []


async def test_listeners_have_the_last_word_and_leave_no_trace(root: Context) -> None:
    prompt = await mount(root)
    prompt.section(PromptSection("s", 0, "s"))
    prompt.tools(lambda _: [schema("t")])

    def empty(event: PromptAssembling, next: Any) -> PromptAssembly:
        event.assembly.sections.clear()
        return PromptAssembly()

    effect = prompt.caller.on(SYSTEM_PROMPT_ASSEMBLE, empty)
    assert await prompt.assemble() == PromptAssembly()
    await effect.dispose()
    assert parts((await prompt.assemble()).sections) == [("s", "s")]


async def test_a_listener_must_return_an_assembly(root: Context) -> None:
    prompt = await mount(root)
    prompt.caller.on(SYSTEM_PROMPT_ASSEMBLE, lambda *_: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="PromptAssembly"):
        await prompt.assemble()


async def test_listeners_of_a_scope_rewrite_that_scope_alone(root: Context) -> None:
    prompt = await mount(root)
    mine, inner = scoped(prompt)
    other, _ = scoped(prompt)

    async def rewrite(event: PromptAssembling, next: Any) -> PromptAssembly:
        made: PromptAssembly = await next()
        made.variables["mine"] = "yes"
        return made

    inner.caller.on(SYSTEM_PROMPT_ASSEMBLE, rewrite)
    contexts = [AssembleContext(scope=key) for key in (mine.key, other.key, None)]
    found = [(await prompt.assemble(context)).variables for context in contexts]
    assert found == [{"mine": "yes"}, {}, {}]


async def test_a_failing_change_listener_takes_the_contribution_back(root: Context) -> None:
    prompt = await mount(root)

    def refuse(_: object) -> None:
        raise RuntimeError("no")

    effect = prompt.caller.on(SYSTEM_PROMPT_CHANGE, refuse)
    for add in (
        lambda: prompt.section(PromptSection("s", 0, "s")),
        lambda: prompt.context(PromptContext("c", 0, "c")),
        lambda: prompt.variable("v", lambda _: "v"),
        lambda: prompt.tools(lambda _: [schema("t")]),
        prompt.suppress_runtime_context,
    ):
        with pytest.raises(RuntimeError, match="no"):
            add()
    await effect.dispose()
    assert await prompt.assemble() == PromptAssembly()


async def test_every_change_is_announced(root: Context) -> None:
    prompt = await mount(root)
    changes: list[object] = []
    prompt.caller.on(SYSTEM_PROMPT_CHANGE, changes.append)
    await prompt.section(PromptSection("s", 0, "s")).dispose()
    assert len(changes) == 2


async def test_two_assemblies_of_unchanged_contributions_are_equal(root: Context) -> None:
    prompt = await mount(root, persona="p")
    prompt.tools(lambda _: [schema("b"), schema("a")])
    assert await prompt.assemble() == await prompt.assemble()
