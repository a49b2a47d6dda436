"""A root with the real tools, processes and files, and a tree to search."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from dsh.base.signal import AbortController
from dsh.capability.fs.local import LocalFileSystem
from dsh.capability.search import tools
from dsh.capability.subprocess.local import LocalSubprocess
from dsh.capability.subprocess.service import SubprocessRuntime
from dsh.control.timeouts import policy as timeouts
from dsh.execution.prompt.assembly import LayeredSystemPrompt
from dsh.execution.tools.runtime import LayeredToolRuntime
from dsh.execution.tools.service import ToolInput, ToolResult, ToolRuntime
from dsh.kernel import Context
from dsh.model.messages import CallId
from dsh.state.session.service import SessionStore
from dsh.state.session.session import Session
from dsh.state.session.store import LocalSessionStore


@dataclass(eq=False)
class FakeAgent:
    """Stands for an agent where only its session and its identity count."""

    session: Session


@dataclass(eq=False)
class Desk:
    """The mounted parts, seen from a plugin of its own."""

    ctx: Context
    root: Path
    agent: FakeAgent
    controller: AbortController = field(default_factory=AbortController)

    async def call(self, name: str, /, **arguments: Any) -> ToolResult:
        return await self.ctx.require(ToolRuntime).execute(
            ToolInput(
                call_id=CallId("call-1"),
                name=name,
                arguments=arguments,
                signal=self.controller.signal,
                agent=cast("Any", self.agent),
            )
        )


async def mount(root: Context, workspace: Path, **config: Any) -> Desk:
    for part in (
        LayeredSystemPrompt,
        LayeredToolRuntime,
        LocalSessionStore,
        LocalFileSystem,
        LocalSubprocess,
        timeouts,
    ):
        await root.plugin(part)
    await root.plugin(tools, {"sampleOverCapGlobResults": False, **config})
    held: list[Context] = []
    await root.inject([ToolRuntime, SessionStore, SubprocessRuntime], held.append)
    session = held[0].require(SessionStore).create(meta={"cwd": str(workspace)})
    return Desk(held[0], workspace, FakeAgent(session))


def text(result: ToolResult) -> str:
    return "".join(cast("Any", block)["text"] for block in result.content)


def code(result: ToolResult) -> str | None:
    assert result.is_error, text(result)
    return result.error.info.code if result.error.info else None


def value(result: ToolResult) -> Any:
    assert not result.is_error, text(result)
    return result.value
