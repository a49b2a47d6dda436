"""Calls of a program: ordered starts, overlapping bodies, results in the order of the calls."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from code_desk import Desk, Stage, gather, mount_desk
from tool_harness import make_tool, text

from dsh.base.signal import AbortController, AbortedError, AbortSignal
from dsh.capability.code_runtime.service import CodeResult, CodeRun, CodeRuntime
from dsh.control.approval.service import ApprovalOutcome, ApprovalRequest, ApprovalService
from dsh.execution.tools.code.events import TOOLS_CODE_DISPATCH_LOG, CodeDispatchLogging
from dsh.execution.tools.code.journal import Journal, loggable
from dsh.execution.tools.events import (
    TOOLS_POST_EXECUTE,
    TOOLS_PRE_EXECUTE,
    Accept,
    Ask,
    Block,
    Deny,
    ToolPostExecute,
)
from dsh.execution.tools.service import (
    ToolExecution,
    ToolFailure,
    ToolInput,
    ToolRuntime,
    ToolSuccess,
)
from dsh.kernel import Context
from dsh.model.messages import create_user_message


def parallel(_: Any) -> bool:
    return True


async def test_parallel_calls_overlap_and_are_answered_in_order(desk: Desk) -> None:
    stage = Stage()
    for name in "abc":
        desk.add(name, stage.body(name), is_concurrency_safe=parallel)
    running = asyncio.create_task(desk.value(gather("a", "b", "c")))
    await stage.until("a starts", "b starts", "c starts")

    for name in "cba":
        stage.gates[name].set()

    assert await running == ["a", "b", "c"]
    assert desk.records() == ["+a", "+b", "+c", "-a", "-b", "-c"]


async def test_an_exclusive_call_runs_alone(desk: Desk) -> None:
    stage = Stage()
    for name, safe in (("a", True), ("x", False), ("b", True)):
        desk.add(name, stage.body(name), is_concurrency_safe=lambda _, safe=safe: safe)
        stage.gates[name].set()
    assert await desk.value(gather("a", "x", "b")) == ["a", "x", "b"]
    assert stage.seen == ["a starts", "a ends", "x starts", "x ends", "b starts", "b ends"]
    assert sorted(desk.records()) == ["+a", "+b", "+x", "-a", "-b", "-x"]


async def test_an_exclusive_call_holds_its_barrier_through_post_execute(desk: Desk) -> None:
    stage = Stage()
    desk.add("x", stage.body("x"))
    desk.add("b", stage.body("b"), is_concurrency_safe=parallel)
    stage.gates["x"].set()
    stage.gates["b"].set()
    go = asyncio.Event()

    async def judge(event: ToolPostExecute, proceed: Any) -> Any:
        if event.execution.name == "x":
            stage.note("judging")
            await go.wait()
            stage.note("judged")
        return await proceed()

    desk.ctx.on(TOOLS_POST_EXECUTE, judge)
    running = asyncio.create_task(desk.value(gather("x", "b")))
    await stage.until("judging")
    assert "b starts" not in stage.seen
    go.set()
    await running
    assert stage.seen.index("judged") < stage.seen.index("b starts")


async def test_a_slow_pre_execute_delays_the_next_start(desk: Desk) -> None:
    stage = Stage()
    for name in "ab":
        desk.add(name, stage.body(name), is_concurrency_safe=parallel)
        stage.gates[name].set()
    go = asyncio.Event()

    async def decide(execution: ToolExecution, proceed: Any) -> Any:
        stage.note(f"asking for {execution.name}")
        if execution.name == "a":
            await go.wait()
        return await proceed()

    desk.ctx.on(TOOLS_PRE_EXECUTE, decide)
    running = asyncio.create_task(desk.value(gather("a", "b")))
    await stage.until("asking for a")
    assert desk.records() == ["+a"]
    go.set()
    await running
    assert stage.seen.index("asking for a") < stage.seen.index("asking for b")


async def test_no_more_bodies_overlap_than_the_cap(root: Context) -> None:
    desk = await mount_desk(root, maxParallelSubCalls=2)
    stage = Stage()
    for name in "abc":
        desk.add(name, stage.body(name), is_concurrency_safe=parallel)
    running = asyncio.create_task(desk.value(gather("a", "b", "c")))
    await stage.until("a starts", "b starts")
    assert "c starts" not in stage.seen
    stage.gates["b"].set()
    await stage.until("c starts")
    stage.gates["a"].set()
    stage.gates["c"].set()
    assert await running == ["a", "b", "c"]


async def test_a_cap_of_one_is_serial(root: Context) -> None:
    desk = await mount_desk(root, maxParallelSubCalls=1)
    stage = Stage()
    for name in "ab":
        desk.add(name, stage.body(name), is_concurrency_safe=parallel)
        stage.gates[name].set()
    await desk.value(gather("a", "b"))
    assert stage.seen == ["a starts", "a ends", "b starts", "b ends"]


async def test_a_call_is_classified_when_it_starts(desk: Desk) -> None:
    stage, safe = Stage(), [True]

    async def change(args: Any, run: Any) -> str:
        safe[0] = False
        return "changed"

    desk.add("first", change)
    for name in "ab":
        desk.add(name, stage.body(name), is_concurrency_safe=lambda _: safe[0])
        stage.gates[name].set()
    await desk.value(gather("first", "a", "b"))
    assert stage.seen == ["a starts", "a ends", "b starts", "b ends"]


async def test_calls_on_one_resource_keep_their_order_and_others_overlap(desk: Desk) -> None:
    stage = Stage()
    for name, key in (("a", "file:/one"), ("b", "file:/one"), ("c", "file:/two")):
        desk.add(
            name,
            stage.body(name),
            is_concurrency_safe=parallel,
            resources=lambda _, key=key: [key],
        )
    running = asyncio.create_task(desk.value(gather("a", "b", "c"), agent=None))
    await stage.until("a starts", "c starts")
    assert "b starts" not in stage.seen
    stage.gates["a"].set()
    await stage.until("b starts")
    stage.gates["b"].set()
    stage.gates["c"].set()
    assert await running == ["a", "b", "c"]


async def test_a_denied_call_fails_in_its_place(desk: Desk) -> None:
    for name in "ab":
        desk.add(name, is_concurrency_safe=parallel)

    async def decide(execution: ToolExecution, proceed: Any) -> Any:
        return Deny("not this") if execution.name == "a" else await proceed()

    desk.ctx.on(TOOLS_PRE_EXECUTE, decide)
    assert await desk.value(gather("a", "b")) == ["a: not this", "done"]
    assert [each["isError"] for each in desk.log("tool/code-dispatch")] == [True, False]


class Answering(ApprovalService):
    """Somebody to ask, who answers with what is put into the future."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        self.asked: list[ApprovalRequest] = []
        self.reached = asyncio.Event()
        self.answer: asyncio.Future[ApprovalOutcome] = asyncio.get_running_loop().create_future()

    async def request(self, request: ApprovalRequest) -> ApprovalOutcome:
        self.asked.append(request)
        self.reached.set()
        try:
            return await request.signal.run(asyncio.shield(self.answer))
        except AbortedError:
            return "cancelled"

    def set_policy(self, *_: object) -> None:
        raise NotImplementedError

    def override_of(self, *_: object) -> None:
        raise NotImplementedError


