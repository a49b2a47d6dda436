"""What listeners, providers and tools do wrong costs them, never the loop."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest
from loop_harness import (
    Loop,
    Reply,
    ScriptedModel,
    add_tool,
    assert_balanced,
    assert_paired,
    calls,
    events_of,
    fails,
    mount,
    reasons,
    results,
    says,
    user,
)

from dsh.base.errors import DshError
from dsh.base.signal import AbortController, AbortSignal
from dsh.control.timeouts import policy as timeout_policy
from dsh.execution.agent.events import (
    AGENT_CREATED,
    AGENT_PRE_STEP,
    AGENT_REQUEST,
    AGENT_REQUEST_ERROR,
    AGENT_TURN_STOPPING,
)
from dsh.execution.agent.frames import FRAME
from dsh.execution.agent.service import USER_CANCEL, Agent
from dsh.execution.loop.patience import Overdue, Patience
from dsh.execution.loop.service import CreationAborted
from dsh.execution.prompt.events import SYSTEM_PROMPT_ASSEMBLE
from dsh.execution.tools.author import define_tool
from dsh.execution.tools.events import (
    TOOLS_EXECUTE,
    TOOLS_POST_EXECUTE,
    TOOLS_PRE_EXECUTE,
    TOOLS_RESULT,
)
from dsh.execution.tools.service import ToolRuntime
from dsh.kernel import Context, Effect
from dsh.model.chunks import StreamChunk, block_end, finish, text_delta
from dsh.model.llm.events import LLM_STREAM
from dsh.model.llm.service import GenerateOptions

SEAMS = [
    SYSTEM_PROMPT_ASSEMBLE,
    AGENT_PRE_STEP,
    AGENT_REQUEST,
    AGENT_REQUEST_ERROR,
    AGENT_TURN_STOPPING,
    LLM_STREAM,
    TOOLS_PRE_EXECUTE,
    TOOLS_EXECUTE,
    TOOLS_POST_EXECUTE,
]
ABORTED_BY_USER = {"kind": "aborted", "reason": {"kind": "user"}}


@pytest.fixture
async def loop(root: Context, model: ScriptedModel) -> Loop:
    loop = await mount(root, model, graceMs=20)

    async def act() -> str:
        return "done"

    add_tool(root, act)
    return loop


def script(loop: Loop, event: Any) -> None:
    failure = [fails()] if event is AGENT_REQUEST_ERROR else []
    loop.model.will(*failure, calls(("c", "act", "{}")), "end")


async def goes_on(loop: Loop, agent: Agent) -> None:
    loop.model.replies = [says("again")]
    agent.followup(user("next"))
    await agent.when_idle()
    assert reasons(agent)[-1] == {"kind": "completed"}
    assert_balanced(agent.session)
    assert_paired(loop.model.requests[-1].messages)


@pytest.mark.parametrize("event", SEAMS, ids=lambda event: event.name)
async def test_a_listener_that_ignores_the_abort_is_cancelled_after_the_grace_period(
    loop: Loop, event: Any
) -> None:
    agent = await loop.agent()
    entered, ended = asyncio.Event(), asyncio.Event()

    async def hang(*_: Any) -> Any:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    stop: Effect = loop.root.on(event, hang)
    script(loop, event)
    agent.followup(user("go"))
    await entered.wait()
    agent.cancel(USER_CANCEL)
    await agent.when_idle()
    await stop.dispose()

    assert ended.is_set()
    assert reasons(agent) == [ABORTED_BY_USER]
    await goes_on(loop, agent)


@pytest.mark.parametrize("error", [ValueError("mine"), asyncio.CancelledError()], ids=repr)
@pytest.mark.parametrize("event", SEAMS, ids=lambda event: event.name)
async def test_a_listener_that_raises_fails_its_turn_or_call_and_nothing_else(
    loop: Loop, event: Any, error: BaseException
) -> None:
    agent = await loop.agent()

    async def fail(*_: Any) -> Any:
        raise error

    stop: Effect = loop.root.on(event, fail)
    script(loop, event)
    agent.followup(user("go"))
    await agent.when_idle()
    await stop.dispose()

    of_a_call = event.name.startswith("tools/")
    assert [reason["kind"] for reason in reasons(agent)] == ["completed" if of_a_call else "error"]
    assert all(is_error for _, is_error, *_ in results(agent) if of_a_call)
    await goes_on(loop, agent)


async def test_an_observer_of_results_that_cancels_itself_changes_nothing(loop: Loop) -> None:
    agent = await loop.agent()
    seen: list[str] = []

    def cancel(_: Any) -> None:
        raise asyncio.CancelledError

    loop.root.set_reporter(lambda *_: None)
    loop.root.on(TOOLS_RESULT, lambda event: seen.append(event.execution.call_id))
    loop.root.on(TOOLS_RESULT, cancel)
    script(loop, TOOLS_RESULT)
    agent.followup(user("go"))
    await agent.when_idle()
    assert seen == ["c"]
    assert reasons(agent) == [{"kind": "completed"}]


async def test_a_participant_that_cancels_a_creation_does_not_pass_for_a_cancelled_creator(
    loop: Loop,
) -> None:
    def cancel(_: Any) -> None:
        raise asyncio.CancelledError

    with pytest.raises(CreationAborted):
        await loop.create("s1", setup=cancel)
    stop = loop.root.on(AGENT_CREATED, cancel)
    with pytest.raises(DshError):
        await loop.create("s1")
    await stop.dispose()
    await loop.create("s1")


@pytest.mark.parametrize(
    ("event", "change"),
    [
        (AGENT_PRE_STEP, lambda event: event.messages[0]["content"].append("x")),
        (TOOLS_PRE_EXECUTE, lambda event: event.arguments.update(key="x")),
        (TOOLS_PRE_EXECUTE, lambda event: setattr(event, "name", "x")),
        (TOOLS_EXECUTE, lambda event: setattr(event, "execution", None)),
        (TOOLS_POST_EXECUTE, lambda event: event.result.content.append("x")),
        (SYSTEM_PROMPT_ASSEMBLE, lambda event: event.assembly.tools[0].update(name="x")),
    ],
)
async def test_what_listeners_get_is_frozen_where_it_is_shared(
    loop: Loop, event: Any, change: Any
) -> None:
    agent = await loop.agent()
    refused: list[type[BaseException]] = []

    def mutate(payload: Any, next: Any) -> Any:
        try:
            change(payload)
        except (TypeError, AttributeError, IndexError) as error:
            refused.append(type(error))
        return next()

    loop.root.on(event, mutate)
    script(loop, event)
    agent.followup(user("go"))
    await agent.when_idle()
    assert refused[0] in (TypeError, AttributeError)
    assert reasons(agent) == [{"kind": "completed"}]


async def nothing(_: GenerateOptions) -> AsyncIterator[StreamChunk]:
    return
    yield


async def breaks(_: GenerateOptions) -> AsyncIterator[StreamChunk]:
    yield text_delta(0, "half")
    raise RuntimeError("broken")


async def babbles(_: GenerateOptions) -> AsyncIterator[StreamChunk]:
    yield {"type": "babble"}  # type: ignore[misc, typeddict-item]
    yield finish("stop")


async def no_chunk(_: GenerateOptions) -> AsyncIterator[StreamChunk]:
    yield "text"  # type: ignore[misc]


async def nameless(_: GenerateOptions) -> AsyncIterator[StreamChunk]:
    yield block_end(0, {"type": "tool-call", "id": "", "name": "act", "arguments": "{}"})
    yield finish("tool-calls")


@pytest.mark.parametrize("reply", [nothing, breaks, babbles, no_chunk, nameless])
async def test_a_provider_that_breaks_the_stream_costs_its_turn(loop: Loop, reply: Reply) -> None:
    agent = await loop.agent()
    loop.model.will(reply)
    agent.followup(user("go"))
    await agent.when_idle()
    assert [reason["kind"] for reason in reasons(agent)] == ["error"]
    await goes_on(loop, agent)


async def test_a_provider_that_ignores_the_abort_is_cancelled_and_its_words_are_kept(
    loop: Loop,
) -> None:
    agent = await loop.agent()
    waiting, ended = asyncio.Event(), asyncio.Event()

    async def stubborn(_: GenerateOptions) -> AsyncIterator[StreamChunk]:
        yield text_delta(0, "so far")
        waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    loop.model.will(stubborn)
    agent.followup(user("go"))
    await waiting.wait()
    agent.cancel(USER_CANCEL)
    await agent.when_idle()

    assert ended.is_set()
    [message] = events_of(agent, "assistant/message")
    assert message["interrupted"] is True
    assert message["message"]["content"][0]["text"] == "so far"
    await goes_on(loop, agent)


async def test_a_maintenance_job_that_ignores_the_abort_is_cancelled(loop: Loop) -> None:
    agent = await loop.agent()
    started = asyncio.Event()

    async def job(_: AbortSignal) -> None:
        started.set()
        await asyncio.Event().wait()

    done = agent.run_maintenance(job)
    await started.wait()
    agent.cancel(USER_CANCEL)
    with pytest.raises(Overdue):
        await done
    await goes_on(loop, agent)


async def test_patience_leaves_cancellations_of_others_alone() -> None:
    controller = AbortController()
    entered = asyncio.Event()

    async def work() -> None:
        with Patience(controller.signal, 0):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await entered.wait()
    controller.abort("enough")
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_patience_leaves_no_cancellation_behind() -> None:
    controller = AbortController()
    controller.abort("enough")
    with pytest.raises(Overdue) as caught, Patience(controller.signal, 0):
        await asyncio.Event().wait()
    assert caught.value.reason == "enough"
    with Patience(controller.signal, 0):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_calls_that_share_an_id_each_get_their_own_result(loop: Loop) -> None:
    agent = await loop.agent()

    async def echo(word: str) -> str:
        return word

    add_tool(loop.root, echo, parallel=True)
    loop.model.will(calls(("x", "echo", '{"word": "1"}'), ("x", "echo", '{"word": "2"}')), "end")
    agent.followup(user("go"))
    await agent.when_idle()
    assert [(call, text) for call, _, text, _ in results(agent)] == [("x", "1"), ("x-2", "2")]
    assert_paired(loop.model.requests[-1].messages)


async def test_a_name_that_no_tool_has_is_told_with_a_bounded_echo(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.will(calls(("a", "acts", "{}"), ("b", "no" * 50_000, "{}")), "end")
    agent.followup(user("go"))
    await agent.when_idle()
    (_, _, near, _), (_, _, far, _) = results(agent)
    assert "did you mean 'act'" in near
    assert len(far) < 300
    assert {code for *_, code in results(agent)} == {"UNKNOWN_TOOL"}


async def test_tools_may_come_and_go_while_a_tool_runs(loop: Loop) -> None:
    agent = await loop.agent()
    tools = loop.root.require(ToolRuntime)
    made: dict[str, Effect] = {}

    async def guest() -> str:
        return "guest"

    async def invite() -> str:
        made["guest"] = tools.register(define_tool(guest, description="a guest"))
        return "came"

    async def leave() -> str:
        await made["guest"].dispose()
        await made["leave"].dispose()
        return "gone"

    add_tool(loop.root, invite)
    made["leave"] = tools.register(define_tool(leave, description="takes itself away, too"))
    order = ("invite", "guest", "leave", "guest", "leave")
    loop.model.will(calls(*((str(n), name, "{}") for n, name in enumerate(order))), "end")
    agent.followup(user("go"))
    await agent.when_idle()
    assert [code for *_, code in results(agent)] == [None] * 3 + ["UNKNOWN_TOOL", "TOOL_UNLOADED"]
    assert reasons(agent) == [{"kind": "completed"}]


async def test_blocking_tools_leave_the_loop_its_pulse_and_time_out_in_bounds(
    root: Context, model: ScriptedModel
) -> None:
    loop = await mount(root, model, tools={"graceMs": 50})
    await root.plugin(timeout_policy)
    agent = await loop.agent()

    def sleeps() -> str:
        time.sleep(0.1)
        return "slept"

    def burns() -> str:
        end = time.monotonic() + 0.1
        while time.monotonic() < end:
            pass
        return "burnt"

    async def swallows() -> str:
        released = asyncio.Event()
        asyncio.get_running_loop().call_later(0.5, released.set)
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    for body in (sleeps, burns):
        add_tool(root, body, parallel=True)
    add_tool(root, swallows, timeout_s=0.05)
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0.01)
            beats += 1

    pulse = asyncio.create_task(beat())
    loop.model.will(
        calls(("a", "sleeps", "{}"), ("b", "burns", "{}"), ("c", "swallows", "{}")), "end"
    )
    agent.followup(user("go"))
    await agent.when_idle()
    pulse.cancel()
    assert [code for *_, code in results(agent)] == [None, None, "TOOL_TIMEOUT"]
    assert reasons(agent) == [{"kind": "completed"}]
    assert beats > 10
    assert [stray.tool for stray in root.require(ToolRuntime).strays()] == ["swallows"]


async def test_agents_that_wake_each_other_keep_short_chains_and_let_go_of_the_dead(
    loop: Loop,
) -> None:
    first: Any = await loop.create("first")
    second: Any = await loop.create("second")
    left, longest = 300, 0

    async def pass_on(options: GenerateOptions) -> AsyncIterator[StreamChunk]:
        nonlocal left, longest
        length, frame = 0, FRAME.get()
        while frame is not None:
            length, frame = length + 1, frame.parent
        longest = max(longest, length)
        left -= 1
        if left > 0:
            other = second if options.session_id == "first" else first
            other.agent.followup(user("your turn"))
        yield finish("stop")

    loop.model.otherwise = pass_on
    first.agent.followup(user("go"))
    while left > 0:
        await first.agent.when_idle()
        await second.agent.when_idle()
    await first.agent.when_idle()
    await second.agent.when_idle()
    assert longest <= 4

    gone = weakref.ref(second.agent)
    await second.dispose()
    second = loop.model.otherwise = None
    loop.model.requests.clear()
    del pass_on
    await asyncio.sleep(0)
    gc.collect()
    assert gone() is None
    await goes_on(loop, first.agent)
