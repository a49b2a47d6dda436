"""Private folders: one for each session, and none left when its owner is gone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsh.capability.sandbox.folders import PrivateFolder, sweep
from dsh.capability.sandbox.service import SandboxPolicy

OWNER = """
import sys
from dsh.capability.sandbox.folders import PrivateFolder
folder = PrivateFolder()
print(folder.inner("common"), flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place for temporary files that this test has for itself."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield folder
    tempfile.tempdir = None


def test_the_folder_of_a_killed_owner_is_swept_and_that_of_a_live_one_is_not(place: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        (folder / "spill").write_text("x")

        sweep()
        assert (folder / "spill").exists()

        owner.send_signal(signal.SIGKILL)
    sweep()
    assert os.listdir(place) == []


def test_what_only_looks_similar_is_left_alone(place: Path) -> None:
    for name in ("dsh-work", "dsh-tmp-mine", "dsh-demo-abcdefgh", "dsh-tmp-abcdefgh-2"):
        (place / name).mkdir()
    (place / "dsh-tmp-abcdefgh").write_text("a file")
    (place / "elsewhere").mkdir()
    (place / "dsh-tmp-aaaaaaaa").symlink_to(place / "elsewhere")

    sweep()

    assert len(os.listdir(place)) == 7


def test_removal_leaves_nothing(place: Path) -> None:
    folder = PrivateFolder()
    folder.inner("a")
    folder.remove()
    assert os.listdir(place) == []


@pytest.mark.parametrize("swap", ["inner", "outer", "deleted"])
async def test_a_folder_that_a_command_swapped_for_a_link_is_not_granted(
    place: Path, policy: SandboxPolicy, swap: str
) -> None:
    first = policy.temp_dir()
    outside = place / "outside"
    (outside / "common").mkdir(parents=True)
    victim = first if swap == "inner" else first.parent
    shutil.rmtree(victim)
    if swap != "deleted":
        victim.symlink_to(outside)

    second = policy.temp_dir()

    assert second != first
    assert second.resolve() == second
    assert policy.resolve().temp_dir == second
    assert (outside / "common").is_dir()
