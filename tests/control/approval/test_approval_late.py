"""A question that was open at a crash is put again after the resume, and decided once."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from late_house import ASKED, DECIDED, REASON, House, logged, notices, outcomes
from loop_harness import calls, results, ticks, until, user

from dsh.base.signal import AbortController
from dsh.control.approval.events import RecordedCall, set_approval_policy
from dsh.control.approval.grants import Wish, wish_about
from dsh.control.approval.pending import leftovers
from dsh.control.approval.policy import PolicyApproval
from dsh.control.approval.service import ApprovalRequest, ApprovalService
from dsh.execution.agent.events import AGENT_SESSION_START
from dsh.execution.agent.service import Agent
from dsh.execution.tools.events import TOOLS_PRE_EXECUTE, Deny
from dsh.execution.tools.service import ToolExecution
from dsh.kernel import InactiveEffect
from dsh.model.messages import CallId
from dsh.state.persistence.errors import SessionHeld
from dsh.state.session.fork import fork_stored
from dsh.state.session.repair import TOOL_OUTCOME_UNKNOWN, interrupted_turn_closers

CALL = '{"target": "live"}'

Opener = Callable[..., Awaitable[House]]


@pytest.fixture
async def houses(tmp_path: Path) -> AsyncIterator[Opener]:
    live: list[House] = []

    async def open_house(**config: Any) -> House:
        live.append(await House(tmp_path).open(**config))
        return live[-1]

    yield open_house
    for house in live:
        await house.close()


async def begin(house: House, *asked: tuple[str, str, str]) -> Agent:
    """Let an agent ask for its first call."""
    house.model.will(calls(*(asked or (("c1", "deploy", CALL),))))
    agent = await house.loop.agent()
    agent.followup(user("release"))
    await house.desk.asked(1)
    return agent


@pytest.fixture
async def cut_off(houses: Opener, tmp_path: Path) -> House:
    """A house that finds the session of another one that was killed while a question was open."""
    other = await House(tmp_path / "other").open()
    agent = await begin(other)
    header, events = agent.session.header, agent.session.events
    house = await houses()
    await house.keep(header, events)
    await other.close()
    return house


async def answered(house: House, outcome: str) -> Agent:
    agent = (await house.resume()).agent
    await house.desk.asked(1)
    house.desk.say(outcome)
    await until(lambda: outcome in outcomes(agent))
    return agent


async def turn(house: House, agent: Agent, *asked: tuple[str, str, str], say: str = "ok") -> None:
    """Let the model ask for calls, and end its turn."""
    house.model.will(*([calls(*asked)] if asked else []), say)
    agent.followup(user("go on"))
    await agent.when_idle()


async def asked_anew(
    house: House, agent: Agent, call: tuple[str, str, str], count: int, *, say: str = "rejected"
) -> ApprovalRequest:
    """Let the model make a call that is put to the desk as its ``count``-th question."""
    house.model.will(calls(call), "ok")
    agent.followup(user("go on"))
    request = await house.desk.asked(count)
    house.desk.say(say)
    await agent.when_idle()
    return request


async def test_it_is_put_again_with_its_own_id_outside_of_a_turn(cut_off: House) -> None:
    agent = (await cut_off.resume()).agent
    request = await cut_off.desk.asked(1)
    [asked] = logged(agent, ASKED)
    [event] = [e for e in agent.session.events if e["type"] == ASKED]
    assert (request.id, request.tool_name, request.call_id) == (asked["id"], "deploy", "c1")
    assert (request.reason, request.pending_since) == (REASON, event["time"])
    assert request.resumed
    assert agent.status == "idle"
    assert outcomes(agent) == []


async def test_a_question_of_this_life_is_not_a_resumed_one(houses: Opener) -> None:
    house = await houses()
    agent = await begin(house)
    request = house.desk.requests[0]
    assert request.id == logged(agent, ASKED)[0]["id"]
    assert not request.resumed


async def test_repair_answers_the_call_and_leaves_the_question_to_its_service(
    cut_off: House,
) -> None:
    stored = (await cut_off.persistence.read_from("s1", 0))[1]
    closers = interrupted_turn_closers(stored)
    assert [event["type"] for event in closers] == ["tool/result", "step/end", "turn/end"]
    agent = (await cut_off.resume()).agent
    assert results(agent)[0][3] == TOOL_OUTCOME_UNKNOWN


async def test_a_yes_is_logged_once_and_told_without_waking(cut_off: House) -> None:
    agent = await answered(cut_off, "allowed-once")
    await ticks(10)
    [asked], [decided] = logged(agent, ASKED), logged(agent, DECIDED)
    assert decided == {"id": asked["id"], "outcome": "allowed-once"}
    assert agent.status == "idle"
    [notice] = notices(agent)
    assert "'deploy'" in notice
    assert CALL in notice
    assert "It was allowed." in notice
    assert cut_off.deployed == []


async def test_a_yes_lets_the_same_call_run_once_without_another_question(
    cut_off: House,
) -> None:
    agent = await answered(cut_off, "allowed-once")
    cut_off.model.will(
        calls(("c9", "deploy", '{ "target":"live"}')), calls(("c10", "deploy", CALL)), "ok"
    )
    agent.followup(user("go on"))
    await cut_off.desk.asked(2)
    assert cut_off.deployed == ["live"]
    assert cut_off.desk.requests[1].call_id == "c10"
    cut_off.desk.say("rejected")
    await agent.when_idle()
    ids = [data["id"] for data in logged(agent, ASKED)]
    assert [(d["id"], d["outcome"]) for d in logged(agent, DECIDED)] == [
        (ids[0], "allowed-once"),
        (ids[1], "allowed-once"),
        (ids[2], "rejected"),
    ]


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("deploy", '{"target": "other"}', REASON),
        ("deploy", '{"target": "live", "note": ""}', REASON),
        ("deploy", CALL, "it deletes everything"),
    ],
)
async def test_a_grant_covers_nothing_but_that_call(
    cut_off: House, name: str, arguments: str, reason: str
) -> None:
    agent = await answered(cut_off, "allowed-once")
    cut_off.reason = reason
    await asked_anew(cut_off, agent, ("c2", name, arguments), 2)
    assert cut_off.deployed == []


async def test_a_grant_is_of_no_use_to_another_agent(cut_off: House) -> None:
    await answered(cut_off, "allowed-once")
    other = await cut_off.loop.agent("s2")
    request = await asked_anew(cut_off, other, ("c1", "deploy", CALL), 2)
    assert request.agent is other


async def test_a_grant_ends_with_the_turn_that_was_told(cut_off: House) -> None:
    agent = await answered(cut_off, "allowed-once")
    await turn(cut_off, agent, say="I do not need it.")
    await asked_anew(cut_off, agent, ("c2", "deploy", CALL), 2)
    assert cut_off.deployed == []


async def test_a_grant_waits_for_the_turn_that_is_told(cut_off: House) -> None:
    agent = (await cut_off.resume()).agent
    await cut_off.desk.asked(1)
    cut_off.model.will(calls(("c2", "deploy", '{"target": "other"}')))
    agent.followup(user("go on"))
    await cut_off.desk.asked(2)
    cut_off.desk.say("allowed-once", 0)
    await until(lambda: len(notices(agent)) == 1)
    agent.cancel({"kind": "user"}, keep_inbox=True)
    await agent.when_idle()
    await turn(cut_off, agent, ("c3", "deploy", CALL))
    assert cut_off.deployed == ["live"]


async def test_a_grant_ends_when_its_notice_is_withdrawn(cut_off: House) -> None:
    agent = await answered(cut_off, "allowed-once")
    agent.cancel({"kind": "user"})
    assert notices(agent) == []
    await asked_anew(cut_off, agent, ("c2", "deploy", CALL), 2)


async def test_a_grant_does_not_outweigh_the_policy_never(cut_off: House) -> None:
    agent = await answered(cut_off, "allowed-once")
    cut_off.root.require(ApprovalService).set_policy(agent, "never")
    await turn(cut_off, agent, ("c2", "deploy", CALL))
    assert cut_off.deployed == []
    assert outcomes(agent) == ["allowed-once", "rejected"]


async def test_a_no_is_told_and_grants_nothing(cut_off: House) -> None:
    agent = await answered(cut_off, "rejected")
    [notice] = notices(agent)
    assert "Do not try the same again" in notice
    await asked_anew(cut_off, agent, ("c2", "deploy", CALL), 2)
    assert cut_off.deployed == []


async def test_the_model_reads_the_notice_in_its_next_step(cut_off: House) -> None:
    agent = await answered(cut_off, "rejected")
    await turn(cut_off, agent)
    sent = str(cut_off.model.requests[-1].messages)
    assert "waited for approval" in sent


async def test_never_rejects_at_once_without_asking(cut_off: House, houses: Opener) -> None:
    house = await houses(policy="never")
    agent = (await house.resume()).agent
    assert outcomes(agent) == ["rejected"]
    assert len(notices(agent)) == 1
    await ticks(10)
    assert house.desk.requests == []


async def test_a_switch_to_never_settles_the_question(cut_off: House) -> None:
    agent = (await cut_off.resume()).agent
    request = await cut_off.desk.asked(1)
    set_approval_policy(agent.session, "never")
    await until(lambda: outcomes(agent) == ["rejected"])
    assert request.signal is not None
    assert request.signal.aborted


async def test_nobody_to_ask_decides_nothing_and_a_later_life_asks(
    cut_off: House, houses: Opener
) -> None:
    headless = await houses(answerer=False)
    handle = await headless.resume()
    await turn(headless, handle.agent)
    assert logged(handle.agent, DECIDED) == []
    assert notices(handle.agent) == []
    await handle.dispose()
    await headless.close()

    agent = await answered(cut_off, "allowed-once")
    assert outcomes(agent) == ["allowed-once"]


@pytest.mark.parametrize("answer", ["cancelled", "unavailable", "nonsense"])
async def test_only_a_yes_or_a_no_decides(cut_off: House, answer: str) -> None:
    handle = await cut_off.resume()
    await cut_off.desk.asked(1)
    cut_off.desk.say(answer)
    await ticks(20)
    assert logged(handle.agent, DECIDED) == []
    await handle.dispose()
    again = await answered_again(cut_off, 2)
    assert outcomes(again) == ["rejected"]


async def answered_again(house: House, count: int) -> Agent:
    agent = (await house.resume()).agent
    await house.desk.asked(count)
    house.desk.say("rejected")
    await until(lambda: outcomes(agent) == ["rejected"])
    return agent


async def test_the_end_of_the_agent_withdraws_the_question_and_leaves_it_open(
    cut_off: House,
) -> None:
    handle = await cut_off.resume()
    request = await cut_off.desk.asked(1)
    await handle.dispose()
    assert request.signal is not None
    assert request.signal.aborted
    cut_off.desk.say("allowed-once")
    await ticks(10)
    assert logged(handle.agent, DECIDED) == []
    assert outcomes(await answered_again(cut_off, 2)) == ["rejected"]


async def test_a_service_that_is_loaded_again_takes_the_question_up(cut_off: House) -> None:
    agent = (await cut_off.resume()).agent
    await cut_off.desk.asked(1)
    effects = len(list(agent.ctx.fiber.effects()))
    await cut_off.approval.dispose()
    assert outcomes(agent) == []
    assert len(list(agent.ctx.fiber.effects())) == effects - 1
    await cut_off.root.plugin(PolicyApproval)
    request = await cut_off.desk.asked(2)
    assert request.resumed
    cut_off.desk.say("rejected")
    await until(lambda: outcomes(agent) == ["rejected"])


async def test_a_service_that_is_loaded_again_leaves_questions_with_an_asker_alone(
    houses: Opener,
) -> None:
    house = await houses()
    agent = await begin(house)
    house.model.will("ok")
    await house.approval.dispose()
    await house.root.plugin(PolicyApproval)
    await agent.when_idle()
    assert outcomes(agent) == ["cancelled"]
    assert len(house.desk.requests) == 1


async def test_a_service_that_is_loaded_again_does_not_repeat_a_withdrawn_notice(
    cut_off: House,
) -> None:
    agent = await answered(cut_off, "rejected")
    agent.cancel({"kind": "user"})
    await cut_off.approval.dispose()
    await cut_off.root.plugin(PolicyApproval)
    assert notices(agent) == []


async def test_only_questions_of_earlier_lives_are_left(tmp_path: Path, cut_off: House) -> None:
    agent = (await cut_off.resume()).agent
    [ask] = leftovers(agent.session).undecided
    assert (ask.tool_name, ask.reason) == ("deploy", REASON)
    house = await House(tmp_path / "new").open()
    asking = await begin(house)
    assert leftovers(asking.session).undecided == []
    await house.close()


async def test_the_same_question_asked_anew_takes_the_place_of_the_old_one(
    cut_off: House,
) -> None:
    agent = (await cut_off.resume()).agent
    old = await cut_off.desk.asked(1)
    cut_off.model.will(calls(("c2", "deploy", CALL)), "ok")
    agent.followup(user("go on"))
    new = await cut_off.desk.asked(2)
    assert old.signal is not None
    assert old.signal.aborted
    cut_off.desk.say("allowed-once", 0)
    cut_off.desk.say("rejected", 1)
    await agent.when_idle()
    assert [(d["id"], d["outcome"]) for d in logged(agent, DECIDED)] == [
        (old.id, "cancelled"),
        (new.id, "rejected"),
    ]
    assert notices(agent) == []


async def test_a_repetition_that_is_not_put_leaves_the_old_question_open(cut_off: House) -> None:
    agent = (await cut_off.resume()).agent
    old = await cut_off.desk.asked(1)
    aborted = AbortController()
    aborted.abort()
    approval = cut_off.root.require(ApprovalService)
    came_of_it: list[str] = []

    async def repeat(call: ToolExecution, next: Any) -> Deny:
        again = ApprovalRequest(agent, call.name, call.call_id, REASON, aborted.signal)
        came_of_it.append(await approval.request(again))
        return Deny("not now")

    cut_off.root.on(TOOLS_PRE_EXECUTE, repeat, prepend=True)
    await turn(cut_off, agent, ("c2", "deploy", CALL))
    assert came_of_it == ["cancelled"]
    assert old.signal is not None
    assert not old.signal.aborted


async def test_the_next_life_tells_nothing_of_a_question_whose_place_was_taken(
    cut_off: House, tmp_path: Path
) -> None:
    agent = (await cut_off.resume()).agent
    await cut_off.desk.asked(1)
    await asked_anew(cut_off, agent, ("c2", "deploy", CALL), 2)
    house = await House(tmp_path / "later").open()
    await house.keep(agent.session.header, agent.session.events)
    assert notices((await house.resume()).agent) == []
    await house.close()


async def test_another_call_leaves_the_old_question_open(cut_off: House) -> None:
    agent = (await cut_off.resume()).agent
    old = await cut_off.desk.asked(1)
    await asked_anew(cut_off, agent, ("c2", "deploy", '{"target": "other"}'), 2)
    assert old.signal is not None
    assert not old.signal.aborted
    assert len(outcomes(agent)) == 1


async def test_the_same_call_of_another_agent_leaves_the_old_question_open(cut_off: House) -> None:
    agent = (await cut_off.resume()).agent
    old = await cut_off.desk.asked(1)
    other = await cut_off.loop.agent("s2")
    await asked_anew(cut_off, other, ("c1", "deploy", CALL), 2)
    assert old.signal is not None
    assert not old.signal.aborted
    assert outcomes(agent) == []


async def test_a_question_that_two_things_end_at_once_is_decided_once(cut_off: House) -> None:
    agent = (await cut_off.resume()).agent
    await cut_off.desk.asked(1)
    approval = cut_off.root.require(ApprovalService)

    async def repeat(call: ToolExecution, next: Any) -> Deny:
        set_approval_policy(agent.session, "never")
        await approval.request(ApprovalRequest(agent, call.name, call.call_id, REASON))
        return Deny("not now")

    cut_off.root.on(TOOLS_PRE_EXECUTE, repeat, prepend=True)
    await turn(cut_off, agent, ("c2", "deploy", CALL))
    decided = [data["id"] for data in logged(agent, DECIDED)]
    assert sorted(decided) == sorted(data["id"] for data in logged(agent, ASKED))


async def test_the_end_of_a_turn_leaves_a_late_question_open(cut_off: House) -> None:
    agent = (await cut_off.resume()).agent
    old = await cut_off.desk.asked(1)
    await turn(cut_off, agent)
    assert old.signal is not None
    assert not old.signal.aborted
    cut_off.desk.say("rejected")
    await until(lambda: outcomes(agent) == ["rejected"])


async def test_an_agent_that_ends_as_it_starts_is_not_asked_for(cut_off: House) -> None:
    cut_off.root.on(
        AGENT_SESSION_START,
        lambda started: started.agent.ctx.fiber.dispose(),
        prepend=True,
        everywhere=True,
    )
    agent = (await cut_off.resume()).agent
    await ticks(10)
    assert cut_off.desk.requests == []
    assert outcomes(agent) == []
    assert [type(error) for error in cut_off.reports] == [InactiveEffect]
    cut_off.reports.clear()


async def test_a_log_that_one_process_holds_is_asked_about_there_only(
    cut_off: House, houses: Opener
) -> None:
    await cut_off.resume()
    await cut_off.desk.asked(1)
    other = await houses()
    with pytest.raises(SessionHeld):
        await other.resume()
    await ticks(10)
    assert other.desk.requests == []


async def unanswered(house: House) -> Agent:
    """Resume while nobody answers, so that the old question stays in the log."""
    agent = (await house.resume()).agent
    await house.desk.asked(1)
    house.desk.say("unavailable")
    await ticks(10)
    return agent


async def test_a_call_id_that_is_used_again_does_not_change_what_was_asked(cut_off: House) -> None:
    agent = await unanswered(cut_off)
    await asked_anew(cut_off, agent, ("c1", "deploy", '{"target": "other"}'), 2)
    [ask] = leftovers(agent.session).undecided
    assert ask.call is not None
    assert ask.call.arguments == CALL


@pytest.mark.parametrize("outcome", ["allowed-once", "rejected"])
async def test_an_answer_to_the_same_question_closes_the_old_one(
    cut_off: House, outcome: str
) -> None:
    agent = await unanswered(cut_off)
    old = cut_off.desk.requests[0]
    cut_off.model.will(calls(("c2", "deploy", CALL)), "ok")
    agent.followup(user("go on"))
    new = await cut_off.desk.asked(2)
    assert logged(agent, DECIDED) == []
    cut_off.desk.say(outcome)
    await agent.when_idle()
    assert [(d["id"], d["outcome"]) for d in logged(agent, DECIDED)] == [
        (new.id, outcome),
        (old.id, "cancelled"),
    ]


async def test_a_repetition_that_nobody_answers_leaves_the_old_question_open(
    cut_off: House,
) -> None:
    agent = await unanswered(cut_off)
    new = await asked_anew(cut_off, agent, ("c2", "deploy", CALL), 2, say="unavailable")
    assert [data["id"] for data in logged(agent, DECIDED)] == [new.id]


async def test_two_late_questions_answered_in_reverse_keep_their_answers(
    houses: Opener, tmp_path: Path
) -> None:
    other = await House(tmp_path / "other").open()
    agent = await begin(other)
    approval = other.root.require(ApprovalService)
    second = asyncio.create_task(
        approval.request(ApprovalRequest(agent, "deploy", CallId("none"), "another"))
    )
    await other.desk.asked(2)
    house = await houses()
    await house.keep(agent.session.header, agent.session.events)
    other.desk.say("cancelled")
    await second
    await other.close()

    agent = (await house.resume()).agent
    await house.desk.asked(2)
    ids = [request.id for request in house.desk.requests]
    house.desk.say("rejected", 1)
    await until(lambda: len(outcomes(agent)) == 1)
    house.desk.say("allowed-once", 0)
    await until(lambda: len(outcomes(agent)) == 2)
    assert [(d["id"], d["outcome"]) for d in logged(agent, DECIDED)] == [
        (ids[1], "rejected"),
        (ids[0], "allowed-once"),
    ]


async def test_a_yes_about_a_call_that_the_log_does_not_have_grants_nothing(
    houses: Opener, tmp_path: Path
) -> None:
    other = await House(tmp_path / "other").open()
    agent = await begin(other)
    asked = next(event for event in agent.session.events if event["type"] == ASKED)
    events = [*agent.session.events[: asked["seq"]]]
    events.append({**asked, "data": {"id": "q", "toolName": "deploy", "reason": REASON}})
    house = await houses()
    await house.keep(agent.session.header, events)
    await other.close()
    agent = await answered(house, "allowed-once")
    await asked_anew(house, agent, ("c1", "deploy", CALL), 2)
    assert house.deployed == []


async def test_a_fork_does_not_ask_what_its_parent_is_asked(cut_off: House) -> None:
    agent = (await cut_off.resume()).agent
    await cut_off.desk.asked(1)
    child = cut_off.store.fork(agent.session, child_session_id="child")
    await cut_off.store.flush(child)
    await fork_stored(cut_off.persistence, "s1", child_id="stored")
    stored = (await cut_off.resume("stored")).agent
    await ticks(20)
    assert len(cut_off.desk.requests) == 1
    assert outcomes(stored) == []


async def test_a_fork_asks_its_own_questions_again(houses: Opener, tmp_path: Path) -> None:
    other = await House(tmp_path / "other").open()
    other.model.will("hello")
    parent = await other.loop.agent()
    parent.followup(user("hi"))
    await parent.when_idle()
    await other.store.flush(parent.session)
    await fork_stored(other.persistence, "s1", child_id="child")
    other.model.will(calls(("c1", "deploy", CALL)))
    child = (await other.resume("child")).agent
    child.followup(user("release"))
    await other.desk.asked(1)
    house = await houses()
    await house.keep(child.session.header, child.session.events)
    await other.close()
    await house.resume("child")
    assert (await house.desk.asked(1)).resumed


async def test_a_crash_after_any_event_ends_in_one_decision_that_the_model_knows_of(
    tmp_path: Path, cut_off: House
) -> None:
    agent = await answered(cut_off, "allowed-once")
    await turn(cut_off, agent, ("c2", "deploy", CALL))
    header, events = agent.session.header, agent.session.events
    [first, *_] = [event for event in events if event["type"] == ASKED]
    told_id = f"approval-{logged(agent, ASKED)[0]['id']}"
    asked_again = 0
    for end in range(first["seq"] + 1, len(events) + 1):
        house = await House(tmp_path / f"cut-{end}").open()
        await house.keep(header, events[:end])
        resumed = (await house.resume()).agent
        await ticks(5)
        for index, _ in enumerate(house.desk.requests):
            house.desk.say("rejected", index)
        await ticks(5)
        decided = [data["id"] for data in logged(resumed, DECIDED)]
        assert sorted(decided) == sorted(data["id"] for data in logged(resumed, ASKED)), end
        told = [message["id"] for message in logged(resumed, "user/message")]
        told += [message["id"] for message in resumed.inbox.next_step]
        assert told.count(told_id) == 1, end
        asked_again += len(house.desk.requests)
        await house.close()
    assert asked_again > 2


async def test_a_notice_that_was_lost_with_the_process_is_given_without_the_grant(
    tmp_path: Path, cut_off: House
) -> None:
    agent = await answered(cut_off, "allowed-once")
    end = next(e["seq"] for e in agent.session.events if e["type"] == DECIDED) + 1
    house = await House(tmp_path / "later").open()
    await house.keep(agent.session.header, agent.session.events[:end])
    agent = (await house.resume()).agent
    [notice] = notices(agent)
    assert "It was allowed." in notice
    await asked_anew(house, agent, ("c2", "deploy", CALL), 1)
    assert house.deployed == []
    await house.close()


async def test_a_killed_process_leaves_the_question_to_the_next(
    tmp_path: Path, houses: Opener
) -> None:
    folders = [Path(__file__).parent, Path(__file__).parents[2] / "execution" / "loop"]
    child = subprocess.Popen(  # noqa: ASYNC220 - starting it takes no time worth a thread
        [sys.executable, str(folders[0] / "asking_child.py"), str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))},
    )
    assert child.stdout is not None
    with child:
        line = await asyncio.to_thread(child.stdout.readline)
        child.kill()
    house = await houses(answerer=True)
    agent = (await house.resume()).agent
    request = await house.desk.asked(1)
    assert request.id == line.decode().strip()
    house.desk.say("allowed-once")
    await until(lambda: outcomes(agent) == ["allowed-once"])
    await turn(house, agent, ("c2", "deploy", CALL))
    assert house.deployed == ["live"]
    assert len(house.desk.requests) == 1


def test_a_call_of_another_tool_says_nothing_of_what_is_asked() -> None:
    event: Any = {}
    call = RecordedCall(event, "deploy", CALL)
    assert wish_about(call, "release", None) is None
    assert wish_about(call, "deploy", None) == Wish("deploy", '{"target":"live"}', None)