async def asking(desk: Desk) -> Answering:
    """A desk where the tool ``a`` may be used after a yes only."""
    await desk.root.plugin(Answering)

    async def decide(execution: ToolExecution, proceed: Any) -> Any:
        return Ask("sure?") if execution.name == "a" else await proceed()

    desk.ctx.on(TOOLS_PRE_EXECUTE, decide)
    service = desk.root.require(ApprovalService)
    assert isinstance(service, Answering)
    return service


@pytest.mark.parametrize("answer", ["allowed-once", "rejected", "unavailable"])
async def test_a_nested_call_is_asked_for_like_any_other(
    desk: Desk, answer: ApprovalOutcome
) -> None:
    desk.add("a")
    service = await asking(desk)
    service.answer.set_result(answer)
    (found,) = await desk.value(gather("a"))
    assert (found == "done") is (answer == "allowed-once")
    assert found == "done" or found.startswith("a: sure?")
    assert [each.call_id for each in service.asked] == ["call-1:code:1"]


async def test_an_abort_while_somebody_is_asked_runs_nothing(desk: Desk) -> None:
    bodies: list[str] = []
    desk.add("a", lambda *_: bodies.append("a"))
    service = await asking(desk)
    running = asyncio.create_task(desk.run(gather("a")))
    await service.reached.wait()
    desk.controller.abort("stop")
    assert isinstance(await running, ToolFailure)
    assert bodies == []
    (record,) = desk.log("tool/code-dispatch")
    assert record["content"][0]["text"] == "Error: tool call aborted before dispatch"


