"""Prompts under random contributions and templates: properties that hold for all of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh.base.json import freeze
from dsh.execution.prompt.assembly import LayeredSystemPrompt
from dsh.execution.prompt.events import SYSTEM_PROMPT_ASSEMBLE, SYSTEM_PROMPT_CHANGE
from dsh.execution.prompt.service import (
    AssembleContext,
    PromptAssembly,
    PromptContext,
    PromptPart,
    PromptSection,
    SystemPrompt,
    ToolContribution,
    UnknownVariable,
    interpolate,
    render_context_sections,
    render_prompt,
)
from dsh.kernel import Context, Effect, create_scope

names = st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True)
braced = st.text(alphabet="{}ab \n", max_size=12)
literal = st.text(alphabet="{}ab \n", max_size=8).filter(
    lambda text: "{{" not in text and not text.endswith("{")
)


@given(
    st.dictionaries(names, braced, min_size=1, max_size=4).flatmap(
        lambda variables: st.tuples(
            st.just(variables),
            st.lists(st.tuples(literal, st.sampled_from(sorted(variables))), max_size=6),
            literal,
        )
    )
)
def test_what_is_put_in_is_never_looked_at_again(
    case: tuple[dict[str, str], list[tuple[str, str]], str],
) -> None:
    variables, pieces, last = case
    template = "".join(f"{text}{{{{{name}}}}}" for text, name in pieces) + last
    filled = "".join(f"{text}{variables[name]}" for text, name in pieces) + last
    assert interpolate(template, dict(variables), part="p") == filled


@given(
    st.dictionaries(names, st.one_of(st.none(), braced), max_size=3), names, literal, st.booleans()
)
def test_a_reference_without_a_value_names_its_part_and_what_is_known(
    variables: dict[str, str | None], name: str, text: str, in_context: bool
) -> None:
    variables[name] = variables.get(name)
    if variables[name] is not None:
        del variables[name]
    parts = [PromptPart("culprit", f"{text}{{{{{name}}}}}")]
    assembly = PromptAssembly(
        sections=[] if in_context else parts,
        contexts=parts if in_context else [],
        variables=variables,
    )
    render = render_context_sections if in_context else render_prompt
    with pytest.raises(UnknownVariable) as caught:
        render(assembly)
    assert caught.value.part == "culprit"
    assert "'culprit'" in caught.value.message
    assert repr(name) in caught.value.message
    assert set(caught.value.known) == set(variables)
    assert all(known in caught.value.message for known in variables)


@pytest.mark.parametrize("name", ["constructor", "items", "get", "pop", "copy", "update"])
def test_a_method_of_the_mapping_is_no_variable(name: str) -> None:
    parts = [PromptPart("s", f"{{{{{name}}}}}")]
    with pytest.raises(UnknownVariable, match=f"unknown variable '{name}'"):
        render_prompt(PromptAssembly(sections=parts))


async def mounted(root: Context, **config: Any) -> SystemPrompt:
    await root.plugin(LayeredSystemPrompt, {"includeHarnessIdentity": False, **config})
    held: list[Context] = []
    await root.inject([SystemPrompt], held.append)
    return held[0].require(SystemPrompt)


def voice_of(prompt: SystemPrompt, key: object, parent: object = None) -> SystemPrompt:
    """Return the service as a scope sees it, which contributes to that scope."""
    return create_scope(prompt.caller, key, parent).ctx.require(SystemPrompt)


class Key:
    """A scope key."""


KINDS = ("section", "context", "variable", "tool", "suppressor")
contributions = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.integers(0, 2),
        st.sampled_from("abc"),
        st.integers(-2, 2),
        st.booleans(),
    ),
    max_size=14,
)


def contribute(prompt: SystemPrompt, kind: str, name: str, order: int, text: str) -> Effect:
    match kind:
        case "section":
            return prompt.section(PromptSection(name, order, text))
        case "context":
            return prompt.context(PromptContext(name, order, text))
        case "variable":
            return prompt.variable(name, lambda _: text)
        case "tool":
            schema: Any = {"name": name, "description": text, "parameters": {"type": "object"}}
            return prompt.tools(lambda _: [schema])
        case _:
            return prompt.suppress_runtime_context()


async def contributed(plan: list[tuple[str, int, str, int, bool]], *, undo: bool) -> list[Any]:
    """Assemble for three scopes in a chain what stays of a plan.

    Args:
        plan: Contributions by kind, scope, name and order, with whether each stays.
        undo: Make those that do not stay and undo them, or leave them out.
    """
    root = Context()
    prompt = await mounted(root)
    keys = [Key() for _ in range(3)]
    voices = [prompt]
    for place, key in enumerate(keys[1:]):
        voices.append(voice_of(prompt, key, keys[place] if place else None))
    taken: set[tuple[str, int, str]] = set()
    gone: list[Effect] = []
    for number, (kind, place, name, order, stays) in enumerate(plan):
        if not stays:
            if undo:
                gone.append(contribute(voices[place], kind, f"{name}{number}", order, "gone"))
            continue
        if kind in KINDS[:3]:
            if (kind, place, name) in taken:
                continue
            taken.add((kind, place, name))
        contribute(voices[place], kind, name, order, f"{kind} {number}")
    for effect in gone:
        await effect.dispose()
    scopes = [None, *keys[1:]]
    made = [await prompt.assemble(AssembleContext(scope=scope)) for scope in scopes]
    await root.dispose()
    return made


@given(contributions)
@settings(max_examples=60, deadline=None)
def test_an_undone_contribution_leaves_no_trace(
    plan: list[tuple[str, int, str, int, bool]],
) -> None:
    undone = asyncio.run(contributed(plan, undo=True))
    assert undone == asyncio.run(contributed(plan, undo=False))


@given(st.lists(st.tuples(st.integers(-3, 3), st.floats(-1, 1)), max_size=12))
@settings(max_examples=50, deadline=None)
def test_sections_are_sorted_by_order_and_stable(orders: list[tuple[int, float]]) -> None:
    async def check() -> None:
        root = Context()
        prompt = await mounted(root)
        sections = [PromptSection(f"s{n}", sum(order), "") for n, order in enumerate(orders)]
        for section in sections:
            prompt.section(section)
        found = [part.name for part in (await prompt.assemble()).sections]
        assert found == [s.name for s in sorted(sections, key=lambda section: section.order)]
        await root.dispose()

    asyncio.run(check())


@given(
    st.lists(st.sampled_from("abcdeABé"), max_size=8),
    st.permutations([*"abcde", "<unlisted-tools>"]),
    st.integers(0, 5),
)
@settings(max_examples=50, deadline=None)
def test_listed_tools_take_their_places_and_the_rest_theirs_by_name(
    offered: list[str], order: list[str], listed: int
) -> None:
    kept = [*order[:listed], "<unlisted-tools>"] if "<unlisted-tools>" not in order[:listed] else []
    kept = kept or order[:listed]

    async def check() -> None:
        root = Context()
        prompt = await mounted(root, toolOrder=kept)
        schemas: list[Any] = [
            {"name": name, "description": str(number), "parameters": {}}
            for number, name in enumerate(offered)
        ]
        prompt.tools(lambda _: ToolContribution(tuple(schemas), tuple("abcde")))
        found = (await prompt.assemble()).tools
        rest = sorted({name for name in offered if name not in kept})
        at = kept.index("<unlisted-tools>")
        wanted = [name for name in [*kept[:at], *rest, *kept[at + 1 :]] if name in offered]
        assert list(dict.fromkeys(tool["name"] for tool in found)) == wanted
        for name in set(offered):
            same = [int(tool["description"]) for tool in found if tool["name"] == name]
            assert same == sorted(same)
            assert len(same) == offered.count(name)
        await root.dispose()

    asyncio.run(check())


async def test_nearer_variables_replace_farther_ones(root: Context) -> None:
    prompt = await mounted(root)
    parent, child = Key(), Key()
    outer, inner = voice_of(prompt, parent), voice_of(prompt, child, parent)
    for voice, text in ((prompt, "global"), (outer, "outer"), (inner, "inner")):
        voice.variable("who", lambda _, text=text: text)
    found = [
        (await prompt.assemble(AssembleContext(scope=scope))).variables["who"]
        for scope in (None, parent, child)
    ]
    assert found == ["global", "outer", "inner"]


async def test_a_provider_added_by_a_provider_is_asked_from_the_next_prompt_on(
    root: Context,
) -> None:
    prompt = await mounted(root)
    late: list[Effect] = []

    def schema(name: str) -> Any:
        return {"name": name, "description": "", "parameters": {}}

    def early(_: AssembleContext) -> list[Any]:
        if not late:
            late.append(prompt.tools(lambda _: [schema("late")]))
        return [schema("early")]

    prompt.tools(early)
    assert [tool["name"] for tool in (await prompt.assemble()).tools] == ["early"]
    assert [tool["name"] for tool in (await prompt.assemble()).tools] == ["early", "late"]


async def test_a_failing_provider_fails_that_prompt_alone(root: Context) -> None:
    prompt = await mounted(root)

    def fail(_: AssembleContext) -> str:
        raise LookupError("not now")

    failing = prompt.section(PromptSection("s", 0, fail))
    with pytest.raises(LookupError, match="not now"):
        await prompt.assemble()
    await failing.dispose()
    assert await prompt.assemble() == PromptAssembly()


async def test_a_change_is_told_to_every_scope(root: Context) -> None:
    prompt = await mounted(root)
    heard: list[str] = []
    create_scope(root, Key()).ctx.on(SYSTEM_PROMPT_CHANGE, lambda _: heard.append("near"))
    root.on(SYSTEM_PROMPT_CHANGE, lambda _: heard.append("root"))
    voice_of(prompt, Key()).section(PromptSection("s", 0, ""))
    prompt.section(PromptSection("s", 0, ""))
    assert heard == ["near", "root"] * 2


async def test_a_listener_that_takes_everything_away_leaves_no_prompt(root: Context) -> None:
    prompt = await mounted(root, persona="p")
    prompt.context(PromptContext("c", 0, "c"))
    root.on(SYSTEM_PROMPT_ASSEMBLE, lambda event, following: PromptAssembly())
    made = await prompt.assemble()
    assert render_prompt(made) == ""
    assert render_context_sections(made) == []


async def test_a_frozen_schema_is_shared_and_any_other_is_copied(root: Context) -> None:
    prompt = await mounted(root)
    plain: Any = {"name": "b", "description": "", "parameters": {"type": "object"}}
    frozen: Any = freeze({"name": "a", "description": "", "parameters": {}})
    more: Any = freeze({"name": "c", "description": "", "parameters": {}, "secret": 1})
    prompt.tools(lambda _: [plain, frozen, more])
    first, second, third = (await prompt.assemble()).tools
    assert first is frozen
    assert second is not plain
    assert second == plain
    assert third == {"name": "c", "description": "", "parameters": {}}
