from __future__ import annotations

import asyncio
from typing import Any

import pytest
from loop_harness import (
    Loop,
    add_tool,
    assert_paired,
    calls,
    events_of,
    mount,
    reasons,
    results,
    ticks,
    types,
    until,
    user,
)

from dsh.execution.agent.service import USER_CANCEL
from dsh.execution.loop.plugin import Config
from dsh.execution.loop.service import AgentLoop
from dsh.execution.tools.events import (
    TOOLS_EXECUTE,
    TOOLS_POST_EXECUTE,
    TOOLS_PRE_EXECUTE,
    TOOLS_RESULT,
    Deny,
)
from dsh.execution.tools.service import ToolExecution, ToolRunContext, ToolRuntime
from dsh.kernel import Context, ValidationError
from dsh.model.messages import text_of


class Bench:
    """Tools that wait to be let go, and a record of what happened."""

    def __init__(self, loop: Loop) -> None:
        self.log: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.started: dict[str, asyncio.Event] = {}
        self.running = self.most = 0

        async def work(key: str) -> str:
            self.log.append(f"start {key}")
            self.running += 1
            self.most = max(self.most, self.running)
            self.mark(key).set()
            try:
                await self.gate(key).wait()
            finally:
                self.running -= 1
                self.log.append(f"end {key}")
            return key

        add_tool(loop.root, work, name="par", parallel=True)
        add_tool(loop.root, work, name="exc")

    def gate(self, key: str) -> asyncio.Event:
        return self.gates.setdefault(key, asyncio.Event())

    def mark(self, key: str) -> asyncio.Event:
        return self.started.setdefault(key, asyncio.Event())

    def open(self, *keys: str) -> None:
        for key in keys:
            self.gate(key).set()


def plan(*names: str) -> Any:
    """Calls ``a``, ``b``, ... of the named tools."""
    return calls(
        *((k, name, f'{{"key": "{k}"}}') for k, name in zip("abcdefgh", names, strict=False))
    )


async def test_parallel_siblings_start_together_and_commit_in_the_order_of_the_model(
    loop: Loop,
) -> None:
    agent = await loop.agent()
    bench = Bench(loop)
    loop.model.will(plan("par", "par", "par"), "end")
    agent.followup(user("go"))
    for key in "abc":
        await bench.mark(key).wait()
    assert bench.most == 3

    settled: list[str] = []
    loop.root.on(TOOLS_RESULT, lambda event: settled.append(event.execution.call_id))
    for key in "cba":
        bench.open(key)
        await until(lambda key=key: f"end {key}" in bench.log)  # type: ignore[misc]
    await agent.when_idle()

    assert [call for call, *_ in results(agent)] == ["a", "b", "c"]
    assert settled == ["a", "b", "c"]
    assert [data["callId"] for data in events_of(agent, "tool/call")] == ["a", "b", "c"]


async def test_an_exclusive_call_is_a_barrier_between_groups(loop: Loop) -> None:
    agent = await loop.agent()
    bench = Bench(loop)
    loop.model.will(plan("par", "exc", "par"), "end")
    agent.followup(user("go"))
    await bench.mark("a").wait()
    await ticks(10)
    assert bench.log == ["start a"]
    bench.open("a")
    await bench.mark("b").wait()
    assert bench.log == ["start a", "end a", "start b"]
    bench.open("b", "c")
    await agent.when_idle()
    assert bench.log[-2:] == ["start c", "end c"]
    assert bench.most == 1


async def test_the_pool_never_exceeds_its_cap_and_refills(root: Context, model: Any) -> None:
    loop = await mount(root, model, maxParallelToolCalls=2)
    agent = await loop.agent()
    bench = Bench(loop)
    loop.model.will(plan("par", "par", "par", "par"), "end")
    agent.followup(user("go"))
    await bench.mark("a").wait()
    await bench.mark("b").wait()
    await ticks(10)
    assert bench.running == 2
    bench.open("b")
    await bench.mark("c").wait()
    bench.open("a", "c", "d")
    await agent.when_idle()
    assert bench.most == 2
    assert [call for call, *_ in results(agent)] == ["a", "b", "c", "d"]


