"""Which names bindings may have, and what a run refuses before it starts anything."""

from __future__ import annotations

import pytest
from code_world import FAILURE, World, interpreters

from dsh.capability.code_runtime.service import (
    BindingError,
    BindingNamespace,
    CodeResult,
    CodeRun,
    InvalidBindings,
)


async def work(args: object) -> None:
    return None


@pytest.mark.parametrize(
    "name",
    [
        "", "a b", "1a", "ä", "class", "await", "match", "type", "_", "async", "eval", "arguments",
        "function", "typeof", "None", "console", "__dsh_main__", "__builtins__", "__name__",
        "__debug__", 7,
    ],
)  # fmt: skip
async def test_a_global_that_some_language_cannot_have_is_refused(
    world: World, name: object
) -> None:
    for space in (
        BindingNamespace(name, {}),  # type: ignore[arg-type]
        BindingNamespace("tools", {}, BindingError(name, "toolName")),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidBindings, match=r"binding namespace|error class"):
            await world.runtime.run(CodeRun("return 1", (space,)))


@pytest.mark.parametrize(
    "spaces",
    [
        (BindingNamespace("tools", {}), BindingNamespace("tools", {})),
        (BindingNamespace("tools", {}, BindingError("tools", "toolName")),),
        (BindingNamespace("a", {}, FAILURE), BindingNamespace("b", {}, FAILURE)),
    ],
)
async def test_two_globals_of_one_name_are_refused(
    world: World, spaces: tuple[BindingNamespace, ...]
) -> None:
    with pytest.raises(InvalidBindings, match="is taken in this run"):
        await world.runtime.run(CodeRun("return 1", spaces))


@pytest.mark.parametrize(
    "name",
    ["", "name", "message", "stack", "args", "with_traceback", "add_note", "__cause__", None],
)
async def test_a_property_that_errors_have_already_is_refused(world: World, name: object) -> None:
    space = BindingNamespace("tools", {}, BindingError("Failed", name))  # type: ignore[arg-type]
    with pytest.raises(InvalidBindings, match="attribute"):
        await world.runtime.run(CodeRun("return 1", (space,)))


@pytest.mark.parametrize("functions", [{"": work}, {1: work}, {"a": "no function"}])
async def test_a_function_needs_a_name_and_a_body(
    world: World, functions: dict[str, object]
) -> None:
    space = BindingNamespace("tools", functions)  # type: ignore[arg-type]
    with pytest.raises(InvalidBindings):
        await world.runtime.run(CodeRun("return 1", (space,)))


async def test_refused_bindings_start_nothing(world: World) -> None:
    with pytest.raises(InvalidBindings):
        await world.runtime.run(CodeRun("return 1", (BindingNamespace("class", {}),)))
    assert interpreters() == []


async def test_functions_may_have_any_name(world: World) -> None:
    names = ["class", "a-b", "__class__", "ü", "__getitem__", "echo me"]

    async def name_it(args: object) -> str:
        return "called"

    space = BindingNamespace("tools", dict.fromkeys(names, name_it))
    program = f"return [await tools[name]() for name in {names!r}]"
    assert await world.runtime.run(CodeRun(program, (space,))) == CodeResult(["called"] * 6)


async def test_several_namespaces_stand_side_by_side(world: World) -> None:
    async def one(args: object) -> int:
        return 1

    async def two(args: object) -> int:
        raise RuntimeError("no")

    spaces = (BindingNamespace("a", {"f": one}), BindingNamespace("b", {"f": two}))
    program = (
        "x = await a.f()\ntry:\n    await b.f()\nexcept RuntimeError as e:\n    return [x, str(e)]"
    )
    assert await world.runtime.run(CodeRun(program, spaces)) == CodeResult([1, "f: no"])


async def test_a_result_that_is_not_json_fails_its_call(world: World) -> None:
    async def odd(args: object) -> object:
        return {1, 2}

    program = "try:\n    await tools.odd()\nexcept ToolCallError as e:\n    return str(e)"
    assert "its result cannot be told" in await world.value(program, odd=odd)  # type: ignore[arg-type]
