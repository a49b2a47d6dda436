"""A log is read as it comes: what is held at once does not grow with the file."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from state_logs import say, whole_turn

from dsh.state.persistence.artifact import reader
from dsh.state.persistence.artifact.frames import compress
from dsh.state.persistence.artifact.layout import Encoding
from dsh.state.persistence.artifact.reader import read_log
from dsh.state.persistence.artifact.store import ArtifactStore
from dsh.state.session.session import Session

both = pytest.mark.parametrize("encoding", list(Encoding))


@both
def test_reading_holds_the_events_and_little_else(tmp_path: Path, encoding: Encoding) -> None:
    session = Session.create("s")
    store = ArtifactStore(tmp_path, encoding, sync=lambda fd: None)
    whole_turn(session)
    position = store.create(session.header, session.events)
    for batch in range(60):
        first = session.seq
        for number in range(10):
            say(session, f"{batch} {number} " + "x" * 10_000)
        position = store.append("s", position, session.events[first:])
    tracemalloc.start()
    try:
        log = read_log(position.path)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(log.events) == session.seq
    assert held > 6_000_000
    assert peak - held < 1_500_000


@both
@pytest.mark.parametrize("block", [1, 7, 64])
def test_lines_and_frames_are_found_wherever_a_read_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: Encoding, block: int
) -> None:
    session = Session.create("s")
    whole_turn(session)
    store = ArtifactStore(tmp_path, encoding)
    position = store.create(session.header, session.events[:5])
    path = store.append("s", position, session.events[5:]).path
    monkeypatch.setattr(reader, "_BLOCK", block)
    monkeypatch.setattr("dsh.state.persistence.artifact.frames._PART", block)
    log = read_log(path)
    assert log.events == list(session.events)
    assert log.tail is None
    whole = path.read_bytes()
    for cut in range(len(whole) - 1, len(whole) - 40, -1):
        path.write_bytes(whole[:cut])
        log = read_log(path)
        assert log.events == list(session.events[: len(log.events)])
        assert log.tail is not None
        assert log.tail.lost_bytes == cut - log.tail.keep


def test_a_frame_whose_checksum_is_wrong_gives_nothing(tmp_path: Path) -> None:
    session = Session.create("s")
    whole_turn(session)
    store = ArtifactStore(tmp_path)
    path = store.create(session.header, session.events).path
    data = bytearray(path.read_bytes() + compress(b'{"type":"x"}\n'))
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match="a frame does not decode"):
        read_log(path)


@both
def test_a_log_that_is_written_all_the_time_is_read_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: Encoding
) -> None:
    import os

    session = Session.create("s")
    whole_turn(session)
    store = ArtifactStore(tmp_path, encoding, sync=lambda fd: None)
    position = store.create(session.header, session.events)
    stat = os.fstat
    calls = 0

    def busy(fd: int) -> os.stat_result:
        nonlocal calls, position
        calls += 1
        if calls % 2 == 0:
            monkeypatch.setattr(os, "fstat", stat)
            say(session, "more")
            position = store.append("s", position, session.events[-1:])
            monkeypatch.setattr(os, "fstat", busy)
        return stat(fd)

    monkeypatch.setattr(os, "fstat", busy)
    log = read_log(position.path)
    monkeypatch.setattr(os, "fstat", stat)
    assert log.tail is None
    assert log.events == list(session.events[: len(log.events)])
    assert len(log.events) >= 9