async def test_policies_see_nested_calls_with_their_parent(desk: Desk) -> None:
    seen: list[ToolExecution] = []
    desk.add("a")

    async def decide(execution: ToolExecution, proceed: Any) -> Any:
        seen.append(execution)
        return await proceed()

    desk.ctx.on(TOOLS_PRE_EXECUTE, decide)
    await desk.value("await tools.a({'x': 1})", call_id="c7")
    outer, inner = seen
    assert (inner.call_id, inner.root_call_id) == ("c7:code:1", "c7")
    assert inner.parent is outer.token
    assert inner.agent is outer.agent
    assert inner.signal is not outer.signal


async def test_records_hold_ids_arguments_and_content(desk: Desk) -> None:
    desk.add("a")
    await desk.value("await tools.a({'x': [1, 2]})", call_id="c7")
    start = {
        "rootCallId": "c7",
        "parentCallId": "c7",
        "subCallId": "c7:code:1",
        "name": "a",
        "arguments": {"x": [1, 2]},
    }
    assert desk.log("tool/code-dispatch-start") == [start]
    content = [{"type": "text", "text": "done"}]
    assert desk.log("tool/code-dispatch") == [{**start, "isError": False, "content": content}]


async def test_the_durable_copy_may_be_reshaped_and_the_value_stays(desk: Desk) -> None:
    desk.add("a")

    async def shorten(event: CodeDispatchLogging, proceed: Any) -> Any:
        assert (event.name, event.sub_call_id, event.is_error) == ("a", "call-1:code:1", False)
        return [{"type": "text", "text": "short"}]

    desk.ctx.on(TOOLS_CODE_DISPATCH_LOG, shorten)
    assert await desk.value("return await tools.a()") == "done"
    assert desk.log("tool/code-dispatch")[0]["content"] == [{"type": "text", "text": "short"}]


@pytest.mark.parametrize("made", [ValueError("broken"), [{"no": "type"}], "text"])
async def test_a_listener_that_fails_leaves_the_copy_as_it_is(
    root: Context, desk: Desk, made: Any
) -> None:
    reports: list[str] = []
    root.set_reporter(lambda error, *_: reports.append(str(error)))
    desk.add("a")

    async def fail(event: CodeDispatchLogging, proceed: Any) -> Any:
        if isinstance(made, Exception):
            raise made
        return made

    desk.ctx.on(TOOLS_CODE_DISPATCH_LOG, fail)
    await desk.value("await tools.a()")
    assert desk.log("tool/code-dispatch")[0]["content"] == [{"type": "text", "text": "done"}]
    assert len(reports) == 1