async def test_a_cap_of_one_is_serial(root: Context, model: Any) -> None:
    loop = await mount(root, model, maxParallelToolCalls=1)
    agent = await loop.agent()
    bench = Bench(loop)
    bench.open("a", "b", "c")
    loop.model.will(plan("par", "par", "par"), "end")
    agent.followup(user("go"))
    await agent.when_idle()
    assert bench.most == 1
    assert types(agent).count("tool/result") == 3


@pytest.mark.parametrize("cap", [0, -1, 1.5, "x"])
async def test_an_unusable_cap_fails_at_load(root: Context, model: Any, cap: Any) -> None:
    with pytest.raises(ValidationError):
        await mount(root, model, maxParallelToolCalls=cap)


async def test_the_cap_defaults_and_its_live_value_is_checked(loop: Loop) -> None:
    service: Any = loop.root.require(AgentLoop)
    assert Config().max_parallel_tool_calls == 10
    assert service.max_parallel_tool_calls == 10
    with pytest.raises(ValueError, match="positive integer"):
        service.max_parallel_tool_calls = 0


async def test_policies_see_the_order_of_the_model_and_denied_calls_keep_their_place(
    loop: Loop,
) -> None:
    agent = await loop.agent()
    bench = Bench(loop)
    seen: list[str] = []

    async def before(call: Any, next: Any) -> Any:
        seen.append(f"pre {call.call_id}")
        return Deny("not this one") if call.call_id == "b" else await next()

    async def after(post: Any, next: Any) -> Any:
        seen.append(f"post {post.execution.call_id}")
        return await next()

    loop.root.on(TOOLS_PRE_EXECUTE, before)
    loop.root.on(TOOLS_POST_EXECUTE, after)
    loop.model.will(plan("par", "par", "par"), "end")
    agent.followup(user("go"))
    await bench.mark("c").wait()
    bench.open("c")
    bench.open("a")
    await agent.when_idle()

    assert seen == ["pre a", "pre b", "pre c", "post a", "post b", "post c"]
    assert [(call, is_error) for call, is_error, *_ in results(agent)] == [
        ("a", False),
        ("b", True),
        ("c", False),
    ]
    assert "start b" not in bench.log


async def test_a_result_that_changes_the_registry_reclassifies_what_has_not_started(
    root: Context, model: Any
) -> None:
    loop = await mount(root, model, maxParallelToolCalls=1)
    agent = await loop.agent()
    bench = Bench(loop)
    order: list[str] = []
    tool = loop.root.require(ToolRuntime).get("par")
    assert tool is not None
    kinds = {"b": True, "c": True}

    async def note(key: str) -> str:
        order.append(key)
        return key

    add_tool(loop.root, note, name="flip", parallel=lambda args: kinds.get(args.key, True))

    def on_result(event: Any) -> None:
        kinds["b"] = False

    loop.root.on(TOOLS_RESULT, on_result)
    loop.model.will(plan("flip", "flip", "flip"), "end")
    agent.followup(user("go"))
    await agent.when_idle()
    del bench
    assert order == ["a", "b", "c"]


async def test_an_abort_before_a_group_starts_none_of_it(loop: Loop) -> None:
    agent = await loop.agent()
    bench = Bench(loop)
    bench.open("a")

    def on_result(event: Any) -> None:
        if event.execution.call_id == "a":
            agent.cancel(USER_CANCEL)

    loop.root.on(TOOLS_RESULT, on_result)
    loop.model.will(plan("exc", "par", "par", "exc"))
    agent.followup(user("go"))
    await agent.when_idle()

    assert bench.log == ["start a", "end a"]
    assert [(call, code) for call, _, _, code in results(agent)] == [
        ("a", None),
        ("b", "ABORTED_BEFORE_DISPATCH"),
        ("c", "ABORTED_BEFORE_DISPATCH"),
        ("d", "ABORTED_BEFORE_DISPATCH"),
    ]


