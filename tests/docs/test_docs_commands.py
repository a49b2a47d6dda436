"""The examples of docs/commands.md and docs/questions.md run as they are printed."""

from __future__ import annotations

import re
import typing
from pathlib import Path
from types import ModuleType
from typing import Any

from dsh.control.commands import CommandFailure, CommandRuntime, CommandSuccess
from dsh.control.commands.runtime import LayeredCommands
from dsh.control.questions import Answer, QuestionRequest, UserQuestionService
from dsh.control.questions.runtime import UserQuestions
from dsh.control.questions.service import QuestionCode
from dsh.kernel import Context, create_scope
from dsh.state.session.service import SessionStore
from dsh.state.session.store import LocalSessionStore

DOCS = Path(__file__).parents[2] / "docs"


def example(page: str) -> Any:
    [block] = re.findall(
        r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL
    )
    module = ModuleType("example")
    exec(compile("from __future__ import annotations\n" + block, page, "exec"), module.__dict__)
    return module


class FakeAgent:
    def __init__(self, ctx: Context) -> None:
        self.session = ctx.require(SessionStore).create(meta={"cwd": "/work"})
        self.ctx = create_scope(ctx, self).ctx


async def test_the_command_of_the_page_says_where_the_session_works(root: Context) -> None:
    await root.plugin(LocalSessionStore)
    await root.plugin(LayeredCommands)
    await root.plugin(example("commands.md"))
    agent: Any = FakeAgent(root)
    commands = root.require(CommandRuntime)
    said = [await commands.execute(agent, line) for line in ("/cwd", "/cwd x")]
    assert [execution.result for execution in said if execution is not None] == [
        CommandSuccess("/work"),
        CommandFailure("usage: /cwd"),
    ]


async def test_the_question_of_the_page_is_answered(root: Context) -> None:
    class Yes:
        async def ask(self, request: QuestionRequest) -> list[Answer]:
            return [Answer("publish", ("Publish (Recommended)",))]

    await root.plugin(UserQuestions)
    root.require(UserQuestionService).register_provider(Yes())
    assert await example("questions.md").may_publish(root) is True


def test_the_page_lists_every_code() -> None:
    listed = re.findall(r"^\| `([A-Z_]+)` \|", (DOCS / "questions.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(typing.get_args(QuestionCode))
