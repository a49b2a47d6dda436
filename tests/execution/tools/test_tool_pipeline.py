from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tool_harness import Harness, code, make_tool, render_text, text

from dsh.base.errors import DshError
from dsh.base.values import changed
from dsh.execution.tools.events import (
    TOOLS_EXECUTE,
    TOOLS_POST_EXECUTE,
    TOOLS_PRE_EXECUTE,
    TOOLS_RESULT,
    Accept,
    Allow,
    Ask,
    Block,
    Deny,
    ToolDispatch,
    ToolPostExecute,
    ToolSettled,
)
from dsh.execution.tools.service import (
    ExecutionToken,
    ToolError,
    ToolExecution,
    ToolFailure,
    ToolResult,
    ToolRunContext,
    ToolSuccess,
    parse_call,
)
from dsh.model.messages import create_user_message


def block(text: str) -> list[Any]:
    return [{"type": "text", "text": text}]


def observe(harness: Harness) -> list[ToolSettled]:
    settled: list[ToolSettled] = []
    harness.ctx.on(TOOLS_RESULT, settled.append)
    return settled


async def test_the_stages_run_in_order(harness: Harness) -> None:
    order: list[str] = []

    async def pre(execution: ToolExecution, next: Any) -> Any:
        order.append("pre")
        return await next()

    async def around(request: ToolDispatch, next: Any) -> Any:
        order.append("execute")
        result = await next()
        order.append("executed")
        return result

    async def post(event: ToolPostExecute, next: Any) -> Any:
        order.append("post")
        return await next()

    def finalize(execution: ToolExecution, result: ToolResult) -> None:
        order.append("finalize")

    async def body(args: Any, run: ToolRunContext) -> str:
        order.append("body")
        return "x"

    def guard(execution: ToolExecution) -> None:
        order.append("guard")

    harness.ctx.on(TOOLS_PRE_EXECUTE, pre)
    harness.ctx.on(TOOLS_EXECUTE, around)
    harness.ctx.on(TOOLS_POST_EXECUTE, post)
    harness.ctx.on(TOOLS_RESULT, lambda _: order.append("result"))
    harness.tools.guard(guard)
    harness.add(body=body, finalize_content=finalize)

    result = await harness.call()

    assert not result.is_error
    assert order == [
        "pre",
        "guard",
        "execute",
        "body",
        "executed",
        "post",
        "finalize",
        "result",
    ]


async def test_one_token_and_one_frozen_argument_object_for_all_stages(harness: Harness) -> None:
    seen: list[tuple[object, object]] = []

    def note(execution: ToolExecution) -> None:
        seen.append((execution.token, execution.arguments))

    async def body(args: Any, run: ToolRunContext) -> None:
        note(run)
        with pytest.raises(TypeError):
            args["a"] = 2

    harness.ctx.on(TOOLS_PRE_EXECUTE, lambda execution, go: (note(execution), go())[1])
    harness.ctx.on(TOOLS_POST_EXECUTE, lambda event, go: (note(event.execution), go())[1])
    harness.ctx.on(TOOLS_RESULT, lambda event: note(event.execution))
    harness.add(body=body)
    given = {"a": 1}
    await harness.call(arguments=given)
    assert len(seen) == 4
    assert len({id(token) for token, _ in seen}) == len({id(args) for _, args in seen}) == 1
    assert given == {"a": 1}


async def test_a_call_is_its_own_root_unless_nested(harness: Harness) -> None:
    runs: list[ToolRunContext] = []

    async def body(args: Any, run: ToolRunContext) -> None:
        runs.append(run)

    harness.add(body=body, meta=lambda args, value: {"shown": True})
    top = await harness.call(call_id="c")
    parent = runs[0].token
    nested = await harness.call(call_id="c:1", root_call_id="c", parent=parent)
    assert [run.root_call_id for run in runs] == ["c", "c"]
    assert runs[1].parent is parent
    assert isinstance(parent, ExecutionToken)
    assert top.meta == {"shown": True}
    assert nested.meta is None


async def test_arguments_that_are_not_json_give_one_result_and_one_notice(harness: Harness) -> None:
    settled = observe(harness)
    harness.add()
    harness.ctx.on(TOOLS_PRE_EXECUTE, lambda *_: pytest.fail("no policy sees it"))
    harness.controller.abort()
    result = await harness.call(arguments={"x": object()})
    assert code(result) == "NOT_LOSSLESS"
    assert [event.result for event in settled] == [result]


