"""Files that were cut, damaged, or written twice: what opens, what is told, what is kept."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, TypedDict

import pytest
from state_logs import answer, call, open_turn, reply, say, whole_turn

from dsh.base.json import dumps, equal
from dsh.state.persistence.artifact.frames import compress, scan_frames
from dsh.state.persistence.artifact.layout import Encoding
from dsh.state.persistence.artifact.reader import StoredLog, read_header
from dsh.state.persistence.artifact.records import encode_events
from dsh.state.persistence.artifact.store import ArtifactStore
from dsh.state.persistence.errors import (
    IncompleteArtifact,
    SessionFormatUnsupportedError,
    SessionPersistenceCorruptionError,
)
from dsh.state.session.events import TURN_END, EventType, TurnEndData
from dsh.state.session.repair import interrupted_turn_closers
from dsh.state.session.session import Session


class NoteData(TypedDict):
    deep: Any


NOTE = EventType("acme/note", NoteData, ignorable=True)
both = pytest.mark.parametrize("encoding", list(Encoding))


def written(root: Path, session: Session, encoding: Encoding, cuts: list[int]) -> Path:
    """Store a session in batches that end before the given events."""
    store = ArtifactStore(root, encoding)
    edges = [0, *cuts, session.seq]
    position = None
    for start, end in pairwise(edges):
        batch = session.events[start:end]
        if position is None:
            position = store.create(session.header, batch)
        else:
            position = store.append(session.id, position, batch)
    assert position is not None
    return position.path


def interrupted() -> Session:
    """A whole turn, then one that a crash cuts while a tool runs."""
    session = Session.create("s")
    whole_turn(session)
    open_turn(session, 2)
    say(session, "again")
    reply(session, "first a look", calls={"c1": "read", "c2": "bash"})
    answer(session, call(session, "c1"), "found \ud800 it")
    call(session, "c2", "bash")
    return session


def open_and_repair(store: ArtifactStore, id: str) -> tuple[StoredLog, StoredLog]:
    stored = store.load(id)
    assert stored is not None
    closers = interrupted_turn_closers(stored.events)
    if stored.tail is not None or closers:
        store.repair(stored, closers)
    repaired = store.load(id)
    assert repaired is not None
    assert repaired.tail is None
    assert interrupted_turn_closers(repaired.events) == []
    assert repaired.events == [*stored.events, *closers]
    return stored, repaired


@both
def test_a_log_comes_back_as_it_was(tmp_path: Path, encoding: Encoding) -> None:
    session = interrupted()
    written(tmp_path, session, encoding, [3, 5, 9])
    stored = ArtifactStore(tmp_path).load("s")
    assert stored is not None
    assert stored.events == list(session.events)
    assert stored.tail is None
    assert stored.header == {**session.header, "delegationDepth": 0}


@both
def test_cut_at_every_byte_of_the_last_three_records(tmp_path: Path, encoding: Encoding) -> None:
    session = interrupted()
    total = session.seq
    origin = tmp_path / "origin"
    whole = written(origin, session, encoding, [total - 3, total - 2, total - 1])
    data = whole.read_bytes()
    ends = _record_ends(data, encoding)
    place = whole.relative_to(origin)
    for cut in range(ends[-4], len(data) + 1):
        root = tmp_path / str(cut)
        file = root / place
        file.parent.mkdir(parents=True)
        file.write_bytes(data[:cut])
        store = ArtifactStore(root)
        whole_records = sum(end <= cut for end in ends)

        stored, repaired = open_and_repair(store, "s")

        assert total - 3 <= len(stored.events) <= total
        assert stored.events == list(session.events[: len(stored.events)])
        assert len(stored.events) >= total - len(ends) + whole_records
        committed = ends[whole_records - 1]
        if cut == committed:
            assert stored.tail is None
        else:
            assert stored.tail is not None
            assert (stored.tail.keep, stored.tail.lost_bytes) == (committed, cut - committed)
            assert "ends inside" in stored.tail.reason
        after = file.read_bytes()
        assert after.startswith(data[:committed])
        assert [event["type"] for event in repaired.events[-2:]] == ["step/end", "turn/end"]
        open_and_repair(store, "s")
        assert file.read_bytes() == after
        Session.create("s", seed=repaired.events)


def _record_ends(data: bytes, encoding: Encoding) -> list[int]:
    if encoding is Encoding.ZSTD:
        return [end for _, end in scan_frames(data).frames]
    return [at + 1 for at, byte in enumerate(data) if byte == 0x0A]


@both
def test_cut_inside_its_header_a_file_holds_nothing(tmp_path: Path, encoding: Encoding) -> None:
    file = written(tmp_path, interrupted(), encoding, [])
    data = file.read_bytes()
    end = _first_record_end(data, encoding)
    for cut in range(end):
        file.write_bytes(data[:cut])
        with pytest.raises(IncompleteArtifact):
            ArtifactStore(tmp_path).load("s")
        with pytest.raises(IncompleteArtifact):
            read_header(file)


def _first_record_end(data: bytes, encoding: Encoding) -> int:
    return scan_frames(data).frames[0][1] if encoding is Encoding.ZSTD else data.index(b"\n") + 1


def test_events_of_a_cut_frame_are_recovered_and_written_again(tmp_path: Path) -> None:
    session = Session.create("s")
    whole_turn(session)
    open_turn(session, 2)
    for n in range(40):
        say(session, f"{n} " + "".join(map(str, range(n * 1000, n * 1000 + 1200))))
    file = written(tmp_path, session, Encoding.ZSTD, [session.seq - 40])
    data = file.read_bytes()
    file.write_bytes(data[:-2])
    store = ArtifactStore(tmp_path)

    stored, repaired = open_and_repair(store, "s")

    assert stored.tail is not None
    assert stored.tail.recovered
    assert len(stored.events) > session.seq - 40
    assert stored.events == list(session.events[: len(stored.events)])
    assert repaired.events[: len(stored.events)] == stored.events


@both
def test_a_row_written_twice_says_nothing_new(tmp_path: Path, encoding: Encoding) -> None:
    session = interrupted()
    file = written(tmp_path, session, encoding, [session.seq - 2])
    _append_lines(file, encode_events(session.events[-2:], pack=True))
    stored, _ = open_and_repair(ArtifactStore(tmp_path), "s")
    assert stored.events == list(session.events)
    assert (stored.tail, stored.repeated) == (None, 2)


@both
def test_blank_lines_are_passed_over(tmp_path: Path, encoding: Encoding) -> None:
    session = interrupted()
    file = written(tmp_path, session, encoding, [])
    _append_lines(file, b"\n")
    stored, repaired = open_and_repair(ArtifactStore(tmp_path), "s")
    assert stored.events == list(session.events)
    assert len(repaired.events) > session.seq


@both
@pytest.mark.parametrize(
    "bad",
    [
        b"not json\n",
        b'{"type":"turn/start","seq":99,"time":1,"data":{}}\n',
        b'{"type":"turn/start","seq":0,"time":1,"data":{"turn":9}}\n',
        b'{"type":"step/start","seq":14,"time":1}\n',
        b"[]\n",
        b"\x00\x00\x00\n",
        b'{"type":"text-chunks","seq0":14,"time0":1,"data":{}}\n',
        b'{"type":"mode/set","seq":14,"time":1,"data":{}}\n',
    ],
)
def test_a_bad_row_after_the_last_turn_is_cut_off(
    tmp_path: Path, encoding: Encoding, bad: bytes
) -> None:
    session = interrupted()
    file = written(tmp_path, session, encoding, [])
    before = file.read_bytes()
    _append_lines(file, bad)
    _append_lines(file, b'{"type":"step/end","seq":15,"time":1,"data":{"turn":2,"step":1}}\n')
    stored, _ = open_and_repair(ArtifactStore(tmp_path), "s")
    assert stored.events == list(session.events)
    assert stored.tail is not None
    assert stored.tail.reason
    assert file.read_bytes().startswith(before)


@both
def test_a_bad_row_before_the_end_of_a_turn_is_corruption(
    tmp_path: Path, encoding: Encoding
) -> None:
    session = interrupted()
    file = written(tmp_path, session, encoding, [])
    _append_lines(file, b"not json\n")
    end = {"type": "turn/end", "seq": session.seq + 1, "time": 1, "data": {"turn": 2}}
    _append_lines(file, dumps(end) + b"\n")
    before = file.read_bytes()
    with pytest.raises(SessionPersistenceCorruptionError, match="ends a later turn") as caught:
        ArtifactStore(tmp_path).load("s")
    assert caught.value.path == file
    assert file.read_bytes() == before


def test_a_good_part_of_a_frame_before_a_bad_row_is_written_again(tmp_path: Path) -> None:
    session = interrupted()
    file = written(tmp_path, session, Encoding.ZSTD, [session.seq - 2])
    lines = encode_events(session.events[-2:], pack=False)
    frames = scan_frames(file.read_bytes()).frames
    file.write_bytes(file.read_bytes()[: frames[-1][0]] + compress(lines + b"broken\n"))
    stored, repaired = open_and_repair(ArtifactStore(tmp_path), "s")
    assert stored.tail is not None
    assert list(stored.tail.recovered) == list(session.events[-2:])
    assert repaired.events[: session.seq] == list(session.events)


def test_a_frame_that_fails_its_checksum_is_corruption(tmp_path: Path) -> None:
    file = written(tmp_path, interrupted(), Encoding.ZSTD, [5])
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(SessionPersistenceCorruptionError, match="does not decode"):
        ArtifactStore(tmp_path).load("s")


def test_a_frame_must_end_with_a_line(tmp_path: Path) -> None:
    file = written(tmp_path, interrupted(), Encoding.ZSTD, [])
    file.write_bytes(file.read_bytes() + compress(b'{"type":"step/end"'))
    with pytest.raises(SessionPersistenceCorruptionError, match="last line"):
        ArtifactStore(tmp_path).load("s")


@both
@pytest.mark.parametrize(
    ("version", "direction"), [(1, "newer"), (4, "newer"), (-1, "no upgrade"), (0.5, "newer")]
)
def test_another_version_is_refused_before_anything_else(
    tmp_path: Path, encoding: Encoding, version: float, direction: str
) -> None:
    file = written(tmp_path, interrupted(), encoding, [])
    head = dumps({"type": "anything", "version": version}) + b"\n"
    file.write_bytes(compress(head) if encoding is Encoding.ZSTD else head + b"garbage")
    with pytest.raises(SessionFormatUnsupportedError, match=direction) as caught:
        ArtifactStore(tmp_path).load("s")
    assert caught.value.path == file
    assert str(file) in caught.value.message


@pytest.mark.parametrize(
    "head",
    [
        b"[]",
        b"{",
        b'{"type":"session"}',
        b'{"type":"turn/start","version":0,"id":"s","createdAt":1}',
        b'{"type":"session","version":0,"id":"s","createdAt":-1}',
        b'{"type":"session","version":0,"id":"s","createdAt":1,"cwd":"x"}',
        b'{"type":"session","version":0,"id":"s","createdAt":1,"sandboxMode":"x"}',
        b'{"type":"session","version":0,"id":"s","createdAt":1,"approvalPolicy":"x"}',
        b'{"type":"session","version":0,"id":"other","createdAt":1}',
        b'{"type":"session","version":0,"id":"s","createdAt":1,"cwd":"/elsewhere"}',
    ],
)
def test_a_wrong_header_is_corruption(tmp_path: Path, head: bytes) -> None:
    file = written(tmp_path, interrupted(), Encoding.PLAIN, [])
    file.write_bytes(head + b"\n")
    with pytest.raises(SessionPersistenceCorruptionError):
        ArtifactStore(tmp_path).load("s")


def _one_event(type: str, **more: Any) -> bytes:
    return dumps({"type": type, "seq": 0, "time": 1, "data": {}} | more) + b"\n"


def test_an_unknown_required_type_is_refused_and_an_ignorable_one_read(tmp_path: Path) -> None:
    file = written(tmp_path, interrupted(), Encoding.PLAIN, [])
    head = file.read_bytes().split(b"\n", 1)[0] + b"\n"
    file.write_bytes(head + _one_event("acme/thing", ignorable=True))
    stored = ArtifactStore(tmp_path).load("s")
    assert stored is not None
    assert stored.events[0]["ignorable"] is True
    file.write_bytes(head + _one_event("acme/thing"))
    with pytest.raises(SessionFormatUnsupportedError, match="acme/thing"):
        ArtifactStore(tmp_path).load("s")


def test_a_header_longer_than_one_read_is_read(tmp_path: Path) -> None:
    meta = {"version": 0, "id": "s", "createdAt": 1, "agentPreset": "x" * 50_000}
    session = Session.create("s", header=meta)
    whole_turn(session)
    for encoding in Encoding:
        file = written(tmp_path / encoding.name, session, encoding, [])
        assert read_header(file)["agentPreset"] == "x" * 50_000


def _append_lines(file: Path, lines: bytes) -> None:
    data = compress(lines) if file.name.endswith(".zstd") else lines
    with file.open("ab") as out:
        out.write(data)


@both
def test_after_a_repair_the_session_goes_on(tmp_path: Path, encoding: Encoding) -> None:
    session = interrupted()
    file = written(tmp_path, session, encoding, [session.seq - 1])
    file.write_bytes(file.read_bytes()[:-3])
    store = ArtifactStore(tmp_path)
    _, repaired = open_and_repair(store, "s")
    resumed = Session.create("s", seed=repaired.events)
    resumed.append(TURN_END, TurnEndData(turn=3, reason={"kind": "completed"}))
    store.append("s", repaired.position, resumed.events[len(repaired.events) :])
    final = store.load("s")
    assert final is not None
    assert final.events == list(resumed.events)


@both
def test_what_was_nested_deeply_is_read_again(tmp_path: Path, encoding: Encoding) -> None:
    session = Session.create("s", types=[NOTE])
    deep: Any = "bottom"
    for level in range(5_000):
        deep = [deep] if level % 2 else {"a": deep, "b": [], "c": {}}
    session.append(NOTE, NoteData(deep=deep))
    whole_turn(session)
    written(tmp_path, session, encoding, [1])
    stored = ArtifactStore(tmp_path).load("s")
    assert stored is not None
    assert stored.tail is None
    assert equal(stored.events[0]["data"], session.events[0]["data"])


def test_numbers_that_other_writers_allowed_are_read(tmp_path: Path) -> None:
    file = written(tmp_path, interrupted(), Encoding.PLAIN, [])
    head = file.read_bytes().split(b"\n", 1)[0] + b"\n"
    file.write_bytes(head + _one_event("acme/thing", ignorable=True, data={"id": 2**60}))
    stored = ArtifactStore(tmp_path).load("s")
    assert stored is not None
    assert stored.events[0]["data"] == {"id": 2**60}
