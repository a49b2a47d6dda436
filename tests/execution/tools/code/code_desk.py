"""Code Mode over real parts: programs run in real interpreters, and call small tools."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from tool_harness import make_tool

from dsh.base.signal import AbortController
from dsh.capability.code_runtime.process import ProcessCodeRuntime
from dsh.capability.subprocess.local import LocalSubprocess
from dsh.execution.prompt.assembly import LayeredSystemPrompt
from dsh.execution.prompt.service import AssembleContext, SystemPrompt, render_prompt
from dsh.execution.tools import invariants
from dsh.execution.tools.runtime import LayeredToolRuntime
from dsh.execution.tools.service import (
    PresentationMode,
    ToolFailure,
    ToolInput,
    ToolResult,
    ToolRunContext,
    ToolRuntime,
    ToolSuccess,
)
from dsh.kernel import Context, Scope, create_scope
from dsh.model.messages import CallId
from dsh.state.session.events import TURN_START, TurnStartData
from dsh.state.session.service import SessionStore
from dsh.state.session.session import Session
from dsh.state.session.store import LocalSessionStore


@dataclass(eq=False)
class Writer:
    """As much of an agent as tools look at: a scope key with a session."""

    session: Session
    scope: Scope


@dataclass(eq=False)
class Desk:
    """What the tests work with."""

    root: Context
    ctx: Context
    agent: Writer
    controller: AbortController = field(default_factory=AbortController)

    @property
    def tools(self) -> ToolRuntime:
        return self.ctx.require(ToolRuntime)

    def add(self, name: str, body: Any = None, **changes: Any) -> None:
        self.tools.register(make_tool(name, body, **changes))

    async def call(self, name: str, arguments: Any, **changes: Any) -> ToolResult:
        request = ToolInput(
            call_id=CallId(changes.pop("call_id", "call-1")),
            name=name,
            arguments=arguments,
            signal=self.controller.signal,
            agent=cast("Any", changes.pop("agent", self.agent)),
            **changes,
        )
        return await self.tools.execute(request)

    async def run(self, program: str, **changes: Any) -> ToolResult:
        arguments = {"code": textwrap.dedent(program), "description": "Do a thing"}
        return await self.call("run_code", arguments, **changes)

    async def value(self, program: str, **changes: Any) -> Any:
        result = await self.run(program, **changes)
        assert isinstance(result, ToolSuccess), result
        return cast("Any", result.value).get("result")

    async def failure(self, program: str, **changes: Any) -> ToolFailure:
        result = await self.run(program, **changes)
        assert isinstance(result, ToolFailure), result
        return result

    def log(self, type: str) -> list[Any]:
        return [each["data"] for each in self.agent.session.events if each["type"] == type]

    def records(self) -> list[str]:
        """Starts and results of nested calls, in the order of the log: ``+a`` and ``-a``."""
        signs = {"tool/code-dispatch-start": "+", "tool/code-dispatch": "-"}
        return [
            signs[each["type"]] + cast("Any", each["data"])["name"]
            for each in self.agent.session.events
            if each["type"] in signs
        ]

    async def prompt(self, agent: object | None = None) -> str:
        assembly = await self.ctx.require(SystemPrompt).assemble(AssembleContext(scope=agent))
        return render_prompt(assembly)

    async def offered(self, agent: object | None = None) -> list[str]:
        assembly = await self.ctx.require(SystemPrompt).assemble(AssembleContext(scope=agent))
        return [each["name"] for each in assembly.tools]


async def mount_desk(
    root: Context,
    *,
    mode: PresentationMode = "code",
    runtime: Any = ProcessCodeRuntime,
    prompt: Any = None,
    **config: Any,
) -> Desk:
    await root.plugin(LocalSessionStore)
    await root.plugin(LayeredSystemPrompt, prompt)
    config = {"mode": mode, "graceMs": 400, "strayJoinMs": 400, **config}
    await root.plugin(LayeredToolRuntime, config)
    await root.plugin(invariants)
    await root.plugin(LocalSubprocess)
    if runtime is not None:
        await root.plugin(runtime)
    held: list[Context] = []
    await root.inject([ToolRuntime, SystemPrompt, SessionStore], held.append)
    session = root.require(SessionStore).create("s1")
    session.append(TURN_START, TurnStartData(turn=1))
    agent = Writer(session, cast("Any", None))
    agent.scope = create_scope(held[0], agent)
    return Desk(root, held[0], agent)


@dataclass
class Stage:
    """Bodies that wait to be let go, and what happened in which order."""

    seen: list[str] = field(default_factory=list)
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def body(self, name: str) -> Callable[[Any, ToolRunContext], Awaitable[str]]:
        gate = self.gates[name] = asyncio.Event()

        async def wait(args: Any, run: ToolRunContext) -> str:
            self.note(f"{name} starts")
            try:
                await gate.wait()
            finally:
                self.note(f"{name} ends")
            return name

        return wait

    def note(self, what: str) -> None:
        self.seen.append(what)
        self.changed.set()

    async def until(self, *expected: str) -> None:
        """Wait until all of these have happened."""
        try:
            async with asyncio.timeout(10):
                while not set(expected) <= set(self.seen):
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            pytest.fail(f"{expected} did not all happen: {self.seen}")


GATHER = """
import asyncio
found = await asyncio.gather(*[tools[name]() for name in {names!r}], return_exceptions=True)
return [each if isinstance(each, str) else f"{{each.toolName}}: {{each}}" for each in found]
"""


def gather(*names: str) -> str:
    """A program that calls tools at once."""
    return GATHER.format(names=names)