@pytest.mark.parametrize("raw", ['{"path": ', "```json\n{}\n```", "[1]", '"x"', "y" * 1_000_000])
async def test_malformed_arguments_are_never_dispatched(harness: Harness, raw: str) -> None:
    bodies: list[object] = []

    async def body(args: Any, run: ToolRunContext) -> None:
        bodies.append(args)

    harness.add(body=body)
    harness.ctx.on(TOOLS_EXECUTE, lambda *_: pytest.fail("dispatched"))
    posts: list[object] = []
    harness.ctx.on(TOOLS_POST_EXECUTE, lambda event, go: (posts.append(event), go())[1])
    result = await harness.call(arguments=parse_call(raw))
    assert code(result) == "INVALID_ARGS"
    assert "tool 'probe' was not run" in text(result)
    assert len(text(result)) < 700
    assert bodies == []
    assert len(posts) == 1


async def test_malformed_arguments_ask_nobody_but_a_denial_still_wins(harness: Harness) -> None:
    harness.add()
    decisions: list[Any] = [Ask("please"), Deny("no")]
    harness.ctx.on(TOOLS_PRE_EXECUTE, lambda *_: decisions.pop(0))
    asked = await harness.call(arguments="{")
    denied = await harness.call(arguments="{")
    assert code(asked) == "INVALID_ARGS"
    assert text(denied) == "Error: no"


async def test_a_failed_body_is_a_result_before_wrappers_see_it(harness: Harness) -> None:
    seen: list[ToolResult] = []

    async def body(args: Any, run: ToolRunContext) -> None:
        raise ValueError("broken")

    async def around(request: ToolDispatch, next: Any) -> ToolResult:
        result: ToolResult = await next()
        seen.append(result)
        return result

    async def post(event: ToolPostExecute, next: Any) -> Any:
        seen.append(event.result)
        return await next()

    harness.ctx.on(TOOLS_EXECUTE, around)
    harness.ctx.on(TOOLS_POST_EXECUTE, post)
    harness.add(body=body)
    result = await harness.call()
    assert text(result) == "Error: broken"
    assert code(result) is None
    assert seen == [result, result]


async def test_only_our_own_errors_are_routable(harness: Harness) -> None:
    class Broken(DshError):
        code = "BROKEN"

    async def body(args: Any, run: ToolRunContext) -> None:
        raise Broken("x")

    harness.add(body=body)
    result = await harness.call()
    assert isinstance(result, ToolFailure)
    assert result.error.info is not None
    assert (result.error.info.name, result.error.info.code) == ("Broken", "BROKEN")


async def test_the_members_of_a_group_are_told(harness: Harness) -> None:
    async def body(args: Any, run: ToolRunContext) -> None:
        raise ExceptionGroup("two", [ValueError("one"), ValueError("other")])

    harness.add(body=body)
    result = text(await harness.call())
    assert "one" in result
    assert "other" in result


async def test_an_unprintable_error_is_still_a_result(harness: Harness) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    async def body(args: Any, run: ToolRunContext) -> None:
        raise Mute

    harness.add(body=body)
    assert text(await harness.call()) == "Error: unprintable Mute"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"schema": {"type": "integer"}}, '"value" must be integer, got string'),
        ({"render": lambda args, value: 1 / 0}, "division by zero"),
        ({"render": lambda args, value: [{"type": "text", "text": object()}]}, "not lossless"),
        ({"render": lambda args, value: "text"}, "must be a list of content blocks"),
        ({"render": lambda args, value: [{"text": "x"}]}, "must be a list of content blocks"),
        ({"meta": lambda args, value: 1 / 0}, "division by zero"),
        ({"meta": lambda args, value: {1: 2}}, "its meta is not lossless"),
    ],
)
async def test_an_output_that_breaks_its_contract_is_one_failed_call(
    harness: Harness, changes: dict[str, Any], problem: str
) -> None:
    settled = observe(harness)
    harness.add(**changes)
    result = await harness.call()
    assert result.is_error
    assert problem in text(result)
    assert len(settled) == 1


async def test_a_value_that_is_not_json_is_named(harness: Harness) -> None:
    async def body(args: Any, run: ToolRunContext) -> Any:
        return {"when": (1, 2)}

    harness.add(body=body)
    result = await harness.call()
    assert code(result) == "INVALID_TOOL_OUTPUT"
    assert "$.when: tuple" in text(result)


