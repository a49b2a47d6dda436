from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dsh.kernel import Context
from dsh.model.messages import create_user_message
from dsh.state.log_export import (
    DescendantMissing,
    MediaUnavailable,
    archive_chunks,
    archive_name,
    image_refs,
    log_lines,
    markdown_lines,
    transcript,
)
from dsh.state.persistence.errors import SessionNotFound
from dsh.state.persistence.jsonl import JsonlPersistence
from dsh.state.session.events import USER_MESSAGE, SessionMeta
from dsh.state.session.session import Session
from dsh.state.session.store import LocalSessionStore

META: SessionMeta = {"cwd": "/w"}


class Place:
    """A store of live sessions and one of files."""

    def __init__(self, root: Context) -> None:
        self.store = root.require(LocalSessionStore)
        self.persistence = root.require(JsonlPersistence)

    async def add(self, id: str, **meta: Any) -> Session:
        session = self.store.create(id, meta=meta)  # type: ignore[arg-type]
        session.append(USER_MESSAGE, create_user_message(f"I am {id}"), surface_op="append")
        await self.store.flush(session)
        return session

    async def archive(self, id: str, **options: Any) -> zipfile.ZipFile:
        parts = [part async for part in archive_chunks(self.persistence, id, **options)]
        archive = zipfile.ZipFile(io.BytesIO(b"".join(parts)))
        assert archive.testzip() is None
        return archive


@pytest.fixture
async def place(root: Context, tmp_path: Path) -> Place:
    await root.plugin(LocalSessionStore)
    await root.plugin(JsonlPersistence, {"root": str(tmp_path), "writeBatchMaxDelayMs": 3_600_000})
    return Place(root)


async def test_subagents_come_parents_first_and_in_the_order_of_their_creation(
    place: Place,
) -> None:
    await place.add("root")
    await place.add("b", parentSession="root", origin="subagent", createdAt=2)
    await place.add("a", parentSession="root", origin="subagent", createdAt=3)
    await place.add("b/1", parentSession="b", origin="subagent", createdAt=4)
    await place.add("b_1", parentSession="a", origin="subagent", createdAt=1)
    await place.add("fork", parentSession="root")
    await place.add("other", origin="subagent", parentSession="fork")
    archive = await place.archive("root")
    assert archive.namelist() == [
        "session.jsonl",
        "subagents/b/session.jsonl",
        "subagents/b_1/session.jsonl",
        "subagents/a/session.jsonl",
        "subagents/b_1-2/session.jsonl",
    ]
    assert b"I am b/1" in archive.read("subagents/b_1/session.jsonl")
    alone = await place.archive("root", descendants=False)
    assert alone.namelist() == ["session.jsonl"]


async def test_sessions_that_name_each_other_end(place: Place) -> None:
    await place.add("a", parentSession="b", origin="subagent")
    await place.add("b", parentSession="a", origin="subagent")
    assert len((await place.archive("a")).namelist()) == 2


async def test_a_live_session_is_made_durable_first(place: Place) -> None:
    session = await place.add("one")
    session.append(USER_MESSAGE, create_user_message("newest"), surface_op="append")
    archive = await place.archive("one", sessions=place.store)
    assert b"newest" in archive.read("session.jsonl")


async def test_an_interrupted_turn_is_exported_as_it_is_stored(place: Place) -> None:
    from dsh.state.session.events import TURN_START, TurnStartData

    session = await place.add("one")
    session.append(TURN_START, TurnStartData(turn=1))
    await place.store.flush(session)
    lines = (await place.archive("one")).read("session.jsonl").splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["session", "user/message", "turn/start"]


async def test_what_is_gone_is_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SessionNotFound):
        await place.archive("nobody")
    await place.add("root")
    await place.add("child", parentSession="root", origin="subagent")
    read = place.persistence.read_from

    async def gone(id: str, seq: int) -> Any:
        if id == "child":
            raise SessionNotFound(id)
        return await read(id, seq)

    monkeypatch.setattr(place.persistence, "read_from", gone)
    with pytest.raises(DescendantMissing, match='"child", a subagent of "root", is gone'):
        await place.archive("root")


def image(id: str, media: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "attachment": {"attachmentId": id, "mediaType": media}}


