"""Faults of plugins, files and streams: one line each, the tree undone, a code that tells."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_support import PATIENCE_S, Command

ROWS = "- insert: [{id: app, name: ./app.py}]\n"
SECRET = "sk-do-not-show"


def one_line(done: subprocess.CompletedProcess[str], code: int = 1) -> str:
    assert done.returncode == code
    (line,) = done.stderr.splitlines()
    assert line.startswith("dsh: ")
    return line


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("import sys\nsys.exit(3)", "SystemExit: 3"),
        (
            "import asyncio\nasync def apply(ctx):\n    raise asyncio.CancelledError()",
            "CancelledError",
        ),
        ("def apply(ctx):\n    raise RuntimeError('a\\nb\\x1b[31m')", r"RuntimeError: a b\x1b[31m"),
    ],
)
def test_whatever_a_plugin_raises_is_one_line_about_its_row(
    dsh: Command, source: str, problem: str
) -> None:
    dsh.profile("p", source, ROWS)
    done = dsh.run("--profile", "p")
    line = one_line(done)
    assert 'row "app"' in line
    assert problem in line


@pytest.mark.parametrize("raised", ["SystemExit(3)", "type('Odd', (BaseException,), {})('x')"])
def test_a_plugin_that_raises_past_exception_neither_hangs_nor_skips_the_undo(
    dsh: Command, raised: str
) -> None:
    source = f"def apply(ctx):\n    ctx.defer(lambda: print('down'))\n    raise {raised}\n"
    dsh.profile("p", source, ROWS)
    done = dsh.run("--profile", "p")
    assert (done.returncode, done.stdout) == (1, "down\n")
    assert "Traceback" not in done.stderr
    assert all(line.startswith("dsh: ") for line in done.stderr.splitlines())


def test_an_exit_asked_for_inside_a_body_undoes_the_tree(dsh: Command) -> None:
    source = """
async def apply(ctx):
    ctx.defer(lambda: print("down"))
    ctx.app_exit.exit(3)
    await ctx.stop.wait()
"""
    dsh.profile("p", source, ROWS)
    done = dsh.run("--profile", "p")
    assert (done.returncode, done.stdout, done.stderr) == (3, "down\n", "")


@pytest.mark.parametrize("code", ["256", "-1", "'x'", "None"])
def test_an_exit_code_that_the_system_cannot_hold_is_a_failure(dsh: Command, code: str) -> None:
    dsh.profile("p", f"def apply(ctx):\n    ctx.app_exit.exit({code})\n", ROWS)
    done = dsh.run("--profile", "p")
    assert (done.returncode, done.stderr) == (1, "")


def test_no_line_and_no_log_shows_a_secret(dsh: Command) -> None:
    source = "import os\ndef apply(ctx):\n    raise RuntimeError(os.environ['ACME_API_KEY'])\n"
    dsh.profile("p", source, ROWS)
    dsh.env |= {"ACME_API_KEY": SECRET, "DSH_DEBUG": "1"}
    done = dsh.run("--profile", "p")
    assert "<ACME_API_KEY>" in done.stderr
    assert SECRET not in done.stderr
    (log,) = (dsh.home / "logs").iterdir()
    assert SECRET not in log.read_text()


def test_a_thread_that_never_ends_does_not_keep_the_process(dsh: Command) -> None:
    source = """
import threading
def apply(ctx):
    threading.Thread(target=threading.Event().wait).start()
    ctx.app_exit.exit(4)
"""
    dsh.profile("p", source, ROWS)
    assert dsh.run("--profile", "p").returncode == 4


def test_an_undo_that_blocks_the_loop_is_forced(dsh: Command) -> None:
    source = """
import threading
def apply(ctx):
    ctx.defer(threading.Event().wait)
    ctx.app_exit.exit(7)
"""
    dsh.profile("p", source, ROWS)
    assert dsh.run("--profile", "p").returncode == 7


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_second_signal_ends_a_loop_that_is_blocked(
    dsh: Command, number: signal.Signals, code: int
) -> None:
    source = """
import os, signal, time
def apply(ctx):
    former = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    def told(number, frame):
        former[number == signal.SIGTERM](number, frame)
        os.write(1, b"heard\\n")
    signal.signal(signal.SIGINT, told)
    signal.signal(signal.SIGTERM, told)
    print("up", flush=True)
    time.sleep(600)
