"""A turn with everything in it, and ways to interrupt it at each of its resumptions."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Mapping,
)
from contextlib import aclosing, contextmanager
from typing import Any

from loop_harness import (
    Loop,
    Reply,
    ScriptedModel,
    add_tool,
    assert_balanced,
    assert_paired,
    events_of,
    fails,
    mount,
    reasons,
    results,
    says,
    shelve,
    until,
    user,
)

from dsh.control.approval.events import APPROVAL_REQUEST
from dsh.control.approval.policy import PolicyApproval
from dsh.control.timeouts import policy as timeout_policy
from dsh.execution.agent.events import (
    AGENT_PRE_STEP,
    AGENT_REQUEST,
    AGENT_REQUEST_ERROR,
    AGENT_TURN_STOPPING,
    AgentTurnStopping,
    Retry,
)
from dsh.execution.agent.service import (
    PARENT_CANCEL,
    Agent,
    AgentHandle,
    AgentOptions,
    AgentRegistry,
    CreateAgent,
    ResumeAgent,
)
from dsh.execution.prompt.events import SYSTEM_PROMPT_ASSEMBLE
from dsh.execution.tools.events import TOOLS_EXECUTE, TOOLS_POST_EXECUTE, TOOLS_PRE_EXECUTE, Ask
from dsh.execution.tools.service import ToolRunContext, ToolRuntime
from dsh.kernel import Context
from dsh.model.chunks import StreamChunk, block_end, finish, reasoning_delta, text_delta
from dsh.model.llm.service import GenerateOptions
from dsh.model.messages import SessionId
from dsh.state.persistence.service import SessionPersistence
from dsh.state.session.events import SESSION_CREATED
from dsh.state.session.service import SessionStore
from dsh.state.session.session import Session

TIMEOUT_S = 120
"""For tests of hundreds of turns: seconds of computing, which a busy machine stretches tenfold.
What hangs in one of the turns meets the bound of `within` or `until` long before."""

ROUTE = AgentOptions(provider="scripted", model="m")
NAMES = ("left", "right", "asked", "delegate")
CHILD = "-child"


async def breathe(times: int = 1) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


def streams(*names: str) -> Reply:
    """Think, talk and ask for tools, with a pause between any two chunks."""

    async def reply(_: GenerateOptions) -> AsyncIterator[StreamChunk]:
        for chunk in (
            reasoning_delta(0, "think "),
            text_delta(1, "I will "),
            text_delta(1, "look"),
        ):
            yield chunk
            await breathe()
        for index, name in enumerate(names, start=2):
            call = {"type": "tool-call", "id": f"{name}-call", "name": name, "arguments": "{}"}
            yield block_end(index, call)  # type: ignore[arg-type]
        await breathe()
        yield finish("tool-calls")

    return reply


class World(Loop):
    """A loop whose every extension point takes its time.

    A turn has a failed request that is tried again, a streaming reply, two tools that overlap, one
    that needs approval, one that runs a child agent with a turn of the same kind, a second request
    and a message that comes when the turn is about to stop.
    """

    def __init__(self, root: Context, model: ScriptedModel) -> None:
        super().__init__(root, model)
        self.in_time: set[tuple[str, str]] = set()
        """Calls, by session, whose bodies returned before their signal was aborted."""
        self.sessions: list[Session] = []
        self.plain = False
        self.hits = 0
        self.asked: dict[str, int] = {}
        root.on(SESSION_CREATED, lambda event: self.sessions.append(event.session), everywhere=True)
        model.otherwise = self._reply

    async def start(self, id: str) -> AgentHandle:
        """Create an agent and start the turn."""
        self.in_time.clear()
        self.sessions.clear()
        self.asked.clear()
        self.plain = False
        handle = await self.create(id)
        handle.agent.followup(user("go"))
        return handle

    async def settle(self, before: set[asyncio.Task[Any]], *keep: str) -> None:
        """Wait until no other agent and no other task is left than before."""
        await until(lambda: {agent.id for agent in self.agents.all()} == set(keep))
        await until(lambda: {task for task in asyncio.all_tasks() if not task.done()} <= before)
        assert {each.id for each in self.root.require(SessionStore).all()} == set(keep)
        assert self.root.require(ToolRuntime).strays() == ()

    async def goes_on(self, agent: Agent) -> None:
        """Prompt once more: the request is paired, the turn completes, the log is whole."""
        self.plain = True
        agent.followup(user("and now"))
        await within(10, agent.when_idle())
        assert reasons(agent)[-1] == {"kind": "completed"}
        assert_paired(self.model.requests[-1].messages)
        assert_balanced(agent.session)

    async def goes_on_from_log(self, session: Session) -> None:
        """Resume the session from nothing but its log, in this world, and prompt it."""
        types = list(self.root.require(SessionStore).declared().values())
        stored = Session.create(session.id, list(session.events), session.header, types=types)
        if self.root.get(SessionPersistence) is None:
            await shelve(self)
        shelf: Any = self.root.require(SessionPersistence)
        shelf.stored[session.id] = stored
        handle = await self.agents.resume(
            ResumeAgent(resume_session_id=SessionId(session.id), agent_options=ROUTE)
        )
        await self.goes_on(handle.agent)
        await within(10, handle.dispose())

    def check_logs(self) -> None:
        """Each log is balanced, each call answered, and what was finished in time was kept."""
        for session in self.sessions:
            assert_balanced(session)
            brackets = [event["type"] for event in session.events]
            assert brackets.count("approval/asked") == brackets.count("approval/decided")

    def kept(self) -> set[tuple[str, str]]:
        """Calls, by session, that have a result of their own in the log."""
        return {
            (session.id, call)
            for session in self.sessions
            for call, is_error, *_ in results(session)
            if not is_error
        }

    async def _reply(self, options: GenerateOptions) -> AsyncIterator[StreamChunk]:
        session = str(options.session_id)
        number = self.asked[session] = self.asked.get(session, 0) + 1
        async with aclosing(self._script(session, number)(options)) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                yield chunk

    def _script(self, session: str, number: int) -> Reply:
        if self.plain:
            return says("again")
        if session.endswith(CHILD):
            return streams("left", "right", "asked") if number == 1 else says("child")
        return fails() if number == 1 else streams(*NAMES) if number == 2 else says("done")


async def mount_world(root: Context, **config: Any) -> World:
    world = World(root, (await mount(root, ScriptedModel(), **config)).model)
    await root.plugin(PolicyApproval)
    await root.plugin(timeout_policy)
    _add_tools(world)
    _add_listeners(root)
    return world


def _add_tools(world: World) -> None:
    root = world.root

    def finished(run: ToolRunContext) -> str:
        assert run.agent is not None
        assert world.agents.require_initiator() is run.agent
        if not run.signal.aborted:
            world.in_time.add((run.agent.id, run.call_id))
        return "finished"

    async def left(run: ToolRunContext) -> str:
        await breathe(3)
        return finished(run)

    async def right(run: ToolRunContext) -> str:
        await run.signal.run(breathe(2))
        return finished(run)

    async def asked(run: ToolRunContext) -> str:
        await breathe()
        return finished(run)

    async def delegate(run: ToolRunContext) -> str:
        assert run.agent is not None
        agents = run.agent.ctx.require(AgentRegistry)
        child = SessionId(run.agent.id + CHILD)
        handle = await agents.create(
            CreateAgent(session_id=child, agent_options=ROUTE, signal=run.signal)
        )
        try:
            handle.agent.followup(user("help"))
            await _or_cancel(run, handle.agent)
        finally:
            await handle.dispose()
        return finished(run)

    add_tool(root, left, parallel=True, timeout_s=60)
    add_tool(root, right, parallel=True)
    add_tool(root, asked)
    add_tool(root, delegate)


async def _or_cancel(run: ToolRunContext, child: Agent) -> None:
    remove = run.signal.add_listener(lambda: child.cancel(PARENT_CANCEL))
    try:
        await child.when_idle()
    finally:
        remove()


def _add_listeners(root: Context) -> None:
    async def answer(request: Any, next: Any) -> Any:
        await breathe(2)
        return "allowed-once"

    async def ask(execution: Any, next: Any) -> Any:
        await breathe()
        return Ask("sure?") if execution.name == "asked" else await next()

    async def around(payload: Any, next: Any) -> Any:
        await breathe()
        result = await next()
        await breathe()
        return result

    async def again(payload: Any, next: Any) -> Any:
        await breathe()
        return Retry()

    async def stopping(event: AgentTurnStopping) -> None:
        await breathe()
        steps = len(events_of(event.agent, "step/start"))
        if steps == 2 and not event.signal.aborted and not event.agent.id.endswith(CHILD):
            event.agent.steer(user("one more"))

    root.on(APPROVAL_REQUEST, answer)
    root.on(TOOLS_PRE_EXECUTE, ask)
    root.on(AGENT_REQUEST_ERROR, again)
    root.on(AGENT_TURN_STOPPING, stopping)
    for seam in (
        SYSTEM_PROMPT_ASSEMBLE,
        AGENT_PRE_STEP,
        AGENT_REQUEST,
        TOOLS_EXECUTE,
        TOOLS_POST_EXECUTE,
    ):
        root.on(seam, around)


@contextmanager
def at_resumption(number: int, action: Callable[[], object]) -> Iterator[None]:
    """Run ``action`` right before the event loop's ``number``-th callback from now."""
    with at_resumptions({number: action}):
        yield


