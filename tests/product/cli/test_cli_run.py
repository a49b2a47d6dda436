from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_support import PATIENCE_S, Command

from dsh import __version__
from dsh.loader.compose import compose_profile
from dsh.loader.yaml import load_yaml

ROWS = "- insert: [{id: app, name: ./app.py}]\n"
ECHO = """
def apply(ctx):
    print("up", *ctx.cmdline_args.get(), flush=True)
    ctx.defer(lambda: print("down", flush=True))
    async def work():
        await ctx.loader.ready()
        if "stay" not in ctx.cmdline_args.get():
            ctx.app_exit.exit(5)
        print("ready", flush=True)
    ctx.spawn(work(), "work")
"""
HEAVY = ("asyncio", "pydantic", "click", "httpx", "yaml", "importlib.metadata", "logging")


def test_version_prints_the_version_alone(dsh: Command) -> None:
    (dsh.cwd / ".env").mkdir()
    for flag in ("-V", "--version"):
        done = dsh.run(flag)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{__version__}\n", "")
    assert not dsh.home.exists()


def test_help_prints_the_launchers_help(dsh: Command) -> None:
    done = dsh.run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("--profile", "--patch", "--dump-config", "--strict", "demo", "sessions", "plugin"):
        assert word in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert not dsh.home.exists()


@pytest.mark.parametrize(
    "line",
    [
        "",
        "tui",
        "--config x",
        "-p task",
        "run task",
        "--bogus",
        "--dump-config",
        "plugin --profile x",
        "--profile x --dump-config -h",
    ],
)
def test_usage_errors_are_one_line_on_stderr_and_code_1(dsh: Command, line: str) -> None:
    done = dsh.run(*line.split())
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("dsh: ")
    assert done.stderr.count("\n") == 1


def test_an_unknown_profile_lists_the_profiles(dsh: Command) -> None:
    done = dsh.run("--profile", "headles", "task")
    assert (done.returncode, done.stdout) == (1, "")
    assert "did you mean 'headless'?" in done.stderr
    assert "headless, web" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("profile", ["headless", "web"])
def test_a_dump_reloads_to_what_boot_mounts(dsh: Command, profile: str) -> None:
    done = dsh.run("--profile", profile, "--dump-config")
    assert (done.returncode, done.stderr) == (0, "")
    composition = compose_profile(profile, dsh.home)
    assert load_yaml(done.stdout, "dump") == composition.rows
    assert "!!js dshHomePath('sessions')" in done.stdout


def test_a_dump_tells_unmatched_patches_and_succeeds(dsh: Command) -> None:
    (dsh.cwd / "p.yml").write_text("- {id: bash-sandbx, config: {timeoutMs: 1}}\n")
    done = dsh.run("--profile", "headless", "--dump-config", "--patch", "p.yml")
    assert done.returncode == 0
    expected = (
        f'dsh: [{dsh.cwd / "p.yml"}] patch: entry "bash-sandbx" not found, '
        'did you mean "bash-sandbox"?\n'
    )
    assert done.stderr == expected