async def test_the_value_is_detached_and_frozen(harness: Harness) -> None:
    kept = {"list": [1]}

    async def body(args: Any, run: ToolRunContext) -> Any:
        return kept

    harness.add(body=body)
    result: Any = await harness.call()
    kept["list"].append(2)
    assert result.value == {"list": [1]}
    with pytest.raises(TypeError):
        result.value["list"].append(3)
    with pytest.raises(TypeError):
        result.content.append(1)


@pytest.mark.parametrize("odd", ["\ud800", "a\ud83d", "\0", "\ufffe", "e\u0301", "\U0001f600"])
async def test_text_of_any_code_points_passes_unchanged(harness: Harness, odd: str) -> None:
    async def body(args: Any, run: ToolRunContext) -> str:
        return odd

    async def failing(args: Any, run: ToolRunContext) -> str:
        raise ValueError(odd)

    harness.add(body=body)
    harness.add("failing", body=failing)
    assert text(await harness.call()) == odd
    assert text(await harness.call("failing")) == f"Error: {odd}"


async def test_a_deep_value_does_not_overflow(harness: Harness) -> None:
    deep: Any = "x"
    for _ in range(10_000):
        deep = [deep]

    async def body(args: Any, run: ToolRunContext) -> Any:
        return args["deep"]

    harness.add(body=body, render=lambda args, value: block("deep"))
    result = await harness.call(arguments={"deep": deep})
    assert text(result) == "deep"


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        (Allow(), "done"),
        (Deny("not today"), "Error: not today"),
        (None, "Error: a tools/pre-execute listener must return Allow, Deny or Ask, got NoneType"),
    ],
)
async def test_what_a_pre_execute_decision_does(
    harness: Harness, decision: Any, expected: str
) -> None:
    harness.add()
    harness.ctx.on(TOOLS_PRE_EXECUTE, lambda execution, go: decision)
    assert text(await harness.call()) == expected


async def test_a_denial_reaches_post_execute_and_a_failing_policy_does_not(
    harness: Harness,
) -> None:
    posts: list[str] = []

    async def post(event: ToolPostExecute, next: Any) -> Any:
        posts.append(text(event.result))
        return await next()

    decisions: list[Any] = [Deny("no")]
    harness.add()
    harness.ctx.on(TOOLS_POST_EXECUTE, post)
    harness.ctx.on(TOOLS_PRE_EXECUTE, lambda *_: decisions.pop())
    await harness.call()
    broken = await harness.call()
    assert posts == ["Error: no"]
    assert broken.is_error


async def test_no_permission_reopens_a_guard(harness: Harness) -> None:
    harness.add()
    harness.tools.guard(lambda _: "guarded")
    harness.ctx.on(TOOLS_PRE_EXECUTE, lambda *_: Allow(), prepend=True)
    assert text(await harness.call()) == "Error: guarded"


async def test_a_wrapper_may_answer_itself_and_is_held_to_the_contract(harness: Harness) -> None:
    note = create_user_message("cached")
    answers: list[ToolResult] = [
        ToolSuccess(value=3, content=block("ignored"), additional_contexts=(note,)),
        ToolSuccess(value="three", content=[]),
        ToolFailure(error=ToolError("busy"), content=block("Error: busy")),
        "junk",  # type: ignore[list-item]
    ]
    harness.add(schema={"type": "integer"})
    harness.ctx.on(TOOLS_EXECUTE, lambda *_: answers.pop(0))
    good = await harness.call()
    assert text(good) == "3"
    assert good.additional_contexts == (note,)
    assert code(await harness.call()) == "INVALID_TOOL_OUTPUT"
    assert text(await harness.call()) == "Error: busy"
    assert "must return a tool result, got str" in text(await harness.call())


async def test_a_result_of_another_call_is_checked_again(harness: Harness) -> None:
    cache: list[ToolResult] = []

    async def remember(request: ToolDispatch, next: Any) -> ToolResult:
        if not cache:
            cache.append(await next())
        return cache[0]

    harness.ctx.on(TOOLS_EXECUTE, remember)
    effect = harness.tools.register(make_tool())
    first = await harness.call()
    await effect.dispose()
    harness.add(schema={"type": "integer"})
    second = await harness.call()
    assert not first.is_error
    assert code(second) == "INVALID_TOOL_OUTPUT"


