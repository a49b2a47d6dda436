from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dsh.base.errors import DshError, error_chain, message_of
from dsh.base.files import FileLock, LockTimeout, write_atomic


@pytest.fixture
def umask() -> object:
    before = os.umask(0o027)
    yield
    os.umask(before)


def test_a_new_file_honours_the_umask(tmp_path: Path, umask: object) -> None:
    write_atomic(tmp_path / "new", b"x")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640


def test_a_replaced_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "old"
    path.write_bytes(b"old")
    path.chmod(0o755)
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o755


def test_a_given_mode_is_exact(tmp_path: Path, umask: object) -> None:
    write_atomic(tmp_path / "secret", b"x", mode=0o600)
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inside").write_bytes(b"")
    with pytest.raises(OSError, match="folder"):
        write_atomic(tmp_path / "folder", b"x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder"]


def test_the_bytes_are_durable_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "file"
    synced: list[tuple[bool, bool]] = []

    def fsync(fd: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(fd).st_mode), target.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomic(target, b"new")

    assert synced == [(False, False), (True, True)]


def test_a_link_planted_at_the_target_is_replaced_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "file").symlink_to(victim)
    write_atomic(tmp_path / "file", b"x")
    assert victim.read_bytes() == b"precious"
    assert not (tmp_path / "file").is_symlink()


def test_a_held_lock_is_waited_for_and_then_told(tmp_path: Path) -> None:
    naps: list[float] = []
    with FileLock(tmp_path / "file"), pytest.raises(LockTimeout, match="locked by another"):
        FileLock(tmp_path / "file", timeout_s=0, sleep=naps.append).__enter__()
    with FileLock(tmp_path / "file", timeout_s=0):
        pass


def test_a_lock_goes_with_the_process_that_held_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    script = (
        "import os, sys; from pathlib import Path; from dsh.base.files import FileLock\n"
        "FileLock(Path(sys.argv[1])).__enter__(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    with FileLock(path, timeout_s=0):
        pass


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def test_text_of_an_error_is_total() -> None:
    assert message_of(DshError("sentence")) == "sentence"
    assert message_of(ValueError()) == "ValueError"
    assert message_of(Unprintable()) == "unprintable Unprintable"
    assert message_of(42) == "42"


def test_a_chain_names_members_and_causes_once_and_ends_on_a_cycle() -> None:
    inner = ValueError("inner")
    outer = DshError("outer")
    outer.__cause__ = inner
    inner.__cause__ = outer
    assert error_chain(outer) == "outer: inner"

    repeated = RuntimeError("same")
    repeated.__cause__ = RuntimeError("same")
    assert error_chain(repeated) == "same"
    assert error_chain(ExceptionGroup("two", [ValueError("a"), ValueError("b")])).endswith(": a: b")


def test_a_code_may_be_given_per_error() -> None:
    assert DshError("x").code == "ERROR"
    assert DshError("x", code="MINE").code == "MINE"
