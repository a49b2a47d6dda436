from __future__ import annotations

import os
from pathlib import Path

from dsh.base.deletion import delete_tree


def delete(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        delete_tree(str(folder), fd)
    finally:
        os.close(fd)


def test_folders_deeper_than_a_path_can_say_are_deleted(tmp_path: Path) -> None:
    doomed = tmp_path / "doomed"
    doomed.mkdir()
    here = os.open(doomed, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("folder", dir_fd=here)
        inner = os.open("folder", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)

    delete(doomed)

    assert not doomed.exists()


def test_folders_that_nobody_may_enter_are_deleted(tmp_path: Path) -> None:
    doomed = tmp_path / "doomed"
    (doomed / "locked" / "inner").mkdir(parents=True)
    (doomed / "locked" / "file").write_text("x")
    (doomed / "locked" / "inner").chmod(0)
    (doomed / "locked").chmod(0)

    delete(doomed)

    assert not doomed.exists()


def test_what_links_lead_to_stays(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    doomed = tmp_path / "doomed"
    (doomed / "inner").mkdir(parents=True)
    (doomed / "link").symlink_to(kept)
    (doomed / "inner" / "link").symlink_to(kept)

    delete(doomed)

    assert (kept / "file").read_text() == "x"
    assert not doomed.exists()
