"""Code Mode as a user runs it: the installed command, real tools, real interpreters, a real log."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import Home, call, finish, wait_for

from dsh.testing.provider import Provider

PROGRAM = """\
import asyncio
first, second = await asyncio.gather(
    tools.read({"file_path": "a.txt"}), tools.read({"file_path": "b.txt"})
)
print("read both")
await tools.edit({"file_path": "a.txt", "old_string": "alpha", "new_string": "gamma"})
counted = await tools.bash({"command": "cat a.txt b.txt | wc -c", "description": "Count"})
return counted["stdout"]["text"].strip()
"""

JOB = {
    "replies": [
        {"calls": [call("run_code", code=PROGRAM, description="Change a file and count")]},
        {"expect": [{"contains": ["read both", "11"]}], "text": "Changed a.txt."},
    ]
}


def prepare(home: Home, mode: str) -> None:
    home.variables["DSH_TOOLS_MODE"] = mode
    home.variables["DSH_SESSION_INVARIANTS"] = "1"
    (home.workspace / "a.txt").write_text("alpha\n")
    (home.workspace / "b.txt").write_text("beta\n")


def names_of(provider: Provider) -> list[str]:
    return [tool["function"]["name"] for tool in provider.requests()[0]["body"]["tools"]]


def data_of(home: Home, type: str) -> list[Any]:
    return [event["data"] for event in home.log().events if event["type"] == type]


def test_a_program_does_a_whole_job_through_the_tools(
    home: Home, provide: Callable[..., Provider]
) -> None:
    prepare(home, "code")
    provider = provide(JOB)

    ran = home.headless("change alpha to gamma")

    assert (ran.code, ran.out, ran.err) == (0, "Changed a.txt.\n", "")
    assert (home.workspace / "a.txt").read_text() == "gamma\n"
    assert names_of(provider) == ["run_code"]
    system = provider.requests()[0]["body"]["messages"][0]["content"]
    assert "async def read(self, args: ReadArgs)" in system
    started = data_of(home, "tool/code-dispatch-start")
    assert [each["name"] for each in started] == ["read", "read", "edit", "bash"]
    (outer,) = data_of(home, "tool/call")
    assert [each["subCallId"] for each in started] == [
        f"{outer['callId']}:code:{number}" for number in (1, 2, 3, 4)
    ]
    settled = data_of(home, "tool/code-dispatch")
    assert [each["isError"] for each in settled] == [False] * 4


def test_a_direct_call_is_refused_and_told_the_way(
    home: Home, provide: Callable[..., Provider]
) -> None:
    prepare(home, "code")
    provide(
        {
            "replies": [
                {"calls": [call("read", file_path="a.txt")]},
                {"expect": [{"contains": ["run_code", "await tools['read']"]}], "text": "I see"},
            ]
        }
    )
    ran = home.headless("go")
    assert (ran.code, ran.out) == (0, "I see\n")


def test_both_offers_the_tools_and_programs(home: Home, provide: Callable[..., Provider]) -> None:
    prepare(home, "both")
    provider = provide(
        {
            "replies": [
                {"calls": [call("read", file_path="a.txt")]},
                {"expect": [{"contains": "alpha"}], **JOB["replies"][0]},
                JOB["replies"][1],
            ]
        }
    )
    ran = home.headless("go")
    assert (ran.code, ran.out) == (0, "Changed a.txt.\n")
    assert names_of(provider) == [
        "bash", "edit", "glob", "grep", "read", "run_code", "todo_write", "write",
    ]  # fmt: skip


@pytest.mark.parametrize("mode", ["workspace-write", "read-only"])
def test_a_program_may_change_no_more_than_a_command(
    home: Home, provide: Callable[..., Provider], mode: str
) -> None:
    prepare(home, "code")
    home.variables["DSH_PERMISSION_MODE"] = mode
    beside, inside = home.workspace.parent / "beside.txt", home.workspace / "inside.txt"
    program = (
        f"done = []\nfor path in [{str(beside)!r}, {str(inside)!r}]:\n"
        "    try:\n        open(path, 'w').close()\n        done.append(path)\n"
        "    except OSError:\n        pass\nreturn len(done)"
    )
    provide(
        {
            "replies": [
                {"calls": [call("run_code", code=program, description="Try to write")]},
                {"text": "tried"},
            ]
        }
    )
    ran = home.headless("go")
    assert (ran.code, ran.out) == (0, "tried\n")
    assert not beside.exists()
    assert inside.exists() == (mode == "workspace-write")


@pytest.mark.parametrize(("cause", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_program_with_the_run(
    home: Home, provide: Callable[..., Provider], cause: signal.Signals, code: int
) -> None:
    prepare(home, "code")
    marker = home.workspace / "pid"
    program = (
        "import os, subprocess\n"
        "sleeper = subprocess.Popen(['setsid', 'sleep', '1000'])\n"
        f"open({str(marker)!r}, 'w').write(f'{{os.getpid()}} {{sleeper.pid}} .')\n"
        "while True: sleeper.wait()"
    )
    home.variables["DSH_PERMISSION_MODE"] = "danger-full-access"
    provide({"replies": [{"calls": [call("run_code", code=program, description="Sleep")]}]})
    process = home.start("--profile", "headless", "go")
    wait_for(lambda: marker.exists() and marker.read_text().endswith("."), "the program")

    process.send_signal(cause)

    assert finish(process).code == code
    left = [pid for pid in marker.read_text().split()[:2] if Path(f"/proc/{pid}").exists()]
    assert left == []
    (settled,) = data_of(home, "tool/result")
    assert settled["message"]["content"][0]["isError"]


def test_a_native_run_loads_nothing_of_code_mode(
    home: Home, provide: Callable[..., Provider]
) -> None:
    provide({"replies": [{"text": "done"}]})
    ran = home.headless("go", env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert ran.code == 0
    loaded = {line.rpartition("|")[2].strip() for line in ran.err.splitlines()}
    assert "dsh.capability.code_runtime.service" in loaded
    for name in ("capability.code_runtime.config", "capability.code_runtime.running",
                 "execution.tools.code.run_code", "execution.tools.code.flavours",
                 "execution.tools.code.lane"):  # fmt: skip
        assert f"dsh.{name}" not in loaded
