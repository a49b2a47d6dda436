from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from dsh.kernel import Context
from dsh.state.persistence import SessionPersistence
from dsh.state.persistence.jsonl import JsonlPersistence
from dsh.state.session.errors import RefusedEvent
from dsh.state.session.legacy import LegacyUpgrade
from dsh.state.session.store import LocalSessionStore

FIXTURE = Path(__file__).with_name("fixtures") / "legacy-v0.jsonl"


def upgrade(type: str, data: dict[str, Any], **more: Any) -> Any:
    return LegacyUpgrade("s", []).upgrade({"type": type, "seq": 7, "data": data, **more})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"kind": "aborted"}, {"kind": "aborted", "reason": {"kind": "legacy"}}),
        ({"kind": "disposed"}, {"kind": "aborted", "reason": {"kind": "disposed"}}),
        (
            {"kind": "error", "step": 1, "failure": {"message": "m", "code": "C"}},
            {"kind": "error", "error": {"message": "m", "code": "C"}},
        ),
        (
            {"kind": "error", "step": 1, "message": "m"},
            {"kind": "error", "error": {"message": "m", "code": "UNKNOWN"}},
        ),
        (
            {"kind": "error", "step": 1, "message": "m", "code": "C"},
            {"kind": "error", "error": {"message": "m", "code": "C"}},
        ),
        ({"kind": "completed"}, {"kind": "completed"}),
        (
            {"kind": "aborted", "reason": {"kind": "user"}},
            {"kind": "aborted", "reason": {"kind": "user"}},
        ),
    ],
)
def test_early_reasons_become_todays(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert upgrade("turn/end", {"turn": 1, "reason": old})["data"]["reason"] == new


def test_a_steering_message_becomes_a_user_message() -> None:
    message = {"id": "m", "role": "user", "content": [], "source": {"kind": "user"}}
    event = upgrade("steering/message", {"turn": 1, "message": message}, surfaceOp="append")
    assert (event["type"], event["data"]) == ("user/message", message)


@pytest.mark.parametrize(
    ("type", "data"),
    [
        ("turn/start", {"turn": 1, "trigger": {"kind": "user"}, "more": 1}),
        ("turn/start", {"turn": 1, "trigger": "user"}),
        ("turn/end", {"turn": 1, "reason": {"kind": "error", "step": 1}}),
        ("steering/message", {"turn": 1, "content": []}),
        ("user/message", {"content": []}),
        ("assistant/message", {"content": []}),
        ("tool/result", {"callId": "c1", "isError": False}),
    ],
)
def test_malformed_early_shapes_are_refused(type: str, data: dict[str, Any]) -> None:
    with pytest.raises(RefusedEvent):
        upgrade(type, data)


def test_todays_shapes_pass_untouched() -> None:
    event = {"type": "turn/start", "seq": 0, "data": {"turn": 1}}
    assert LegacyUpgrade("s", []).upgrade(event) is event


async def test_a_log_of_the_first_writers_resumes(root: Context, tmp_path: Path) -> None:
    file = tmp_path / "--home-ada-app--" / "session-old" / "session.jsonl"
    file.parent.mkdir(parents=True)
    shutil.copyfile(FIXTURE, file)
    committed = file.read_bytes()[: file.read_bytes().rindex(b"\n") + 1]
    await root.plugin(LocalSessionStore)
    await root.plugin(JsonlPersistence, {"root": str(tmp_path)})
    store, persistence = root.require(LocalSessionStore), root.require(SessionPersistence)

    with await persistence.prepare("session-old") as preparation:
        session = preparation.session
        detach = store.enter(session, root)
        store.announce(session)
    await store.flush(session)

    assert preparation.damage is not None
    assert session.header["agentPreset"] == "standard"
    messages: Any = session.derive_messages()
    assert [message["id"] for message in messages] == [
        "legacy-message:session-old:2",
        "legacy-message:session-old:10",
        "legacy-message:session-old:12",
        "legacy-message:session-old:17",
        "5b0c4d5e-0000-4000-8000-000000000001",
    ]
    assert messages[2]["content"][0]["content"][0]["text"] == "names"
    assert messages[4]["content"][0]["text"] == "cut \ud83d emoji"
    assert [event["type"] for event in session.events[22:]] == [
        "step/end",
        "turn/end",
        "session/end-seed",
    ]
    assert file.read_bytes().startswith(committed)
    detach()
    assert [h["id"] for h in await persistence.all()] == ["session-old"]