async def slow_log(desk: Desk) -> tuple[Stage, asyncio.Event]:
    """A desk whose results are logged when an event is set, and what happens until then."""
    stage, go = Stage(), asyncio.Event()
    desk.add("a", is_concurrency_safe=parallel)

    async def slow(event: CodeDispatchLogging, proceed: Any) -> Any:
        stage.note(f"logs {event.sub_call_id}")
        await go.wait()
        return await proceed()

    async def judge(event: ToolPostExecute, proceed: Any) -> Any:
        stage.note(f"judges {event.execution.call_id}")
        return await proceed()

    desk.ctx.on(TOOLS_CODE_DISPATCH_LOG, slow)
    desk.ctx.on(TOOLS_POST_EXECUTE, judge)
    return stage, go


async def test_no_more_results_than_the_cap_wait_to_be_logged(root: Context) -> None:
    desk = await mount_desk(root, maxParallelSubCalls=2)
    stage, go = await slow_log(desk)
    running = asyncio.create_task(desk.value(gather(*"aaaaaa")))
    await stage.until("logs call-1:code:1", "logs call-1:code:2", "judges call-1:code:3")
    for _ in range(50):
        await asyncio.sleep(0)
    assert [each for each in stage.seen if each.startswith("logs")] == [
        "logs call-1:code:1",
        "logs call-1:code:2",
    ]
    go.set()
    await running
    assert len(desk.log("tool/code-dispatch")) == 6


async def test_a_program_is_over_when_its_calls_are_logged(desk: Desk) -> None:
    stage, go = await slow_log(desk)
    running = asyncio.create_task(desk.run("await tools.a()"))
    await stage.until("logs call-1:code:1")
    asyncio.get_running_loop().call_later(0.3, go.set)
    await running
    assert len(desk.log("tool/code-dispatch")) == 1


async def test_an_abort_stops_what_runs_and_abandons_what_waits(desk: Desk) -> None:
    stage = Stage()
    desk.add("a", stage.body("a"))
    desk.add("b", stage.body("b"))
    running = asyncio.create_task(desk.run(gather("a", "b")))
    await stage.until("a starts")

    desk.controller.abort("stop")
    result = await running

    assert isinstance(result, ToolFailure)
    assert result.error.info is not None
    assert result.error.info.code == "CODE_RUN_FAILED"
    assert stage.seen == ["a starts", "a ends"]
    assert desk.records() == ["+a", "-a"]
    assert text(result).startswith("Error: the program failed (abort)")


async def test_a_call_that_is_left_alone_is_aborted_when_the_program_ends(desk: Desk) -> None:
    stage = Stage()
    desk.add("slow", stage.body("slow"), is_concurrency_safe=parallel)

    async def wait(args: Any, run: Any) -> str:
        await stage.until("slow starts")
        return "seen"

    desk.add("wait", wait, is_concurrency_safe=parallel)
    program = """
        import asyncio
        left = asyncio.ensure_future(tools.slow())
        return await tools.wait()
    """
    assert await desk.value(program) == "seen"
    assert stage.seen == ["slow starts", "slow ends"]
    assert desk.records() == ["+wait", "+slow", "-wait", "-slow"]
    assert desk.log("tool/code-dispatch")[1]["content"][0]["text"] == "Error: tool call aborted"


async def test_calls_that_wait_for_their_turn_when_the_program_ends_are_not_logged(
    desk: Desk,
) -> None:
    stage = Stage()
    desk.add("alone", stage.body("alone"))
    desk.add("next", stage.body("next"))

    async def wait(args: Any, run: Any) -> str:
        return "first"

    desk.add("wait", wait, is_concurrency_safe=parallel)
    program = """
        import asyncio
        asyncio.ensure_future(tools.alone())
        asyncio.ensure_future(tools.next())
        await tools.wait()
        raise ValueError("over")
    """
    await desk.failure(program)
    assert "next starts" not in stage.seen
    assert "+next" not in desk.records()
    assert desk.records().count("+alone") == desk.records().count("-alone")


