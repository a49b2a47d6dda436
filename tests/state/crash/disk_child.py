"""Agents at work on a real disk that fills up, or in folders that may not be written to.

Prints ``done`` after the scenario that its first argument names; what it finds wrong it raises.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

from loop_harness import assert_balanced
from working_agents import WorkingAgents

from dsh.execution.agent.service import Agent
from dsh.kernel import Context
from dsh.testing.persistence.medium import Medium


async def completes(agents: WorkingAgents, agent: Agent) -> None:
    reason = await agents.turn(agent)
    assert reason == {"kind": "completed"}, reason
    await agents.flush(agent)
    assert await agents.stored(agent.session.id) == list(agent.session.events)
    assert_balanced(agent.session)


async def fails(agents: WorkingAgents, agent: Agent, *says: str) -> None:
    reason = await agents.turn(agent)
    assert reason["kind"] == "error", reason
    assert any(each in str(reason) for each in says), reason
    assert_balanced(agent.session)


def fill(folder: Path) -> Path:
    """Leave no byte of space."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 10, 1):
            with suppress(OSError):
                while file.write(b"x" * size):
                    pass
    return filler


def forbid(folder: Path) -> None:
    """Let nothing new be made below a folder."""
    for each in [*folder.rglob("*"), folder]:
        if each.is_dir():
            each.chmod(0o500)


def permit(folder: Path) -> None:
    """Take back what `forbid` did."""
    for each in [folder, *folder.rglob("*")]:
        if each.is_dir():
            each.chmod(0o700)


async def full(agents: WorkingAgents, folder: Path) -> None:
    """The disk is full in the middle of a turn, and for a turn that follows."""
    one, two = await agents.loop.agent("one"), await agents.loop.agent("two")
    await completes(agents, one)
    says = (os.strerror(errno.ENOSPC), "database or disk is full")

    async def fill_up() -> None:
        fill(folder)

    for _ in range(2):
        agents.during["one", 2] = fill_up
        await fails(agents, one, *says)
        stored = await agents.stored("one")
        assert len(stored) >= agents.acknowledged["one"]
        assert stored == list(one.session.events[: len(stored)])
        for agent in (two, one):
            await fails(agents, agent, *says)
        (folder / "filler").unlink()
        await completes(agents, one)
        await completes(agents, two)


async def read_only(agents: WorkingAgents, folder: Path) -> None:
    """Nothing new can be made: a session that has its file goes on, another one cannot begin."""
    one, two = await agents.loop.agent("one"), await agents.loop.agent("two")
    await completes(agents, one)
    agents.during["one", 2] = partial(asyncio.to_thread, forbid, folder)
    match agents.medium.config:
        case {"compression": _}:
            await completes(agents, one)
            await fails(agents, two, os.strerror(errno.EACCES))
        case {"journalMode": "wal"}:
            await completes(agents, one)
            await completes(agents, two)
        case _:  # it needs a new file for each commit
            await fails(agents, one, "readonly database")
            await fails(agents, two, "readonly database")
    permit(folder)
    await completes(agents, one)
    await completes(agents, two)


async def nowhere(agents: WorkingAgents, folder: Path) -> None:
    """The store cannot be made at first."""
    one = await agents.loop.agent("one")
    forbid(folder)
    await fails(agents, one, os.strerror(errno.EACCES))
    assert os.listdir(folder) == []
    permit(folder)
    await completes(agents, one)


async def main(scenario: str, plugin: str, config: str, folder: str) -> None:
    root = Context()
    agents = await WorkingAgents(root, Medium(plugin, json.loads(config))).open()
    await {"full": full, "read_only": read_only, "nowhere": nowhere}[scenario](agents, Path(folder))
    await root.dispose()
    print("done")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
