"""The tool ``run_code``: one program of the model's, with the tools as its functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NotRequired, TypedDict

from pydantic import BaseModel, Field, field_validator

from dsh.base.json import JsonObject, JsonValue
from dsh.capability.code_runtime.service import (
    BindingError,
    BindingNamespace,
    CodeResult,
    CodeRun,
    CodeRuntime,
)
from dsh.execution.tools.author import define_tool
from dsh.execution.tools.code.errors import CodeRunFailedError, NoCodeRuntime
from dsh.execution.tools.code.journal import Journal
from dsh.execution.tools.code.lane import Lane
from dsh.execution.tools.code.rendering import render_output
from dsh.execution.tools.service import RESERVED_TOOL_NAME, ToolRunContext

if TYPE_CHECKING:
    from dsh.execution.tools.code.flavours import Flavour
    from dsh.execution.tools.service import ToolDefinition, ToolRuntime
    from dsh.execution.tools.views import GenericCall
    from dsh.kernel import Context

NAMESPACE = "tools"
ERROR = BindingError("ToolCallError", "toolName")


class ProgramOutput(TypedDict):
    """The canonical value; ``result`` is missing when the program returned nothing."""

    logs: list[str]
    result: NotRequired[JsonValue]


_OUTPUT: JsonObject = {
    "type": "object",
    "properties": {"logs": {"type": "array", "items": {"type": "string"}}, "result": {}},
    "required": ["logs"],
    "additionalProperties": False,
}


def make_run_code(
    ctx: Context,
    tools: ToolRuntime,
    flavour: Flavour,
    *,
    visible: Callable[[object | None], list[str]],
    most_bodies: int,
) -> ToolDefinition:
    """Return the definition of ``run_code`` for programs of one language.

    Args:
        ctx: Where the code runtime is looked up, at each call.
        tools: Runs the calls of programs.
        flavour: What the model is told.
        visible: Names of the tools that an agent's programs may call.
        most_bodies: How many calls of one program may overlap.
    """

    class RunCodeArgs(BaseModel):
        code: str = Field(description=flavour.code)
        description: str = Field(
            description="What the program does, in five to ten words and active voice, for the "
            "person who watches."
        )

        @field_validator("description")
        @classmethod
        def _says_something(cls, text: str) -> str:
            if not text.strip():
                raise ValueError("must say what the program does")
            return text

    async def run_code(args: RunCodeArgs, run: ToolRunContext) -> ProgramOutput:
        runtime = ctx.get(CodeRuntime)
        if runtime is None:
            raise NoCodeRuntime
        async with Lane(tools, run, Journal(ctx, run), most_bodies) as lane:
            functions = {name: partial(lane.call, name) for name in visible(run.agent)}
            result = await runtime.run(
                CodeRun(
                    args.code,
                    (BindingNamespace(NAMESPACE, functions, ERROR),),
                    lane.signal,
                    run.agent.session if run.agent is not None else None,
                )
            )
        return _value(result)

    def present(args: RunCodeArgs) -> GenericCall:
        return {
            "card": "generic",
            "title": args.description,
            "kind": "execute",
            "rawInput": args.code,
        }

    return define_tool(
        run_code,
        name=RESERVED_TOOL_NAME,
        description=flavour.description,
        output=_OUTPUT,
        render=lambda _, value: render_output(value["logs"], value.get("result")),
        present_call=present,
        cancel="signal",
    )


def _value(result: CodeResult) -> ProgramOutput:
    if (error := result.error) is not None:
        raise CodeRunFailedError(error.kind, error.message, result.logs)
    value = ProgramOutput(logs=list(result.logs))
    if result.value is not None:
        value["result"] = result.value
    return value
