"""``dsh demo``, as a newcomer runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import DSH, Home

from dsh.state.persistence.artifact.reader import read_log


@pytest.fixture
def demo(home: Home, tmp_path: Path) -> tuple[str, Path]:
    folder = tmp_path / "demo"
    ran = home.run("demo", "--into", str(folder))
    assert (ran.code, ran.err) == (0, "")
    return ran.out, folder


def test_the_demo_repairs_the_project(demo: tuple[str, Path]) -> None:
    _, folder = demo
    tests = [sys.executable, "-m", "unittest"]
    done = subprocess.run(tests, cwd=folder / "workspace", capture_output=True, check=False)
    assert done.returncode == 0
    assert b"Ran 3 tests" in done.stderr


def test_the_demo_says_what_is_scripted_and_shows_each_step(demo: tuple[str, Path]) -> None:
    shown, _ = demo
    head, *rest = shown.splitlines()
    assert "dsh demo" in head
    assert "words are scripted" in rest[0]
    for step in ("glob", "grep", "read", "edit"):
        assert re.search(rf"^  ✓ {step} ", shown, re.MULTILINE)
    assert "exit 1 · FAILED (failures=1)" in shown
    assert "exit 0 · OK" in shown
    assert shown.index("FAILED") < shown.index("✓ edit") < shown.index("exit 0 · OK")


def test_the_demo_tells_where_workspace_and_log_are(demo: tuple[str, Path]) -> None:
    shown, folder = demo
    assert f"workspace    {folder / 'workspace'}" in shown
    found = re.search(r"^session log  (.+)$", shown, re.MULTILINE)
    assert found is not None
    events = read_log(Path(found[1])).events
    assert events[-1]["data"]["reason"] == {"kind": "completed"}


def test_the_demo_does_not_touch_the_users_home(demo: tuple[str, Path], home: Home) -> None:
    assert not home.folder.exists()


def test_the_demo_refuses_a_folder_that_holds_something(home: Home) -> None:
    (home.workspace / "mine.txt").write_text("")
    ran = home.run("demo", "--into", str(home.workspace))
    assert ran.code == 1
    assert "not an empty folder" in ran.err
    assert [path.name for path in home.workspace.iterdir()] == ["mine.txt"]


def test_the_demo_refuses_a_folder_that_cannot_be_made(home: Home) -> None:
    (home.workspace / "file").touch()
    ran = home.run("demo", "--into", "file/below")
    assert (ran.code, ran.out) == (1, "")
    (line,) = ran.err.splitlines()
    assert line.startswith("dsh: ")
    assert line.endswith("cannot be made: not a directory; name another with --into")


def test_a_rehearsal_that_meets_something_else_fails_loudly(home: Home, tmp_path: Path) -> None:
    script = tmp_path / "script.yml"
    script.write_text(
        "replies:\n"
        "  - calls: [{name: glob, arguments: {pattern: '*'}}]\n"
        "  - expect: [{contains: unicorn}]\n"
        "    text: never\n"
    )
    patch = tmp_path / "patch.yml"
    patch.write_text(
        "- id: agent-default-model\n  config: {provider: rehearsal, model: any}\n"
        "- insert:\n    - id: llm-rehearsal\n      name: dsh.model.adapters.rehearsal\n"
        f"      config: {{script: {script}}}\n"
    )
    ran = home.run("--profile", "headless", "--patch", str(patch), "go")
    assert ran.code == 1
    assert "unicorn" in ran.err
    assert "never" not in ran.out


def test_the_command_is_installed() -> None:
    assert Path(DSH).exists()
