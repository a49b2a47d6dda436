from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsh.model.messages import create_user_message
from dsh.product.sessions.cli import main
from dsh.state.persistence.artifact.layout import Encoding
from dsh.state.persistence.artifact.store import ArtifactStore
from dsh.state.session.events import USER_MESSAGE
from dsh.state.session.session import Session


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DSH_HOME", str(tmp_path))
    return tmp_path


def store(home: Path, id: str, created: int, encoding: Encoding = Encoding.ZSTD) -> Path:
    session = Session.create(
        id, header={"version": 0, "id": id, "createdAt": created, "cwd": "/home/ada/app"}
    )
    session.append(USER_MESSAGE, create_user_message("hello"), surface_op="append")
    return ArtifactStore(home / "sessions", encoding).create(session.header, session.events).path


def test_sessions_are_listed_newest_first(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(home, "one", 1_000)
    store(home, "two", 2_000, Encoding.PLAIN)
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["two", "one"]
    assert all("1 events" in line and "/home/ada/app" in line for line in lines)


def test_json_is_one_list_of_headers_with_events_and_damage(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = store(home, "one", 1_000)
    assert main(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "version": 0,
            "id": "one",
            "createdAt": 1_000,
            "cwd": "/home/ada/app",
            "delegationDepth": 0,
            "title": None,
            "events": 1,
            "damage": None,
            "path": str(path),
        }
    ]


def test_json_gives_what_is_unknown_of_a_damaged_session_as_null(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = store(home, "junk", 1)
    path.write_bytes(b"junk")
    assert main(["list", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row == {
        "id": None,
        "createdAt": None,
        "cwd": None,
        "title": None,
        "events": None,
        "damage": "no frame begins at byte 0",
        "path": str(path),
    }


def test_a_damaged_session_is_listed_with_the_reason_and_hides_no_other(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(10):
        store(home, f"s{number}", number)
    store(home, "torn", 20).write_bytes(store(home, "copy", 21).read_bytes())
    store(home, "junk", 22).write_bytes(b"junk")
    assert main(["list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 13
    assert {row["id"] for row in rows if not row["damage"]} >= {f"s{n}" for n in range(10)}
    assert sum(row["damage"] is not None for row in rows) == 2
    assert main(["list"]) == 0
    assert "damaged: " in capsys.readouterr().out


def test_an_empty_home_has_no_sessions(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert capsys.readouterr().out == "no sessions yet\n"
    assert main(["list", "--json"]) == 0
    assert capsys.readouterr().out == "[]\n"


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        ([], "dsh sessions list"),
        (["lst"], "did you mean 'list'"),
        (["list", "--jsn"], "did you mean '--json'"),
        (["list", "extra"], "unexpected 'extra'"),
    ],
)
def test_a_wrong_word_is_named_with_the_remedy(
    home: Path, capsys: pytest.CaptureFixture[str], argv: list[str], hint: str
) -> None:
    assert main(argv) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert hint in captured.err


def test_help_is_help(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "usage: dsh sessions list" in capsys.readouterr().out


def test_a_file_where_the_folder_belongs_is_one_line(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "sessions").touch()
    assert main(["list"]) == 1
    assert (
        capsys.readouterr().err == "dsh sessions: cannot read $DSH_HOME/sessions: Not a directory\n"
    )


def test_listing_loads_no_plugin_and_nothing_heavy(home: Path) -> None:
    code = (
        "import sys; from dsh.product.sessions.cli import main; main(['list']); "
        "heavy = {'pydantic', 'httpx', 'click', 'rich', 'yaml', 'zstandard'} & set(sys.modules); "
        "assert not heavy, heavy; assert 'dsh.state.persistence.jsonl' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))
