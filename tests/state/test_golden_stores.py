"""Stores of other times: refused one by one, in words that help, and never touched."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from state_home import Home
from state_logs import open_turn, whole_turn

from dsh.kernel import Context
from dsh.product.sessions.cli import main
from dsh.state.persistence.artifact.aside import kept_aside
from dsh.state.persistence.artifact.frames import compress
from dsh.state.persistence.artifact.layout import Encoding
from dsh.state.persistence.artifact.store import ArtifactStore
from dsh.state.persistence.errors import (
    SessionFormatUnsupportedError,
    SessionPersistenceCorruptionError,
)
from dsh.state.session.errors import SessionError
from dsh.state.session.session import Session

HEADER = {"type": "session", "version": 0, "id": "odd", "createdAt": 1, "delegationDepth": 0}
TURN = [
    {"type": "turn/start", "seq": 0, "time": 1, "data": {"turn": 1}},
    {"type": "turn/end", "seq": 1, "time": 1, "data": {"turn": 1, "reason": {"kind": "x"}}},
]


def line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def put(root: Path, encoding: Encoding, *lines: bytes) -> Path:
    folder = root / "_no-cwd" / "odd"
    folder.mkdir(parents=True)
    path = folder / encoding.value
    head, *rest = lines
    data = b"".join(lines)
    if encoding is Encoding.ZSTD:
        data = compress(head) + (compress(b"".join(rest)) if rest else b"")
    path.write_bytes(data)
    return path


UNKNOWN = {"type": "future/thing", "seq": 2, "time": 1, "data": {}}
CASES: dict[str, tuple[list[bytes], type[SessionError], str]] = {
    "newer": (
        [line({**HEADER, "version": 1}), line({"shape": "of tomorrow"})],
        SessionFormatUnsupportedError,
        "newer dsh: upgrade",
    ),
    "newer by a half": (
        [line({**HEADER, "version": 0.5})],
        SessionFormatUnsupportedError,
        "newer dsh",
    ),
    "newer, with another header": (
        [line({"version": 7, "meta": []})],
        SessionFormatUnsupportedError,
        "format version 7",
    ),
    "older": (
        [line({**HEADER, "version": -1})],
        SessionFormatUnsupportedError,
        "no upgrade for a format that old",
    ),
    "unknown type": (
        [line(HEADER), *map(line, TURN), line(UNKNOWN)],
        SessionFormatUnsupportedError,
        "'future/thing', which this build does not know",
    ),
    "ignorable is false": (
        [line(HEADER), line({**TURN[0], "ignorable": False}), line(TURN[1])],
        SessionPersistenceCorruptionError,
        "ignorable must be true or absent",
    ),
    "retired header": (
        [line({**HEADER, "sandboxMode": "x"}), *map(line, TURN)],
        SessionPersistenceCorruptionError,
        "retired field 'sandboxMode'",
    ),
    "retired type": (
        [line(HEADER), line({**TURN[0], "type": "mode/set"}), line(TURN[1])],
        SessionPersistenceCorruptionError,
        "retired",
    ),
}


@pytest.fixture(params=list(Encoding), ids=lambda encoding: encoding.name.lower())
def encoding(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize("case", CASES)
async def test_what_this_build_cannot_read_is_refused_with_its_file_and_kept(
    root: Context, tmp_path: Path, encoding: Encoding, case: str
) -> None:
    lines, error, words = CASES[case]
    path = put(tmp_path / "sessions", encoding, *lines)
    before = path.read_bytes()
    home = await Home(root, tmp_path / "sessions").open()
    fine = home.store.create("fine")
    whole_turn(fine)
    await home.store.flush(fine)
    attempts: list[Callable[[str], Any]] = [
        home.persistence.prepare,
        home.persistence.load,
        home.persistence.inspect,
        lambda name: home.persistence.read_from(name, 0),
    ]
    for attempt in attempts:
        with pytest.raises(error, match=words) as raised:
            await attempt("odd")
        assert repr(str(path)) in str(raised.value)
    assert path.read_bytes() == before
    assert [found.name for found in path.parent.iterdir() if "lost" in found.name] == []
    assert "fine" in {header["id"] for header in await home.persistence.all()}


@pytest.mark.parametrize("case", CASES)
def test_the_command_line_says_so_and_goes_on_with_the_others(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    encoding: Encoding,
    case: str,
) -> None:
    lines, _, words = CASES[case]
    path = put(tmp_path / "sessions", encoding, *lines)
    fine = Session.create("fine")
    whole_turn(fine)
    ArtifactStore(tmp_path / "sessions").create(fine.header, fine.events)
    before = path.read_bytes()
    monkeypatch.setenv("DSH_HOME", str(tmp_path))
    assert main(["list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["path"]: row["damage"] is None for row in rows} == {
        str(path): False,
        str(ArtifactStore(tmp_path / "sessions").locate(fine.header)): True,
    }
    assert [words in row["damage"] for row in rows if row["damage"]] == [True]
    assert main(["repair"]) == 1
    assert "odd: cannot be repaired" in capsys.readouterr().out
    assert main(["show", "odd"]) == 1
    assert path.read_bytes() == before


async def test_an_event_that_may_be_skipped_is_carried_through(
    root: Context, tmp_path: Path, encoding: Encoding
) -> None:
    skipped = {**UNKNOWN, "ignorable": True}
    put(tmp_path / "sessions", encoding, line(HEADER), *map(line, TURN), line(skipped))
    home = await Home(root, tmp_path / "sessions").open()
    session = await home.resume("odd")
    assert session.events[2] == skipped
    whole_turn(session, 2)
    child = home.store.fork(session)
    await home.store.flush(child)
    assert (home.stored(child.id) or [])[2] == skipped
    assert session.derive_messages() == child.derive_messages()


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("step", range(4))
async def test_a_repair_that_is_killed_at_any_step_is_completed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: Encoding, step: int
) -> None:
    """Steps: keeping the end, cutting it off, writing the closers, making them durable."""
    session = Session.create("torn")
    whole_turn(session)
    store = ArtifactStore(tmp_path, encoding)
    position = store.create(session.header, session.events)
    committed = position.path.read_bytes()
    count = session.seq
    open_turn(session, 2)
    store.append("torn", position, session.events[count:])
    whole = position.path.read_bytes()
    position.path.write_bytes(whole[:-3])

    def killed(*_: object) -> None:
        raise Killed

    targets = [
        ("dsh.state.persistence.artifact.writer.keep_aside", killed),
        ("os.ftruncate", killed),
        ("dsh.state.persistence.artifact.writer.write_all", killed),
    ]
    stored = store.load("torn")
    assert stored is not None
    from dsh.state.session.repair import interrupted_turn_closers

    with monkeypatch.context() as patched:
        if step < len(targets):
            patched.setattr(*targets[step])
            with pytest.raises(Killed):
                store.repair(stored, interrupted_turn_closers(stored.events))
        else:
            store.repair(stored, interrupted_turn_closers(stored.events))
    assert position.path.read_bytes().startswith(committed)

    again = ArtifactStore(tmp_path, encoding)
    stored = again.load("torn")
    assert stored is not None
    closers = interrupted_turn_closers(stored.events)
    if stored.tail is not None or closers:
        again.repair(stored, closers)
    stored = again.load("torn")
    assert stored is not None
    assert stored.tail is None
    assert interrupted_turn_closers(stored.events) == []
    assert stored.events[:count] == list(session.events[:count])
    assert position.path.read_bytes().startswith(committed)
    (kept,) = kept_aside(position.path)
    assert whole[:-3].endswith(kept.read_bytes())


def test_an_end_that_cannot_be_kept_is_not_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: Encoding
) -> None:
    session = Session.create("torn")
    whole_turn(session)
    store = ArtifactStore(tmp_path, encoding)
    path = store.create(session.header, session.events).path
    path.write_bytes(path.read_bytes() + b'{"ty' + b"\x00" * 3)
    if encoding is Encoding.ZSTD:
        path.write_bytes(path.read_bytes()[:-7] + compress(b'{"type":"x"}\n')[:-2])
    before = path.read_bytes()
    stored = store.load("torn")
    assert stored is not None

    def full(fd: int, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("dsh.state.persistence.artifact.aside.write_all", full)
        with pytest.raises(OSError, match="No space left"):
            store.repair(stored, ())
    assert path.read_bytes() == before
    assert kept_aside(path) == []


def test_a_temporary_file_of_a_killed_writer_goes_when_the_session_is_next_held(
    tmp_path: Path, encoding: Encoding
) -> None:
    session = Session.create("one")
    whole_turn(session)
    store = ArtifactStore(tmp_path, encoding)
    path = store.create(session.header, session.events).path
    stray = path.with_name(f"{path.name}.0123456789ab.tmp")
    stray.write_bytes(b"half")
    os.utime(stray, (1, 1))
    lease = store.hold("one")
    assert lease is not None
    assert not stray.exists()
    store.let_go(lease)
    store.close()
