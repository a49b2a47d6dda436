"""Two processes with agents at work; one is stopped for longer than its lease lasts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dsh.state.persistence.errors import SessionLeaseLost
from dsh.testing.persistence.medium import Host, Medium

_HERE = Path(__file__).parent
_LEASE_MS = 300
COMPLETED = {"kind": "completed"}


class Process:
    """A child that has agents; see ``agent_child.py``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def ask(self, line: str) -> Any:
        """Send a line and return the answer."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def turn(self, id: str) -> Any:
        """Let it do a whole turn; return why that ended."""
        said = self.ask(f"turn {id}")
        return self.ask("") if said == "working" else said

    def go_on(self) -> None:
        """Let it run again after it was stopped."""
        self.process.send_signal(signal.SIGCONT)


def take_over(taker: Process, id: str, writer: Process) -> None:
    """Stop the writer of a session for longer than its lease lasts, and open it elsewhere.

    A writer that happens to be stopped with a lock in its hands keeps it: it is stopped again.
    """
    for _ in range(3):
        writer.process.send_signal(signal.SIGSTOP)
        time.sleep(1.5 * _LEASE_MS / 1000)  # time must pass; there is nothing to wait for
        answer = taker.ask(f"open {id}")
        if isinstance(answer, int):
            assert answer > 0
            return
        writer.go_on()
    raise AssertionError(answer)


@contextmanager
def process(medium: Medium) -> Iterator[Process]:
    path = [str(_HERE.parents[1] / "execution" / "loop"), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    config = json.dumps({**medium.config, "leaseMs": _LEASE_MS, "writeBatchMaxDelayMs": 5})
    command = [sys.executable, str(_HERE / "agent_child.py"), medium.plugin, config]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env) as child:
        try:
            yield Process(child)
        finally:
            child.kill()


@pytest.fixture(params=["files", "database"])
def medium(request: pytest.FixtureRequest, tmp_path: Path) -> Medium:
    if request.param == "files":
        plugin = "dsh.state.persistence.jsonl:JsonlPersistence"
        return Medium(plugin, {"root": str(tmp_path / "sessions")})
    plugin = "dsh.state.persistence.sqlite:SqlitePersistence"
    return Medium(plugin, {"path": str(tmp_path / "sessions.db")})


async def stored(medium: Medium, id: str) -> list[Any]:
    host = await Host(medium).open()
    try:
        return list(await host.stored(id))
    finally:
        await host.close()


def names_the_taker(reason: Any, taker: Process) -> bool:
    said = f'session "s" was taken over by process {taker.process.pid} on '
    return reason["kind"] == "error" and said in reason["error"]["message"]


async def test_a_turn_fails_whose_session_was_taken_over_while_its_tool_ran(
    medium: Medium,
) -> None:
    with process(medium) as one, process(medium) as two:
        one.ask("open s")
        assert one.turn("s") == COMPLETED
        assert one.ask("turn s") == "working"
        take_over(two, "s", one)
        assert two.turn("s") == COMPLETED
        assert two.ask("flush s") is None
        taken = await stored(medium, "s")
        one.go_on()
        assert names_the_taker(one.ask(""), two)
        assert await stored(medium, "s") == taken

        assert two.turn("s") == COMPLETED
        assert one.ask("flush s") == SessionLeaseLost.code
        assert two.ask("flush s") is None
        assert (await stored(medium, "s"))[: len(taken)] == taken

        one.ask("open t")
        assert one.turn("t") == COMPLETED
        assert one.ask("flush t") is None
        assert (await stored(medium, "t"))[-1]["type"] == "turn/end"


async def test_the_next_turn_fails_of_a_session_that_was_taken_over_at_rest(
    medium: Medium,
) -> None:
    with process(medium) as one, process(medium) as two:
        one.ask("open s")
        assert one.turn("s") == COMPLETED
        assert one.ask("flush s") is None
        take_over(two, "s", one)
        assert two.turn("s") == COMPLETED
        assert two.ask("flush s") is None
        taken = await stored(medium, "s")
        one.go_on()
        for _ in range(2):
            assert names_the_taker(one.turn("s"), two)
            assert one.ask("flush s") == SessionLeaseLost.code
        assert await stored(medium, "s") == taken
