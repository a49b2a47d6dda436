"""Row ``headless-runner``: runs one task with one agent, prints the outcome, ends the process."""

from __future__ import annotations

import asyncio
import os
import uuid
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict

from dsh.base.clock import SYSTEM_CLOCK
from dsh.base.errors import DshError, error_chain
from dsh.base.names import camel
from dsh.control.budgets.service import Budgets
from dsh.control.default_model.service import AgentDefaultModel
from dsh.execution.agent.service import (
    USER_CANCEL,
    AgentOptions,
    AgentRegistry,
    CreateAgent,
    ResumeAgent,
)
from dsh.execution.tools.service import ToolRuntime
from dsh.kernel.keys import service_name
from dsh.loader.events import HOST_EXIT
from dsh.loader.host import AppExit
from dsh.loader.loader import Loader
from dsh.loader.say import say
from dsh.model.llm.service import LlmRuntime
from dsh.model.messages import SessionId, create_user_message
from dsh.product.headless.options import HeadlessStartup
from dsh.product.headless.output import Output, make_output
from dsh.product.headless.result import RunFold
from dsh.product.headless.service import HEADLESS_STARTUP
from dsh.state.persistence.service import SessionPersistence
from dsh.state.session.events import SESSION_EVENT, SessionEventAppended
from dsh.state.session.request import fold_request_header
from dsh.state.session.service import SessionStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dsh.execution.agent.service import Agent, AgentHandle
    from dsh.kernel import Context
    from dsh.state.session.events import EpochHeader

S = TypeVar("S")

EXIT_PIPE = 141
"""Whoever read the output is gone."""

name = "headless-runner"
inject = (HEADLESS_STARTUP, AppExit, Loader)
# What the run itself needs is read when it is needed: declared here, a live edit of one of these
# rows would unload the runner, and its task would begin anew.
NEEDS: Final[tuple[Any, ...]] = (
    AgentDefaultModel,
    AgentRegistry,
    "agent_loop",
    LlmRuntime,
    SessionStore,
    SessionPersistence,
    ToolRuntime,
)


class Config(BaseModel):
    """What to run."""

    model_config = ConfigDict(extra="forbid")

    task: str
    """The words for the agent."""


def apply(ctx: Context, config: Config) -> None:
    """Start the run; it waits for the rest of the tree."""
    run = HeadlessRun(ctx, config.task, ctx.require(HEADLESS_STARTUP))
    ctx.spawn(run.main(), "headless run")


class NoSessionToResume(DshError, LookupError):
    """``--resume last`` found no session of the folder."""

    code = "NO_SESSION"

    def __init__(self, cwd: str) -> None:
        super().__init__(
            f"no session of {cwd!r} is stored; start one without --resume, or name one that "
            "`dsh sessions list` shows"
        )


class ServicesMissing(DshError, LookupError):
    """The tree is up, and has not what a run needs."""

    code = "SERVICES_MISSING"

    def __init__(self, services: Sequence[str]) -> None:
        several = len(services) > 1
        super().__init__(
            f"the run needs the service{'s' if several else ''} {', '.join(services)}, which no "
            f"active row provides; dsh tree --profile <name> shows what does"
        )
        self.services = tuple(services)