async def test_an_abort_during_a_pre_execute_stops_the_siblings(loop: Loop) -> None:
    agent = await loop.agent()
    bench = Bench(loop)
    seen: list[str] = []

    async def before(call: Any, next: Any) -> Any:
        seen.append(call.call_id)
        if call.call_id == "b":
            await bench.mark("a").wait()
            agent.cancel(USER_CANCEL)
        return await next()

    loop.root.on(TOOLS_PRE_EXECUTE, before)
    loop.model.will(plan("par", "par", "par", "exc"))
    agent.followup(user("go"))
    await agent.when_idle()

    assert seen == ["a", "b"]
    assert "start b" not in bench.log
    assert [code for *_, code in results(agent)] == ["ABORTED", *["ABORTED_BEFORE_DISPATCH"] * 3]
    assert bench.running == 0


async def test_an_abort_drains_started_bodies_and_keeps_finished_results(loop: Loop) -> None:
    agent = await loop.agent()
    bench = Bench(loop)
    bench.open("b")
    loop.model.will(plan("par", "par", "par"))
    agent.followup(user("go"))
    for key in "abc":
        await bench.mark(key).wait()
    await until(lambda: "end b" in bench.log)
    await ticks(5)
    agent.cancel(USER_CANCEL)
    await agent.when_idle()

    assert bench.running == 0
    assert [call for call, *_ in results(agent)] == ["a", "b", "c"]
    assert [code for *_, code in results(agent)] == ["ABORTED", None, "ABORTED"]


async def test_finished_running_and_unstarted_siblings_each_keep_their_own_outcome(
    loop: Loop,
) -> None:
    loop.root.require(AgentLoop).max_parallel_tool_calls = 2
    agent = await loop.agent()

    async def second() -> str:
        await asyncio.Event().wait()
        return "never"

    async def third() -> str:
        raise AssertionError("it must not start")

    async def quick() -> str:
        return "quick"

    for body in (second, third, quick):
        add_tool(loop.root, body, parallel=True)
    loop.model.will(calls(("a", "second", "{}"), ("b", "quick", "{}"), ("c", "third", "{}")))
    held: list[str] = []

    async def judge(event: Any, next: Any) -> Any:
        held.append(event.execution.call_id)
        return await next()

    async def stop_before_third(call: Any, next: Any) -> Any:
        if call.name == "third":
            agent.cancel(USER_CANCEL)
        return await next()

    loop.root.on(TOOLS_POST_EXECUTE, judge)
    loop.root.on(TOOLS_PRE_EXECUTE, stop_before_third)
    agent.followup(user("go"))
    await agent.when_idle()

    assert [(call, text, code) for call, _, text, code in results(agent)] == [
        ("a", "Error: tool call aborted", "ABORTED"),
        ("b", "quick", None),
        ("c", "Error: tool call aborted before dispatch", "ABORTED_BEFORE_DISPATCH"),
    ]
    assert held[:2] == ["a", "b"]
    assert reasons(agent) == [{"kind": "aborted", "reason": {"kind": "user"}}]


async def test_three_siblings_one_raises_one_is_cancelled_one_swallows_the_cancellation(
    loop: Loop,
) -> None:
    agent = await loop.agent()
    started = asyncio.Event()
    finished = asyncio.Event()

    async def raises() -> str:
        raise RuntimeError("broken")

    async def waits() -> str:
        await asyncio.Event().wait()
        return "never"

    async def swallows() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            finished.set()
        return "ignored it"

    for body in (raises, waits, swallows):
        add_tool(loop.root, body, parallel=True)
    loop.model.will(calls(("a", "raises", "{}"), ("b", "waits", "{}"), ("c", "swallows", "{}")))
    agent.followup(user("go"))
    await started.wait()
    await ticks(10)
    agent.cancel(USER_CANCEL)
    await agent.when_idle()

    assert finished.is_set()
    assert [(call, code) for call, _, _, code in results(agent)] == [
        ("a", None),
        ("b", "ABORTED"),
        ("c", "ABORTED"),
    ]
    assert results(agent)[0][2] == "Error: broken"
    assert reasons(agent) == [{"kind": "aborted", "reason": {"kind": "user"}}]

    loop.model.will("on")
    agent.followup(user("again"))
    await agent.when_idle()
    assert_paired(loop.model.requests[-1].messages)


