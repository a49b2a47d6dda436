"""The stored format as its rules say, from both sides."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import zstandard
from state_home import Home
from state_logs import answer, call, chunk, open_turn, reply, say, whole_turn

from dsh.kernel import Context
from dsh.model.chunks import reasoning_delta, text_delta, tool_call_delta
from dsh.state.persistence.artifact.layout import Encoding
from dsh.state.persistence.artifact.store import ArtifactStore
from dsh.state.session.events import TOOL_RESULT, TURN_END, TurnEndData
from dsh.state.session.fork import fork_stored
from dsh.state.session.session import Session
from dsh.state.titles.text import fold_session_title

FIXTURES = Path(__file__).parent / "fixtures" / "v0"
IDS = ["session-7c1e", "session-9f02"]


@pytest.fixture
async def old(root: Context, tmp_path: Path) -> Home:
    shutil.copytree(FIXTURES, tmp_path / "sessions")
    return await Home(root, tmp_path / "sessions").open()


@pytest.mark.parametrize("id", IDS)
async def test_a_log_made_by_hand_resumes(old: Home, id: str) -> None:
    session = await old.resume(id)
    assert session.seq == 55
    said = [
        (message["role"], message["content"][0].get("text", message["content"][0]["type"]))
        for message in session.derive_messages()
    ]
    assert said == [
        ("user", "The user listed files."),
        ("user", "broken half: \ud83d"),
        ("assistant", "I was about to"),
        ("user", "run both"),
        ("assistant", "tool-call"),
        ("user", "tool-result"),
        ("user", "tool-result"),
    ]
    assert session.request_header() == {
        "config": {"provider": "deepseek", "model": "m1", "maxTokens": 4096},
        "adapterDefaults": {"maxTokens": True},
        "system": "Be brief.",
    }
    assert session.request_context() == {
        "provider": "deepseek",
        "model": "m1",
        "contextWindow": 65536,
    }
    assert fold_session_title(session.events) == "List the files"
    assert session.header["agentPreset"] == "standard"


@pytest.mark.parametrize("id", IDS)
async def test_its_early_shapes_are_todays(old: Home, id: str) -> None:
    events: list[Any] = list((await old.persistence.inspect(id)).events)
    assert events[1]["data"] == {"turn": 1}
    assert events[3]["data"]["id"] == f"legacy-message:{id}:3"
    assert events[17]["data"]["message"]["source"] == {
        "kind": "model",
        "provider": "deepseek",
        "model": "m1",
    }
    assert events[23]["data"]["message"]["id"] == events[19]["data"]["message"]["id"]
    assert (events[24]["type"], events[24]["data"]["role"]) == ("user/message", "user")
    reasons = [event["data"]["reason"] for event in events if event["type"] == "turn/end"]
    assert reasons == [
        {"kind": "aborted", "reason": {"kind": "legacy"}},
        {"kind": "error", "error": {"message": "gone", "code": "TRANSPORT"}},
        {"kind": "error", "error": {"message": "no key", "code": "UNKNOWN"}},
        {"kind": "aborted", "reason": {"kind": "disposed"}},
        {"kind": "interrupted"},
    ]
    assert events[28]["ignorable"] is True
    texts = [events[seq]["data"]["chunk"]["text"] for seq in (7, 8, 9)]
    assert texts == ["I", "'ll", " look"]
    assert [events[seq]["time"] % 1000 for seq in (7, 8, 9)] == [10, 15, 12]
    results = [e["data"]["error"]["code"] for e in events[50:52]]
    assert results == ["TOOL_OUTCOME_UNKNOWN", "TOOL_NOT_STARTED"]


@pytest.mark.parametrize("id", IDS)
async def test_going_on_leaves_its_bytes_as_they_are(old: Home, again: Home, id: str) -> None:
    (path,) = old.folder.glob(f"*/{id}/session.jsonl*")
    before = path.read_bytes()
    session = await old.resume(id)
    whole_turn(session, 6)
    await old.store.flush(session)
    assert path.read_bytes().startswith(before)
    reread = (await again.persistence.inspect(id)).events
    assert list(reread) == list(session.events)


async def test_the_same_events_come_out_of_both_encodings(old: Home) -> None:
    plain, packed = [list((await old.persistence.inspect(each)).events) for each in IDS]
    text = json.dumps(plain).replace(IDS[0], IDS[1])
    assert json.loads(text) == packed


def tiny_reader(path: Path) -> tuple[Any, list[Any]]:
    """Read a log by the words of the format, and by nothing of this program."""
    data = path.read_bytes()
    if path.name.endswith(".zstd"):
        data = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
    header, *rows = [json.loads(line) for line in data.decode("utf-8").split("\n")[:-1]]
    assert header.pop("type") == "session"
    assert header["version"] == 0
    assert isinstance(header["delegationDepth"], int)
    events: list[Any] = []
    kinds = {
        "text-chunks": ("text-delta", "texts", "text"),
        "reasoning-chunks": ("reasoning-delta", "texts", "text"),
        "tool-call-chunks": ("tool-call-delta", "args", "argumentsDelta"),
    }
    for row in rows:
        if row["type"] not in kinds:
            events.append(row)
            continue
        kind, member, field = kinds[row["type"]]
        data, time = row["data"], row["time0"]
        for number, text in enumerate(data[member]):
            time += data["dt"][number - 1] if number else 0
            piece = {"type": kind, "index": data["index"]}
            piece |= {key: data[key] for key in ("id", "name") if key in data}
            inner = {"turn": data["turn"], "step": data["step"], "chunk": {**piece, field: text}}
            events.append(
                {
                    "type": "assistant/chunk",
                    "seq": row["seq0"] + number,
                    "time": time,
                    "data": inner,
                }
            )
    assert [event["seq"] for event in events] == list(range(len(events)))
    return header, events


def everything() -> Session:
    session = Session.create(
        "session-1",
        header={
            "version": 0,
            "id": "session-1",
            "createdAt": 5,
            "cwd": "/home/ada/app",
            "parentSession": "p",
            "seedLength": 0,
            "origin": "subagent",
            "delegationDepth": 1,
        },
    )
    whole_turn(session)
    open_turn(session, 2)
    say(session, "half a pair: \ud800, and a whole one: \U0001f600\u2028")
    for text in ("a", "b", "c", "d"):
        chunk(session, reasoning_delta(0, text), turn=2)
    for text in ("a", "b", "c"):
        chunk(session, tool_call_delta(1, "c1", text, name="read"), turn=2)
    chunk(session, text_delta(2, "alone"), turn=2)
    reply(session, "r", calls={"c1": "read"})
    old: Any = answer(session, call(session, "c1"), "long", meta={"n": [1.5, None, True]})
    content = [{**old["data"]["message"]["content"][0], "content": []}]
    session.append(
        TOOL_RESULT,
        {**old["data"], "message": {**old["data"]["message"], "content": content}},
        surface_op={"op": "replace", "start": old["seq"], "end": old["seq"]},
        source_event_seqs=[old["seq"]],
    )
    session.append(TURN_END, TurnEndData(turn=2, reason={"kind": "completed"}))
    return session


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("encoding", list(Encoding))
def test_what_is_written_here_reads_by_the_words_of_the_format(
    tmp_path: Path, encoding: Encoding, pack: bool
) -> None:
    session = everything()
    store = ArtifactStore(tmp_path, encoding, pack=pack)
    position = store.create(session.header, session.events[:9])
    for start in range(9, session.seq, 7):
        stored = store.load("session-1")
        assert stored is not None
        store.append("session-1", stored.position, session.events[start : start + 7])
    path = tmp_path / "--home-ada-app--" / "session-1" / encoding.value
    assert path == position.path
    header, events = tiny_reader(path)
    assert header == session.header
    assert events == list(session.events)
    rows = path.read_bytes() if encoding is Encoding.PLAIN else b""
    assert (b'"reasoning-chunks"' in rows) is (pack and encoding is Encoding.PLAIN)


ODD = [
    "\ud83d",
    "\ude00\ud83d",
    "a\x00b",
    "\ufffe\uffff",
    "\u2028\x85\x0b\x1c",
    "\U0010ffff",
    "e\u0301",
]


@pytest.mark.parametrize("text", ODD, ids=ascii)
@pytest.mark.parametrize("encoding", list(Encoding))
async def test_a_code_point_that_cannot_be_sent_never_sticks_a_session(
    root: Context, tmp_path: Path, again: Home, encoding: Encoding, text: str
) -> None:
    compression = "zstd" if encoding is Encoding.ZSTD else "none"
    home = await Home(root, tmp_path / "sessions", compression=compression).open()
    session = home.store.create("s")
    open_turn(session)
    say(session, text)
    for piece in (text, text, text):
        chunk(session, text_delta(0, piece))
    answer(session, call(session, "c"), text, meta={text: text})
    await home.store.flush(session)
    (path,) = home.folder.rglob(encoding.value)
    assert tiny_reader(path)[1] == list(session.events), "valid UTF-8, with a faithful escape"
    inspected = (await again.persistence.inspect("s")).events
    assert list(inspected[: session.seq]) == list(session.events)
    child = await fork_stored(again.persistence, "s")
    resumed = await again.resume(child["id"])
    whole_turn(resumed, 2)
    await again.store.flush(resumed)
    assert resumed.derive_messages()[0]["content"][0] == {"type": "text", "text": text}
