"""The prebuilt agent of langgraph, which langchain publishes as ``create_agent``."""

from __future__ import annotations

import os
from typing import Any

# Nothing is to be reported anywhere, whatever the caller's environment says.
os.environ["LANGSMITH_TRACING"] = os.environ["LANGCHAIN_TRACING_V2"] = "false"

from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool

from spine import Mark, mark


@tool
async def add(left: int, right: int) -> int:
    """Add two numbers."""
    return left + right


class Model(BaseChatModel):
    steps: int
    marks: list[Any] = []  # noqa: RUF012  # a pydantic field, copied for each model

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(self, *args: Any, **options: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(self, *args: Any, **options: Any) -> ChatResult:
        self.marks.append(mark())
        number = len(self.marks)
        message = AIMessage("done")
        if number <= self.steps:
            arguments = {"left": number, "right": 1}
            call = {"name": "add", "args": arguments, "id": f"call-{number}"}
            message = AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=message)])


class Adapter:
    name = "langgraph"

    async def run(self, steps: int) -> list[Mark]:
        """Run one task in so many steps; return the time of each request for the model."""
        model = Model(steps=steps)
        agent = create_agent(model, [add])
        await agent.ainvoke({"messages": [("user", "go")]}, {"recursion_limit": 2 * steps + 10})
        return model.marks