def event(type: str, data: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": type, "seq": 0, "time": 0, "data": data}


def test_images_are_found_wherever_a_log_may_hold_them_and_named_once() -> None:
    result = {"type": "tool-result", "toolCallId": "c", "content": [image("in-result")]}
    nested = {"type": "tool-result", "toolCallId": "c", "content": [result, image("nested")]}
    events = [
        event("user/message", {"content": [image("prompt"), {"type": "text", "text": "x"}]}),
        event("tool/result", {"message": {"content": [nested]}}),
        event("agent/inbox/spliced", {"inserted": [{"content": [image("waiting")]}]}),
        event("assistant/chunk", {"chunk": {"type": "block-end", "block": image("streamed")}}),
        event("assistant/message", {"message": {"content": [image("prompt")]}}),
        event("compaction/summary", {"content": None, "message": "text", "inserted": 7}),
        event("user/message", {"content": [{"type": "image", "attachment": {}}]}),
    ]
    assert [ref["attachmentId"] for ref in image_refs(events)] == [
        "prompt",
        "in-result",
        "nested",
        "waiting",
        "streamed",
    ]


async def test_images_are_in_the_archive_once(place: Place) -> None:
    session = place.store.create("one")
    blocks: Any = [
        image("sha256:aa"),
        image("b", "image/jpeg"),
        image("c", "image/webp"),
        image("d", "image/gif"),
        image("sha256:aa"),
    ]
    source = {"kind": "user"}
    session.append(
        USER_MESSAGE,
        {"id": "m", "role": "user", "content": blocks, "source": source},
        surface_op="append",
    )
    await place.store.flush(session)

    async def read(ref: Mapping[str, Any]) -> bytes:
        return str(ref["attachmentId"]).encode()

    archive = await place.archive("one", read_image=read)
    assert archive.namelist() == [
        "session.jsonl",
        "media/sha256_aa.png",
        "media/b.jpg",
        "media/c.webp",
        "media/d.gif",
    ]
    assert archive.read("media/sha256_aa.png") == b"sha256:aa"
    with pytest.raises(MediaUnavailable, match="4 images"):
        await place.archive("one")


async def test_the_next_part_is_made_when_it_is_asked_for(place: Place) -> None:
    session = place.store.create("one")
    for number in range(3_000):
        text = f"{number} " + "".join(chr(33 + (number * 7 + n * n) % 90) for n in range(400))
        session.append(USER_MESSAGE, create_user_message(text), surface_op="append")
    await place.store.flush(session)
    parts = archive_chunks(place.persistence, "one")
    first = await anext(parts)
    await parts.aclose()  # type: ignore[attr-defined]
    assert 0 < len(first) < 1_000_000


def test_names_are_safe() -> None:
    assert archive_name("session-1") == "dsh-session-session-1.zip"
    assert archive_name("../a b/\ud800") == "dsh-session-___a_b__.zip"
    assert len(archive_name("a" * 300)) < 255


def test_lines_are_those_of_the_stored_format() -> None:
    session = Session.create("one", header={"version": 0, "id": "one", "createdAt": 1})
    for _ in range(2_500):
        session.append(USER_MESSAGE, create_user_message("x"), surface_op="append")
    lines = b"".join(log_lines(session.header, session.events)).split(b"\n")
    assert json.loads(lines[0]) == {"type": "session", "delegationDepth": 0, **session.header}
    assert [json.loads(line) for line in lines[1:-1]] == list(session.events)
    assert lines[-1] == b""


def turn_end(reason: Mapping[str, Any]) -> dict[str, Any]:
    return event("turn/end", {"turn": 1, "reason": reason})


def test_a_transcript_tells_how_turns_ended_that_did_not_complete() -> None:
    ends = transcript(
        [
            turn_end({"kind": "completed"}),
            turn_end({"kind": "interrupted"}),
            turn_end({"kind": "aborted", "reason": {"kind": "user"}}),
            turn_end({"kind": "error", "error": {"message": "no key", "code": "C"}}),
        ]
    )
    assert [entry.text for entry in ends] == ["interrupted", "aborted (user)", "error: no key"]


def test_a_document_fences_what_tools_gave_whatever_it_holds() -> None:
    session = Session.create("one")
    call = {"type": "tool-call", "id": "c", "name": "bash", "arguments": "{}"}
    content: Any = [{"type": "text", "text": "```\n~~~~\n# not a heading"}]
    from dsh.model.messages import create_assistant_message, create_tool_result_message
    from dsh.state.session.events import ASSISTANT_MESSAGE, TOOL_RESULT

    message = create_assistant_message([call], "p", "m")  # type: ignore[list-item]
    session.append(
        ASSISTANT_MESSAGE, {"turn": 1, "step": 1, "message": message}, surface_op="append"
    )
    result = create_tool_result_message("c", content, True)
    session.append(TOOL_RESULT, {"turn": 1, "step": 1, "message": result}, surface_op="append")
    lines = list(markdown_lines(session.header, session.events, "A\ntitle"))
    assert lines[0] == "# A title"
    assert "Tool `bash` (failed)" in lines
    start = lines.index("````")
    assert lines[start:] == ["````", "```", "~~~~", "# not a heading", "````"]
