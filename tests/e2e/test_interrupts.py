"""SIGINT, SIGTERM and SIGKILL in the middle of things: balanced log, no child, resumable."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from support import Home, call, finish, processes_with, say, wait_for

from dsh.testing.provider import Provider

SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]


def long_command(home: Home) -> tuple[dict[str, Any], str]:
    """A shell that starts a worker that starts a detached grandchild; all ignore SIGTERM."""
    marker = f"dsh-e2e-{os.getpid()}-{id(home)}"
    inner = f'trap "" TERM; exec -a {marker}-grandchild sleep 600'
    command = (
        f"trap '' TERM; touch started; (setsid bash -c '{inner}' &) ; "
        f"exec -a {marker}-child sleep 600"
    )
    return call("bash", command=command, description="Sleep for long"), marker


def balanced(events: list[dict[str, Any]]) -> bool:
    """Every turn and step is closed and every requested call has a result."""
    calls: set[str] = set()
    open_turn = open_step = False
    for event in events:
        data = event["data"]
        match event["type"]:
            case "turn/start":
                open_turn = True
            case "turn/end":
                open_turn = False
            case "step/start":
                open_step = True
            case "step/end":
                open_step = False
            case "assistant/message":
                blocks = data["message"]["content"]
                calls |= {block["id"] for block in blocks if block["type"] == "tool-call"}
            case "tool/result":
                calls.discard(data["message"]["source"]["callId"])
    return not (open_turn or open_step or calls)


def interrupt_a_command(
    home: Home, provide: Callable[..., Provider], number: signal.Signals
) -> tuple[int, str]:
    asked, marker = long_command(home)
    provide({"replies": [{"text": "Sleeping.", "calls": [asked]}, say("resumed")]})
    process = home.start("--profile", "headless", "go")
    wait_for((home.workspace / "started").exists, "the command's start")
    wait_for(lambda: len(processes_with(marker + "-")) >= 2, "the start of its children")
    process.send_signal(number)
    return finish(process).code, marker


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_during_a_command_leaves_no_process(
    home: Home, provide: Callable[..., Provider], number: signal.Signals, code: int
) -> None:
    ended, marker = interrupt_a_command(home, provide, number)
    assert ended == code
    wait_for(lambda: not processes_with(marker + "-"), "the end of the command's children")


@pytest.mark.parametrize(("number", "code"), SIGNALS[:2])
def test_a_signal_during_a_command_leaves_a_balanced_log(
    home: Home, provide: Callable[..., Provider], number: signal.Signals, code: int
) -> None:
    interrupt_a_command(home, provide, number)
    stored = home.log()
    assert stored.tail is None
    assert balanced(stored.events)
    assert stored.events[-1]["data"]["reason"] == {"kind": "aborted", "reason": {"kind": "user"}}


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_session_goes_on_after_a_signal_with_paired_calls(
    home: Home, provide: Callable[..., Provider], number: signal.Signals, code: int
) -> None:
    _, marker = interrupt_a_command(home, provide, number)
    wait_for(lambda: not processes_with(marker + "-"), "the end of the command's children")

    ran = home.headless("--resume", "last", "--output-format", "json", "go on")

    result = json.loads(ran.out)
    assert (ran.code, result["text"]) == (0, "resumed")
    assert balanced(home.log().events)


def test_text_streamed_before_an_interrupt_is_logged_and_printed(
    home: Home, provide: Callable[..., Provider]
) -> None:
    provide({"replies": [{"text": ["Half a ", "sentence", " more"], "fault": {"stall": 2}}]})
    process = home.start("--profile", "headless", "go")
    wait_for(lambda: bool(home.logs()), "the log")
    wait_for(lambda: _has_chunks(home), "the first words")

    process.send_signal(signal.SIGINT)
    ran = finish(process)

    assert ran.code == 130
    assert ran.out == "Half a sentence\n"
    (message,) = [each for each in home.log().events if each["type"] == "assistant/message"]
    assert message["data"]["interrupted"] is True
    assert message["data"]["message"]["content"] == [{"type": "text", "text": "Half a sentence"}]


def _has_chunks(home: Home) -> bool:
    chunks = [event for event in home.log().events if event["type"] == "assistant/chunk"]
    return "sentence" in json.dumps(chunks)


def test_a_signal_while_the_tree_is_mounting_ends_quietly(home: Home) -> None:
    home.variables["DEEPSEEK_API_KEY"] = "sk-x"
    slow = home.workspace / "slow.py"
    slow.write_text(
        "import asyncio, pathlib\n"
        "async def apply(ctx):\n"
        "    ctx.defer(lambda: pathlib.Path('undone').touch())\n"
        "    pathlib.Path('mounting').touch()\n"
        "    await ctx.stop.wait()\n"
    )
    patch = home.workspace / "patch.yml"
    patch.write_text(json.dumps([{"insert": [{"id": "slow", "name": str(slow)}]}]))
    process = home.start("--profile", "headless", "--patch", "patch.yml", "go")
    wait_for((home.workspace / "mounting").exists, "the mount")

    process.send_signal(signal.SIGTERM)
    ran = finish(process)

    assert (ran.code, ran.out, ran.err) == (143, "", "")
    assert (home.workspace / "undone").exists()


def test_a_second_signal_ends_at_once(home: Home) -> None:
    home.variables["DEEPSEEK_API_KEY"] = "sk-x"
    stuck = home.workspace / "stuck.py"
    stuck.write_text(
        "import asyncio, pathlib\n"
        "async def undo():\n"
        "    pathlib.Path('undoing').touch()\n"
        "    await asyncio.sleep(600)\n"
        "def apply(ctx):\n"
        "    ctx.defer(undo)\n"
        "    pathlib.Path('mounted').touch()\n"
    )
    patch = home.workspace / "patch.yml"
    patch.write_text(json.dumps([{"insert": [{"id": "stuck", "name": str(stuck)}]}]))
    process = home.start(
        "--profile", "headless", "--patch", "patch.yml", "go", stderr=subprocess.DEVNULL
    )
    wait_for((home.workspace / "mounted").exists, "the mount")
    process.send_signal(signal.SIGINT)
    wait_for((home.workspace / "undoing").exists, "the disposal")
    process.send_signal(signal.SIGINT)
    assert process.wait(4) == 130
    process.communicate()
