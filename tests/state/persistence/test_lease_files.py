"""Leases beside session files: what is on disk, and what proves that a writer is gone."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest
from state_logs import whole_turn

from dsh.base.values import changed
from dsh.state.persistence.artifact.leases import LeaseFiles, holder_of
from dsh.state.persistence.artifact.store import ArtifactStore
from dsh.state.persistence.errors import SessionConflict, SessionHeld, SessionLeaseLost
from dsh.state.persistence.lease import Lease, LeaseRecord, LeaseTerms, Writer
from dsh.state.persistence.process import this_process
from dsh.state.session.session import Session


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of a stored session ``s``."""
    session = Session.create("s")
    whole_turn(session)
    return ArtifactStore(tmp_path).create(session.header, session.events).path


def lease_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path.parent / "session.lease").read_text())
    return found


def held(store: ArtifactStore) -> Lease:
    lease = store.hold("s")
    assert lease is not None
    return lease


def write_lease(path: Path, writer: Writer) -> None:
    record = LeaseRecord(7, writer, 0, 2**52)
    (path.parent / "session.lease").write_bytes(record.encode())


def test_a_session_file_says_nothing_of_its_lease(path: Path, tmp_path: Path) -> None:
    before = path.read_bytes()
    store = ArtifactStore(tmp_path)
    held(store)
    assert path.read_bytes() == before
    assert lease_of(path)["pid"] == os.getpid()
    store.close()
    assert path.read_bytes() == before
    assert "pid" not in lease_of(path)


def test_numbers_of_leases_go_on_where_they_were(path: Path, tmp_path: Path) -> None:
    for number in range(1, 4):
        store = ArtifactStore(tmp_path)
        assert held(store).generation == number
        store.close()


def test_files_of_leases_are_private(path: Path, tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    held(store)
    files = [path.parent / "session.lease", *tmp_path.glob(".writer-*")]
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600, 0o600]
    store.close()