async def test_a_failing_sibling_costs_the_others_nothing(loop: Loop) -> None:
    agent = await loop.agent()

    async def raises() -> str:
        raise RuntimeError("broken")

    async def cancels_itself() -> str:
        raise asyncio.CancelledError

    async def works() -> str:
        await asyncio.sleep(0)
        return "fine"

    for body in (raises, cancels_itself, works):
        add_tool(loop.root, body, parallel=True)
    loop.model.will(
        calls(("a", "raises", "{}"), ("b", "cancels_itself", "{}"), ("c", "works", "{}")), "end"
    )
    agent.followup(user("go"))
    await agent.when_idle()

    assert [is_error for _, is_error, _, _ in results(agent)] == [True, True, False]
    assert reasons(agent) == [{"kind": "completed"}]


async def test_deferred_contexts_join_the_next_step_in_the_order_of_the_model(loop: Loop) -> None:
    agent = await loop.agent()

    async def tell(run: ToolRunContext, key: str) -> str:
        run.defer_context(user(f"context {key}"))
        return key

    add_tool(loop.root, tell, parallel=True)
    loop.model.will(calls(("a", "tell", '{"key": "a"}'), ("b", "tell", '{"key": "b"}')), "end")
    agent.followup(user("go"))
    await agent.when_idle()

    said = [text_of(data) for data in events_of(agent, "user/message")]
    assert said == ["go", "context a", "context b"]


async def test_contexts_of_a_cancelled_step_stay_parked(loop: Loop) -> None:
    agent = await loop.agent()

    async def tell(run: ToolRunContext) -> str:
        run.defer_context(user("context"))
        agent.cancel(USER_CANCEL)
        await asyncio.Event().wait()
        return "never"

    add_tool(loop.root, tell)
    loop.model.will(calls(("a", "tell", "{}")), "end")
    agent.followup(user("go"))
    await agent.when_idle()
    assert [text_of(message) for message in agent.inbox.next_step] == ["context"]

    agent.followup(user("again"))
    await agent.when_idle()
    assert [text_of(data) for data in events_of(agent, "user/message")] == [
        "go",
        "context",
        "again",
    ]


async def test_a_context_given_twice_is_told_once(loop: Loop) -> None:
    agent = await loop.agent()
    message = user("context")

    async def tell(run: ToolRunContext) -> str:
        run.defer_context(message)
        return "x"

    add_tool(loop.root, tell, parallel=True)
    loop.model.will(calls(("a", "tell", "{}"), ("b", "tell", "{}")), "end")
    agent.followup(user("go"))
    await agent.when_idle()
    assert reasons(agent) == [{"kind": "completed"}]
    assert len(events_of(agent, "user/message")) == 2


async def test_what_ends_the_process_in_a_policy_still_answers_every_call(loop: Loop) -> None:
    class Exit(BaseException):
        pass

    agent = await loop.agent()
    bench = Bench(loop)

    def end(call: ToolExecution) -> None:
        if call.call_id == "b":
            raise Exit

    loop.root.require(ToolRuntime).guard(end)
    loop.model.will(plan("par", "par", "exc"))
    agent.followup(user("go"))
    with pytest.raises(Exit):
        await agent._activity  # type: ignore[attr-defined]  # how its task ended is the point
    await until(lambda: bench.running == 0)
    assert [code for *_, code in results(agent)] == [
        "TOOL_OUTCOME_UNKNOWN",
        "TOOL_NOT_STARTED",
        "TOOL_NOT_STARTED",
    ]
    assert reasons(agent)[0]["kind"] == "aborted"


