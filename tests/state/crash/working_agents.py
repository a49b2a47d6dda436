"""Agents at work in one process, whose disk can be broken while a tool of theirs runs."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from loop_harness import Loop, ScriptedModel, add_tool, calls, mount, reasons, says

from dsh.base.json import dumps
from dsh.control.checkpoint import policy
from dsh.execution.agent.service import Agent
from dsh.kernel import Context
from dsh.model.chunks import StreamChunk
from dsh.model.llm.service import GenerateOptions
from dsh.model.messages import create_user_message
from dsh.state.session.service import SessionStore
from dsh.testing.persistence.medium import Host, Medium

STEPS = 3
_WINDOW_MS = 5

Hook = Callable[[], Awaitable[object]]


class WorkingAgents:
    """Sessions whose turns call a tool a step, then end.

    Attributes:
        during: What happens in a tool: by session and step.
        acknowledged: How many events of a session its last tool could rely on.
        outputs: What tools return, by session; otherwise it is long and does not compress.
    """

    def __init__(self, root: Context, medium: Medium) -> None:
        self.root = root
        self.medium = medium
        self.model = ScriptedModel()
        self.model.otherwise = self._reply
        self.during: dict[tuple[str, int], Hook] = {}
        self.acknowledged: dict[str, int] = {}
        self.outputs: dict[str, str] = {}

    async def open(self) -> WorkingAgents:
        """Mount everything."""
        self.loop: Loop = await mount(self.root, self.model)
        await self.root.plugin(policy)
        await self.mount()
        add_tool(self.root, self._work, name="work")
        return self

    async def mount(self) -> None:
        """Mount the store, again after it was unloaded."""
        config = {**self.medium.config, "writeBatchMaxDelayMs": _WINDOW_MS}
        self.provider = await self.root.plugin(self.medium.load(), config)

    async def turn(self, agent: Agent) -> dict[str, Any]:
        """Let an agent do a turn; return why it ended."""
        before = len(reasons(agent))
        agent.followup(create_user_message("go on"))
        await agent.when_idle()
        (reason,) = reasons(agent)[before:]
        return dict(reason)

    async def flush(self, agent: Agent) -> None:
        """Make the log of an agent durable."""
        await self.root.require(SessionStore).flush(agent.session)

    async def ends_with_something_unwritten(self) -> None:
        """Unload the provider, which says that something could not be stored."""
        reported: list[BaseException] = []
        self.root.set_reporter(lambda error, owner, label: reported.append(error))
        await self.provider.dispose()
        assert any("dispose failed" in str(error) for error in reported), reported

    async def stored(self, id: str) -> list[Any]:
        """Return what another process finds in storage."""
        host = await Host(self.medium).open()
        try:
            return await host.stored(id)
        finally:
            await host.close()

    def _reply(self, options: GenerateOptions) -> AsyncIterator[StreamChunk]:
        step = 1
        for message in reversed(options.messages):
            if message["role"] == "user" and message["content"][0]["type"] == "text":
                break
            step += message["role"] == "assistant"
        if step > STEPS:
            return says("Done.")(options)
        arguments = dumps({"who": options.session_id, "step": step}).decode()
        call_id = f"c{len(options.messages)}"
        return calls((call_id, "work", arguments), text="I work. " * 50)(options)

    async def _work(self, who: str, step: int) -> str:
        agent = self.loop.agents.get(who)  # type: ignore[arg-type]
        assert agent is not None
        self.acknowledged[who] = agent.session.seq
        if (hook := self.during.pop((who, step), None)) is not None:
            await hook()
        if who in self.outputs:
            return self.outputs[who]
        # More than what still fits into the last page of a file, and nothing that compresses.
        return random.Random(f"{who} {agent.session.seq}").randbytes(6000).hex()
