from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from state_logs import open_turn, say, whole_turn

from dsh.base.files import Disk, writing_through
from dsh.state.persistence.artifact.catalog import survey
from dsh.state.persistence.artifact.layout import Encoding
from dsh.state.persistence.artifact.store import ArtifactStore
from dsh.state.persistence.errors import SessionConflict
from dsh.state.session.session import Session

both = pytest.mark.parametrize("encoding", list(Encoding))


@pytest.fixture
def session() -> Session:
    session = Session.create("s", header={"version": 0, "id": "s", "createdAt": 1, "cwd": "/w"})
    whole_turn(session)
    return session


class Faults:
    """Makes chosen calls of fsync fail, as a disk does that is full."""

    def __init__(self, fail_at: list[int]) -> None:
        self.calls = 0
        self._fail_at = fail_at

    def __call__(self, fd: int) -> None:
        self.calls += 1
        if self.calls in self._fail_at:
            raise OSError(28, "no space left on device")
        os.fsync(fd)


@both
def test_folders_and_files_are_private(
    tmp_path: Path, session: Session, encoding: Encoding
) -> None:
    root = tmp_path / "a" / "sessions"
    position = ArtifactStore(root, encoding).create(session.header, session.events)
    modes = {
        path.relative_to(tmp_path).as_posix(): stat.S_IMODE(path.stat().st_mode)
        for path in [root.parent, *root.parent.rglob("*")]
    }
    folder = "a/sessions/--w--/s"
    assert modes == {
        "a": 0o700,
        "a/sessions": 0o700,
        "a/sessions/--w--": 0o700,
        folder: 0o700,
        f"{folder}/{encoding.value}": 0o600,
    }
    assert position.path == tmp_path / folder / encoding.value


@both
def test_every_new_name_is_made_durable_after_its_content(
    tmp_path: Path, session: Session, encoding: Encoding
) -> None:
    synced: list[tuple[int, int]] = []

    class WatchedDisk(Disk):
        def sync(self, fd: int) -> None:
            found = os.fstat(fd)
            synced.append((found.st_dev, found.st_ino))

    store = ArtifactStore(tmp_path / "a" / "sessions", encoding)
    with writing_through(WatchedDisk()):
        path = store.create(session.header, session.events).path

    folders = [tmp_path, tmp_path / "a", path.parents[2], path.parents[1]]
    places = [*folders, path, path.parent]
    assert synced == [(place.stat().st_dev, place.stat().st_ino) for place in places]


def test_lines_are_as_the_format_says(tmp_path: Path, session: Session) -> None:
    store = ArtifactStore(tmp_path, Encoding.PLAIN)
    lines = store.create(session.header, session.events).path.read_text().splitlines()
    assert lines[0] == (
        '{"type":"session","version":0,"id":"s","createdAt":1,"cwd":"/w","delegationDepth":0}'
    )
    assert lines[1].startswith('{"type":"turn/start","seq":0,"time":')
    assert lines[4].startswith('{"type":"text-chunks","seq0":3,"time0":')
    assert len(lines) == 8


def test_without_packing_every_event_has_a_line(tmp_path: Path, session: Session) -> None:
    store = ArtifactStore(tmp_path, Encoding.PLAIN, pack=False)
    position = store.create(session.header, session.events)
    assert len(position.path.read_text().splitlines()) == session.seq + 1
    stored = ArtifactStore(tmp_path).load("s")
    assert stored is not None
    assert stored.events == list(session.events)


@both
def test_a_file_keeps_its_encoding_whatever_the_config_says(
    tmp_path: Path, session: Session, encoding: Encoding
) -> None:
    ArtifactStore(tmp_path, encoding).create(session.header, session.events)
    (other,) = set(Encoding) - {encoding}
    store = ArtifactStore(tmp_path, other)
    stored = store.load("s")
    assert stored is not None
    say(session, "more")
    store.append("s", stored.position, session.events[-1:])
    again = store.load("s")
    assert again is not None
    assert again.path.name == encoding.value
    assert again.events == list(session.events)


