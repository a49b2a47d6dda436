"""The anonymous id of a home."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from dsh.loader.anonymous import FILE_NAME, anonymous_user_id


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "home" / FILE_NAME


def test_it_is_one_random_uuid_in_a_private_file(file: Path) -> None:
    made = anonymous_user_id(file.parent)
    assert file.read_text() == made + "\n"
    assert uuid.UUID(made).version == 4
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert anonymous_user_id(file.parent) == made
    assert [path.name for path in file.parent.iterdir()] == [FILE_NAME]


def test_another_program_s_id_is_adopted(file: Path) -> None:
    file.parent.mkdir()
    theirs = str(uuid.uuid4())
    file.write_text(theirs)
    assert anonymous_user_id(file.parent) == theirs


@pytest.mark.parametrize(
    "damage", ["", "\n", "not an id", "6fa459ea-ee8a-11d2-90d4-00c04fd430c8", "\x00" * 36, "ä"]
)
def test_what_is_no_id_is_replaced(file: Path, damage: str) -> None:
    file.parent.mkdir()
    file.write_text(damage)
    made = anonymous_user_id(file.parent)
    assert file.read_text() == made + "\n"
    assert [path.name for path in file.parent.iterdir()] == [FILE_NAME]


def test_processes_that_ask_at_once_agree(file: Path) -> None:
    code = "import sys, pathlib; from dsh.loader.anonymous import anonymous_user_id as make\n"
    code += "sys.stdin.read(1); print(make(pathlib.Path(sys.argv[1])))"
    asking = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(file.parent)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(6)
    ]
    answers = {each.communicate("x")[0].strip() for each in asking}
    assert answers == {file.read_text().strip()}


def test_a_home_that_cannot_be_written_has_an_id_for_this_process(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("in the way")
    first = anonymous_user_id(tmp_path / "home")
    assert uuid.UUID(first).version == 4
    assert anonymous_user_id(tmp_path / "home") == first
    assert os.listdir(tmp_path) == ["home"]
