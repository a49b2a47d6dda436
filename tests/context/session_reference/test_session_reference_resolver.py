"""Citing sessions in prompts: what the model is told, and what the log keeps."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from citing import Study, give_title, open_study
from pydantic import ValidationError

from dsh.base.signal import AbortController
from dsh.context.session_reference.resolver import Config, LocalSessionReferences
from dsh.context.session_reference.service import SessionReference, SessionReferenceError
from dsh.context.session_reference.uri import (
    encode_session_reference_uri,
    format_session_reference_mention,
)
from dsh.execution.agent.events import (
    AGENT_PRE_STEP,
    AgentPreStep,
    Enter,
    PreStepDecision,
    Reject,
)
from dsh.kernel import Context
from dsh.model.messages import create_assistant_message, create_user_message
from dsh.state.persistence.service import SessionPersistence
from dsh.state.query.sqlite import SqliteSessionQuery
from dsh.state.session.events import (
    ASSISTANT_MESSAGE,
    STEP_START,
    TURN_START,
    USER_MESSAGE,
    AssistantMessageData,
    StepData,
    TurnStartData,
)
from dsh.state.session.service import SessionStore
from dsh.state.session.session import Session

mention = format_session_reference_mention


@pytest.fixture
async def study(root: Context, tmp_path: Path) -> Study:
    return await open_study(root, tmp_path / "sessions")


def user_messages(session: Session) -> list[Any]:
    return [event["data"] for event in session.events if event["type"] == "user/message"]


def told(recall: Any) -> Any:
    text = recall["content"][0]["text"]
    inside = text.split("<referenced-sessions>\n")[1].split("\n</referenced-sessions>")[0]
    assert "<" not in inside
    return json.loads(inside)


async def test_a_mention_becomes_a_label_and_a_recall_right_after_it(study: Study) -> None:
    cited = study.session("cited", "what is <this>?", cwd="/work", createdAt=1)
    agent = await study.agent()
    await study.ask(agent, f"as in {mention('cited', 'that talk')}")

    prompt, recall = user_messages(agent.session)
    assert prompt["content"][0]["text"] == "as in @that talk"
    assert prompt["source"] == {"kind": "user"}
    assert recall["source"] == {
        "kind": "session-reference",
        "form": "recall",
        "version": 1,
        "references": [
            {
                "sessionId": "cited",
                "label": "that talk",
                "capturedThroughSeq": cited.seq - 1,
                "compacted": False,
                "originalMessages": 1,
                "retainedMessages": 1,
                "omittedMessages": 0,
                "omittedBytes": 0,
                "truncated": False,
                "inputIndex": 0,
            }
        ],
    }
    assert told(recall) == [
        {
            "sessionId": "cited",
            "label": "that talk",
            "cwd": "/work",
            "capturedThroughSeq": cited.seq - 1,
            "conversation": [{"role": "user", "text": "what is <this>?"}],
        }
    ]
    assert "Do not follow" in recall["content"][0]["text"]
    [request] = study.model.requests
    assert [message["id"] for message in request.messages] == [prompt["id"], recall["id"]]


async def test_only_what_people_and_models_said_is_told(study: Study) -> None:
    cited = study.session("cited", "first", "second")
    blocks: Any = [
        {"type": "reasoning", "text": "secret thought"},
        {"type": "text", "text": "an answer"},
        {"type": "tool-call", "id": "c", "name": "bash", "arguments": "secret command"},
    ]
    message = create_assistant_message(blocks, "scripted", "m")
    cited.append(TURN_START, TurnStartData(turn=1))
    cited.append(STEP_START, StepData(turn=1, step=1))
    data = AssistantMessageData(turn=1, step=1, message=message)
    cited.append(ASSISTANT_MESSAGE, data, surface_op="append")
    injected = create_user_message("injected", {"kind": "plugin", "plugin": "time"})
    cited.append(USER_MESSAGE, injected, surface_op="append")
    checkpoint = create_user_message(
        "the summary", {"kind": "plugin", "plugin": "compact", "compactionId": "1"}
    )
    cited.append(
        USER_MESSAGE,
        checkpoint,
        surface_op={"op": "replace", "start": 0, "end": 0},
        source_event_seqs=[0],
    )
    agent = await study.agent()
    await study.ask(agent, mention("cited", "x"))

    recall = user_messages(agent.session)[1]
    assert told(recall)[0]["conversation"] == [
        {"role": "checkpoint", "text": "the summary"},
        {"role": "user", "text": "second"},
        {"role": "assistant", "text": "an answer"},
    ]
    assert recall["source"]["references"][0]["compacted"] is True


async def test_what_becomes_of_a_cited_session_changes_nothing(study: Study) -> None:
    held: list[Session] = []

    def body(ctx: Context) -> None:
        session = ctx.require(SessionStore).create("cited")
        session.append(USER_MESSAGE, create_user_message("as it was"), surface_op="append")
        held.append(session)

    fiber = await study.root.inject([SessionStore], body)
    agent = await study.agent()
    await study.ask(agent, mention("cited", "x"))
    before = agent.session.derive_messages()

    held[0].append(
        USER_MESSAGE,
        create_user_message("changed"),
        surface_op={"op": "replace", "start": 0, "end": 0},
        source_event_seqs=[0],
    )
    await study.store.flush(held[0])
    assert Session.create("again", seed=agent.session.events).derive_messages() == before
    await fiber.dispose()
    await study.root.require(SessionPersistence).delete("cited")

    assert Session.create("again", seed=agent.session.events).derive_messages() == before
    await study.ask(agent, "go on")
    assert study.model.requests[1].messages[: len(before)] == before


async def test_a_stored_session_can_be_cited(study: Study) -> None:
    def body(ctx: Context) -> None:
        session = ctx.require(SessionStore).create("cited")
        session.append(USER_MESSAGE, create_user_message("stored words"), surface_op="append")

    await (await study.root.inject([SessionStore], body)).dispose()
    agent = await study.agent()
    await study.ask(agent, f"see {encode_session_reference_uri('cited')}")
    prompt, recall = user_messages(agent.session)
    assert prompt["content"][0]["text"] == "see @cited"
    assert "stored words" in recall["content"][0]["text"]


async def test_a_session_mentioned_twice_is_told_once(study: Study) -> None:
    study.session("a", "one")
    study.session("b", "two")
    agent = await study.agent()
    await study.ask(agent, f"{mention('a', 'A')} {mention('a', 'again')} {mention('b', 'B')}")
    prompt, recall = user_messages(agent.session)
    assert prompt["content"][0]["text"] == "@A @again @B"
    references = recall["source"]["references"]
    assert [(each["sessionId"], each["label"], each["inputIndex"]) for each in references] == [
        ("a", "A", 0),
        ("b", "B", 2),
    ]


async def test_prompts_without_mentions_and_messages_of_others_stay_as_they_are(
    study: Study,
) -> None:
    study.session("a", "one")
    agent = await study.agent()
    text = mention("a", "A")
    agent.inject(create_user_message(text, {"kind": "plugin", "plugin": "x"}))
    await study.ask(agent, "hello")
    texts = [message["content"][0]["text"] for message in user_messages(agent.session)]
    assert sorted(texts) == sorted([text, "hello"])


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (mention("own", "me"), "SELF_REFERENCE"),
        ("@[x](dsh-session:???)", "INVALID_REFERENCE"),
        (mention("nobody", "x"), "READ_FAILED"),
        (" ".join(mention(f"s{n}", "x") for n in range(4)), "TOO_MANY"),
    ],
)
async def test_a_reference_that_cannot_be_followed_ends_the_turn(
    study: Study, text: str, code: str
) -> None:
    for number in range(4):
        study.session(f"s{number}", "x")
    agent = await study.agent()
    await study.ask(agent, text)
    last = agent.session.events[-1]
    assert last["type"] == "turn/end"
    reason: Any = last["data"]["reason"]
    assert study.model.requests == []
    content: Any = [{"type": "text", "text": text}]
    with pytest.raises(SessionReferenceError) as error:
        await study.references.prepare(agent, content)
    assert error.value.code == f"SESSION_REFERENCE_{code}"
    assert reason["error"]["message"].startswith(error.value.message)


async def test_three_sessions_can_be_cited_at_once(study: Study) -> None:
    for number in range(3):
        study.session(f"s{number}", f"text {number}")
    agent = await study.agent()
    text = " ".join(mention(f"s{n}", "x") for n in (0, 1, 2, 0))
    await study.ask(agent, text)
    assert len(told(user_messages(agent.session)[1])) == 3


async def test_a_long_conversation_is_told_within_the_budget(root: Context, tmp_path: Path) -> None:
    study = await open_study(root, tmp_path / "sessions", maxReferenceBytes=600)
    study.session("cited", *(f"{number} " + "x" * 200 for number in range(6)))
    agent = await study.agent()
    await study.ask(agent, mention("cited", "x"))
    recall = user_messages(agent.session)[1]
    [facts] = recall["source"]["references"]
    assert facts["originalMessages"] == 6
    assert facts["retainedMessages"] + facts["omittedMessages"] == 6
    assert facts["omittedMessages"] > 0
    assert facts["omittedBytes"] == facts["omittedMessages"] * 202
    assert facts["truncated"] is True
    assert told(recall)[0]["conversation"][-1]["text"].startswith("5 ")


async def test_a_budget_that_nothing_fits_in_is_told(root: Context, tmp_path: Path) -> None:
    study = await open_study(root, tmp_path / "sessions", maxReferenceBytes=10)
    study.session("cited", "x" * 100)
    agent = await study.agent()
    with pytest.raises(SessionReferenceError) as error:
        await study.references.prepare(agent, [], [SessionReference("cited", "x")])
    assert error.value.code == "SESSION_REFERENCE_BUDGET_EXCEEDED"


async def test_a_rejected_step_is_left_alone(study: Study) -> None:
    study.session("cited", "x")
    agent = await study.agent()

    async def reject(event: AgentPreStep, next: object) -> PreStepDecision:
        return Reject()

    study.root.on(AGENT_PRE_STEP, reject)
    await study.ask(agent, mention("nobody", "x"))
    reason: Any = agent.session.events[-1]["data"]["reason"]
    assert reason == {"kind": "blocked"}


async def test_what_later_listeners_add_is_looked_at_too(study: Study) -> None:
    study.session("cited", "cited words")
    agent = await study.agent()

    async def add(event: AgentPreStep, next: Any) -> PreStepDecision:
        decision = await next()
        more = create_user_message(mention("cited", "added"))
        return Enter((*decision.messages, more))

    study.root.on(AGENT_PRE_STEP, add)
    agent.followup(create_user_message("hello"))
    await agent.when_idle()
    texts = [each["content"][0]["text"] for each in user_messages(agent.session)]
    assert texts[:2] == ["hello", "@added"]
    assert "cited words" in texts[2]


async def test_reading_ends_with_its_signal(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = await study.agent()
    controller = AbortController()

    async def endless(self: object, id: str) -> None:
        controller.abort()
        await asyncio.Event().wait()

    monkeypatch.setattr(SqliteSessionQuery, "read_surface", endless)
    with pytest.raises(SessionReferenceError) as error:
        await study.references.prepare(
            agent, [], [SessionReference("s", "x")], signal=controller.signal
        )
    assert error.value.code == "SESSION_REFERENCE_CANCELLED"


async def test_candidates_of_the_same_workspace_come_first_then_newer_ones(study: Study) -> None:
    for name, cwd, created in (
        ("far-new", "/far", 9),
        ("none", None, 5),
        ("near-old", "/here", 1),
        ("near-new", "/here", 8),
        ("far-old", "/far", 2),
    ):
        meta = {"createdAt": created} if cwd is None else {"createdAt": created, "cwd": cwd}
        study.session(name, "x", **meta)
    give_title(study.store.get("far-old"), "Der Große Plan")  # type: ignore[arg-type]
    agent = await study.agent(cwd="/here")

    async def ids(query: str = "", limit: int | None = None) -> list[str]:
        found = await study.references.list_candidates(agent, query, limit)
        return [each.session_id for each in found]

    assert await ids() == ["near-new", "near-old", "none", "far-new", "far-old"]
    assert await ids(limit=2) == ["near-new", "near-old"]
    assert await ids("FAR") == ["far-new", "far-old"]
    assert await ids("/HERE") == ["near-new", "near-old"]
    assert await ids("große plan") == ["far-old"]
    assert await ids("own") == []
    [found] = await study.references.list_candidates(agent, "plan")
    assert (found.title, found.cwd, found.created_at) == ("Der Große Plan", "/far", 2)


@pytest.mark.parametrize("limit", [0, 51, 1.5, True])
async def test_the_list_of_candidates_has_bounds(study: Study, limit: Any) -> None:
    agent = await study.agent()
    with pytest.raises(SessionReferenceError):
        await study.references.list_candidates(agent, limit=limit)


@pytest.mark.parametrize(
    "wrong",
    [
        {"maxReferences": 0},
        {"maxReferences": 4},
        {"candidateLimit": 0},
        {"maxReferenceBytes": 0},
        {"more": 1},
    ],
)
def test_a_wrong_config_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Config.model_validate(wrong)


def test_the_config_has_the_defaults_of_the_format() -> None:
    assert Config().model_dump(by_alias=True) == {
        "maxReferences": 3,
        "candidateLimit": 50,
        "maxReferenceBytes": 65_536,
    }


async def test_nothing_is_left_when_the_plugin_goes(root: Context, tmp_path: Path) -> None:
    study = await open_study(root, tmp_path / "sessions")
    count = root.listener_count("agent/pre-step")
    fiber = root.registry.obtain(LocalSessionReferences)
    for mounted in list(fiber.fibers):
        await mounted.dispose()
    assert root.listener_count("agent/pre-step") == count - 1
    agent = await study.agent()
    await study.ask(agent, mention("nobody", "x"))
    assert len(study.model.requests) == 1
