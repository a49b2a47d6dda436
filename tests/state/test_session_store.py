from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypedDict

import pytest
from state_logs import say, whole_turn

from dsh.kernel import Context, create_scope
from dsh.kernel.events import INTERNAL_DISPATCH, Dispatching
from dsh.state.session.errors import (
    DuplicateEventType,
    DuplicateSession,
    InvalidHeader,
    ReentrantAppend,
    RefusedEvent,
    SessionNotLive,
    UndeclaredEventType,
)
from dsh.state.session.events import (
    SESSION_CREATED,
    SESSION_DISPOSED,
    SESSION_EVENT,
    SESSION_FLUSH,
    TURN_START,
    EventType,
    SessionEventAppended,
    SessionFlush,
    TurnStartData,
)
from dsh.state.session.session import Session
from dsh.state.session.store import LocalSessionStore


def _note(heard: list[str], name: str, _: SessionEventAppended) -> None:
    heard.append(name)


class Note(TypedDict, total=False):
    text: str


NOTE = EventType("acme/note", Note, ignorable=True)


@pytest.fixture
async def store(root: Context) -> LocalSessionStore:
    await root.plugin(LocalSessionStore)
    return root.require(LocalSessionStore)


def listen(ctx: Context) -> list[tuple[str, str]]:
    heard: list[tuple[str, str]] = []
    for event in (SESSION_CREATED, SESSION_DISPOSED, SESSION_EVENT):
        ctx.on(event, lambda payload, name=event.name: heard.append((name, payload.session.id)))
    return heard


async def test_ids_are_minted_around_those_that_are_taken(store: LocalSessionStore) -> None:
    store.create("session-2")
    assert [store.create().id, store.create().id] == ["session-1", "session-3"]
    assert [session.id for session in store.all()] == ["session-2", "session-1", "session-3"]
    assert store.get("session-1") is store.all()[1]
    assert store.get("other") is None


async def test_a_taken_id_is_refused_at_prepare_and_at_enter(store: LocalSessionStore) -> None:
    stale = store.prepare("s")
    live = store.create("s")
    with pytest.raises(DuplicateSession, match='session "s" already exists'):
        store.prepare("s")
    with pytest.raises(DuplicateSession):
        store.enter(stale)
    assert store.get("s") is live


async def test_a_wrong_header_is_refused_before_anything_is_live(store: LocalSessionStore) -> None:
    with pytest.raises(InvalidHeader, match="cwd"):
        store.create("s", meta={"cwd": "here"})
    assert store.all() == []


async def test_a_session_is_heard_of_from_creation_to_disposal(
    root: Context, store: LocalSessionStore
) -> None:
    heard = listen(root)
    detach = store.enter(session := store.prepare("s"))
    assert heard == []
    store.announce(session)
    say(session, "x")
    detach()
    detach()
    say(session, "detached")
    assert heard == [("session/created", "s"), ("session/event", "s"), ("session/disposed", "s")]
    assert store.all() == []


async def test_a_session_that_was_never_announced_is_not_disposed_of_aloud(
    root: Context, store: LocalSessionStore
) -> None:
    heard = listen(root)
    store.enter(store.prepare("s"))()
    assert heard == []


async def test_a_detach_never_takes_out_a_successor(store: LocalSessionStore) -> None:
    detach = store.enter(store.prepare("s"))
    detach()
    successor = store.create("s")
    detach()
    assert store.get("s") is successor


async def test_announcing_twice_is_refused_also_from_inside(
    root: Context, store: LocalSessionStore
) -> None:
    errors: list[BaseException] = []

    def again(event: Any) -> None:
        try:
            store.announce(event.session)
        except SessionNotLive as error:
            errors.append(error)

    root.on(SESSION_CREATED, again)
    session = store.create("s")
    with pytest.raises(SessionNotLive, match="announced before"):
        store.announce(session)
    assert len(errors) == 1


async def test_one_session_cannot_be_in_two_stores(root: Context, store: LocalSessionStore) -> None:
    session = store.create("s")
    other = root.isolate("sessions")
    await other.plugin(LocalSessionStore)
    with pytest.raises(SessionNotLive, match="attached"):
        other.require(LocalSessionStore).enter(session)


async def test_a_veto_of_the_creation_leaves_nothing_and_is_told_once(
    root: Context, store: LocalSessionStore
) -> None:
    heard = listen(root)

    def veto(_: object) -> None:
        raise RuntimeError("no")

    root.on(SESSION_CREATED, veto)
    with pytest.raises(RuntimeError, match="no"):
        store.create("s")
    assert store.all() == []
    assert heard == [("session/created", "s"), ("session/disposed", "s")]


