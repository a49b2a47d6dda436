"""The disk that fails on demand."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dsh.base.files import Disk, disk, write_atomic
from dsh.testing.faults import Operation, faulty_disk


def test_without_a_fault_it_is_the_real_disk(tmp_path: Path) -> None:
    with faulty_disk():
        write_atomic(tmp_path / "f", b"whole")
    assert (tmp_path / "f").read_bytes() == b"whole"


def test_it_leaves_with_the_block(tmp_path: Path) -> None:
    before = disk()
    with faulty_disk() as faulty:
        assert disk() is faulty
    assert disk() is before
    assert type(before) is Disk


@pytest.mark.parametrize("operation", ["open", "write", "sync", "replace"])
def test_a_failed_replacement_leaves_the_old_file_alone(
    tmp_path: Path, operation: Operation
) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"old")
    with faulty_disk() as faulty:
        fault = faulty.fail(operation, errno.EIO, below=tmp_path)
        with pytest.raises(OSError, match="Input/output error"):
            write_atomic(file, b"new")
        assert fault.hits == 1
        assert os.listdir(tmp_path) == ["f"]
        assert file.read_bytes() == b"old"
        faulty.mend()
        write_atomic(file, b"new")
    assert file.read_bytes() == b"new"


def test_a_full_disk_takes_what_fits(tmp_path: Path) -> None:
    with faulty_disk() as faulty, (tmp_path / "f").open("wb") as file:
        faulty.fail("write", errno.ENOSPC, room=3)
        data = memoryview(b"hello")
        assert faulty.write(file.fileno(), data) == 3
        with pytest.raises(OSError, match="No space left"):
            faulty.write(file.fileno(), data[3:])


def test_a_fault_may_come_later_pass_and_be_elsewhere(tmp_path: Path) -> None:
    with faulty_disk() as faulty:
        faulty.fail("replace", errno.EIO, below=tmp_path, passes=1, times=1)
        faulty.fail("write", errno.EIO, below=tmp_path / "elsewhere")
        write_atomic(tmp_path / "f", b"1")
        with pytest.raises(OSError, match="Input/output"):
            write_atomic(tmp_path / "f", b"2")
        write_atomic(tmp_path / "f", b"3")
    assert (tmp_path / "f").read_bytes() == b"3"
