"""Who holds a session: one writer at a time, across processes, for as long as it lives."""

from __future__ import annotations

import signal

import pytest
from state_home import Home, start_child
from state_logs import chunk, open_turn, say, whole_turn

from dsh.model.chunks import text_delta
from dsh.state.persistence.artifact.store import ArtifactStore
from dsh.state.persistence.errors import SessionHeld
from dsh.state.persistence.jsonl import JsonlPersistence


async def test_a_second_writer_is_refused_until_the_first_is_gone(home: Home, again: Home) -> None:
    session = home.store.create("s")
    open_turn(session)
    say(session, "hello")
    await home.store.flush(session)
    written = home.persistence.locate(session.header).path.read_bytes()

    with pytest.raises(SessionHeld, match="is open in another"):
        await again.persistence.prepare("s")
    with pytest.raises(SessionHeld, match="is open in another"):
        await again.persistence.load("s")
    seen = await again.persistence.inspect("s")

    assert list(seen.events)[:3] == list(session.events)
    assert home.persistence.locate(session.header).path.read_bytes() == written
    chunk(session, text_delta(0, "the first goes on"))
    await home.store.flush(session)
    assert home.stored("s") == list(session.events)
    await home.fiber.dispose()
    resumed = await again.resume("s")
    assert resumed.events[:4] == session.events[:4]


async def test_a_provider_that_is_reloaded_holds_what_is_live(home: Home, again: Home) -> None:
    session = home.store.create("s")
    whole_turn(session)
    await home.fiber.dispose()
    reloaded = await home.root.plugin(JsonlPersistence, home.config)
    await home.store.flush(session)
    with pytest.raises(SessionHeld, match="is open in another"):
        await again.persistence.prepare("s")
    await reloaded.dispose()
    (await again.persistence.prepare("s")).release()


async def test_a_session_that_left_is_free_for_others(home: Home, again: Home) -> None:
    session = home.store.prepare("s")
    detach = home.store.enter(session)
    home.store.announce(session)
    whole_turn(session)
    await home.store.flush(session)
    detach()
    await home.settle()
    (await again.persistence.prepare("s")).release()
    await again.settle()

    with await home.persistence.prepare("s") as held:
        with pytest.raises(SessionHeld, match="is open in another"):
            await again.persistence.prepare("s")
        held.release()
        await home.settle()
        (await again.persistence.prepare("s")).release()


async def test_a_late_departure_does_not_free_a_successor(home: Home, again: Home) -> None:
    first = home.store.prepare("s")
    detach = home.store.enter(first)
    home.store.announce(first)
    whole_turn(first)
    detach()
    await home.resume("s")
    await home.settle()
    with pytest.raises(SessionHeld, match="is open in another"):
        await again.persistence.prepare("s")


async def test_a_resumed_session_is_held_until_it_leaves(home: Home, again: Home) -> None:
    session = home.store.create("s")
    whole_turn(session)
    await home.fiber.dispose()
    resumed = await again.resume("s")
    with pytest.raises(SessionHeld, match="is open in another"):
        ArtifactStore(home.folder).hold("s")
    await again.fiber.dispose()
    store = ArtifactStore(home.folder)
    store.hold("s")
    store.close()
    assert home.stored("s") == list(resumed.events)


async def test_when_the_writer_is_killed_the_second_takes_over(home: Home) -> None:
    with start_child(home.folder) as child:
        assert child.stdout is not None
        durable = int(child.stdout.readline())
        with pytest.raises(SessionHeld, match="is open in another"):
            await home.persistence.prepare("victim")
        durable = max(durable, int(child.stdout.readline()))
        child.send_signal(signal.SIGKILL)
        child.stdout.read()
        child.wait()
    resumed = await home.resume("victim")
    assert resumed.seq >= durable
    whole_turn(resumed, 1000)
    await home.store.flush(resumed)
    assert home.stored("victim") == list(resumed.events)