async def test_detaching_while_it_is_announced_waits_for_the_announcement(
    root: Context, store: LocalSessionStore
) -> None:
    seen: list[bool] = []
    session = store.prepare("s")
    detach = store.enter(session)

    def leave(_: object) -> None:
        detach()
        seen.append(store.get("s") is session)

    root.on(SESSION_CREATED, leave)
    store.announce(session)
    assert seen == [True]
    assert store.get("s") is None


async def test_detaching_during_an_append_waits_for_its_observers(
    root: Context, store: LocalSessionStore
) -> None:
    detach: list[Callable[[], None]] = []
    seen: list[bool] = []
    root.on(SESSION_EVENT, lambda _: detach[0]())
    root.on(SESSION_EVENT, lambda event: seen.append(store.get("s") is event.session))
    session = store.prepare("s")
    detach.append(store.enter(session))
    store.announce(session)
    say(session, "x")
    assert seen == [True]
    assert store.get("s") is None


async def test_disposing_the_creator_disposes_of_its_session(
    root: Context, store: LocalSessionStore
) -> None:
    heard = listen(root)
    creator = await root.inject(["sessions"], lambda ctx: ctx.sessions.create("s") and None)
    assert store.get("s") is not None
    await creator.dispose()
    assert store.get("s") is None
    assert heard[-1] == ("session/disposed", "s")


async def test_unloading_the_store_lets_its_sessions_go_and_tells(root: Context) -> None:
    fiber = await root.plugin(LocalSessionStore)
    store = root.require(LocalSessionStore)
    heard = listen(root)
    session = store.prepare("s")
    store.enter(session)
    store.announce(session)
    await fiber.dispose()
    assert not session.attached
    assert heard == [("session/created", "s"), ("session/disposed", "s")]


async def test_events_reach_the_scope_of_the_owner_and_its_ancestors_only(
    root: Context, store: LocalSessionStore
) -> None:
    class Key:
        pass

    parent, mine, other = Key(), Key(), Key()
    scopes = {
        "parent": create_scope(root, parent),
        "mine": create_scope(root, mine, parent),
        "other": create_scope(root, other),
    }
    heard: list[str] = []
    for name, scope in scopes.items():
        scope.ctx.on(SESSION_EVENT, partial(_note, heard, name))
    root.on(SESSION_EVENT, lambda _: heard.append("global"))
    session = store.prepare("s")
    detach = store.enter(session, scopes["mine"].ctx)
    say(session, "x")
    assert sorted(heard) == ["global", "mine", "parent"]
    heard.clear()
    bare = store.create("bare")
    say(bare, "x")
    assert heard == ["global"]
    detach()


async def test_a_disposal_is_heard_where_the_session_was(
    root: Context, store: LocalSessionStore
) -> None:
    class Key:
        pass

    mine, other = create_scope(root, Key()), create_scope(root, Key())
    heard: list[str] = []
    mine.ctx.on(SESSION_DISPOSED, lambda _: heard.append("mine"))
    other.ctx.on(SESSION_DISPOSED, lambda _: heard.append("other"))

    def own(ctx: Context) -> None:
        ctx.require(LocalSessionStore).create("s")

    owner = await mine.ctx.inject([LocalSessionStore], own)
    await owner.dispose()
    assert store.all() == []
    assert heard == ["mine"]


async def test_appending_from_an_observer_fails_there_alone(
    root: Context, store: LocalSessionStore
) -> None:
    order: list[object] = []

    def nested(event: SessionEventAppended) -> None:
        with pytest.raises(ReentrantAppend):
            say(event.session, "nested")
        order.append("nested refused")

    root.on(SESSION_EVENT, nested)
    root.on(SESSION_EVENT, lambda event: order.append(event.event["seq"]))
    session = store.create("s")
    say(session, "x")
    say(session, "y")
    assert order == ["nested refused", 0, "nested refused", 1]
    assert session.seq == 2


async def test_failing_observers_neither_fail_the_append_nor_starve_the_others(
    root: Context, store: LocalSessionStore
) -> None:
    reported: list[str] = []
    settled = asyncio.Event()

    def report(error: BaseException, *_: object) -> None:
        reported.append(str(error))
        if len(reported) == 2:
            settled.set()

    root.set_reporter(report)

    def broken(_: object) -> None:
        raise RuntimeError("sync")

    async def broken_later(_: object) -> None:
        raise RuntimeError("async")

    seen: list[int] = []
    root.on(SESSION_EVENT, broken)
    root.on(SESSION_EVENT, broken_later)
    root.on(SESSION_EVENT, lambda event: seen.append(event.event["seq"]))
    session = store.create("s")
    assert say(session, "x")["seq"] == 0
    await settled.wait()
    assert seen == [0]
    assert reported == ["sync", "async"]


