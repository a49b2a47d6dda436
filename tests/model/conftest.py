"""Fixtures of the model floor: a context with the runtime, and ways to collect a reply."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any

import pytest

from dsh.kernel import Context
from dsh.model.adapters import deepseek
from dsh.model.assembler import BlockAssembler
from dsh.model.llm import GenerateOptions, LlmRuntime
from dsh.model.llm.runtime import plugin as runtime_plugin
from dsh.model.messages import create_user_message

ROUTE = "deepseek-official"
KEY = "sk-secret-0123456789"


class Collected:
    """A reply as a consumer of the runtime sees it."""

    def __init__(self) -> None:
        self.chunks: list[Any] = []
        self.assembler = BlockAssembler()

    @property
    def text(self) -> str:
        return "".join(chunk["text"] for chunk in self.chunks if chunk["type"] == "text-delta")

    @property
    def failure(self) -> Any:
        return self.assembler.finish.get("failure")

    @property
    def code(self) -> str | None:
        return None if self.failure is None else self.failure["code"]

    @property
    def kind(self) -> str:
        return self.assembler.finish["kind"]


class Environment:
    """Launch layers, as far as adapters look at them."""

    def __init__(self, **values: str) -> None:
        self.values = values

    def value(self, name: str) -> str | None:
        return self.values.get(name)


class Model:
    """Mounts the runtime and the DeepSeek adapter, and makes calls."""

    def __init__(self, root: Context) -> None:
        self.root = root
        self.environment = Environment(DEEPSEEK_API_KEY=KEY)

    async def mount(self, base_url: str, config: Mapping[str, Any] | None = None) -> None:
        self.environment.values["DEEPSEEK_BASE_URL"] = base_url
        self.root.provide("launch_environment", self.environment)
        await self.root.plugin(runtime_plugin, {"checkGrammar": True})
        await self.root.plugin(deepseek, config)

    def options(self, text: str = "hi", **more: Any) -> GenerateOptions:
        messages = more.pop("messages", [create_user_message(text)])
        return GenerateOptions(ROUTE, more.pop("model", "m"), messages, **more)

    async def ask(
        self, text: str = "hi", on_chunk: Callable[[Any], None] | None = None, **more: Any
    ) -> Collected:
        """Make a call through the runtime and collect its chunks."""
        collected = Collected()
        options = self.options(text, **more)
        async with aclosing(self.root.require(LlmRuntime).stream(options)) as stream:
            async for chunk in stream:
                collected.chunks.append(chunk)
                collected.assembler.push(chunk)
                if on_chunk is not None:
                    on_chunk(chunk)
        return collected


@pytest.fixture
def model(root: Context) -> Model:
    return Model(root)