async def test_facts_for_user_interfaces_are_logged_beside_the_result(loop: Loop) -> None:
    agent = await loop.agent()

    async def look(key: str) -> str:
        return "seen"

    add_tool(loop.root, look, presentation_meta=lambda args, value: {"key": args.key})
    loop.model.will(calls(("a", "look", '{"key": "k"}'), ("b", "look", "{")), "end")
    agent.followup(user("go"))
    await agent.when_idle()
    first, second = events_of(agent, "tool/result")
    assert first["meta"] == {"key": "k"}
    assert "meta" not in second


async def test_a_result_names_its_call_and_keeps_its_error_code(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.will(calls(("a", "nothing", "{}")), "end")
    agent.followup(user("go"))
    await agent.when_idle()

    event = next(e for e in agent.session.events if e["type"] == "tool/result")
    call = next(e for e in agent.session.events if e["type"] == "tool/call")
    assert event["sourceEventSeqs"] == [call["seq"]]
    assert event["data"]["error"]["code"] == "UNKNOWN_TOOL"  # type: ignore[index]
    assert call["data"] == {
        "turn": 1,
        "step": 1,
        "callId": "a",
        "name": "nothing",
        "arguments": "{}",
    }


@pytest.mark.parametrize("raw", ["[" * 20_000, '{"a":' * 20_000 + "1" + "}" * 20_000])
async def test_deeply_nested_arguments_cost_one_failed_call(loop: Loop, raw: str) -> None:
    agent = await loop.agent()

    async def act(key: str) -> str:
        return key

    add_tool(loop.root, act)
    loop.model.will(calls(("a", "act", raw), ("b", "act", '{"key": "b"}')), "end")
    agent.followup(user("go"))
    await agent.when_idle()

    assert [is_error for _, is_error, *_ in results(agent)] == [True, False]
    assert reasons(agent) == [{"kind": "completed"}]


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ("{", "cut off at line 1, column 2"),
        ('{"key": "a', "the string that starts at line 1, column 9 never ends"),
        ('{"key": a}', "not valid JSON at line 1, column 9"),
        ('```json\n{"key": "a"}\n```', "Markdown code fence"),
        ("[1]", "a JSON array, not an object"),
        ('"x"', "a JSON string, not an object"),
        ("null", "a JSON null, not an object"),
        ("garbage" * 150_000, "not valid JSON at line 1, column 1"),
        ('{"key": "' + "a" * 1_000_000 + '", "other": 1}', 'unknown parameter "other"'),
        ('{"other": 1}', 'missing required parameter "key"'),
        ('{"key": "a", "kay": "b"}', 'unknown parameter "kay"'),
        ('{"key": 7}', '"key": expected string, got integer 7'),
    ],
)
async def test_malformed_arguments_are_never_dispatched_and_siblings_run(
    loop: Loop, raw: str, told: str
) -> None:
    agent = await loop.agent()
    ran: list[str] = []

    async def act(key: str) -> str:
        ran.append(key)
        return key

    loop.root.on(TOOLS_EXECUTE, lambda event, go: (ran.append(event.execution.call_id), go())[1])
    add_tool(loop.root, act, parallel=True)
    loop.model.will(calls(("a", "act", raw), ("b", "act", '{"key": "key"}')), "end")
    agent.followup(user("go"))
    await agent.when_idle()

    assert ran == ["b", "key"]
    (_, is_error, text, code), sibling = results(agent)
    assert (is_error, code) == (True, "INVALID_ARGS")
    assert text.startswith("Error: tool 'act' was not run: its arguments are invalid")
    assert told in text
    assert "key" in text
    assert len(text) < 700
    assert sibling == ("b", False, "key", None)
    assert reasons(agent) == [{"kind": "completed"}]
