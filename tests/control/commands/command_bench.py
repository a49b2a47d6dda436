"""The command runtime over a real session store, and agents as far as commands need them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsh.base.signal import AbortController
from dsh.control.commands import invariants as command_invariants
from dsh.control.commands.runtime import LayeredCommands
from dsh.control.commands.service import (
    Command,
    CommandExecution,
    CommandHandler,
    CommandRuntime,
    CommandSuccess,
)
from dsh.kernel import Context, Effect, Fiber, create_scope
from dsh.state.session import invariants as session_invariants
from dsh.state.session.service import SessionStore
from dsh.state.session.session import Session
from dsh.state.session.store import LocalSessionStore


class FakeAgent:
    """A session and a scope."""

    def __init__(self, session: Session, ctx: Context) -> None:
        self.id, self.session = session.id, session
        self.scope = create_scope(ctx, self)
        self.commands = self.scope.ctx.require(CommandRuntime)


class Bench:
    """What the tests use of one mounted runtime."""

    def __init__(self, root: Context, ctx: Context, fiber: Fiber) -> None:
        self.root, self.ctx, self.fiber = root, ctx, fiber
        self.commands = ctx.require(CommandRuntime)
        self.agent: Any = self.new_agent()
        self.controller = AbortController()

    def new_agent(self) -> Any:
        return FakeAgent(self.ctx.require(SessionStore).create(), self.ctx)

    def add(self, handler: CommandHandler | None = None, **changes: Any) -> Effect:
        fields = {"name": "do", "description": "Does it.", **changes}
        return self.commands.register(Command(handler=handler or done, **fields))

    async def run(
        self, line: str = "/do", images: Sequence[Any] = (), agent: Any = None
    ) -> CommandExecution | None:
        return await self.commands.execute(
            agent or self.agent, line, images, self.controller.signal
        )

    def log(self, agent: Any = None) -> list[tuple[str, dict[str, Any]]]:
        return [
            (event["type"], dict(event["data"]))  # type: ignore[call-overload]
            for event in (agent or self.agent).session.events
            if event["type"].startswith("command/")
        ]

    def ends(self) -> list[dict[str, Any]]:
        return [data for kind, data in self.log() if kind == "command/done"]


def done(invocation: object) -> CommandSuccess:
    return CommandSuccess("done")


async def mount(root: Context, *rows: Any) -> Bench:
    await root.plugin(LocalSessionStore)
    await root.plugin(session_invariants)
    await root.plugin(command_invariants)
    for row in rows:
        await root.plugin(row)
    fiber = root.plugin(LayeredCommands)
    await fiber
    reader: list[Context] = []
    await root.inject([SessionStore, CommandRuntime], reader.append)
    return Bench(root, reader[0], fiber)
