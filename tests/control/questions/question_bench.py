"""The question service over a real registry of agents, and a user interface that is a script."""

from __future__ import annotations

import asyncio
from typing import Any

from dsh.base.signal import AbortController
from dsh.control.questions.runtime import UserQuestions
from dsh.control.questions.service import (
    Answer,
    Question,
    QuestionOption,
    QuestionRequest,
    UserQuestionError,
    UserQuestionService,
)
from dsh.execution.agent.registry import LiveAgents
from dsh.execution.agent.service import AgentRegistry
from dsh.kernel import Context, Fiber, create_scope
from dsh.state.session.service import SessionStore
from dsh.state.session.session import Session
from dsh.state.session.store import LocalSessionStore

COLOURS = Question("colour", "Which?", options=(QuestionOption("red"), QuestionOption("blue")))
SEVERAL = Question(
    "several", "Which ones?", options=tuple(map(QuestionOption, "abc")), multi_select=True
)
OPEN = Question("open", "What is it called?")


class FakeAgent:
    """An agent as far as questions need one: its identity and its session."""

    def __init__(self, session: Session, ctx: Context) -> None:
        self.id, self.session = session.id, session
        self.ctx = create_scope(ctx, self).ctx


class Screen:
    """A user interface: it gives prepared answers, or waits until it is told."""

    def __init__(self, answers: Any = None) -> None:
        self.answers = answers
        self.shown: list[QuestionRequest] = []
        self.withdrawn: list[QuestionRequest] = []
        self.asked, self.told = asyncio.Event(), asyncio.Event()
        self.ended = asyncio.Event()

    async def ask(self, request: QuestionRequest) -> Any:
        assert request.signal is not None
        self.shown.append(request)
        request.signal.add_listener(lambda: self.withdrawn.append(request))
        self.asked.set()
        try:
            if self.answers is None:
                await self.told.wait()
            return self.answers() if callable(self.answers) else self.answers
        finally:
            self.ended.set()


class Bench:
    """What the tests use of one mounted service."""

    def __init__(self, root: Context, ctx: Context, fiber: Fiber) -> None:
        self.root, self.ctx, self.fiber = root, ctx, fiber
        self.questions = ctx.require(UserQuestionService)
        self.agents = ctx.require(AgentRegistry)
        self.controller = AbortController()
        self.agent: Any = self.new_agent()

    def new_agent(self, owner: Any = None) -> Any:
        agent: Any = FakeAgent(self.ctx.require(SessionStore).create(), self.ctx)
        detach = self.agents.enter(agent, owner)
        self.ctx.defer(detach)
        agent.detach = detach
        return agent

    async def show(self, screen: Any = None) -> tuple[Any, Fiber]:
        """Mount a user interface as a plugin of its own."""
        screen = screen if screen is not None else Screen()
        plugin = self.root.inject(
            [UserQuestionService],
            lambda ctx: ctx.require(UserQuestionService).register_provider(screen),
        )
        await plugin
        return screen, plugin

    async def ask(self, *questions: Question, **changes: Any) -> tuple[Answer, ...]:
        fields = {"agent": self.agent, "signal": self.controller.signal, **changes}
        return await self.questions.ask(QuestionRequest(questions or (OPEN,), **fields))

    async def refused(self, *questions: Question, **changes: Any) -> UserQuestionError:
        try:
            answers = await self.ask(*questions, **changes)
        except UserQuestionError as error:
            return error
        raise AssertionError(f"was answered: {answers}")


async def mount(root: Context) -> Bench:
    await root.plugin(LocalSessionStore)
    await root.plugin(LiveAgents)
    fiber = root.plugin(UserQuestions)
    await fiber
    reader: list[Context] = []
    await root.inject([SessionStore, AgentRegistry, UserQuestionService], reader.append)
    return Bench(root, reader[0], fiber)