async def test_a_failed_program_keeps_what_its_calls_deferred(desk: Desk) -> None:
    async def tell(args: Any, run: Any) -> str:
        run.defer_context(create_user_message("note"))
        return "told"

    desk.add("tell", tell)
    result = await desk.failure("await tools.tell()\nprint('so far')\nraise ValueError('bad')")
    assert [each["content"][0]["text"] for each in result.additional_contexts] == ["note"]
    assert "ValueError: bad" in text(result)
    assert text(result).endswith("It had printed:\nso far")


async def test_contexts_come_in_the_order_of_the_calls(desk: Desk) -> None:
    stage = Stage()

    def told(name: str) -> Any:
        wait = stage.body(name)

        async def body(args: Any, run: Any) -> str:
            await wait(args, run)
            run.defer_context(create_user_message(name))
            return name

        return body

    for name in "ab":
        desk.add(name, told(name), is_concurrency_safe=parallel)
    running = asyncio.create_task(desk.run(gather("a", "b")))
    await stage.until("a starts", "b starts")
    stage.gates["b"].set()
    await stage.until("b ends")
    stage.gates["a"].set()
    result = await running
    assert [each["content"][0]["text"] for each in result.additional_contexts] == ["a", "b"]  # type: ignore[typeddict-item]


async def test_images_of_a_result_are_attached_afterwards(desk: Desk) -> None:
    picture = {"type": "image", "attachment": {"id": "p1"}}
    content = [{"type": "text", "text": "a picture"}, picture]
    desk.add("look", render=lambda *_: content)
    result = await desk.run("return await tools.look()")
    assert isinstance(result, ToolSuccess)
    (message,) = result.additional_contexts
    assert message["content"] == content
    assert message["source"]["kind"] == "plugin"
    assert message["source"]["plugin"] == "tools-code-mode"


async def test_images_of_a_failure_are_not_attached(desk: Desk) -> None:
    picture: Any = {"type": "image", "attachment": {"id": "p1"}}
    desk.add("look")

    async def refuse(event: ToolPostExecute, proceed: Any) -> Any:
        return await proceed() if event.execution.parent is None else Block(feedback=[picture])

    desk.ctx.on(TOOLS_POST_EXECUTE, refuse)
    result = await desk.run(gather("look"))
    assert desk.log("tool/code-dispatch")[0]["content"] == [picture]
    assert result.additional_contexts == ()


async def test_a_second_cancel_does_not_cut_the_records_short(desk: Desk) -> None:
    stage, go = Stage(), asyncio.Event()

    async def slow_to_stop(args: Any, run: Any) -> str:
        stage.note("starts")
        try:
            await asyncio.Event().wait()
        finally:
            stage.note("stops")
            await go.wait()
        return "never"

    desk.add("a", slow_to_stop)
    running = asyncio.create_task(desk.run("await tools.a()"))
    await stage.until("starts")
    (program,) = [each for each in asyncio.all_tasks() if "tool run_code" in each.get_name()]
    program.cancel()
    await stage.until("stops")
    program.cancel()
    await asyncio.sleep(0)
    go.set()
    await running
    assert desk.records() == ["+a", "-a"]


async def test_a_nested_call_may_conclude_the_turn(desk: Desk) -> None:
    async def conclude(args: Any, run: Any) -> str:
        run.conclude_turn()
        return "bye"

    desk.add("bye", conclude)
    assert (await desk.run("await tools.bye()")).concludes_turn
    assert not (await desk.run("return 1")).concludes_turn


async def test_nested_meta_is_not_computed(desk: Desk) -> None:
    desk.add("a", meta=lambda *_: pytest.fail("computed"))
    assert await desk.value("return await tools.a()") == "done"


async def test_the_program_gets_the_value_and_not_the_content(desk: Desk) -> None:
    async def table(args: Any, run: Any) -> Any:
        return {"rows": [1, 2]}

    desk.add("table", table)

    async def hide(event: ToolPostExecute, proceed: Any) -> Any:
        if event.execution.parent is None:
            return await proceed()
        return Accept(content=[{"type": "text", "text": "hidden"}])

    desk.ctx.on(TOOLS_POST_EXECUTE, hide)
    assert await desk.value("return await tools.table()") == {"rows": [1, 2]}
    assert desk.log("tool/code-dispatch")[0]["content"] == [{"type": "text", "text": "hidden"}]