async def test_a_wrapper_may_retry(harness: Harness) -> None:
    attempts: list[int] = []

    async def body(args: Any, run: ToolRunContext) -> int:
        attempts.append(1)
        if len(attempts) == 1:
            run.conclude_turn()
            raise ValueError("flaky")
        return len(attempts)

    async def retry(request: ToolDispatch, next: Any) -> ToolResult:
        result: ToolResult = await next()
        return await next() if result.is_error else result

    harness.add(body=body)
    harness.ctx.on(TOOLS_EXECUTE, retry)
    result = await harness.call()
    assert text(result) == "2"
    assert not result.concludes_turn


async def test_a_failing_wrapper_fails_the_call_without_post(harness: Harness) -> None:
    harness.add()
    harness.ctx.on(TOOLS_EXECUTE, lambda *_: 1 / 0)
    harness.ctx.on(TOOLS_POST_EXECUTE, lambda *_: pytest.fail("no post"))
    assert text(await harness.call()) == "Error: division by zero"


async def test_contexts_come_in_order_and_the_turn_concludes_on_success(harness: Harness) -> None:
    one, two, three = (create_user_message(name) for name in ("1", "2", "3"))

    async def body(args: Any, run: ToolRunContext) -> str:
        run.defer_context(one)
        run.conclude_turn()
        return "x"

    async def around(request: ToolDispatch, next: Any) -> ToolResult:
        result = await next()
        return changed(result, additional_contexts=(two,))

    harness.add(body=body)
    harness.ctx.on(TOOLS_EXECUTE, around)
    harness.ctx.on(TOOLS_POST_EXECUTE, lambda *_: Accept(additional_contexts=(three,)))
    result = await harness.call()
    assert result.additional_contexts == (one, two, three)
    assert result.concludes_turn


async def test_contexts_of_a_failed_body_are_kept(harness: Harness) -> None:
    note = create_user_message("n")

    async def body(args: Any, run: ToolRunContext) -> str:
        run.defer_context(note)
        run.conclude_turn()
        raise ValueError("x")

    harness.add(body=body)
    result = await harness.call()
    assert result.additional_contexts == (note,)
    assert not result.concludes_turn


async def test_accepting_content_keeps_value_and_meta(harness: Harness) -> None:
    harness.add(meta=lambda args, value: {"of": value})
    harness.ctx.on(TOOLS_POST_EXECUTE, lambda *_: Accept(content=block("short")))
    result: Any = await harness.call()
    assert (text(result), result.value, result.meta) == ("short", "done", {"of": "done"})


async def test_accepting_a_value_renders_everything_again(harness: Harness) -> None:
    harness.add(meta=lambda args, value: {"of": value}, schema={"type": "string"})
    harness.ctx.on(TOOLS_POST_EXECUTE, lambda *_: Accept(value="new"))
    result: Any = await harness.call()
    assert (text(result), result.value, result.meta) == ("new", "new", {"of": "new"})


async def test_decisions_that_contradict_themselves_fail_the_call(harness: Harness) -> None:
    async def failing(args: Any, run: ToolRunContext) -> None:
        raise ValueError

    decisions: list[Any] = [
        Accept(value=None, content=[]),
        Accept(value="x"),
        Accept(value=1),
        Accept(content=[1]),  # type: ignore[list-item]
        "junk",
    ]
    harness.add(schema={"type": "string"})
    harness.add("failing", body=failing)
    harness.ctx.on(TOOLS_POST_EXECUTE, lambda *_: decisions.pop(0))
    assert "content or value, not both" in text(await harness.call())
    assert "cannot give a failed call a value" in text(await harness.call("failing"))
    assert code(await harness.call()) == "INVALID_TOOL_OUTPUT"
    assert code(await harness.call()) == "INVALID_TOOL_OUTPUT"
    assert "must return Accept or Block, got str" in text(await harness.call())


async def test_replacing_the_value_of_a_tool_that_went_away(harness: Harness) -> None:
    effect = harness.tools.register(make_tool())

    async def post(event: ToolPostExecute, next: Any) -> Any:
        await effect.dispose()
        return Accept(value="new")

    harness.ctx.on(TOOLS_POST_EXECUTE, post)
    assert code(await harness.call()) == "UNKNOWN_TOOL"


