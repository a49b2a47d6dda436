"""Rules of holding: one writer a session, whatever becomes of it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess

import pytest

from dsh.state.persistence.errors import (
    PersistenceError,
    SessionConflict,
    SessionHeld,
    SessionLeaseLost,
)
from dsh.state.session.session import Session
from dsh.testing.persistence.logs import say, whole_turn
from dsh.testing.persistence.medium import Host, Hosts, Medium

_SHORT_MS = 400
_STOPS = 3


async def ask(child: subprocess.Popen[str]) -> str:
    """Let a child write a turn; return its answer."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("\n")
    child.stdin.flush()
    return (await asyncio.to_thread(child.stdout.readline)).strip()


async def resume_when_free(host: Host, id: str, wait_s: float) -> Session:
    """Resume a session as soon as its writer has to give it up."""
    end = asyncio.get_running_loop().time() + wait_s
    while True:
        try:
            return await host.resume(id)
        except SessionHeld:
            if asyncio.get_running_loop().time() > end:
                raise
            await asyncio.sleep(0.02)


async def take_over(host: Host, id: str, child: subprocess.Popen[str]) -> Session:
    """Stop the writer of a session, and resume it when the lease has expired.

    A writer that happens to be stopped with a lock in its hands keeps it: it is stopped again.
    """
    for attempt in range(_STOPS):
        child.send_signal(signal.SIGSTOP)
        try:
            return await resume_when_free(host, id, wait_s=3)
        except PersistenceError:
            if attempt == _STOPS - 1:
                raise
            child.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.01)  # it must get on; there is nothing to wait for
    raise AssertionError


async def released(host: Host, id: str) -> None:
    """Wait until a session is free for a host; it is given up in the background."""
    async with asyncio.timeout(10):
        while True:
            try:
                (await host.persistence.prepare(id)).release()
            except SessionHeld:
                await asyncio.sleep(0.005)
            else:
                return


class HoldingRules:
    """A second writer is told who holds a session, and may read it."""

    async def test_a_second_writer_is_refused_and_can_read(self, one: Host, two: Host) -> None:
        session = one.store.create("s")
        whole_turn(session)
        await one.flush(session)
        for want in (two.persistence.prepare, two.persistence.load, two.persistence.delete):
            with pytest.raises(SessionHeld, match="is open in another") as caught:
                await want("s")
            assert caught.value.holder.pid == os.getpid()
            assert abs(caught.value.since_ms - session.header["createdAt"]) < 60_000
        with pytest.raises(SessionHeld):
            await two.persistence.append("s", [{"type": "a", "seq": 10, "time": 1, "data": {}}])
        assert list((await two.persistence.inspect("s")).events) == list(session.events)
        assert await two.stored("s") == list(session.events)
        say(session, "the first goes on")
        await one.flush(session)
        assert await two.stored("s") == list(session.events)
        await one.close()
        assert (await two.resume("s")).events[: session.seq] == session.events

    async def test_a_preparation_that_is_given_up_is_free_again(self, one: Host, two: Host) -> None:
        whole_turn(one.store.create("s"))
        await one.close()
        preparation = await two.persistence.prepare("s")
        with pytest.raises(SessionConflict, match="being resumed"):
            await two.persistence.prepare("s")
        with pytest.raises(SessionConflict, match="being resumed"):
            two.store.create("s")
        assert two.store.all() == []
        preparation.release()
        preparation.release()
        (await two.persistence.prepare("s")).release()

    async def test_a_cancelled_preparation_leaves_the_session_free(
        self, hosts: Hosts, one: Host, two: Host
    ) -> None:
        whole_turn(one.store.create("s"))
        await one.close()
        waiting = asyncio.create_task(two.persistence.prepare("s"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await released(await hosts.open(), "s")

    async def test_a_session_that_left_is_free_for_others(self, one: Host, two: Host) -> None:
        session = one.store.prepare("s")
        detach = one.store.enter(session)
        one.store.announce(session)
        whole_turn(session)
        await one.flush(session)
        detach()
        await released(two, "s")
        await released(one, "s")

    async def test_a_reload_of_the_provider_holds_what_is_live(self, one: Host, two: Host) -> None:
        session = one.store.create("s")
        whole_turn(session)
        await one.unload()
        await one.mount()
        await one.flush(session)
        with pytest.raises(SessionHeld):
            await two.persistence.prepare("s")
        await one.close()
        (await two.persistence.prepare("s")).release()

    async def test_of_two_who_create_an_id_one_has_it(self, one: Host, two: Host) -> None:
        sessions = [host.store.create("s") for host in (one, two)]
        for session in sessions:
            whole_turn(session)
        done = await asyncio.gather(
            one.flush(sessions[0]), two.flush(sessions[1]), return_exceptions=True
        )
        assert sorted((each is None) for each in done) == [False, True]
        (refusal,) = [each for each in done if each is not None]
        assert isinstance(refusal, SessionConflict)
        winner, loser = (0, 1) if done[0] is None else (1, 0)
        hosts = (one, two)
        assert await hosts[loser].stored("s") == list(sessions[winner].events)
        with pytest.raises(ExceptionGroup, match="dispose failed"):
            await hosts[loser].persistence._coordinator.close()  # type: ignore[attr-defined]

    async def test_a_writer_that_was_killed_has_its_successor_at_once(
        self, medium: Medium, hosts: Hosts
    ) -> None:
        one = await hosts.open(leaseMs=3_600_000)
        with medium.child("s", leaseMs=3_600_000) as child:
            durable = int(await ask(child))
            with pytest.raises(SessionHeld, match=f"{child.pid} on"):
                await one.persistence.prepare("s")
            child.kill()
            child.wait()
            resumed = await one.resume("s")
        assert resumed.seq >= durable
        whole_turn(resumed, 99)
        await one.flush(resumed)
        assert await one.stored("s") == list(resumed.events)

    async def test_a_writer_at_rest_keeps_its_session(self, hosts: Hosts) -> None:
        one, two = await hosts.open(leaseMs=_SHORT_MS), await hosts.open(leaseMs=_SHORT_MS)
        session = one.store.create("s")
        whole_turn(session)
        await one.flush(session)
        await asyncio.sleep(_SHORT_MS / 1000 * 1.5)  # time passes; there is nothing to wait for
        with pytest.raises(SessionHeld):
            await two.persistence.prepare("s")

    async def test_a_writer_that_slept_too_long_cannot_write_between_its_successors_lines(
        self, medium: Medium, hosts: Hosts
    ) -> None:
        one = await hosts.open(leaseMs=_SHORT_MS)
        with medium.child("s", leaseMs=_SHORT_MS) as child:
            await ask(child)
            resumed = await take_over(one, "s", child)
            whole_turn(resumed, 7)
            await one.flush(resumed)
            child.send_signal(signal.SIGCONT)
            for _ in range(2):
                assert await ask(child) == SessionLeaseLost.code
            whole_turn(resumed, 8)
            await one.flush(resumed)
            assert await ask(child) == SessionLeaseLost.code
        assert await one.stored("s") == list(resumed.events)

    async def test_a_late_writer_is_refused_after_its_successor_is_done(
        self, medium: Medium, hosts: Hosts
    ) -> None:
        one = await hosts.open(leaseMs=_SHORT_MS)
        with medium.child("s", leaseMs=_SHORT_MS) as child:
            await ask(child)
            before = await take_over(one, "s", child)
            await one.close()
            child.send_signal(signal.SIGCONT)
            assert await ask(child) == SessionLeaseLost.code
        two = await hosts.open()
        assert await two.stored("s") == list(before.events)