async def test_a_tool_that_went_away_is_unknown(desk: Desk) -> None:
    owner = desk.ctx.inject(
        [ToolRuntime], lambda ctx: ctx.require(ToolRuntime).register(make_tool("fleeting"))
    )
    await owner

    async def remove(args: Any, run: Any) -> str:
        await owner.dispose()
        return "removed"

    desk.add("remove", remove)
    failure = await desk.value(
        "await tools.remove()\ntry:\n    await tools.fleeting()\n"
        "except ToolCallError as error:\n    return [error.toolName, str(error)]"
    )
    assert failure[0] == "fleeting"
    assert "unknown tool 'fleeting'" in failure[1]


async def test_without_an_agent_calls_work_and_nothing_is_logged(desk: Desk) -> None:
    desk.add("a")
    assert await desk.value("return await tools.a()", agent=None) == "done"
    assert desk.records() == []


class Breaking(CodeRuntime):
    """A runtime of somebody else's that fails after it started a call."""

    language = "python"
    isolation = "none"
    work: asyncio.Task[Any]

    async def run(self, request: CodeRun) -> CodeResult:
        (space,) = request.bindings
        type(self).work = asyncio.ensure_future(space.functions["a"]({}))
        type(self).late = space.functions["a"]  # type: ignore[attr-defined]
        type(self).signal = request.signal  # type: ignore[attr-defined]
        await self.started.wait()
        raise RuntimeError("the runtime broke")

    started = asyncio.Event()


async def test_a_runtime_that_fails_still_reaches_quiescence_first(root: Context) -> None:
    Breaking.started = asyncio.Event()
    desk = await mount_desk(root, runtime=Breaking)
    ended: list[str] = []

    async def body(args: Any, run: Any) -> str:
        Breaking.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("a")
        return "never"

    desk.add("a", body)
    result = await desk.failure("anything")

    assert "the runtime broke" in result.error.message
    assert ended == ["a"]
    assert desk.records() == ["+a", "-a"]
    signal: AbortSignal = Breaking.signal  # type: ignore[attr-defined]
    assert signal.aborted
    with pytest.raises(Exception, match="tool call aborted"):
        await Breaking.work
    with pytest.raises(Exception, match="the program has ended"):
        await Breaking.late({})  # type: ignore[attr-defined]


BUSY = """
import asyncio
print("busy")
calls = [tools.quick(), tools.quick(), tools.alone(), tools.bad()]
await asyncio.gather(*calls, return_exceptions=True)
return await tools.quick()
"""


