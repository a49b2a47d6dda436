"""Edits of patch files while the real command runs."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from cli_support import PATIENCE_S, Command

APP = """
import asyncio
async def apply(ctx, config):
    print("up", config, flush=True)
    ctx.defer(lambda: print("down", config, flush=True))
    if config == "fail":
        raise RuntimeError("no luck")
    if config == "hang":
        await ctx.stop.wait()
    if config == "end":
        ctx.app_exit.exit(0)
"""
ROWS = "- insert: [{id: app, name: ./app.py, config: 1}, {id: other, name: ./app.py, config: 0}]\n"


class Running:
    """A started profile, line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def shows(self, *lines: str) -> None:
        assert self.process.stdout is not None
        assert [self.process.stdout.readline().rstrip() for _ in lines] == list(lines)

    def says(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.readline().rstrip()

    def ends(self, code: int) -> tuple[str, str]:
        out, err = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == code
        return out, err


def home_file(dsh: Command) -> Path:
    return dsh.home / "cordis.patch.yml"


def test_an_edit_of_either_file_is_applied_while_the_app_runs(dsh: Command) -> None:
    folder = dsh.profile("p", APP, ROWS)
    with dsh.started("--profile", "p") as process:
        run = Running(process)
        run.shows("up 1", "up 0")
        home_file(dsh).write_text("- {id: app, config: 2}\n")
        run.shows("down 1", "up 2")
        assert run.says() == f"dsh: applied {home_file(dsh)}: changed app"
        (folder / "cordis.patch.yml").write_text(ROWS + "- {id: app, config: 3}\n")
        home_file(dsh).unlink()
        run.shows("down 2", "up 3")
        process.send_signal(signal.SIGTERM)
        out, _ = run.ends(0)
    assert sorted(out.splitlines()) == ["down 0", "down 3"]


BAD = {
    "YAML": b"- {id: app",
    "encoding": b"- {id: app, config: \xff}",
    "shape": b"id: app\n",
    "type": b"- {id: app, disabled: 3}\n",
    "duplicate": b"- insert: [{id: app, name: x}]\n",
    "plugin": b"- insert: [{id: x, name: no.such}]\n",
    "body": b"- {id: app, config: fail}\n",
}


@pytest.mark.parametrize("content", [*BAD.values(), None], ids=[*BAD, "folder"])
def test_an_edit_that_cannot_be_used_leaves_the_tree_serving(
    dsh: Command, content: bytes | None
) -> None:
    dsh.profile("p", APP, ROWS)
    path = home_file(dsh)
    with dsh.started("--profile", "p") as process:
        run = Running(process)
        run.shows("up 1", "up 0")
        if content is None:
            path.mkdir()
        else:
            path.write_bytes(content)
        line = run.says()
        assert line.startswith("dsh: ")
        assert str(path) in line
        assert line.endswith("; the last good configuration goes on")
        assert process.poll() is None
        if content is None:
            path.rmdir()
        path.write_text("- {id: other, config: end}\n")
        out, err = run.ends(0)
    assert err.splitlines() in ([], [f"dsh: applied {path}: changed other"])
    assert "up end" in out


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_during_an_edit_takes_the_tree_down_in_silence(
    dsh: Command, number: signal.Signals, code: int
) -> None:
    dsh.profile("p", APP, ROWS)
    with dsh.started("--profile", "p") as process:
        run = Running(process)
        run.shows("up 1", "up 0")
        home_file(dsh).write_text("- {id: app, config: hang}\n")
        run.shows("down 1", "up hang")
        process.send_signal(number)
        out, err = run.ends(code)
    assert sorted(out.splitlines()) == ["down 0", "down hang"]
    assert err == ""


def test_an_edit_that_takes_the_last_row_that_could_end_a_job_ends_it(dsh: Command) -> None:
    rows = "- insert: [{id: app, name: ./app.py, config: 1}]\n"
    dsh.profile("p", f"inject = ('app_exit',)\n{APP}", rows, oneshot=True)
    with dsh.started("--profile", "p") as process:
        run = Running(process)
        run.shows("up 1")
        home_file(dsh).write_text("- {id: app, disabled: true}\n")
        out, err = run.ends(1)
    assert out == "down 1\n"
    assert err.splitlines() == [
        f"dsh: applied {home_file(dsh)}: changed app",
        "dsh: no row is left that could end the run, so it ends here",
    ]


def test_an_app_that_ends_does_not_wait_for_the_watching(dsh: Command) -> None:
    dsh.profile("p", APP, ROWS.replace("config: 1", "config: end"))
    done = dsh.run("--profile", "p")
    assert (done.returncode, done.stderr) == (0, "")
