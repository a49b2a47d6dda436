from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tool_harness import Harness, code, text

from dsh.base.json import snapshot
from dsh.execution.tools import invariants
from dsh.execution.tools.events import (
    TOOLS_EXECUTE,
    TOOLS_POST_EXECUTE,
    TOOLS_PRE_EXECUTE,
    TOOLS_RESULT,
    Allow,
    Deny,
    ToolDispatch,
    ToolPostExecute,
    ToolSettled,
)
from dsh.execution.tools.invariants import BrokenStage, NestedCalls
from dsh.execution.tools.results import failure
from dsh.execution.tools.service import ExecutionToken, ToolExecution, ToolFailure
from dsh.kernel import Context
from dsh.loader.yaml import load_yaml
from dsh.model.messages import CallId
from dsh.state.session.events import TURN_START, EventType
from dsh.state.session.nesting import BrokenInvariant
from dsh.state.session.service import SessionStore
from dsh.state.session.store import LocalSessionStore


@pytest.fixture
async def checked(harness: Harness) -> Harness:
    await harness.root.plugin(LocalSessionStore)
    await harness.root.plugin(invariants)
    return harness


def execution(harness: Harness, **changes: Any) -> ToolExecution:
    fields: dict[str, Any] = {
        "call_id": CallId("c"),
        "name": "probe",
        "arguments": snapshot({"a": []}),
        "signal": harness.controller.signal,
        "agent": None,
        "root_call_id": CallId("c"),
        "parent": None,
        "token": ExecutionToken(),
    }
    return ToolExecution(**{**fields, **changes})


async def pre(ctx: Context, call: ToolExecution) -> None:
    await ctx.waterfall(TOOLS_PRE_EXECUTE, call, Allow)


async def run(ctx: Context, call: ToolExecution) -> None:
    await ctx.waterfall(TOOLS_EXECUTE, ToolDispatch(call, call.signal), lambda: failure("x"))


async def post(ctx: Context, call: ToolExecution) -> None:
    await ctx.waterfall(TOOLS_POST_EXECUTE, ToolPostExecute(call, failure("x")), lambda: None)  # type: ignore[arg-type,return-value]


async def settled(ctx: Context, call: ToolExecution) -> None:
    ctx.emit(TOOLS_RESULT, ToolSettled(call, failure("x")))


async def test_every_way_through_the_pipeline_keeps_the_order(checked: Harness) -> None:
    checked.add()
    assert not (await checked.call()).is_error
    assert code(await checked.call(arguments="{")) == "INVALID_ARGS"
    assert code(await checked.call(arguments={"x": object()})) == "NOT_LOSSLESS"
    assert code(await checked.call("nobody")) == "UNKNOWN_TOOL"
    denying = checked.ctx.on(TOOLS_PRE_EXECUTE, lambda *_: Deny("no"))
    assert text(await checked.call()) == "Error: no"
    await denying.dispose()
    checked.controller.abort()
    assert code(await checked.call()) == "ABORTED_BEFORE_DISPATCH"


@pytest.mark.parametrize(
    ("stages", "problem"),
    [
        ([run], "it comes after nothing"),
        ([post], "it comes after nothing"),
        ([pre, pre], "it comes after tools/pre-execute"),
        ([pre, run, run], "it comes after tools/execute"),
        ([pre, post, run], "it comes after tools/post-execute"),
        ([pre, settled, post], "it comes after tools/result"),
        ([settled, settled], "it comes after tools/result"),
    ],
)
async def test_a_stage_out_of_order_is_refused(
    checked: Harness, stages: list[Any], problem: str
) -> None:
    call = execution(checked)
    *first, last = stages
    for stage in first:
        await stage(checked.ctx, call)
    with pytest.raises(BrokenStage, match=problem):
        await last(checked.ctx, call)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": ""}, "no name"),
        ({"call_id": ""}, "no call id"),
        ({"arguments": {"a": 1}}, "arguments change"),
    ],
)
async def test_a_call_without_identity_or_with_loose_arguments_is_refused(
    checked: Harness, changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(BrokenStage, match=problem):
        await pre(checked.ctx, execution(checked, **changes))


async def test_a_result_that_can_still_change_is_refused(checked: Harness) -> None:
    loose = ToolFailure(error=failure("x").error, content=[{"type": "text", "text": "x"}])
    with pytest.raises(BrokenStage, match="not frozen"):
        checked.ctx.emit(TOOLS_RESULT, ToolSettled(execution(checked), loose))


def event(type: str, **data: Any) -> dict[str, Any]:
    whole = {"rootCallId": "r", "parentCallId": "r", "subCallId": "r:1", "name": "n", **data}
    return {"type": type, "data": whole}


START, END, TURN = "tool/code-dispatch-start", "tool/code-dispatch", "turn/start"


ONCE = [event(START), event(END)]


@pytest.mark.parametrize(
    ("log", "problem"),
    [
        ([event(START)], "no turn is open"),
        ([event(TURN), event("turn/end"), event(START)], "no turn is open"),
        ([event(TURN), event(START, subCallId="")], "its subCallId is empty"),
        ([event(TURN), event(START, name="")], "its name is empty"),
        ([event(TURN), event(START), event(START)], "started before"),
        ([event(TURN), event(START, parentCallId="q")], "no call of root 'r'"),
        ([event(TURN), event(END)], "was not started"),
        ([event(TURN), event(START), event(END, rootCallId="s")], "belongs to root 'r'"),
        ([event(TURN), event(START), event(END), event(END)], "has its result already"),
        ([event(TURN), event(START), event(START, subCallId="x", parentCallId="r:1")], None),
        ([event(TURN), event(START), event(END), event("step/start"), event(START)], None),
        ([event(TURN), *ONCE, event("step/start"), *ONCE], None),
    ],
)
def test_records_of_nested_calls_belong_together(
    log: list[dict[str, Any]], problem: str | None
) -> None:
    nested = NestedCalls()
    *first, last = log
    for each in first:
        assert nested.problem(each) is None
        nested.read(each)
    found = nested.problem(last)
    assert found is None if problem is None else problem in str(found)


async def test_a_bad_record_is_refused_before_it_is_committed_also_after_a_late_load(
    harness: Harness,
) -> None:
    await harness.root.plugin(LocalSessionStore)
    store = harness.root.require(SessionStore)
    started = store.declared().get(START) or EventType(START, dict)
    if START not in store.declared():
        store.declare(started)
    session = store.create()
    session.append(TURN_START, {"turn": 1})
    await harness.root.plugin(invariants)
    start = {**event(START)["data"], "arguments": {}}
    session.append(started, start)
    with pytest.raises(BrokenInvariant, match="started before"):
        session.append(started, start)
    assert [each["type"] for each in session.events] == [TURN, START]


def test_the_row_is_off_unless_it_is_asked_for() -> None:
    bundle = Path(invariants.__file__).parents[2] / "product" / "bundles" / "base.yml"
    patches = load_yaml(bundle.read_text(), "base")["patches"]
    rows = {row["id"]: row for patch in patches for row in patch.get("insert", [])}
    assert "DSH_SESSION_INVARIANTS !== '1'" in str(rows["tool-invariants"]["disabled"])