def test_a_lease_is_written_again_in_the_room_it_has(path: Path, tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    lease = held(store)
    size = (path.parent / "session.lease").stat().st_size
    store.renew([lease])
    store.close()
    assert (path.parent / "session.lease").stat().st_size == size == 512


@pytest.mark.parametrize("content", [b"\0" * 512, b"{", b"junk"])
def test_a_spoiled_lease_keeps_nobody_out(path: Path, tmp_path: Path, content: bytes) -> None:
    store = ArtifactStore(tmp_path)
    old = held(store)
    (path.parent / "session.lease").write_bytes(content)
    stored = store.load("s")
    assert stored is not None
    with pytest.raises(SessionLeaseLost):
        store.append("s", stored.position, stored.events, old)
    other = ArtifactStore(tmp_path)
    assert held(other).generation > 1_000_000
    assert store.renew([old]) == [old]
    store.close()
    other.close()


def test_what_killed_writers_left_is_swept_away(path: Path, tmp_path: Path) -> None:
    boot = this_process().machine.partition(":")[0].replace("-", "")
    left = tmp_path / f".writer-{boot}-dead.lock"
    far = tmp_path / ".writer-far-unknown.lock"
    left.touch()
    far.touch()
    store = ArtifactStore(tmp_path)
    held(store)
    assert not left.exists()
    assert len(list(tmp_path.glob(".writer-*"))) == 2
    store.close()
    assert list(tmp_path.glob(".writer-*")) == [far]


def test_a_lock_shows_whether_a_writer_in_another_container_lives(
    path: Path, tmp_path: Path
) -> None:
    boot = this_process().machine.partition(":")[0]
    process = changed(this_process(), machine=f"{boot}:another", pid=1)
    write_lease(path, Writer(process, "other"))
    store = ArtifactStore(tmp_path)
    with (tmp_path / f".writer-{boot.replace('-', '')}-other.lock").open("w") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        with pytest.raises(SessionHeld):
            store.hold("s")
    assert held(store).generation == 8
    store.close()


def test_the_writer_of_another_computer_is_waited_for(path: Path, tmp_path: Path) -> None:
    write_lease(path, Writer(changed(this_process(), machine="far:1"), "far"))
    with pytest.raises(SessionHeld):
        ArtifactStore(tmp_path).hold("s")
    assert holder_of(path) is not None


def test_a_writer_stopped_inside_a_write_is_told_and_not_overtaken(
    path: Path, tmp_path: Path
) -> None:
    session_lease = path.parent / "session.lease"
    write_lease(path, Writer(changed(this_process(), machine="far:1"), "far"))
    expired = changed(LeaseRecord.decode(session_lease.read_bytes()), expires_ms=0)
    session_lease.write_bytes(expired.encode())
    with session_lease.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(SessionHeld):
            ArtifactStore(tmp_path).hold("s")
    store = ArtifactStore(tmp_path)
    assert held(store).generation == 8
    store.close()


def test_the_lock_of_a_removed_lease_file_is_worth_nothing(path: Path, tmp_path: Path) -> None:
    files = LeaseFiles(tmp_path)
    with files.locked("s", path.parent) as first:
        first.path.unlink()
        with files.locked("s", path.parent, wait_s=0) as second:
            assert second.read() is None


def test_a_lease_that_cannot_be_renewed_costs_the_others_nothing(tmp_path: Path) -> None:
    store, leases = ArtifactStore(tmp_path), []
    for name in ("a", "b", "c"):
        session = Session.create(name)
        whole_turn(session)
        leases.append(store.create_held(session.header, session.events)[0])
    files = [next(tmp_path.rglob(f"{name}/session.lease")) for name in ("a", "b", "c")]
    files[0].unlink()
    files[0].mkdir()
    before = [json.loads(file.read_text())["expires"] for file in files[1:]]
    while True:
        with pytest.raises(IsADirectoryError):
            store.renew(leases)
        after = [json.loads(file.read_text())["expires"] for file in files[1:]]
        if all(map(int.__lt__, before, after)):  # the clock has moved on
            break
    files[0].rmdir()
    store.close()


def test_who_has_a_session_can_be_asked_without_taking_it(path: Path, tmp_path: Path) -> None:
    assert holder_of(path) is None
    store = ArtifactStore(tmp_path)
    lease = held(store)
    told = holder_of(path)
    assert told is not None
    assert told.holder == lease.writer.process
    store.close()
    assert holder_of(path) is None


def test_a_first_write_that_fails_leaves_no_lease(tmp_path: Path) -> None:
    fails = [True]

    def sync(fd: int) -> None:
        if fails.pop() if fails else False:
            raise OSError(28, "no space left on device")

    session = Session.create("s")
    whole_turn(session)
    store = ArtifactStore(tmp_path, sync=sync)
    with pytest.raises(OSError, match="no space"):
        store.create_held(session.header, session.events)
    assert [file.name for file in tmp_path.rglob("session*")] == []
    lease, _ = store.create_held(session.header, session.events)
    assert lease.generation == 1
    with pytest.raises(SessionConflict, match="is stored already"):
        store.create_held(session.header, session.events)
    store.close()


def test_deleting_leaves_what_is_not_ours(path: Path, tmp_path: Path) -> None:
    foreign = path.parent / "session.v4.json"
    foreign.touch()
    left = path.with_name(f"{path.name}.0123456789ab.tmp")
    left.touch()
    store = ArtifactStore(tmp_path)
    assert store.delete("s") is True
    assert list(path.parent.iterdir()) == [foreign]
    assert store.delete("s") is False
    store.close()


def test_terms_are_those_of_the_store(tmp_path: Path) -> None:
    assert isinstance(LeaseFiles(tmp_path, 3).terms, LeaseTerms)
    assert LeaseFiles(tmp_path, 3).terms.length_s == 3