@pytest.mark.parametrize("way", ["abort", "cancel"])
async def test_a_program_may_be_stopped_at_any_moment(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    inside = 0

    async def work(args: Any, run: Any) -> str:
        nonlocal inside
        inside += 1
        try:
            await asyncio.sleep(0)
        finally:
            inside -= 1
        return "done"

    async def fail(args: Any, run: Any) -> str:
        raise ValueError("bad")

    desk.add("quick", work, is_concurrency_safe=parallel)
    desk.add("alone", work)
    desk.add("bad", fail)
    passed, due = 0, 0
    strike: Callable[[], object] = desk.controller.abort
    run_callback = asyncio.Handle._run

    def count(handle: asyncio.Handle) -> None:
        nonlocal passed
        passed += 1
        if passed == due:
            strike()
        run_callback(handle)

    monkeypatch.setattr(asyncio.Handle, "_run", count)
    assert await desk.value(BUSY, call_id="whole") == "done"
    moments, reached = passed, 0
    before = {task.get_name() for task in asyncio.all_tasks()}
    for moment in range(1, moments, 6):
        desk.controller = AbortController()
        running = asyncio.create_task(desk.run(BUSY, call_id=f"call-{moment}"))
        strike = desk.controller.abort if way == "abort" else running.cancel
        passed, due = 0, moment
        await asyncio.wait((running,))
        due = 0
        reached += desk.controller.signal.aborted or running.cancelled()

        assert inside == 0
        assert {task.get_name() for task in asyncio.all_tasks()} == before
        assert desk.tools.strays() == ()
        starts = [each["subCallId"] for each in desk.log("tool/code-dispatch-start")]
        ends = [each["subCallId"] for each in desk.log("tool/code-dispatch")]
        assert sorted(starts) == sorted(ends)
    assert reached > 10


class Deaf(CodeRuntime):
    """A runtime of somebody else's that makes three calls and heeds no signal."""

    language = "python"
    isolation = "none"

    async def run(self, request: CodeRun) -> CodeResult:
        (space,) = request.bindings
        calls = [space.functions["a"]({}) for _ in range(3)]
        found = await asyncio.gather(*calls, return_exceptions=True)
        return CodeResult([str(each) for each in found])


async def test_a_call_that_cannot_be_logged_ends_the_program_and_answers_every_call(
    root: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = await mount_desk(root, runtime=Deaf)
    stage, started = Stage(), Journal.started
    desk.add("a", stage.body("a"), is_concurrency_safe=parallel)

    def refuse(journal: Journal, call: ToolInput) -> None:
        if call.call_id.endswith(":2"):
            raise OSError("disk full")
        started(journal, call)

    monkeypatch.setattr(Journal, "started", refuse)
    async with asyncio.timeout(5):
        result = await desk.failure("anything")
    assert "disk full" in result.error.message
    assert stage.seen in ([], ["a starts", "a ends"])


def test_what_is_only_a_double_is_logged_as_one() -> None:
    assert loggable({"a": [2**60, -0.0, 1, True, 1.5]}) == {"a": [float(2**60), 0.0, 1, True, 1.5]}


@pytest.mark.parametrize("seed", range(4))
async def test_many_calls_of_all_kinds_keep_every_promise(root: Context, seed: int) -> None:
    desk = await mount_desk(root, maxParallelSubCalls=3)
    dice = random.Random(seed)
    inside: list[str] = []
    answered: list[int] = []
    crowd = 0

    def body(kind: str) -> Any:
        async def work(args: Any, run: Any) -> int:
            nonlocal crowd
            inside.append(kind)
            crowd = max(crowd, len(inside))
            alone = kind == "exclusive"
            for _ in range(dice.randrange(4)):
                await asyncio.sleep(0)
                assert not alone or inside == ["exclusive"]
                assert inside.count("first") + inside.count("second") <= 3
                assert inside.count("second") <= 1
            inside.remove(kind)
            if dice.random() < 0.2:
                raise ValueError("bad luck")
            return int(args["n"])

        return work

    desk.add("exclusive", body("exclusive"))
    desk.add("first", body("first"), is_concurrency_safe=parallel)
    desk.add(
        "second", body("second"), is_concurrency_safe=parallel, resources=lambda _: ["file:/x"]
    )

    async def note(event: ToolPostExecute, proceed: Any) -> Any:
        if event.execution.parent is not None:
            answered.append(int(event.execution.call_id.rpartition(":")[2]))
        return await proceed()

    desk.ctx.on(TOOLS_POST_EXECUTE, note)
    names = [dice.choice(["exclusive", "first", "first", "second"]) for _ in range(60)]
    program = f"""
        import asyncio
        names = {names!r}
        calls = [tools[name](n=n) for n, name in enumerate(names)]
        found = await asyncio.gather(*calls, return_exceptions=True)
        return [each if isinstance(each, int) else str(each) for each in found]
    """
    found = await desk.value(program, agent=None)
    assert all(each in (n, "bad luck") for n, each in enumerate(found))
    assert answered == list(range(1, 61))
    assert crowd <= 3