@contextmanager
def at_resumptions(actions: Mapping[int, Callable[[], object]]) -> Iterator[None]:
    """As `at_resumption`, for several of them."""
    loop = asyncio.get_running_loop()
    plain = loop.call_soon
    count = 0
    over = False

    def counted(callback: Callable[..., object], *args: object) -> None:
        nonlocal count
        count += 1
        try:
            if count in actions and not over:
                contextvars.Context().run(actions[count])
        finally:
            callback(*args)

    def call_soon(callback: Any, *args: Any, context: Any = None) -> Any:
        return plain(counted, callback, *args, context=context)

    loop.call_soon = call_soon  # type: ignore[method-assign]
    try:
        yield
    finally:
        over = True
        loop.call_soon = plain  # type: ignore[method-assign]


class Throwing:
    """Throws into the coroutine of a task, where it waits, at the ``number``-th step of such tasks.

    Args:
        number: Which of the steps after the first of their tasks, counted over all of them.
        wanted: Says by its name whether a task counts.
        make: Makes what is thrown.
    """

    def __init__(
        self, number: int, wanted: Callable[[str], bool], make: Callable[[], BaseException]
    ) -> None:
        self.number = number
        self.count = 0
        self.hit: str | None = None
        self._wanted = wanted
        self._make = make

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Make tasks that count for as long as entered."""
        loop = asyncio.get_running_loop()
        loop.set_task_factory(self._task)  # type: ignore[arg-type]
        try:
            yield
        finally:
            loop.set_task_factory(None)

    def _task(self, loop: Any, coro: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(_Stepped(coro, self), loop=loop, **options)

    def due(self) -> BaseException | None:
        """Count a step, if it is of a task that counts; return what to throw instead of it."""
        task = asyncio.current_task()
        assert task is not None
        if not self._wanted(task.get_name()):
            return None
        self.count += 1
        if self.count != self.number:
            return None
        self.hit = task.get_name()
        return self._make()


class _Stepped(Coroutine[Any, Any, Any]):
    """A coroutine whose steps are counted."""

    def __init__(self, inner: Coroutine[Any, Any, Any], throwing: Throwing) -> None:
        self._inner = inner
        self._throwing = throwing
        self._started = False

    def send(self, value: Any) -> Any:
        if not self._started:
            self._started = True
        elif (error := self._throwing.due()) is not None:
            return self._inner.throw(error)
        return self._inner.send(value)

    def throw(self, error: Any, *rest: Any) -> Any:  # type: ignore[override]
        return self._inner.throw(error, *rest)

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, None, Any]:
        raise NotImplementedError


QUESTION = 'ctx.spawn("approval of'


def tasks_named(name: str, *, whole: bool = False) -> list[asyncio.Task[Any]]:
    """Return the tasks whose names are, or begin, so."""

    def fits(task: asyncio.Task[Any]) -> bool:
        return task.get_name() == name or (not whole and task.get_name().startswith(name))

    return [task for task in asyncio.all_tasks() if fits(task)]


def cancel_tasks(name: str, *, whole: bool = False) -> bool:
    """Cancel the tasks whose names are, or begin, so; say whether there were any."""
    return sum(task.cancel() for task in tasks_named(name, whole=whole)) > 0


async def within(seconds: float, work: Awaitable[Any]) -> Any:
    """Await, with a bound that is far off: a hang fails the test with its place."""
    async with asyncio.timeout(seconds):
        return await work