async def test_a_veto_before_the_commit_changes_nothing(
    root: Context, store: LocalSessionStore
) -> None:
    session = store.create("s")
    say(session, "first")

    def check(event: Dispatching) -> None:
        if event.name == "session/event":
            raise RuntimeError("not now")

    guard = root.on(INTERNAL_DISPATCH, check)
    before = list(session.events), session.surface.nodes, session.derive_messages()
    with pytest.raises(RuntimeError, match="not now"):
        say(session, "second")
    assert (list(session.events), session.surface.nodes, session.derive_messages()) == before
    guard.dispose()
    assert say(session, "second")["seq"] == 1


async def test_a_refused_event_is_never_published(root: Context, store: LocalSessionStore) -> None:
    heard = listen(root)
    session = store.create("s")
    with pytest.raises(RefusedEvent):
        say(session, "x", op={"op": "replace", "start": 0, "end": 0})
    assert heard == [("session/created", "s")]


async def test_seeded_events_are_never_published(root: Context, store: LocalSessionStore) -> None:
    origin = Session.create("origin")
    whole_turn(origin)
    heard = listen(root)
    session = store.create("s", seed=origin.events)
    assert heard == [("session/created", "s")]
    assert session.seq == origin.seq + 1


async def test_flush_tells_whether_anybody_keeps_a_copy(
    root: Context, store: LocalSessionStore
) -> None:
    session = store.create("s")
    assert await store.flush(session) is False
    root.on(SESSION_FLUSH, lambda _: None)
    assert await store.flush(session) is True


async def test_flush_waits_for_all_and_raises_the_first_failure(
    root: Context, store: LocalSessionStore
) -> None:
    done: list[str] = []
    release = asyncio.Event()

    def fails(_: SessionFlush) -> None:
        release.set()
        raise OSError("first")

    async def slow(_: SessionFlush) -> None:
        await release.wait()
        done.append("slow")
        raise OSError("second")

    root.on(SESSION_FLUSH, fails)
    root.on(SESSION_FLUSH, slow)
    with pytest.raises(OSError, match="first"):
        await store.flush(store.create("s"))
    assert done == ["slow"]


async def test_only_live_sessions_are_flushed_and_announced(store: LocalSessionStore) -> None:
    stale = store.prepare("s")
    store.create("s")
    with pytest.raises(SessionNotLive):
        await store.flush(stale)
    with pytest.raises(SessionNotLive):
        store.announce(stale)


async def test_a_declared_type_is_accepted_until_its_plugin_unloads(
    root: Context, store: LocalSessionStore
) -> None:
    session = store.create("s")
    with pytest.raises(UndeclaredEventType):
        session.append(NOTE, Note(text="early"))
    owner = await root.inject(["sessions"], lambda ctx: ctx.sessions.declare(NOTE))
    session.append(NOTE, Note(text="x"))
    assert store.declared()["acme/note"] is NOTE
    await owner.dispose()
    with pytest.raises(UndeclaredEventType):
        session.append(NOTE, Note(text="late"))
    assert "acme/note" not in store.declared()


async def test_two_plugins_may_declare_the_same_object(store: LocalSessionStore) -> None:
    one, two = store.declare(NOTE), store.declare(NOTE)
    one.dispose()
    store.create("s").append(NOTE, Note(text="x"))
    two.dispose()
    assert "acme/note" not in store.declared()


async def test_another_declaration_of_a_name_is_refused(store: LocalSessionStore) -> None:
    store.declare(NOTE)
    with pytest.raises(DuplicateEventType):
        store.declare(EventType("acme/note", Note, ignorable=True))
    with pytest.raises(DuplicateEventType):
        store.declare(TURN_START)


async def test_sessions_keep_going_while_other_sessions_publish(
    root: Context, store: LocalSessionStore
) -> None:
    one, two = store.create("one"), store.create("two")

    def mirror(event: SessionEventAppended) -> None:
        if event.session is one:
            two.append(TURN_START, TurnStartData(turn=1))

    root.on(SESSION_EVENT, mirror)
    say(one, "x")
    assert two.seq == 1
