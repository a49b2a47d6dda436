"""A root with the tool runtime and the prompt, and small tools to call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

from dsh.base.signal import AbortController
from dsh.execution.prompt.assembly import LayeredSystemPrompt
from dsh.execution.tools.runtime import LayeredToolRuntime
from dsh.execution.tools.service import (
    ToolDefinition,
    ToolInput,
    ToolOutput,
    ToolResult,
    ToolRunContext,
    ToolRuntime,
)
from dsh.kernel import Context, Scope, create_scope
from dsh.model.messages import CallId

Body = Callable[[Any, ToolRunContext], Awaitable[Any]]


@dataclass(eq=False)
class Harness:
    """The runtime under test, seen from a plugin of its own."""

    root: Context
    ctx: Context
    tools: ToolRuntime
    controller: AbortController = field(default_factory=AbortController)

    def add(self, name: str = "probe", body: Body | None = None, **changes: Any) -> None:
        self.tools.register(make_tool(name, body, **changes))

    def input(self, name: str = "probe", arguments: Any = None, **changes: Any) -> ToolInput:
        return ToolInput(
            call_id=changes.pop("call_id", CallId("call-1")),
            name=name,
            arguments={} if arguments is None else arguments,
            signal=changes.pop("signal", self.controller.signal),
            **changes,
        )

    async def call(self, name: str = "probe", arguments: Any = None, **changes: Any) -> ToolResult:
        return await self.tools.execute(self.input(name, arguments, **changes))

    def agent(self, *, parent: object | None = None) -> FakeAgent:
        agent = FakeAgent()
        agent.scope = create_scope(self.ctx, agent, parent)
        agent.tools = agent.scope.ctx.require(ToolRuntime)
        return agent


class FakeAgent:
    """Stands for an agent where only its identity as a scope counts."""

    scope: Scope
    tools: ToolRuntime


async def echo(args: Any, run: ToolRunContext) -> Any:
    return "done"


def render_text(args: Any, value: Any) -> list[Any]:
    return [{"type": "text", "text": str(value)}]


def make_tool(name: str = "probe", body: Any = None, **changes: Any) -> ToolDefinition:
    output = ToolOutput(
        schema=changes.pop("schema", {}),
        render=changes.pop("render", render_text),
        presentation_meta=changes.pop("meta", None),
    )
    fields: dict[str, Any] = {
        "name": name,
        "description": f"The tool {name}.",
        "parameters": {"type": "object", "properties": {}},
        "output": output,
        "execute": body or echo,
    }
    return ToolDefinition(**{**fields, **changes})


def text(result: ToolResult) -> str:
    return "".join(cast("Any", block)["text"] for block in result.content)


def code(result: ToolResult) -> str | None:
    assert result.is_error
    return result.error.info.code if result.error.info else None


async def mount(root: Context, **config: Any) -> Harness:
    """Mount the runtime and a plugin that uses it."""
    await root.plugin(LayeredSystemPrompt)
    await root.plugin(LayeredToolRuntime, config)
    held: list[Context] = []
    await root.inject([ToolRuntime], held.append)
    return Harness(root, held[0], held[0].require(ToolRuntime))