"""
    dsh.profile("p", source, ROWS)
    with dsh.started("--profile", "p") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        assert process.stdout.readline() == "heard\n"
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == code


LOSES_INTERRUPTS = """
import os, signal
class Careless:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
Careless()
print("went on", flush=True)
def preflight(config, environment): ...
def apply(ctx): ...
"""


def test_an_interrupt_while_modules_are_imported_is_not_lost(dsh: Command) -> None:
    dsh.profile("p", "", "- insert: [{id: a, name: careless}]\n")
    (dsh.cwd / "careless.py").write_text(LOSES_INTERRUPTS)
    dsh.env["PYTHONPATH"] = str(dsh.cwd)
    done = dsh.run("--profile", "p")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_profile_without_rows_says_that_there_is_nothing_to_start(dsh: Command) -> None:
    dsh.profile("p", "", "[]")
    line = one_line(dsh.run("--profile", "p"))
    assert "nothing to start" in line
    assert "profile.json" in line


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31mb"])
def test_what_a_terminal_would_act_on_is_shown_escaped(dsh: Command, name: str) -> None:
    line = one_line(dsh.run("--profile", name))
    assert line.isprintable()
    assert "invalid profile name" in line


@pytest.mark.parametrize(("mode", "hint"), [("coda", " (did you mean 'code'?)"), ("", "")])
def test_a_tools_mode_that_does_not_exist_is_told(dsh: Command, mode: str, hint: str) -> None:
    dsh.profile("p", "def apply(ctx):\n    ctx.app_exit.exit(0)\n", ROWS)
    dsh.env["DSH_TOOLS_MODE"] = mode
    line = one_line(dsh.run("--profile", "p"))
    assert line == f"dsh: DSH_TOOLS_MODE must be one of native, code, both, got {mode!r}{hint}"
    dsh.env["DSH_TOOLS_MODE"] = "native"
    assert dsh.run("--profile", "p").returncode == 0


def test_no_save_silences_the_notice_of_a_home_that_cannot_be_written(dsh: Command) -> None:
    dsh.home.write_text("a file")
    loud = dsh.run("--profile", "headless", "go").stderr.splitlines()
    quiet = dsh.run("--profile", "headless", "--no-save", "go").stderr.splitlines()
    assert "used without being saved" in loud[0]
    assert quiet == loud[1:]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "line", ["--version", "--help", "--profile headless --dump-config", "sessions list"]
)
def test_output_that_nothing_takes_is_one_line(dsh: Command, line: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "dsh", *line.split()],
            env=dsh.env,
            cwd=dsh.cwd,
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert "cannot write the output" in one_line(done)


@pytest.mark.parametrize(
    "line", ["--version", "--profile headless --dump-config", "sessions list", "--bogus"]
)
def test_closed_streams_are_no_traceback(dsh: Command, line: str) -> None:
    done = subprocess.run(
        ["sh", "-c", '"$@" <&- >&- 2>err', "sh", sys.executable, "-m", "dsh", *line.split()],
        env=dsh.env,
        cwd=dsh.cwd,
        timeout=PATIENCE_S,
        check=False,
    )
    assert "Traceback" not in (dsh.cwd / "err").read_text()
    assert done.returncode == (1 if line == "--bogus" else 0)


@pytest.mark.parametrize("patch", ["a" * 300, "/dev/zero"])
def test_a_patch_that_no_file_can_be_is_one_line(dsh: Command, patch: str) -> None:
    if patch.startswith("/") and not os.path.exists(patch):
        pytest.skip("needs /dev/zero")
    line = one_line(dsh.run("--profile", "headless", "--dump-config", "--patch", patch))
    assert f"failed to read overlay {dsh.cwd / patch}: " in line


def test_a_link_to_nothing_is_no_absent_patch(dsh: Command) -> None:
    dsh.home.mkdir()
    (dsh.home / "cordis.patch.yml").symlink_to("nowhere")
    line = one_line(dsh.run("--profile", "headless", "--dump-config"))
    assert line.endswith("cordis.patch.yml: the link leads to no file")


def test_what_makes_no_tree_names_the_file_it_is_in(dsh: Command) -> None:
    (dsh.cwd / "good.yml").write_text("- insert: [{id: x, name: y}]\n")
    (dsh.cwd / "bad.yml").write_text("- insert: [{id: timer, name: y}]\n")
    done = dsh.run(
        "--profile", "headless", "--dump-config", "--patch", "good.yml", "--patch", "bad.yml"
    )
    assert one_line(done).startswith(f'dsh: [{dsh.cwd / "bad.yml"}] duplicate row id "timer"')


def test_two_first_runs_at_once_both_succeed(dsh: Command) -> None:
    arguments = ("--profile", "headless", "--dump-config")
    with dsh.started(*arguments) as first, dsh.started(*arguments) as second:
        outputs = [each.communicate(timeout=PATIENCE_S) for each in (first, second)]
        assert [each.returncode for each in (first, second)] == [0, 0]
    assert outputs[0] == outputs[1]
    assert outputs[0][1] == ""
    kept = {path.name for path in (dsh.home / "profiles" / "headless").iterdir()}
    assert kept == {"profile.json", "cordis.patch.yml"}


def test_an_undo_that_hangs_delays_a_fatal_failure_and_cannot_stop_it(dsh: Command) -> None:
    source = """
import asyncio
async def lost():
    raise RuntimeError("no luck")
def apply(ctx):
    async def never():
        print("undoing", flush=True)
        await asyncio.Event().wait()
    ctx.defer(never)
    async def work():
        await ctx.loader.ready()
        task = asyncio.create_task(lost())
        await asyncio.wait([task])
        del task
    ctx.spawn(work(), "work")
"""
    dsh.profile("p", source, ROWS)
    done = dsh.run("--profile", "p")
    assert done.stdout == "undoing\n"
    assert one_line(done) == "dsh: fatal load failure: RuntimeError: no luck"
