"""SIGKILL of a process that appends under load."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest
from state_home import start_child

from dsh.kernel import Context
from dsh.state.persistence.artifact.layout import find_artifact
from dsh.state.persistence.jsonl import JsonlPersistence
from dsh.state.session.repair import interrupted_turn_closers
from dsh.state.session.store import LocalSessionStore


def kill_while_it_writes(root: Path, compression: str, lines: int, delay_reads: int) -> int:
    """Run the child, kill it, and return how many events it had called durable."""
    with start_child(root, compression) as child:
        assert child.stdout is not None
        durable = 0
        for _ in range(lines):
            durable = int(child.stdout.readline())
        for _ in range(delay_reads):
            (find_artifact(root, "victim") or root).stat()
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().split("\n")
        child.wait()
    return max([durable, *(int(line) for line in rest[:-1])])


@pytest.mark.parametrize("compression", ["zstd", "none"])
async def test_what_was_flushed_survives_a_kill(
    root: Context, tmp_path: Path, compression: str
) -> None:
    await root.plugin(LocalSessionStore)
    chance = random.Random(compression)
    for attempt in range(3):
        home = tmp_path / str(attempt)
        durable = kill_while_it_writes(
            home, compression, chance.randint(1, 6), chance.randint(0, 2000)
        )
        fiber = await root.plugin(JsonlPersistence, {"root": str(home)})
        persistence = root.require(JsonlPersistence)
        path = find_artifact(home, "victim")
        assert path is not None
        before = path.read_bytes()

        with await persistence.prepare("victim") as preparation:
            events = list(preparation.session.events)
        repaired = path.read_bytes()
        kept = len(before) - (preparation.damage.lost_bytes if preparation.damage else 0)
        await fiber.dispose()

        assert len(events) >= durable
        assert [event["seq"] for event in events] == list(range(len(events)))
        assert interrupted_turn_closers(events) == []
        assert repaired.startswith(before[:kept])
        fiber = await root.plugin(JsonlPersistence, {"root": str(home)})
        (await root.require(JsonlPersistence).prepare("victim")).release()
        assert path.read_bytes() == repaired
        await fiber.dispose()