def test_both_encodings_live_in_one_root(tmp_path: Path) -> None:
    for encoding in Encoding:
        session = Session.create(encoding.name)
        whole_turn(session)
        ArtifactStore(tmp_path, encoding).create(session.header, session.events)
    entries = list(survey(tmp_path, count=True))
    assert sorted(entry.header["id"] for entry in entries if entry.header) == ["PLAIN", "ZSTD"]
    assert {(entry.events, entry.damage) for entry in entries} == {(10, None)}


def test_a_published_file_is_never_overwritten(tmp_path: Path, session: Session) -> None:
    store = ArtifactStore(tmp_path)
    path = store.create(session.header, session.events).path
    before = path.read_bytes()
    with pytest.raises(SessionConflict, match="stored already"):
        store.create(session.header, session.events[:1])
    assert path.read_bytes() == before
    assert [item.name for item in path.parent.iterdir()] == [path.name]


@both
def test_a_failed_first_write_leaves_nothing(
    tmp_path: Path, session: Session, encoding: Encoding
) -> None:
    store = ArtifactStore(tmp_path, encoding, sync=Faults([1]))
    with pytest.raises(OSError, match="no space"):
        store.create(session.header, session.events)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    store.create(session.header, session.events)
    assert store.load("s") is not None


@both
def test_a_failed_append_takes_its_bytes_back(
    tmp_path: Path, session: Session, encoding: Encoding
) -> None:
    store = ArtifactStore(tmp_path, encoding, sync=Faults([2]))
    position = store.create(session.header, session.events)
    before = position.path.read_bytes()
    open_turn(session, 2)
    with pytest.raises(OSError, match="no space"):
        store.append("s", position, session.events[-2:])
    assert position.path.read_bytes() == before
    store.append("s", position, session.events[-2:])
    stored = store.load("s")
    assert stored is not None
    assert stored.events == list(session.events)


def test_a_failed_rollback_tells_of_both(tmp_path: Path, session: Session) -> None:
    store = ArtifactStore(tmp_path, sync=Faults([2, 3]))
    position = store.create(session.header, session.events)
    with pytest.raises(ExceptionGroup, match="taken back") as caught:
        store.append("s", position, session.events[:1])
    assert len(caught.value.exceptions) == 2


def test_what_another_process_wrote_is_not_overwritten(tmp_path: Path, session: Session) -> None:
    one, two = ArtifactStore(tmp_path), ArtifactStore(tmp_path)
    position = one.create(session.header, session.events)
    say(session, "from two")
    two.append("s", position, session.events[-1:])
    before = position.path.read_bytes()
    with pytest.raises(SessionConflict, match="another process"):
        one.append("s", position, session.events[-1:])
    assert position.path.read_bytes() == before


def test_a_replaced_file_is_not_written(tmp_path: Path, session: Session) -> None:
    store = ArtifactStore(tmp_path)
    position = store.create(session.header, session.events)
    copy = position.path.with_name("copy")
    copy.write_bytes(position.path.read_bytes())
    os.replace(copy, position.path)
    with pytest.raises(SessionConflict, match="replaced"):
        store.append("s", position, session.events[:1])


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "sessions"
    root.touch()
    with pytest.raises(NotADirectoryError, match="not a folder"):
        ArtifactStore(root)


def test_ids_that_try_to_leave_stay_inside_and_apart(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "sessions"
    ids = ["../x", "/abs", "nul\0", "\ud800", ".", "..", "~", "a/b"]
    store = ArtifactStore(root)
    for name in ids:
        session = Session.create(name)
        say(session, name)
        store.create(session.header, session.events)
    assert {path.name for path in tmp_path.iterdir()} == {"deep"}
    for name in ids:
        stored = store.load(name)
        assert stored is not None
        assert stored.header["id"] == name