def test_a_default_dump_parses_no_user_file(dsh: Command) -> None:
    dsh.home.mkdir()
    (dsh.home / "cordis.patch.yml").write_text("{")
    assert dsh.run("--profile", "headless", "--dump-default-config").returncode == 0
    done = dsh.run("--profile", "headless", "--dump-config")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"failed to parse patches {dsh.home / 'cordis.patch.yml'}:" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_goes_away_is_no_traceback(dsh: Command) -> None:
    command = [sys.executable, "-m", "dsh", "--profile", "headless", "--dump-config"]
    done = subprocess.run(
        ["sh", "-c", '"$@" | head -n 1; echo done', "sh", *command],
        env=dsh.env,
        cwd=dsh.cwd,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.endswith("done\n")


@pytest.mark.parametrize("line", ["web", "web --help", "--profile web --port 0"])
def test_the_web_profile_says_that_it_is_not_built_yet(dsh: Command, line: str) -> None:
    done = dsh.run(*line.split())
    assert (done.returncode, done.stdout) == (1, "")
    assert "not built yet" in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_app_gets_its_words_and_ends_the_process(dsh: Command) -> None:
    dsh.profile("p", ECHO, ROWS)
    done = dsh.run("--profile", "p", "a", "--patch", "b")
    assert (done.returncode, done.stderr) == (5, "")
    assert done.stdout == "up a --patch b\nready\ndown\n"


def test_two_runs_of_a_profile_do_not_repeat_rows(dsh: Command) -> None:
    dsh.profile("p", ECHO, ROWS)
    first, second = dsh.run("--profile", "p"), dsh.run("--profile", "p")
    assert first.stdout == second.stdout
    assert second.stdout.count("up") == 1


@pytest.mark.parametrize(
    ("number", "oneshot", "code"),
    [
        (signal.SIGTERM, False, 0),
        (signal.SIGTERM, True, 143),
        (signal.SIGINT, False, 130),
        (signal.SIGINT, True, 130),
        (signal.SIGHUP, False, 129),
    ],
)
def test_a_signal_takes_the_tree_down_with_its_code(
    dsh: Command, number: signal.Signals, oneshot: bool, code: int
) -> None:
    dsh.profile("p", ECHO, ROWS, oneshot=oneshot)
    with dsh.started("--profile", "p", "stay") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up stay\n"
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (code, "down\n", "")


def test_a_signal_while_rows_mount_undoes_what_is_mounted(dsh: Command) -> None:
    slow = """
import asyncio
async def apply(ctx):
    ctx.defer(lambda: print("down", flush=True))
    print("mounting", flush=True)
    await ctx.stop.wait()
"""
    dsh.profile("p", slow, ROWS)
    with dsh.started("--profile", "p") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "mounting\n"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (0, "down\n", "")


def test_a_second_signal_kills_a_tree_that_does_not_go(dsh: Command) -> None:
    stuck = """
import asyncio
def apply(ctx):
    async def never():
        print("stuck", flush=True)
        await asyncio.Event().wait()
    ctx.defer(never)
    print("up", flush=True)
"""
    dsh.profile("p", stuck, ROWS)
    with dsh.started("--profile", "p") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "stuck\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (130, "", "")


@pytest.mark.parametrize(
    ("patch", "problem"),
    [
        ("- {id: app, inject: [nothing]}", "waiting for service(s): nothing"),
        ("- {id: app, config: !!js nothing.x}", "'nothing' cannot be read here"),
        ("- insert: [{id: y, name: no.such.plugin}]", '"no.such.plugin"'),
        ("- insert: [{id: app, name: x}]", 'duplicate row id "app"'),
        ("- insert: [{id: y}]", "needs a name"),
        ("- {id: app, disabled: maybe}", "disabled must be true, false or an expression"),
        ("- {", "failed to parse overlay"),
        ("a: 1", "must be a top-level YAML array"),
    ],
)
def test_a_bad_overlay_is_one_line_and_code_1(dsh: Command, patch: str, problem: str) -> None:
    dsh.profile("p", "def apply(ctx): ...\n", ROWS)
    (dsh.cwd / "bad.yml").write_text(patch)
    done = dsh.run("--profile", "p", "--patch", "bad.yml")
    assert (done.returncode, done.stdout) == (1, "")
    assert problem in done.stderr
    assert done.stderr.startswith("dsh: ")
    assert done.stderr.count("\n") == 1


def test_a_plugin_that_raises_is_one_line_and_its_traceback_is_in_the_log(dsh: Command) -> None:
    dsh.profile("p", "def apply(ctx):\n    raise RuntimeError('no luck')\n", ROWS)
    done = dsh.run("--profile", "p")
    assert (done.returncode, done.stdout) == (1, "")
    assert 'row "app"' in done.stderr
    assert done.stderr.endswith("did not activate: RuntimeError: no luck\n")
    assert done.stderr.count("\n") == 1
    (log,) = (dsh.home / "logs").iterdir()
    assert "Traceback" in log.read_text()
    dsh.env["DSH_DEBUG"] = "1"
    assert "Traceback" in dsh.run("--profile", "p").stderr


def third_party(dsh: Command) -> None:
    source = "def apply(ctx):\n    print('acme up', flush=True)\n    ctx.app_exit.exit(0)\n"
    rows = "- insert: [{id: good, name: my-acme}, {id: bad, name: no.such.plugin}]\n"
    folder = dsh.profile("p", "", "[]")
    (folder / "profile.json").write_text('{"dsh": {"profile": {"bundles": ["acme"]}}}')
    dsh.install(folder / "site", "acme", rows, source)


def test_a_third_partys_failing_row_is_told_and_left_out(dsh: Command) -> None:
    third_party(dsh)
    done = dsh.run("--profile", "p")
    assert (done.returncode, done.stdout) == (0, "acme up\n")
    assert 'row "bad" (no.such.plugin) did not activate' in done.stderr
    assert "it is left out" in done.stderr
    assert done.stderr.count("\n") == 1


def test_strict_makes_a_third_partys_failing_row_fatal(dsh: Command) -> None:
    third_party(dsh)
    done = dsh.run("--profile", "p", "--strict")
    assert (done.returncode, done.stdout) == (1, "")
    assert '"no.such.plugin"' in done.stderr


def test_a_hanging_thread_does_not_keep_the_process(dsh: Command) -> None:
    source = """
import asyncio, threading
def apply(ctx):
    asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
    ctx.app_exit.exit(4)
"""
    dsh.profile("p", source, ROWS)
    assert dsh.run("--profile", "p").returncode == 4


def test_layers_of_the_environment_reach_expressions_and_not_the_process(dsh: Command) -> None:
    source = """
import os
def apply(ctx, config):
    print(config, sorted(n for n in os.environ if n.startswith("L_")), flush=True)
    ctx.app_exit.exit(0)
"""
    joined = "${process.env.L_A}${process.env.L_B}${process.env.L_C}"
    rows = f"- insert: [{{id: app, name: ./app.py, config: !!js '`{joined}`'}}]\n"
    dsh.profile("p", source, rows)
    (dsh.home / ".env").write_text("L_A=user\nL_B=user\nL_C=user\n")
    (dsh.cwd / ".env").write_text("L_B=project\nL_C=project\nPATH=/nowhere\n")
    dsh.env["L_C"] = "process"
    done = dsh.run("--profile", "p")
    assert done.stdout == "userprojectprocess ['L_A', 'L_B', 'L_C']\n"
    assert done.stderr.count("\n") == 1
    assert "ignored PATH in" in done.stderr
    (dsh.home / ".env").unlink()
    assert dsh.run("--profile", "p").stdout == "undefinedprojectprocess ['L_C']\n"


def test_a_wrong_permission_mode_is_told_before_anything_mounts(dsh: Command) -> None:
    dsh.profile("p", ECHO, ROWS)
    dsh.env["DSH_PERMISSION_MODE"] = "readonly"
    done = dsh.run("--profile", "p")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "dsh: DSH_PERMISSION_MODE must be one of read-only, workspace-write, danger-full-access, "
        "got 'readonly' (did you mean 'read-only'?)\n"
    )