class HeadlessRun:
    """One task from its first message to the exit code."""

    def __init__(self, ctx: Context, task: str, startup: HeadlessStartup) -> None:
        self._ctx = ctx
        self._task = task
        self._startup = startup
        self._cwd = startup.cwd or os.getcwd()  # noqa: PTH109 - a plain string goes into the header
        self._output = make_output(startup.output_format)
        self._fold = RunFold()
        self._idle = asyncio.Event()
        self._interrupted = False
        self._reader_left = False

    async def main(self) -> None:
        """Run the task, then ask for the process to end with the right code."""
        try:
            await self._ctx.require(Loader).ready()
            self._check_services()
            code = await self._run()
        except BrokenPipeError:
            code = EXIT_PIPE
        except Exception as error:
            say(error_chain(error))
            code = 1
        if not self._interrupted:
            self._ctx.require(AppExit).exit(code)

    def _check_services(self) -> None:
        missing = [service_name(key) for key in NEEDS if self._ctx.get(key) is None]
        if missing:
            raise ServicesMissing([camel(each) for each in missing])

    def _service(self, key: Callable[..., S]) -> S:
        found = self._ctx.get(key)
        if found is None:
            raise ServicesMissing([camel(service_name(key))])
        return found

    async def _run(self) -> int:
        started_ms = SYSTEM_CLOCK.now_ms()
        handle = await self._open()
        agent = handle.agent
        self._ctx.on(HOST_EXIT, lambda _: self._stop(agent))
        self._output.bind(agent, self._service(ToolRuntime))
        self._output.begin(agent.session.header)
        self._ctx.on(SESSION_EVENT, lambda said: self._hear(agent, said))
        session = agent.session
        for event in session.events[session.first_live_seq :]:
            # What plugins wrote down when the session came up.
            self._hear(agent, SessionEventAppended(session, event))
        agent.followup(create_user_message(self._task))
        await agent.when_idle()
        await self._flush(agent)
        result = self._fold.to_json(
            session_id=agent.id,
            duration_ms=SYSTEM_CLOCK.now_ms() - started_ms,
            cwd=agent.session.header.get("cwd"),
            cost=self._fold.cost(self._ctx.get(Budgets)),
        )
        self._output.end(self._fold, result)
        self._output = Output()  # nothing comes after the result, whatever is logged on the way out
        self._idle.set()
        return self._exit_code()

    async def _flush(self, agent: Agent) -> None:
        """Make the session durable, unless it went with a row that was taken out of the tree."""
        store = self._ctx.get(SessionStore)
        if store is not None and store.get(agent.id) is agent.session:
            await store.flush(agent.session)

    def _hear(self, agent: Agent, said: SessionEventAppended) -> None:
        if said.session is not agent.session:
            return
        self._fold.push(said.event)
        try:
            self._output.event(said.event)
        except BrokenPipeError:
            self._reader_left = True
            self._output = Output()
            agent.cancel(USER_CANCEL)

    async def _stop(self, agent: Agent) -> None:
        """The process ends: cancel a turn that still runs, wait until its outcome is printed."""
        if not self._idle.is_set():
            self._interrupted = True
            agent.cancel(USER_CANCEL)
            await self._idle.wait()

    def _exit_code(self) -> int:
        if self._reader_left:
            return EXIT_PIPE
        if self._fold.kind == "completed":
            return 0
        if self._fold.failure is not None:
            problem = f"{self._fold.failure['code']}: {self._fold.failure['message']}"
        else:
            problem = f"the turn did not complete: {self._fold.kind or 'it never began'}"
        if not self._interrupted:
            say(problem)
        return 1

    async def _open(self) -> AgentHandle:
        agents = self._service(AgentRegistry)
        if self._startup.resume is None:
            return await agents.create(
                CreateAgent(
                    session_id=SessionId(f"session-{uuid.uuid4()}"),
                    meta={"cwd": self._cwd},
                    agent_options=self._options(None),
                )
            )
        wanted = await self._resumed_id(self._startup.resume)
        stored = await self._service(SessionPersistence).inspect(wanted)
        options = self._options(fold_request_header(stored.events))
        return await agents.resume(ResumeAgent(resume_session_id=wanted, agent_options=options))

    async def _resumed_id(self, wanted: str) -> SessionId:
        if wanted != "last":
            return SessionId(wanted)
        newest = await self._service(SessionPersistence).newest(self._cwd)
        if newest is None:
            raise NoSessionToResume(self._cwd)
        return SessionId(newest["id"])

    def _options(self, earlier: EpochHeader | None) -> AgentOptions:
        """Choose the route: the command line's, else the session's last one, else the default."""
        selected = self._service(AgentDefaultModel).current_selection()
        provider, model = selected.provider, selected.model
        if earlier is not None:
            provider, model = earlier["config"]["provider"], earlier["config"]["model"]
        if self._startup.model is not None:
            model = self._startup.model
            route, slash, rest = model.partition("/")
            registered = {each.id for each in self._service(LlmRuntime).providers()}
            if slash and rest and route in registered:
                provider, model = route, rest
        return AgentOptions(provider=provider, model=model)
