"""SIGKILL of a process that appends to several sessions, at moments that a seed decides."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest
from crash_media import Media

from dsh.base.json import dumps
from dsh.state.session.events import SessionEvent
from dsh.state.session.repair import interrupted_turn_closers
from dsh.testing.persistence.logs import say, whole_turn
from dsh.testing.persistence.medium import Host

CHILD = Path(__file__).with_name("writing_child.py")
SESSIONS = 4
KILLS = 4
_PAUSE_S = 0.02
_BIRTH_S = 0.08


class Told(NamedTuple):
    """What the child said about a session last."""

    events: int = 0
    digest: str = hashlib.sha256().hexdigest()


class Crashes:
    """A store on which one child after the other is killed."""

    def __init__(self, media: Media, seed: str) -> None:
        self.media = media
        self.dice = random.Random(seed)
        self.told = {f"s{number}": Told() for number in range(SESSIONS)}

    def write_and_kill(self, answers: int) -> None:
        """Let a child go on with all sessions; kill it some time after it gave some answers."""
        config = json.dumps({**self.media.medium.config, "writeBatchMaxDelayMs": 1})
        seed = str(self.dice.random())
        words = [self.media.medium.plugin, config, seed, str(SESSIONS)]
        command = [sys.executable, str(CHILD), *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            lines = [child.stdout.readline() for _ in range(answers)]
            time.sleep(self.dice.random() * (_PAUSE_S if answers else _BIRTH_S))
            child.kill()
            lines += child.stdout.read().split("\n")[:-1]  # what was not whole was not said
        self.media.settle()
        for line in lines:
            name, events, digest = line.split()
            self.told[name] = Told(int(events), digest)

    async def check(self) -> list[str]:
        """Open everything that was stored, twice; return the ids."""
        before = {name: self.media.stored(name) for name in self.told}
        ids = [name for name, stored in before.items() if stored]
        assert {name for name, told in self.told.items() if told.events} <= set(ids)
        host = await Host(self.media.medium).open()
        assert [entry.damage for entry in await host.persistence.survey()] == [None] * len(ids)
        for name in ids:
            seen = await host.persistence.inspect(name)
            assert self.media.stored(name) == before[name]
            told = self.told[name]
            assert _digest(seen.events[: told.events]) == told.digest
            assert [event["seq"] for event in seen.events] == list(range(len(seen.events)))
            assert interrupted_turn_closers(seen.events) == []
            loaded = await host.persistence.load(name)
            assert (loaded.damage, loaded.events) == (seen.damage, seen.events)
            kept = self.media.committed(before[name], seen.damage)
            assert self.media.stored(name)[: len(kept)] == kept
        await host.close()
        repaired = {name: self.media.stored(name) for name in ids}
        again = await Host(self.media.medium).open()
        for name in ids:
            assert (await again.persistence.load(name)).damage is None
            assert self.media.stored(name) == repaired[name]
        await again.close()
        return ids

    async def go_on_all(self) -> None:
        """Resume, or create, all sessions here."""
        host = await Host(self.media.medium).open()
        stored = {header["id"] for header in await host.persistence.all()}
        for name in self.told:
            if name in stored:
                session = await host.resume(name)
            else:
                session = host.store.create(name, meta={"cwd": f"/{name}"})
            say(session, "on we go")
            await host.flush(session)
        await host.close()

    async def go_on(self, name: str) -> None:
        """Resume a session here and append to it."""
        host = await Host(self.media.medium).open()
        before = self.media.stored(name)
        session = await host.resume(name)
        whole_turn(session, 1 + sum(event["type"] == "turn/start" for event in session.events))
        await host.flush(session)
        assert await host.stored(name) == list(session.events)
        assert self.media.stored(name)[: len(before)] == before
        await host.close()


def _digest(events: Iterable[SessionEvent]) -> str:
    digest = hashlib.sha256()
    for event in events:
        digest.update(dumps(event))
    return digest.hexdigest()


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_a_killed_writer_loses_nothing_it_called_durable(media: Media) -> None:
    await crash_and_check(media)


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_a_killed_client_of_a_server_loses_nothing_it_called_durable(
    server_media: Media,
) -> None:
    await crash_and_check(server_media)


async def crash_and_check(media: Media) -> None:
    """Kill writers of one store again and again; each goes on where the last one died."""
    crashes = Crashes(media, os.environ.get("DSH_CRASH_SEED", "1"))
    for _ in range(KILLS):
        await asyncio.to_thread(crashes.write_and_kill, crashes.dice.randrange(1, 40))
        ids = await crashes.check()
        await crashes.go_on(crashes.dice.choice(ids))
    assert all(told.events for told in crashes.told.values())


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_a_writer_killed_while_it_makes_its_store_leaves_one_that_can_be_used(
    media: Media,
) -> None:
    await crash_at_birth(media)


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_a_client_killed_while_it_makes_its_tables_leaves_some_that_can_be_used(
    server_media: Media,
) -> None:
    await crash_at_birth(server_media)


async def crash_at_birth(media: Media) -> None:
    """Kill the first writer of a store before it has answered, for several stores."""
    for number in range(KILLS):
        crashes = Crashes(media, f"{os.environ.get('DSH_CRASH_SEED', '1')} {number}")
        await asyncio.to_thread(crashes.write_and_kill, 0)
        await crashes.go_on_all()
        await crashes.check()
        media = media.another()
