"""What users think of replies: what may be said of what, and what stays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from state_home import Home
from state_logs import reply, say, whole_turn

from dsh.kernel import Context, FiberState, ValidationError
from dsh.model.messages import create_assistant_message
from dsh.state.feedback import MessageFeedback
from dsh.state.feedback import stored as message_feedback
from dsh.state.feedback.service import FeedbackClosed, NotDurable
from dsh.state.session.events import ASSISTANT_MESSAGE, SESSION_FLUSH
from dsh.state.session.session import Session
from dsh.state.session.store import LocalSessionStore
from dsh.state.storage import DOMAIN_CHANGED, DomainFacility
from dsh.state.storage import hub as storage
from dsh.state.storage import json_files as storage_json
from dsh.state.storage.domain import facility as storage_domain


class Desk:
    """A process that takes feedback."""

    def __init__(self, folder: Path) -> None:
        self.root = Context()
        self.folder = folder
        self.home = Home(self.root, folder / "sessions")

    async def open(self) -> Desk:
        await self.home.open()
        await self.root.plugin(storage.plugin)
        await self.root.plugin(storage_json, {"root": str(self.folder / "storages")})
        await self.root.plugin(storage_domain, {"backend": "json"})
        ready = asyncio.Event()
        self.root.inject([MessageFeedback], lambda _: ready.set())
        self.row = self.root.plugin(message_feedback.plugin, {"maxNoteBytes": 20})
        await ready.wait()
        return self

    @property
    def feedback(self) -> MessageFeedback:
        return self.root.require(MessageFeedback)

    def session(self, id: str = "s", **meta: Any) -> Session:
        return self.home.store.create(id, meta={"createdAt": 5, **meta})  # type: ignore[typeddict-item]

    async def put(self, session: Session | str, message_id: str, **request: Any) -> Any:
        asked: Any = {
            "sessionId": session if isinstance(session, str) else session.id,
            "messageId": message_id,
            "rating": "positive",
            "ifVersion": None,
            **request,
        }
        return await self.feedback.put(asked)

    async def delete(self, session: Session, message_id: str, version: str | None) -> Any:
        return await self.feedback.delete(
            {"sessionId": session.id, "messageId": message_id, "ifVersion": version}
        )


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    opened = await Desk(tmp_path).open()
    yield opened
    await opened.root.dispose()


def replied(session: Session, text: str = "answer") -> str:
    """Append a reply and return the id of its message."""
    data: Any = reply(session, text)["data"]
    return str(data["message"]["id"])


def refused(code: str, **facts: Any) -> dict[str, Any]:
    return {"ok": False, "error": {"code": code, **facts}}


async def test_feedback_on_a_reply_is_kept(desk: Desk, tmp_path: Path) -> None:
    session = desk.session(cwd="/there")
    message = replied(session)
    done = await desk.put(session, message, note="good")
    item = done["value"]
    assert done["ok"] is True
    assert {key: item[key] for key in ("messageId", "rating", "note")} == {
        "messageId": message,
        "rating": "positive",
        "note": "good",
    }
    assert item["createdAt"] == item["updatedAt"]
    assert await desk.feedback.items(session.id) == [item]
    written = json.loads((tmp_path / "storages" / "message_feedback.json").read_text())
    assert written["unit"] == {"name": "message_feedback", "version": 0}
    assert written["tables"]["sessions"] == {
        "s": {"session": {"createdAt": 5, "cwd": "/there"}, "items": [item]}
    }


async def test_feedback_is_there_after_a_restart_and_on_a_stored_session(
    desk: Desk, tmp_path: Path
) -> None:
    session = desk.session()
    first, second = replied(session), replied(session)
    await desk.put(session, first)
    await desk.root.dispose()
    again = await Desk(tmp_path).open()
    assert [item["messageId"] for item in await again.feedback.items("s")] == [first]
    assert (await again.put("s", second, rating="negative"))["ok"] is True
    assert len(await again.feedback.items("s")) == 2
    await again.root.dispose()


async def test_each_material_change_has_a_version_of_its_own(desk: Desk) -> None:
    session = desk.session()
    message = replied(session)
    versions = []
    version = None
    for rating in ("positive", "negative", "positive"):
        item = (await desk.put(session, message, rating=rating, ifVersion=version))["value"]
        version = item["version"]
        versions.append(version)
    assert len(set(versions)) == 3
    assert len(await desk.feedback.items(session.id)) == 1


async def test_saying_the_same_again_changes_nothing(desk: Desk) -> None:
    session = desk.session()
    message = replied(session)
    item = (await desk.put(session, message, note="x"))["value"]
    heard: list[Any] = []
    desk.root.on(DOMAIN_CHANGED, heard.append)
    again = await desk.put(session, message, note="x", ifVersion=item["version"])
    assert again == {"ok": True, "value": item}
    assert heard == []
    changed = await desk.put(session, message, ifVersion=item["version"])
    assert "note" not in changed["value"]
    assert len(heard) == 1


async def test_a_change_on_top_of_something_else_is_refused(desk: Desk) -> None:
    session = desk.session()
    message = replied(session)
    assert await desk.put(session, message, ifVersion="imagined") == refused(
        "version-conflict", current=None
    )
    item = (await desk.put(session, message))["value"]
    assert await desk.put(session, message, rating="negative") == refused(
        "version-conflict", current=item
    )
    assert await desk.delete(session, message, None) == refused("version-conflict", current=item)
    assert await desk.feedback.items(session.id) == [item]


async def test_changes_at_the_same_time_happen_one_after_the_other(desk: Desk) -> None:
    session = desk.session()
    message = replied(session)
    done = await asyncio.gather(
        *(desk.put(session, message, rating=rating) for rating in ("positive", "negative"))
    )
    assert [each["ok"] for each in done] == [True, False]
    assert done[1]["error"]["current"] == done[0]["value"]


async def test_taking_back_what_is_not_there_succeeds(desk: Desk) -> None:
    session = desk.session()
    message = replied(session)
    gone = {"ok": True, "value": {"absent": True}}
    assert await desk.delete(session, message, None) == gone
    assert await desk.delete(session, message, "imagined") == gone
    item = (await desk.put(session, message))["value"]
    assert await desk.delete(session, message, item["version"]) == gone
    assert await desk.feedback.items(session.id) == []
    anew = (await desk.put(session, message))["value"]
    assert anew["version"] != item["version"]


@pytest.mark.parametrize("note", ["", "  \n"])
async def test_a_blank_note_is_refused_before_anything_is_read(note: str, desk: Desk) -> None:
    assert await desk.put("nowhere", "m", note=note) == refused("note-blank")


async def test_the_limit_of_a_note_counts_bytes_of_utf8(desk: Desk) -> None:
    session = desk.session()
    message = replied(session)
    assert await desk.put("nowhere", "m", note="ä" * 11) == refused(
        "note-too-large", maxBytes=20, actualBytes=22
    )
    assert (await desk.put(session, message, note="ä" * 10))["ok"] is True


async def test_a_session_that_is_nowhere_has_no_feedback(desk: Desk) -> None:
    assert await desk.put("nowhere", "m") == refused("session-not-found")
    assert await desk.feedback.items("nowhere") == []
    deleted = await desk.feedback.delete(
        {"sessionId": "nowhere", "messageId": "m", "ifVersion": None}
    )
    assert deleted == refused("session-not-found")


async def test_only_replies_with_something_in_them_are_targets(desk: Desk) -> None:
    session = desk.session()
    said: Any = say(session, "question")["data"]
    empty = replied(session, "")
    for message in (said["id"], empty, "imagined"):
        assert await desk.put(session, message) == refused("target-not-found")


async def test_a_live_session_without_events_has_no_targets(desk: Desk) -> None:
    assert await desk.put(desk.session(), "m") == refused("target-not-found")


async def test_a_copy_that_stands_for_a_reply_is_no_target(desk: Desk) -> None:
    session = desk.session()
    original = reply(session, "long answer")
    copy = create_assistant_message([{"type": "text", "text": "short"}], "rehearsal", "m1")
    data: Any = {"turn": 1, "step": 1, "message": copy}
    session.append(
        ASSISTANT_MESSAGE,
        data,
        surface_op={"op": "replace", "start": original["seq"], "end": original["seq"]},
        source_event_seqs=[original["seq"]],
    )
    assert await desk.put(session, copy["id"]) == refused("target-not-found")
    first: Any = original["data"]
    assert (await desk.put(session, first["message"]["id"]))["ok"] is True


async def test_a_reply_is_in_storage_before_anything_is_said_of_it(desk: Desk) -> None:
    session = desk.session()
    whole_turn(session)
    message = replied(session)
    assert desk.home.stored("s") is None
    await desk.put(session, message)
    stored = desk.home.stored("s")
    assert stored is not None
    assert stored[-1]["data"]["message"]["id"] == message


async def test_a_reply_that_cannot_be_stored_gets_no_feedback(desk: Desk) -> None:
    async def fail(_: object) -> None:
        raise OSError("disk full")

    session = desk.session()
    message = replied(session)
    failing = desk.root.on(SESSION_FLUSH, fail)
    with pytest.raises(OSError, match="disk full"):
        await desk.put(session, message)
    failing.dispose()
    assert await desk.feedback.items(session.id) == []


async def test_another_session_of_the_same_id_does_not_have_it(desk: Desk) -> None:
    session = desk.session()
    await desk.put(session, replied(session))
    domain = desk.root.require(DomainFacility).get("message_feedback")
    assert domain is not None
    await domain.table("sessions").update(
        "s", lambda record: {**record, "session": {"createdAt": 1}}
    )
    assert await desk.feedback.items(session.id) == []
    second = replied(session)
    assert (await desk.put(session, second))["ok"] is True
    assert [item["messageId"] for item in await desk.feedback.items(session.id)] == [second]


async def test_unloading_finishes_what_was_asked_and_takes_no_more(desk: Desk) -> None:
    session = desk.session()
    message, feedback = replied(session), desk.feedback
    asked: Any = {
        "sessionId": session.id,
        "messageId": message,
        "rating": "positive",
        "ifVersion": None,
    }
    work = asyncio.ensure_future(feedback.put(asked))
    await asyncio.sleep(0)
    await desk.row.dispose()
    assert work.done()
    assert (await work)["ok"] is True
    for late in (feedback.put(asked), feedback.delete(asked), feedback.items("s")):
        with pytest.raises(FeedbackClosed):
            await late


async def test_feedback_on_a_session_that_nobody_stores_is_refused(root: Context) -> None:
    await root.plugin(LocalSessionStore)
    session = root.require(LocalSessionStore).create("s")
    message = replied(session)
    for name in ("session_persistence", "storage_domain"):
        root.provide(name, Absent())
    await root.plugin(message_feedback.plugin, {"maxNoteBytes": 20})
    asked: Any = {"sessionId": "s", "messageId": message, "rating": "positive", "ifVersion": None}
    with pytest.raises(NotDurable, match="kept by no storage"):
        await root.require(MessageFeedback).put(asked)


class Absent:
    """Stands where nothing is asked before the refusal."""

    async def open(self, spec: object) -> None:
        return None


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"session": {}, "items": []},
        {"session": {"createdAt": 1}, "items": [{}]},
        {"session": {"createdAt": 1, "cwd": 3}, "items": []},
    ],
)
async def test_damaged_feedback_refuses_to_load_and_is_left(record: Any, tmp_path: Path) -> None:
    path = tmp_path / "storages" / "message_feedback.json"
    path.parent.mkdir()
    text = json.dumps(
        {"unit": {"name": "message_feedback", "version": 0}, "tables": {"sessions": {"s": record}}}
    )
    path.write_text(text)
    desk = Desk(tmp_path)
    await desk.home.open()
    await desk.root.plugin(storage.plugin)
    await desk.root.plugin(storage_json, {"root": str(path.parent)})
    await desk.root.plugin(storage_domain, {"backend": "json"})
    ready = asyncio.Event()
    desk.root.inject([DomainFacility], lambda _: ready.set())
    await ready.wait()
    row = desk.root.plugin(message_feedback.plugin, {"maxNoteBytes": 20})
    with pytest.raises(Exception, match="'s' of table 'sessions'"):
        await row
    assert row.state is FiberState.FAILED
    assert path.read_text() == text
    await desk.root.dispose()


def item(message: str, version: str) -> dict[str, Any]:
    return {
        "messageId": message,
        "rating": "positive",
        "version": version,
        "createdAt": 1,
        "updatedAt": 1,
    }


@pytest.mark.parametrize(
    ("items", "problem"),
    [
        ([item("a", "1"), item("a", "2")], "two items have one messageId"),
        ([item("a", "1"), item("b", "1")], "two items have one version"),
        ([{**item("a", "1"), "rating": "great"}], "rating"),
        ([{**item("a", "1"), "note": 3}], "note"),
        ([{**item("a", "1"), "updatedAt": "now"}], "times"),
        ([item("", "1")], "no messageId"),
    ],
)
def test_a_record_holds_each_message_once(items: Any, problem: str) -> None:
    schema = message_feedback.DOMAIN.tables["sessions"]
    with pytest.raises(ValueError, match=problem):
        schema({"session": {"createdAt": 1}, "items": items})
    schema({"session": {"createdAt": 1}, "items": [item("a", "1"), item("b", "2")]})


async def test_the_limit_of_notes_must_be_given(root: Context) -> None:
    for need in ("sessions", "session_persistence", "storage_domain"):
        root.provide(need, object())
    with pytest.raises(ValidationError, match="maxNoteBytes"):
        await root.plugin(message_feedback.plugin, {})
