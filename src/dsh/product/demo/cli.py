"""``dsh demo``: an agent repairs a small project; only the model's words are scripted."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsh.loader.environment import LaunchEnvironment
from dsh.loader.say import say
from dsh.product.cli.modes import mode_problem
from dsh.product.demo.sandbox import sandbox_problem

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.resources.abc import Traversable

    from dsh.loader.boot import Launch

TASK = "The tests of this project fail. Find out why, repair the code, and show that they pass."

_HELP = """Usage: dsh demo [--into FOLDER]

Copies a small project with a failing test to a folder of its own and lets an agent repair it.
The model's words are scripted; the tools, processes, files and the session log are real.

  --into FOLDER  work in this folder, which must be empty or absent (default: a temporary one)
"""


def main(argv: Sequence[str]) -> int:
    """Run ``dsh demo`` and return its exit code."""
    match list(argv):
        case ["-h" | "--help"]:
            print(_HELP, end="")
            return 0
        case []:
            into = None
        case ["--into", into] if into:
            pass
        case _:
            say(f"demo does not understand {' '.join(argv)!r}; see dsh demo --help")
            return 1
    # Before anything is made or printed.
    if (problem := mode_problem(LaunchEnvironment(os.environ))) is not None:
        say(problem)
        return 1
    folder = Path(tempfile.mkdtemp(prefix="dsh-demo-")) if into is None else Path(into).absolute()
    if (problem := _folder_problem(folder)) is not None:
        say(f"{folder} {problem}; name another with --into")
        return 1
    return run_demo(folder)


def _folder_problem(folder: Path) -> str | None:
    """Make the folder; return why it cannot be used, or None."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return "is not an empty folder" if any(folder.iterdir()) else None
    except FileExistsError:
        return "is not an empty folder"
    except OSError as error:
        return f"cannot be made: {(error.strerror or str(error)).lower()}"


def run_demo(folder: Path) -> int:
    """Play the demo in a folder; its project, home and log stay there."""
    from dsh.loader.boot import run

    workspace, home = folder / "workspace", folder / "home"
    sample = files("dsh.product.demo")
    with as_file(sample / "rehearsal.yml") as script:
        _copy(sample / "sample", workspace)
        mode, note = _permission_mode()
        _print_head(note)
        code = run(_launch(workspace, home, script, mode))
    _print_foot(workspace, home)
    return code


def _permission_mode() -> tuple[str, str]:
    """Choose what the agent may do, and say why."""
    wanted = os.environ.get("DSH_PERMISSION_MODE")
    if wanted is not None:
        return wanted, f"permission mode {wanted}, as DSH_PERMISSION_MODE says"
    problem = asyncio.run(sandbox_problem())
    if problem is None:
        return "workspace-write", "commands are confined to the workspace"
    return "danger-full-access", f"commands are NOT confined in this throwaway folder: {problem}"


def _launch(workspace: Path, home: Path, script: Path, mode: str) -> Launch:
    from dsh.loader.boot import Launch
    from dsh.loader.compose import Layer, compose_profile
    from dsh.loader.host import CommandLine
    from dsh.product.headless.options import HeadlessStartup

    home.mkdir(parents=True)
    overlay = Layer("demo", _patches(script, mode))
    startup = HeadlessStartup(task=TASK, output_format="show", cwd=str(workspace))
    return Launch(
        composition=compose_profile("headless", home, user_layers=False, overlays=[overlay]),
        home=home,
        environment=LaunchEnvironment(os.environ),
        cmdline=CommandLine(parsed=startup),
        cwd=str(workspace),
        say=say,
        debug=bool(os.environ.get("DSH_DEBUG")),
    )


def _patches(script: Path, mode: str) -> list[dict[str, Any]]:
    rehearsal = {"script": str(script), "variables": {"python": sys.executable}}
    policy = "never" if mode == "danger-full-access" else "ask"
    return [
        {"id": "llm-deepseek", "disabled": True},
        {
            "id": "agent-default-model",
            "config": {"provider": "rehearsal", "model": "rehearsal"},
        },
        {"id": "sandbox-policy", "config": {"mode": mode, "workspaceRoot": None}},
        {"id": "approval", "config": {"policy": policy}},
        {
            "insert": [
                {
                    "id": "llm-rehearsal",
                    "name": "dsh.model.adapters.rehearsal",
                    "config": rehearsal,
                }
            ]
        },
    ]


def _copy(source: Traversable, target: Path) -> None:
    with as_file(source) as folder:
        shutil.copytree(folder, target, ignore=shutil.ignore_patterns("__pycache__"))


def _print_head(note: str) -> None:
    print("dsh demo: an agent repairs a small project")
    print("The model's words are scripted. Tools, processes, files and the log are real;")
    print(f"{note}.")
    print(f"\nTask: {TASK}\n", flush=True)


def _print_foot(workspace: Path, home: Path) -> None:
    print(f"\nworkspace    {workspace}")
    for log in sorted((home / "sessions").glob("*/*/session.jsonl*")):
        print(f"session log  {log}")
