"""Interrupts at every point where a turn can be interrupted: between any two resumptions."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from loop_harness import (
    Loop,
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
    until,
    user,
)

from dsh.base.signal import AbortController
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
    USER_CANCEL,
    AgentHandle,
    AgentOptions,
    AgentRegistry,
    CreateAgent,
)
from dsh.execution.prompt.events import SYSTEM_PROMPT_ASSEMBLE
from dsh.execution.tools.events import TOOLS_EXECUTE, TOOLS_POST_EXECUTE, TOOLS_PRE_EXECUTE, Ask
from dsh.execution.tools.service import ToolRunContext, ToolRuntime
from dsh.kernel import Context
from dsh.model.chunks import StreamChunk, block_end, finish, reasoning_delta, text_delta
from dsh.model.llm.service import GenerateOptions
from dsh.model.messages import SessionId
from dsh.state.session.service import SessionStore

Interrupt = Callable[[AgentHandle], None]


async def breathe(times: int = 1) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


async def first_reply(_: GenerateOptions) -> AsyncIterator[StreamChunk]:
    for chunk in (reasoning_delta(0, "think "), text_delta(1, "I will "), text_delta(1, "look")):
        yield chunk
        await breathe()
    for index, name in enumerate(("left", "right", "asked"), start=2):
        call = {"type": "tool-call", "id": f"{name}-call", "name": name, "arguments": "{}"}
        yield block_end(index, call)  # type: ignore[arg-type]
    await breathe()
    yield finish("tool-calls")


class World(Loop):
    """A loop whose every extension point takes its time.

    It has two tools that overlap, one that needs approval, and a model that fails once.
    """

    in_time: set[str]
    """Calls whose bodies returned before their signal was aborted."""

    async def play(self, handle: AgentHandle) -> None:
        self.in_time = set()
        self.model.replies = [fails(), first_reply, says("done"), says("more"), says("unused")]
        handle.agent.followup(user("go"))
        await handle.agent.when_idle()


async def mount_world(root: Context) -> World:
    world = World(root, (await mount(root, ScriptedModel())).model)
    await root.plugin(PolicyApproval)
    await root.plugin(timeout_policy)

    def finished(run: ToolRunContext) -> str:
        if not run.signal.aborted:
            world.in_time.add(run.call_id)
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

    add_tool(root, left, parallel=True, timeout_s=60)
    add_tool(root, right, parallel=True)
    add_tool(root, asked)

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
        if len(events_of(event.agent, "step/start")) == 2:
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
    return world


@contextmanager
def at_resumption(number: int, action: Callable[[], object]) -> Iterator[None]:
    """Run ``action`` right before the event loop's ``number``-th callback from now."""
    loop = asyncio.get_running_loop()
    plain = loop.call_soon
    count = [0]

    def counted(callback: Callable[..., object], *args: object) -> None:
        count[0] += 1
        if count[0] == number:
            contextvars.Context().run(action)
        callback(*args)

    def call_soon(callback: Any, *args: Any, context: Any = None) -> Any:
        return plain(counted, callback, *args, context=context)

    loop.call_soon = call_soon  # type: ignore[method-assign]
    try:
        yield
    finally:
        loop.call_soon = plain  # type: ignore[method-assign]


def cancel_agent(handle: AgentHandle) -> None:
    handle.agent.cancel(USER_CANCEL)


def cancel_driver(handle: AgentHandle) -> None:
    _cancel_tasks(f"agent:{handle.agent.id}")


def cancel_dispatches(handle: AgentHandle) -> None:
    _cancel_tasks("call ")


def cancel_bodies(handle: AgentHandle) -> None:
    _cancel_tasks("tool ")


def cancel_questions(handle: AgentHandle) -> None:
    _cancel_tasks("approval ")


def dispose(handle: AgentHandle) -> None:
    handle.end()  # type: ignore[attr-defined]


def _cancel_tasks(prefix: str) -> None:
    for task in asyncio.all_tasks():
        if task.get_name().startswith(prefix):
            task.cancel()