async def test_blocking_makes_a_failure_of_the_feedback(harness: Harness) -> None:
    kept, dropped = create_user_message("kept"), create_user_message("dropped")

    async def body(args: Any, run: ToolRunContext) -> str:
        run.defer_context(dropped)
        return "secret"

    feedback = [*block("a"), {"type": "image", "attachment": {}}, *block("b")]
    decisions = [Block(feedback=feedback, additional_contexts=(kept,)), Block(feedback=[])]
    harness.add(body=body)
    harness.ctx.on(TOOLS_POST_EXECUTE, lambda *_: decisions.pop(0))
    result: Any = await harness.call()
    assert result.error.message == "a\n[image content]\nb"
    assert result.content == feedback
    assert result.additional_contexts == (kept,)
    empty: Any = await harness.call()
    assert "policy blocked" in empty.error.message


async def test_a_tool_that_goes_away_between_prepare_and_dispatch(harness: Harness) -> None:
    effect = harness.tools.register(make_tool())
    staged = await harness.tools.prepare(harness.input())
    assert staged.result is None
    await effect.dispose()
    result = await harness.tools.dispatch(staged)
    assert code(await harness.tools.finalize(staged, result)) == "UNKNOWN_TOOL"


async def test_finalize_content_has_the_last_word_once_for_every_outcome(harness: Harness) -> None:
    calls: list[bool] = []

    def finalize(execution: ToolExecution, result: ToolResult) -> Any:
        calls.append(result.is_error)
        return block("final")

    harness.add(finalize_content=finalize)
    success = await harness.call()
    bad = await harness.call(arguments={"x": object()})
    harness.controller.abort()
    aborted = await harness.call()
    assert [text(result) for result in (success, bad, aborted)] == ["final"] * 3
    assert calls == [False, True, True]
    assert not success.is_error


async def test_a_failing_finalizer_is_not_called_again(harness: Harness) -> None:
    calls: list[object] = []

    def finalize(execution: ToolExecution, result: ToolResult) -> Any:
        calls.append(result)
        raise ValueError("final")

    harness.add(finalize_content=finalize)
    assert text(await harness.call()) == "Error: final"
    assert len(calls) == 1


async def test_the_finalizer_is_the_one_of_the_tool_that_was_called(harness: Harness) -> None:
    effect = harness.tools.register(make_tool(finalize_content=lambda *_: block("old")))

    async def swap(execution: ToolExecution, next: Any) -> Any:
        await effect.dispose()
        harness.add(finalize_content=lambda *_: block("new"))
        return await next()

    harness.ctx.on(TOOLS_PRE_EXECUTE, swap)
    assert text(await harness.call()) == "old"


async def test_all_observers_run_and_see_the_object_the_caller_gets(harness: Harness) -> None:
    reports: list[BaseException] = []
    harness.ctx.set_reporter(lambda error, owner, label: reports.append(error))
    harness.ctx.on(TOOLS_RESULT, lambda _: 1 / 0)
    settled = observe(harness)
    harness.add()
    result = await harness.call()
    assert settled[0].result is result
    assert len(reports) == 1
    with pytest.raises(AttributeError):
        settled[0].result.content = []  # type: ignore[misc]


async def test_an_observer_that_takes_its_time_is_not_waited_for_and_its_failure_told(
    harness: Harness,
) -> None:
    reports: list[str] = []
    harness.root.set_reporter(lambda error, *_: reports.append(str(error)))
    go, gone = asyncio.Event(), asyncio.Event()

    async def slow(_: object) -> None:
        try:
            await go.wait()
            raise RuntimeError("late trouble")
        finally:
            gone.set()

    harness.ctx.on(TOOLS_RESULT, slow)
    harness.add()
    assert not (await harness.call()).is_error
    go.set()
    await gone.wait()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert reports == ["late trouble"]


async def test_listeners_of_an_agent_hear_its_calls_alone(harness: Harness) -> None:
    harness.add()
    mine: Any = harness.agent()
    child: Any = harness.agent(parent=mine)
    other: Any = harness.agent()
    heard: list[object] = []
    everything: list[object] = []
    mine.scope.ctx.on(TOOLS_RESULT, lambda event: heard.append(event.execution.agent))
    mine.scope.ctx.on(TOOLS_PRE_EXECUTE, lambda execution, go: (heard.append("pre"), go())[1])
    harness.ctx.on(TOOLS_RESULT, lambda event: everything.append(event.execution.agent))
    for agent in (mine, child, other, None):
        await harness.call(agent=agent)
    assert heard == ["pre", mine, "pre", child]
    assert everything == [mine, child, other, None]


