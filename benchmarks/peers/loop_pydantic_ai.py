"""An agent of pydantic-ai with its ``FunctionModel``."""

from __future__ import annotations

from typing import Any

from pydantic_ai import Agent, UsageLimits
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from spine import Mark, mark


async def add(left: int, right: int) -> int:
    """Add two numbers."""
    return left + right


class Adapter:
    name = "pydantic-ai"

    async def run(self, steps: int) -> list[Mark]:
        """Run one task in so many steps; return the time of each request for the model."""
        marks: list[Mark] = []

        async def reply(messages: Any, info: Any) -> ModelResponse:
            marks.append(mark())
            number = len(marks)
            if number > steps:
                return ModelResponse(parts=[TextPart("done")])
            arguments = {"left": number, "right": 1}
            call = ToolCallPart("add", arguments, tool_call_id=f"call-{number}")
            return ModelResponse(parts=[call])

        agent = Agent(FunctionModel(reply), tools=[add])
        await agent.run("go", usage_limits=UsageLimits(request_limit=None))
        return marks