def test_a_home_that_cannot_be_written_is_told_once(dsh: Command) -> None:
    dsh.home.write_text("a file")
    done = dsh.run("--profile", "headless", "--dump-config")
    assert done.returncode == 0
    assert "used without being saved" in done.stderr
    assert done.stderr.count("\n") == 1


def imported(dsh: Command, *argv: str) -> set[str]:
    probe = (
        "import sys, json\n"
        "from dsh.product.cli.main import main\n"
        f"code = main({list(argv)!r})\n"
        "print('\\n' + json.dumps(sorted(sys.modules)))\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe],
        env=dsh.env,
        cwd=dsh.cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("argv", [["--version"], ["--help"], ["web", "-V"]])
def test_version_and_help_import_nothing_heavy(dsh: Command, argv: list[str]) -> None:
    modules = imported(dsh, *argv)
    assert not modules & {*HEAVY, "dataclasses", "inspect", "json", "typing", "re"} - baseline()
    assert not [name for name in modules if name.startswith(("dsh.loader", "dsh.kernel"))]


def test_help_of_the_plugin_command_imports_nothing_heavy(dsh: Command) -> None:
    assert not imported(dsh, "plugin", "--help") & set(HEAVY) - baseline()


def test_a_dump_imports_yaml_and_no_agent_stack(dsh: Command) -> None:
    modules = imported(dsh, "--profile", "headless", "--dump-config")
    assert "yaml" in modules
    assert not modules & set(HEAVY) - {"yaml"} - baseline()
    floors = {name.split(".")[1] for name in modules if name.startswith("dsh.")}
    assert floors <= {"base", "loader", "product"}


def test_app_help_imports_the_apps_command_and_boots_nothing(dsh: Command) -> None:
    modules = imported(dsh, "--profile", "headless", "--help")
    assert "dsh.product.headless.cli" in modules
    assert not modules & {"asyncio", "pydantic", "httpx", "dsh.loader.boot", "dsh.loader.loader"}
    assert not [name for name in modules if name.startswith("dsh.kernel")]


def baseline() -> set[str]:
    """What the probe itself imports."""
    done = subprocess.run(
        [sys.executable, "-c", "import sys, json; print(json.dumps(sorted(sys.modules)))"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    return set(json.loads(done.stdout))


def test_the_repository_ships_what_the_console_script_names() -> None:
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert 'dsh = "dsh.product.cli.main:main"' in text