async def test_the_staged_view_does_what_execute_does(harness: Harness) -> None:
    settled = observe(harness)
    harness.add(render=render_text)
    staged = await harness.tools.prepare(harness.input())
    assert staged.result is None
    assert staged.execution.name == "probe"
    result = await harness.tools.dispatch(staged)
    assert staged.result is result
    assert settled == []
    final = await harness.tools.finalize(staged, result)
    assert [event.result for event in settled] == [final]
    assert final == await harness.call()


async def test_a_stage_cannot_run_twice(harness: Harness) -> None:
    harness.add()
    staged = await harness.tools.prepare(harness.input())
    result = await harness.tools.dispatch(staged)
    with pytest.raises(RuntimeError, match="again"):
        await harness.tools.dispatch(staged)
    await harness.tools.finalize(staged, result)
    with pytest.raises(RuntimeError, match="finished already"):
        harness.tools.finish(staged, result)


async def test_the_last_policies_never_get_a_result_twice(harness: Harness) -> None:
    judging, go, asked = asyncio.Event(), asyncio.Event(), 0

    async def post(event: ToolPostExecute, next: Any) -> Any:
        nonlocal asked
        asked += 1
        judging.set()
        await go.wait()
        return await next()

    harness.add()
    harness.ctx.on(TOOLS_POST_EXECUTE, post)
    staged = await harness.tools.prepare(harness.input())
    result = await harness.tools.dispatch(staged)
    first = asyncio.create_task(harness.tools.finalize(staged, result))
    await judging.wait()
    with pytest.raises(RuntimeError, match="again"):
        await harness.tools.finalize(staged, result)
    go.set()
    await first
    with pytest.raises(RuntimeError, match="again"):
        await harness.tools.finalize(staged, result)
    assert asked == 1


NO_MESSAGES: list[Any] = ["text", 1, None, {}, {**create_user_message("x"), "role": "assistant"}]


@pytest.mark.parametrize("message", NO_MESSAGES)
async def test_a_context_that_is_no_message_fails_the_call_that_gave_it(
    harness: Harness, message: Any
) -> None:
    async def body(args: Any, run: ToolRunContext) -> str:
        run.defer_context(message)
        return "x"

    async def wrap(request: ToolDispatch, next: Any) -> ToolResult:
        return changed(await next(), additional_contexts=[message])

    answers: list[Any] = [
        ToolFailure(error=ToolError("x"), content=[], additional_contexts=(message,)),
        ToolSuccess(value="x", content=[], additional_contexts=(message,)),
    ]
    harness.add("body", body)
    harness.add("probe")
    results = [await harness.call("body")]
    wrapping = harness.ctx.on(TOOLS_EXECUTE, wrap)
    results.append(await harness.call())
    await wrapping.dispose()
    answering = harness.ctx.on(TOOLS_EXECUTE, lambda *_: answers.pop())
    results += [await harness.call(), await harness.call()]
    await answering.dispose()
    for decision in (
        Accept(additional_contexts=(message,)),
        Block(feedback=[], additional_contexts=(message,)),
    ):
        judging = harness.ctx.on(TOOLS_POST_EXECUTE, lambda *_, made=decision: made)
        results.append(await harness.call())
        await judging.dispose()

    for result in results:
        assert "a context must be a user message" in text(result)
        assert result.additional_contexts == ()


@pytest.mark.parametrize("error", [None, "busy", ToolError(None)])  # type: ignore[arg-type]
async def test_a_failure_without_words_fails_its_wrapper(harness: Harness, error: Any) -> None:
    harness.add()
    harness.ctx.on(TOOLS_EXECUTE, lambda *_: ToolFailure(error=error, content=[]))
    assert "needs a ToolError with a text" in text(await harness.call())


async def test_a_denial_without_words_denies(harness: Harness) -> None:
    harness.add(body=lambda *_: pytest.fail("it was denied"))
    guard = harness.tools.guard(lambda _: 5)  # type: ignore[arg-type, return-value]
    assert "denied with a reason that is text, got int" in text(await harness.call())
    await guard.dispose()
    harness.ctx.on(TOOLS_PRE_EXECUTE, lambda *_: Deny(None))  # type: ignore[arg-type]
    assert "denied with a reason that is text, got NoneType" in text(await harness.call())


async def test_finish_publishes_without_asking_any_policy(harness: Harness) -> None:
    settled = observe(harness)
    harness.add()
    harness.ctx.on(TOOLS_POST_EXECUTE, lambda *_: pytest.fail("no post"))
    staged = await harness.tools.prepare(harness.input())
    result = await harness.tools.dispatch(staged)
    assert harness.tools.finish(staged, result) is settled[0].result