async def interrupted_turn(world: World, number: int, interrupt: Interrupt) -> bool:
    """Play one turn and interrupt it; say whether the turn was long enough for that."""
    before = asyncio.all_tasks()
    handle = await world.create(f"s{number}")
    agent = handle.agent
    turn_was_open: list[bool] = []

    def action() -> None:
        turn_was_open.append(not reasons(agent))
        interrupt(handle)

    with at_resumption(number, action):
        await world.play(handle)

    assert_balanced(agent.session)
    outcomes = {call: is_error for call, is_error, *_ in results(agent)}
    assert set(outcomes) in ({"left-call", "right-call", "asked-call"}, set())
    if interrupt in ENDING:
        kept = {call for call, is_error in outcomes.items() if not is_error}
        # Cancelling the task also ends the policies, and what they were judging is not shown.
        assert kept <= world.in_time if interrupt is cancel_driver else kept == world.in_time
        ended = "aborted" if turn_was_open == [True] else "completed"
        assert reasons(agent)[0]["kind"] == ended
    assert world.root.require(ToolRuntime).strays() == ()
    if interrupt is not dispose:
        world.model.replies = [says("again"), says("and again")]
        agent.followup(user("and now"))
        await agent.when_idle()
        assert reasons(agent)[-1] == {"kind": "completed"}
        assert_paired(world.model.requests[-1].messages)
        assert_balanced(agent.session)
    await handle.dispose()
    assert world.agents.get(agent.id) is None
    await until(lambda: asyncio.all_tasks() <= before)
    return bool(turn_was_open)


ENDING = (cancel_agent, cancel_driver, dispose)
PARTIAL = (cancel_dispatches, cancel_bodies, cancel_questions)


@pytest.mark.parametrize("interrupt", [*ENDING, *PARTIAL])
async def test_an_interrupt_between_any_two_resumptions_leaves_a_log_to_go_on_from(
    root: Context, interrupt: Interrupt
) -> None:
    world = await mount_world(root)
    number = 1
    while await interrupted_turn(world, number, interrupt):
        number += 1
    assert number > 50


async def interrupted_creation(world: World, number: int, how: str) -> bool:
    """Create an agent, interrupt that, and say whether it took long enough for it."""
    before, reached = asyncio.all_tasks(), []
    session_id, stop = SessionId(f"c{number}"), AbortController()
    held: list[Context] = []
    owner = world.root.inject([AgentRegistry], held.append)
    await owner

    async def setup(ctx: Context) -> None:
        await breathe()
        await ctx.plugin(lambda ctx: None)
        await breathe()

    request = CreateAgent(
        session_id=session_id,
        agent_options=AgentOptions(provider="scripted", model="m"),
        signal=stop.signal,
        setup=setup,
    )

    def action() -> None:
        reached.append(not creating.done())
        {"cancel": creating.cancel, "signal": stop.abort, "owner": owner.dispose}[how]()

    with at_resumption(number, action):
        creating = asyncio.create_task(held[0].require(AgentRegistry).create(request))
        await asyncio.wait([creating])
    failed = creating.cancelled() or creating.exception() is not None
    if failed:
        await until(lambda: world.agents.get(session_id) is None)
    else:
        world.model.replies = [says("hello"), says("more")]
        creating.result().agent.followup(user("go"))
        await creating.result().agent.when_idle()
    await owner.dispose()
    assert world.agents.get(session_id) is None
    assert world.root.require(SessionStore).get(session_id) is None
    await until(lambda: asyncio.all_tasks() <= before)
    return bool(reached)


@pytest.mark.parametrize("how", ["cancel", "signal", "owner"])
async def test_an_interrupt_between_any_two_resumptions_of_a_creation_leaves_nothing(
    root: Context, how: str
) -> None:
    world = await mount_world(root)
    number = 1
    while await interrupted_creation(world, number, how):
        number += 1
    assert number > 5
