"""The tool ``ask_user_question``, through the tool pipeline."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from question_bench import Bench, Screen

from dsh.base.signal import AbortController
from dsh.control.questions import Answer, Question, QuestionOption, tool_ask_user
from dsh.execution.prompt.assembly import LayeredSystemPrompt
from dsh.execution.tools.runtime import LayeredToolRuntime
from dsh.execution.tools.service import EXCLUSIVE, ToolFailure, ToolInput, ToolRuntime, ToolSuccess
from dsh.kernel import Context
from dsh.model.messages import CallId

ASKED = {
    "questions": [
        {
            "id": "db",
            "question": "Which database?",
            "header": "Database",
            "options": [
                {"label": "SQLite (Recommended)", "description": "One file."},
                {"label": "PostgreSQL"},
            ],
            "note": "ignored",
        },
        {"id": "name", "question": "What is it called?", "multi_select": False},
    ]
}
ANSWERS = [Answer("name"), Answer("db", ("PostgreSQL",))]


class Tools:
    def __init__(self, tools: ToolRuntime, agent: Any) -> None:
        self.tools, self.agent = tools, agent
        self.controller = AbortController()

    def input(self, arguments: Any) -> ToolInput:
        return ToolInput(
            CallId("c"), "ask_user_question", arguments, self.controller.signal, self.agent
        )

    async def call(self, arguments: Any = ASKED) -> Any:
        return await self.tools.execute(self.input(arguments))


@pytest.fixture
async def tools(desk: Bench) -> Tools:
    await desk.root.plugin(LayeredSystemPrompt, {"includeHarnessIdentity": False})
    await desk.root.plugin(LayeredToolRuntime, {"graceMs": 50})
    await desk.root.plugin(tool_ask_user)
    reader: list[Context] = []
    await desk.root.inject([ToolRuntime], reader.append)
    return Tools(reader[0].require(ToolRuntime), desk.agent)


def text(result: Any) -> str:
    return "".join(block["text"] for block in result.content)


async def test_the_answers_are_compact_json(desk: Bench, tools: Tools) -> None:
    await desk.show(Screen(ANSWERS))
    result = await tools.call()
    assert isinstance(result, ToolSuccess)
    assert text(result) == (
        '{"answers":[{"id":"db","selected":["PostgreSQL"]},{"id":"name","selected":[]}]}'
    )
    assert json.loads(text(result)) == result.value


async def test_own_words_come_back_as_custom(desk: Bench, tools: Tools) -> None:
    await desk.show(Screen([Answer("db", (), "DuckDB"), Answer("name", (), "x")]))
    answers: Any = (await tools.call()).value["answers"]
    assert [answer["custom"] for answer in answers] == ["DuckDB", "x"]


async def test_the_interface_gets_the_questions_and_who_asks(desk: Bench, tools: Tools) -> None:
    screen, _ = await desk.show(Screen(ANSWERS))
    await tools.call()
    [request] = screen.shown
    assert request.agent is desk.agent
    assert request.questions == (
        Question(
            "db",
            "Which database?",
            header="Database",
            options=(
                QuestionOption("SQLite (Recommended)", "One file."),
                QuestionOption("PostgreSQL"),
            ),
        ),
        Question("name", "What is it called?"),
    )


async def test_without_an_interface_the_model_is_told_at_once_what_to_do(tools: Tools) -> None:
    async with asyncio.timeout(1):
        result = await tools.call()
    assert isinstance(result, ToolFailure)
    assert result.error.info is not None
    assert result.error.info.code == "NO_PROVIDER"
    assert text(result).startswith("Error: nobody can answer here")
    assert "make it yourself" in text(result)


async def test_no_question_is_an_error_of_its_own(desk: Bench, tools: Tools) -> None:
    await desk.show()
    result = await tools.call({"questions": []})
    assert result.error.info.code == "EMPTY_QUESTIONS"


@pytest.mark.parametrize(
    "arguments",
    [{}, {"questions": [{"id": "a"}]}, {"questions": [{"question": "?"}]}, {"questions": "?"}],
)
async def test_arguments_that_do_not_fit_are_told(tools: Tools, arguments: Any) -> None:
    result = await tools.call(arguments)
    assert result.error.info.code == "INVALID_ARGS"


async def test_cancelling_the_call_withdraws_the_question(desk: Bench, tools: Tools) -> None:
    screen, _ = await desk.show()
    asking = asyncio.create_task(tools.call())
    await screen.asked.wait()
    tools.controller.abort()
    assert screen.withdrawn == screen.shown
    result = await asking
    assert result.error.info.code == "ABORTED"
    await screen.ended.wait()


async def test_it_runs_alone_and_without_a_deadline(tools: Tools) -> None:
    assert tools.tools.execution_mode(tools.input(ASKED)) == EXCLUSIVE
    definition = tools.tools.get("ask_user_question")
    assert definition is not None
    assert definition.timeout_s is None


async def test_the_schema_has_the_names_of_the_format_and_open_objects(tools: Tools) -> None:
    [schema] = tools.tools.schemas()
    parameters: Any = schema["parameters"]
    assert parameters["required"] == ["questions"]
    question = parameters["properties"]["questions"]["items"]
    assert set(question["properties"]) == {"id", "question", "header", "options", "multi_select"}
    assert question["required"] == ["id", "question"]
    assert question.get("additionalProperties") is not False
    option = question["properties"]["options"]["items"]
    assert (set(option["properties"]), option["required"]) == ({"label", "description"}, ["label"])
    assert option.get("additionalProperties") is not False


async def test_the_description_says_how_to_ask(tools: Tools) -> None:
    [schema] = tools.tools.schemas()
    for word in ("confirmation", "choice", "`id`", "(Recommended)", "first"):
        assert word in schema["description"]
