"""The ``ask_user_question`` tool: row ``tool-ask-user``, for agents that work with a person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from dsh.base.json import JsonObject
from dsh.control.questions.service import (
    Question,
    QuestionOption,
    QuestionRequest,
    UserQuestionService,
)
from dsh.execution.tools.author import define_tool
from dsh.execution.tools.service import ToolRunContext, ToolRuntime

if TYPE_CHECKING:
    from dsh.kernel import Context

name = "tool-ask-user"
inject = (ToolRuntime, UserQuestionService)

_DESCRIPTION: Final = """\
Ask the user, and wait for the answer.

Use it when you need a confirmation, a choice between ways to go on, or a fact that only the user \
has. Ask briefly, and ask what belongs together in one call. Do not ask what you can find out or \
safely decide yourself.

Give every question an `id`: the answer carries the same one. Where you would choose an option \
yourself, put it first and end its label with `(Recommended)`. The user may always answer in their \
own words (`custom`) instead of an option; nothing selected and nothing written means that the \
question was skipped.

If the call fails because nobody can answer, do not repeat it: decide carefully and say so, or end \
with the open question."""


class AskedOption(BaseModel):
    """One answer to choose from."""

    model_config = ConfigDict(extra="ignore")

    label: str = Field(description="What the user chooses by; comes back in `selected`.")
    description: str | None = Field(default=None, description="What choosing it means.")


class AskedQuestion(BaseModel):
    """One question."""

    model_config = ConfigDict(extra="ignore")

    id: str = Field(description="Name of the question, unique in this call.")
    question: str = Field(description="The question itself.")
    header: str | None = Field(default=None, description="One or two words that stand for it.")
    options: list[AskedOption] | None = Field(
        default=None, description="Answers to choose from; without them the user writes."
    )
    multi_select: bool | None = Field(
        default=None, description="Whether several options may be chosen."
    )


class AskArgs(BaseModel):
    """Parameters of the tool."""

    model_config = ConfigDict(extra="forbid")

    questions: list[AskedQuestion] = Field(description="One question or more.")


OUTPUT: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "answers": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "string"},
                    "selected": {"type": "array", "items": {"type": "string"}},
                    "custom": {"type": "string"},
                },
                "required": ["id", "selected"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["answers"],
    "additionalProperties": False,
}


def apply(ctx: Context) -> None:
    """Offer the tool."""
    questions = ctx.require(UserQuestionService)

    async def ask(args: AskArgs, run: ToolRunContext) -> dict[str, Any]:
        request = QuestionRequest(
            tuple(_question(asked) for asked in args.questions), run.agent, run.signal
        )
        return {"answers": [answer.wire() for answer in await questions.ask(request)]}

    ctx.require(ToolRuntime).register(
        define_tool(ask, name="ask_user_question", description=_DESCRIPTION, output=OUTPUT)
    )


def _question(asked: AskedQuestion) -> Question:
    return Question(
        asked.id,
        asked.question,
        header=asked.header,
        options=tuple(
            QuestionOption(option.label, option.description) for option in asked.options or ()
        ),
        multi_select=bool(asked.multi_select),
    )
