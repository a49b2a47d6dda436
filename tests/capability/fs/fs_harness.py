"""A root with real sessions, tools, prompt, sandbox policy and files in a workspace."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from dsh.base.signal import AbortController
from dsh.capability.fs import observation, tools
from dsh.capability.fs.sandboxed import SandboxedFileSystem
from dsh.capability.fs.service import FileSystem
from dsh.capability.sandbox.policy import SessionSandboxPolicy
from dsh.capability.sandbox.service import SandboxMode, SandboxPolicy
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
    fs: FileSystem
    policy: SandboxPolicy
    agent: FakeAgent
    controller: AbortController = field(default_factory=AbortController)

    async def call(
        self, name: str, /, agent: FakeAgent | None = None, **arguments: Any
    ) -> ToolResult:
        return await self.ctx.require(ToolRuntime).execute(
            ToolInput(
                call_id=CallId("call-1"),
                name=name,
                arguments=arguments,
                signal=self.controller.signal,
                agent=cast("Any", agent or self.agent),
            )
        )

    def another_agent(self) -> FakeAgent:
        sessions = self.ctx.require(SessionStore)
        return FakeAgent(sessions.create(meta={"cwd": str(self.root)}))


async def mount(
    root: Context, workspace: Path, *, mode: SandboxMode = "workspace-write", **config: Any
) -> Desk:
    await root.plugin(LayeredSystemPrompt)
    await root.plugin(LayeredToolRuntime)
    await root.plugin(LocalSessionStore)
    await root.plugin(SessionSandboxPolicy, {"mode": mode, "workspaceRoot": str(workspace)})
    await root.plugin(SandboxedFileSystem)
    await root.plugin(observation)
    await root.plugin(tools, config)
    held: list[Context] = []
    await root.inject([ToolRuntime, SessionStore, FileSystem, SandboxPolicy], held.append)
    ctx = held[0]
    session = ctx.require(SessionStore).create(meta={"cwd": str(workspace)})
    return Desk(
        ctx, workspace, ctx.require(FileSystem), ctx.require(SandboxPolicy), FakeAgent(session)
    )


async def unload(root: Context, plugin: object) -> None:
    runtime = root.registry.get(plugin)
    assert runtime is not None
    for fiber in list(runtime.fibers):
        await fiber.dispose()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def text(result: ToolResult) -> str:
    return "".join(cast("Any", block)["text"] for block in result.content)


def code(result: ToolResult) -> str | None:
    assert result.is_error, text(result)
    return result.error.info.code if result.error.info else None


def body(result: ToolResult) -> str:
    assert not result.is_error, text(result)
    return text(result).partition("<content>\n")[2].removesuffix("\n</content>")
