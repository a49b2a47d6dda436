"""The tool ``run_code`` itself: its arguments, its result, its views, its failures."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from code_desk import Desk, Stage, mount_desk
from tool_harness import code, text

from dsh.base.signal import AbortController
from dsh.capability.code_runtime.service import (
    CODE_ERROR_KINDS,
    CodeError,
    CodeResult,
    CodeRun,
    CodeRuntime,
)
from dsh.execution.tools.code.rendering import NOTHING
from dsh.execution.tools.service import EXCLUSIVE, ToolFailure, ToolInput, ToolSuccess
from dsh.execution.tools.views import call_view
from dsh.kernel import Context
from dsh.model.messages import CallId


async def test_the_value_holds_logs_and_result(desk: Desk) -> None:
    result = await desk.run("print('a')\nreturn {'b': 1}")
    assert isinstance(result, ToolSuccess)
    assert result.value == {"logs": ["a"], "result": {"b": 1}}
    assert text(result) == 'a\n{\n  "b": 1\n}'


async def test_without_output_the_result_says_so(desk: Desk) -> None:
    result = await desk.run("x = 1")
    assert isinstance(result, ToolSuccess)
    assert result.value == {"logs": []}
    assert text(result) == NOTHING


@pytest.mark.parametrize("description", ["", "  \n"])
async def test_a_description_that_says_nothing_is_refused(desk: Desk, description: str) -> None:
    result = await desk.call("run_code", {"code": "return 1", "description": description})
    assert code(result) == "INVALID_ARGS"
    assert "description" in text(result)


@pytest.mark.parametrize(
    "arguments", [{}, {"code": "x"}, {"description": "x"}, {"code": 1, "description": "x"}]
)
async def test_both_arguments_are_needed(desk: Desk, arguments: Any) -> None:
    assert code(await desk.call("run_code", arguments)) == "INVALID_ARGS"


async def test_a_failed_program_says_why_and_what_it_printed(desk: Desk) -> None:
    result = await desk.failure("print('first')\nraise ValueError('bad')")
    assert code(result) == "CODE_RUN_FAILED"
    assert text(result).startswith("Error: the program failed (exception): Traceback")
    assert text(result).endswith("It had printed:\nfirst")


class Failing(CodeRuntime):
    """A runtime that ends every program as its text says."""

    language = "python"
    isolation = "none"

    async def run(self, request: CodeRun) -> CodeResult:
        kind: Any = request.program
        return CodeResult(logs=("printed",), error=CodeError(kind, "why"))


@pytest.mark.parametrize("kind", CODE_ERROR_KINDS)
async def test_every_kind_of_failure_is_told(root: Context, kind: str) -> None:
    desk = await mount_desk(root, runtime=Failing)
    result = await desk.failure(kind)
    assert code(result) == "CODE_RUN_FAILED"
    assert text(result) == f"Error: the program failed ({kind}): why\n\nIt had printed:\nprinted"


async def test_the_view_of_a_call_shows_the_program(desk: Desk) -> None:
    definition = desk.tools.get("run_code", desk.agent)
    assert definition is not None
    arguments = {"code": "return 1", "description": "Return one"}
    assert call_view(definition, arguments) == {
        "card": "generic",
        "title": "Return one",
        "kind": "execute",
        "rawInput": "return 1",
    }
    assert definition.present_result is None


async def test_programs_run_one_after_the_other(desk: Desk) -> None:
    arguments: Any = {"code": "return 1", "description": "Return one"}
    signal = AbortController().signal
    assert (
        desk.tools.execution_mode(ToolInput(CallId("c"), "run_code", arguments, signal))
        == EXCLUSIVE
    )


async def test_what_the_model_is_told_of_it(desk: Desk) -> None:
    (schema,) = [each for each in desk.tools.schemas(desk.agent) if each["name"] == "run_code"]
    for words in ("async function", "`await` and `return`", "prints or returns", "attached after"):
        assert words in schema["description"]
    parameters: Any = schema["parameters"]
    assert parameters["required"] == ["code", "description"]
    assert "five to ten words" in parameters["properties"]["description"]["description"]


async def test_an_aborted_program_ends_in_time_and_is_no_stray(desk: Desk) -> None:
    stage = Stage()
    desk.add("a", stage.body("a"))
    running = asyncio.create_task(desk.run("print('x')\nawait tools.a()"))
    await stage.until("a starts")
    desk.controller.abort()
    result = await running
    assert isinstance(result, ToolFailure)
    assert desk.tools.strays() == ()
    assert stage.seen == ["a starts", "a ends"]


async def test_a_nested_body_that_does_not_stop_does_not_outlive_its_record(root: Context) -> None:
    desk = await mount_desk(root, graceMs=100, strayJoinMs=1000)
    go, reached = asyncio.Event(), asyncio.Event()

    async def stubborn(args: Any, run: Any) -> str:
        reached.set()
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    desk.add("stubborn", stubborn)
    running = asyncio.create_task(desk.run("await tools.stubborn()"))
    await reached.wait()
    desk.controller.abort()
    await running
    assert desk.records() == ["+stubborn", "-stubborn"]
    assert [each.tool for each in desk.tools.strays()] == ["stubborn"]
    go.set()


async def test_cancelling_the_call_from_outside_leaves_nothing(desk: Desk) -> None:
    stage = Stage()
    desk.add("a", stage.body("a"))
    running = asyncio.create_task(desk.run("await tools.a()"))
    await stage.until("a starts")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert stage.seen == ["a starts", "a ends"]
    assert desk.records() == ["+a", "-a"]


async def test_deep_arguments_and_results_pass_through_the_pipeline(desk: Desk) -> None:
    async def back(args: Any, run: Any) -> Any:
        return args["deep"]

    desk.add("back", back, render=lambda *_: [{"type": "text", "text": "deep"}])
    program = """
        deep = []
        for _ in range(10_000):
            deep = [deep]
        return await tools.back({"deep": deep})
    """
    result = await desk.run(program)
    assert isinstance(result, ToolSuccess)
    assert text(result).count("[") == 10_001
    assert len(desk.log("tool/code-dispatch")) == 1


async def test_an_integer_beyond_what_logs_hold_is_logged_as_the_double_it_is(desk: Desk) -> None:
    desk.add("a")
    await desk.value("await tools.a({'n': 2**60})")
    assert desk.log("tool/code-dispatch-start")[0]["arguments"] == {"n": float(2**60)}
