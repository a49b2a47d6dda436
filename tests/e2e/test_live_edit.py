"""A patch file that is edited while a headless run works."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support import Home, call, finish, say, wait_for

from dsh.testing.provider import Provider

MARK = """
from pathlib import Path
def apply(ctx, config):
    Path(config).write_text("here")
"""


def test_an_edit_during_a_run_reaches_the_tree_that_runs(
    home: Home, provide: Callable[..., Provider]
) -> None:
    mark = home.workspace / "mark"
    wait = "touch started; until [ -f mark ]; do sleep 0.05; done; cat mark"
    asked = call("bash", command=wait, description="Wait for the mark")
    provide({"replies": [{"text": "Waiting.", "calls": [asked]}, say("seen")]})
    (home.workspace / "mark.py").write_text(MARK)
    process = home.start("--profile", "headless", "go")
    wait_for((home.workspace / "started").exists, "the command's start")

    patch = home.folder / "cordis.patch.yml"
    plugin = home.workspace / "mark.py"
    patch.write_text(f"- insert: [{{id: mark, name: {plugin}, config: {mark}}}]\n")
    ran = finish(process)

    assert (ran.code, ran.out) == (0, "seen\n")
    assert ran.err == f"dsh: applied {patch}: added mark\n"


EDITS = [
    ("llm-retry", "disabled: true", 0),
    ("session-persistence-jsonl", "merge: {writeBatchMaxDelayMs: 100}", 0),
    ("tools", "intercept: {timer: {}}", 0),
    ("agent", "disabled: true", 1),
    ("session", "disabled: true", 1),
]


@pytest.mark.parametrize(("row", "change", "code"), EDITS, ids=[row for row, _, _ in EDITS])
def test_an_edit_never_makes_a_run_begin_anew(
    row: str, change: str, code: int, home: Home, provide: Callable[..., Provider]
) -> None:
    wait = "touch started; until [ -f go ]; do sleep 0.05; done; echo went"
    asked = call("bash", command=wait, description="Wait for the word")
    provider = provide({"replies": [{"text": "Waiting.", "calls": [asked]}, say("done")]})
    process = home.start("--profile", "headless", "go")
    wait_for((home.workspace / "started").exists, "the command's start")

    (home.folder / "cordis.patch.yml").write_text(f"- id: {row}\n  {change}\n")
    assert process.stderr is not None
    told = process.stderr.readline()
    (home.workspace / "go").touch()
    ran = finish(process)

    sessions = list((home.folder / "sessions").rglob("session.jsonl*"))
    assert (ran.code, len(sessions), told == "") == (code, 1, False)
    assert len(provider.requests()) == 2 - code
