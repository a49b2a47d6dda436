"""Processes with an agent whose calls of ``deploy`` wait for approval, over one folder of logs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from loop_harness import Loop, ScriptedModel, add_tool, mount, until

from dsh.control.approval import invariants
from dsh.control.approval.events import APPROVAL_REQUEST
from dsh.control.approval.policy import PolicyApproval
from dsh.control.approval.service import ApprovalOutcome, ApprovalRequest
from dsh.execution.agent.service import Agent, AgentHandle, AgentOptions, ResumeAgent
from dsh.execution.tools.events import TOOLS_PRE_EXECUTE, Allow, Ask
from dsh.kernel import Context, Fiber
from dsh.model.messages import SessionId, text_of
from dsh.state.persistence.jsonl import plugin as jsonl
from dsh.state.persistence.service import SessionPersistence
from dsh.state.session.service import SessionStore

REASON = "it changes production"
ASKED, DECIDED = "approval/asked", "approval/decided"


class Desk:
    """Whoever answers: keeps each request until a test says what comes of it."""

    def __init__(self, root: Context) -> None:
        self.requests: list[ApprovalRequest] = []
        self.answers: list[asyncio.Future[ApprovalOutcome]] = []
        self.fiber: Fiber = root.inject([], lambda ctx: ctx.on(APPROVAL_REQUEST, self.answer))  # type: ignore[arg-type]

    async def answer(self, request: ApprovalRequest, next: Any) -> ApprovalOutcome:
        self.requests.append(request)
        future = asyncio.get_running_loop().create_future()
        self.answers.append(future)
        return await future

    async def asked(self, count: int) -> ApprovalRequest:
        await until(lambda: len(self.requests) >= count)
        return self.requests[count - 1]

    def say(self, outcome: Any, index: int = -1) -> None:
        self.answers[index].set_result(outcome)


class House:
    """One process."""

    def __init__(self, folder: Path) -> None:
        self.root = Context()
        self.model = ScriptedModel()
        self.deployed: list[str] = []
        self.reports: list[BaseException] = []
        self.desk: Desk
        self._folder = folder

    async def open(self, *, answerer: bool = True, **config: Any) -> House:
        self.root.set_reporter(lambda error, *_: self.reports.append(error))
        self.loop: Loop = await mount(self.root, self.model)
        await self.root.plugin(jsonl, {"root": str(self._folder)})
        await self.root.plugin(invariants)
        self.approval = self.root.plugin(PolicyApproval, config)
        await self.approval

        async def deploy(target: str, note: str = "") -> str:
            self.deployed.append(target)
            return "done"

        add_tool(self.root, deploy)
        self.reason = REASON
        self.root.on(
            TOOLS_PRE_EXECUTE,
            lambda call, _: Ask(self.reason) if call.name == "deploy" else Allow(),
        )
        if answerer:
            self.desk = Desk(self.root)
            await self.desk.fiber
        return self

    @property
    def persistence(self) -> SessionPersistence:
        return self.root.require(SessionPersistence)

    @property
    def store(self) -> SessionStore:
        return self.root.require(SessionStore)

    async def resume(self, id: str = "s1") -> AgentHandle:
        options = AgentOptions(provider="scripted", model="m")
        return await self.loop.agents.resume(
            ResumeAgent(resume_session_id=SessionId(id), agent_options=options)
        )

    async def keep(self, header: Any, events: Sequence[Any]) -> None:
        """Store a log as a process left it that was killed after these events."""
        await self.persistence.create(header)
        await self.persistence.append(header["id"], events)

    async def close(self) -> None:
        await self.root.dispose()
        assert self.reports == []


def logged(agent: Agent, *kinds: str) -> list[Any]:
    return [event["data"] for event in agent.session.events if event["type"] in (kinds or (ASKED,))]


def outcomes(agent: Agent) -> list[str]:
    return [data["outcome"] for data in logged(agent, DECIDED)]


def notices(agent: Agent) -> list[str]:
    """The texts that the model was, or will be, told about late decisions."""
    seen: Iterable[Any] = [*logged(agent, "user/message"), *agent.inbox.next_step]
    return [text_of(m) for m in seen if m["source"].get("plugin") == "user-approval"]
