"""What the registry of projections promises for live sessions."""

from __future__ import annotations

from typing import Any

import pytest
from projection_support import counting, hidden, recording
from state_logs import say, whole_turn

from dsh.kernel import Context
from dsh.state.projections import ProjectionRegistry, ProjectionUnit
from dsh.state.projections.errors import ProjectionConflict, ProjectionFailed
from dsh.state.projections.registry import SessionProjections
from dsh.state.session.service import SessionStore
from dsh.state.session.session import Session
from dsh.state.session.store import LocalSessionStore


class Rig:
    def __init__(self, root: Context) -> None:
        self.root = root
        self.reported: list[str] = []
        root.set_reporter(lambda error, owner, label: self.reported.append(str(error)))

    async def open(self) -> Rig:
        await self.root.plugin(LocalSessionStore)
        await self.root.plugin(SessionProjections)
        return self

    @property
    def registry(self) -> ProjectionRegistry:
        return self.root.require(ProjectionRegistry)

    def session(self, id: str | None = None) -> Session:
        return self.root.require(SessionStore).create(id)


@pytest.fixture
async def rig(root: Context) -> Rig:
    return await Rig(root).open()


async def test_a_late_unit_sees_the_whole_history(rig: Rig) -> None:
    session = rig.session()
    whole_turn(session)
    rig.registry.register(counting())
    assert rig.registry.snapshot(session) == {
        "asOfSeq": session.seq - 1,
        "values": {"count": session.seq},
    }
    say(session, "more")
    assert rig.registry.state_of(session, "count") == session.seq


async def test_a_registry_that_loads_late_sees_the_whole_history(root: Context) -> None:
    await root.plugin(LocalSessionStore)
    session = root.require(SessionStore).create()
    whole_turn(session)
    await root.plugin(SessionProjections)
    registry = root.require(ProjectionRegistry)
    registry.register(counting())
    changes: list[int] = []
    registry.on_changed(lambda session, key, view, seq: changes.append(seq))
    say(session, "more")
    assert registry.snapshot(session)["values"] == {"count": session.seq}
    assert changes == [session.seq - 1]


async def test_an_empty_session_is_as_of_nothing(rig: Rig) -> None:
    rig.registry.register(counting())
    assert rig.registry.snapshot(rig.session()) == {"asOfSeq": -1, "values": {"count": 0}}


async def test_a_key_goes_with_the_last_plugin_that_registered_it(rig: Rig) -> None:
    session = rig.session()
    say(session, "one")

    def body(ctx: Context) -> None:
        ctx.require(ProjectionRegistry).register(counting())

    first = await rig.root.inject([ProjectionRegistry], body)
    second = await rig.root.inject([ProjectionRegistry], body)
    await first.dispose()
    assert rig.registry.snapshot(session)["values"] == {"count": 1}
    await second.dispose()
    assert rig.registry.snapshot(session)["values"] == {}
    assert rig.registry.state_of(session, "count") is None
    rig.registry.register(counting(only="turn/start"))
    assert rig.registry.snapshot(session)["values"] == {"count": 0}


async def test_two_versions_of_a_key_do_not_live_together(rig: Rig) -> None:
    rig.registry.register(counting())
    with pytest.raises(ProjectionConflict, match="version 1; version 2"):
        rig.registry.register(counting(version=2))


@pytest.mark.parametrize("version", [-1, True, 1.0, "1", None])
def test_a_state_version_is_an_integer_from_0(version: Any) -> None:
    with pytest.raises(ValueError, match="integer from 0"):
        counting(version=version)


async def test_only_units_with_a_view_are_shown(rig: Rig) -> None:
    rig.registry.register(hidden())
    rig.registry.register(recording())
    session = rig.session()
    say(session, "one")
    assert rig.registry.snapshot(session)["values"] == {"types": {"last": "user/message"}}
    assert rig.registry.state_of(session, "hidden") == 0


async def test_listeners_hear_of_changes_and_of_nothing_else(rig: Rig) -> None:
    rig.registry.register(counting(only="user/message"))
    session, other = rig.session(), rig.session()
    heard: list[Any] = []
    effect = rig.registry.on_changed(lambda *change: heard.append(change))
    say(session, "one")
    whole_turn(session)
    say(other, "two")
    assert heard == [
        (session, "count", 1, 0),
        (session, "count", 2, 3),
        (other, "count", 1, 0),
    ]
    effect.dispose()
    say(session, "three")
    assert len(heard) == 3


async def test_a_state_that_was_read_early_is_told_all_the_same(rig: Rig) -> None:
    """A listener of the event that asks first must not swallow the change."""
    from dsh.state.session.events import SESSION_EVENT

    registry = rig.registry
    rig.root.on(SESSION_EVENT, lambda e: registry.state_of(e.session, "count"), prepend=True)
    registry.register(counting(only="user/message"))
    heard: list[int] = []
    registry.on_changed(lambda session, key, view, seq: heard.append(seq))
    session = rig.session()
    whole_turn(session)
    say(session, "two")
    assert heard == [2, session.seq - 1]


async def test_a_failing_listener_does_not_starve_the_next(rig: Rig) -> None:
    rig.registry.register(counting())
    heard: list[int] = []

    def fail(*_: object) -> None:
        raise RuntimeError("listener")

    rig.registry.on_changed(fail)
    rig.registry.on_changed(lambda session, key, view, seq: heard.append(seq))
    say(rig.session(), "one")
    assert heard == [0]
    assert rig.reported == ["listener"]


def faulty(key: str = "faulty") -> ProjectionUnit[int]:
    def apply(state: int, event: Any) -> int:
        if event["type"] == "turn/end":
            raise RuntimeError("cannot")
        return state + 1

    return ProjectionUnit(
        key, init=lambda: 0, apply=apply, view=lambda state: state, state_schema=lambda _: None
    )


async def test_a_failing_unit_is_named_and_does_not_harm_the_others(rig: Rig) -> None:
    rig.registry.register(faulty())
    rig.registry.register(counting())
    heard: list[str] = []
    rig.registry.on_changed(lambda session, key, view, seq: heard.append(key))
    session = rig.session()
    whole_turn(session)
    with pytest.raises(ProjectionFailed, match=r"'faulty' failed to fold event \d+ \(turn/end\)"):
        rig.registry.snapshot(session)
    with pytest.raises(ProjectionFailed):
        rig.registry.state_of(session, "faulty")
    assert rig.registry.state_of(session, "count") == session.seq
    assert heard.count("count") == session.seq
    assert rig.registry.checkpoint(session).keys() == {"count"}
    assert all("'faulty'" in text for text in rig.reported)


async def test_a_view_that_breaks_its_schema_fails_loudly(rig: Rig) -> None:
    def refuse(view: object) -> None:
        raise ValueError("too long")

    rig.registry.register(
        ProjectionUnit(
            "bad", init=lambda: 0, apply=lambda s, _: s + 1, view=lambda s: s, view_schema=refuse
        )
    )
    session = rig.session()
    with pytest.raises(ProjectionFailed, match="'bad' failed to make its view: too long"):
        rig.registry.snapshot(session)


async def test_a_view_is_detached_and_frozen(rig: Rig) -> None:
    state = {"inner": [1]}
    rig.registry.register(
        ProjectionUnit("shared", init=lambda: state, apply=lambda s, _: s, view=lambda s: s)
    )
    view: Any = rig.registry.snapshot(rig.session())["values"]["shared"]
    assert view is not state
    with pytest.raises(TypeError):
        view["inner"].append(2)


async def test_a_checkpoint_is_detached(rig: Rig) -> None:
    rig.registry.register(recording())
    session = rig.session()
    say(session, "one")
    checkpoint = rig.registry.checkpoint(session)
    assert checkpoint == {"types": {"ver": 1, "seq": 0, "val": ["user/message"]}}
    rig.registry.state_of(session, "types").append("changed in place")
    assert checkpoint["types"]["val"] == ["user/message"]
    say(session, "two")
    assert checkpoint["types"]["val"] == ["user/message"]


async def test_a_state_that_is_no_json_is_left_out_of_checkpoints(rig: Rig) -> None:
    rig.registry.register(
        ProjectionUnit(
            "set", init=set, apply=lambda s, e: s | {e["type"]}, state_schema=lambda _: None
        )
    )
    rig.registry.register(counting())
    session = rig.session()
    say(session, "one")
    assert rig.registry.state_of(session, "set") == {"user/message"}
    assert rig.registry.checkpoint(session).keys() == {"count"}
    assert len(rig.reported) == 1


async def test_keys_that_are_names_of_attributes_are_just_keys(rig: Rig) -> None:
    keys = ("__proto__", "__class__", "keys", "constructor", "get", " ")
    for key in keys:
        rig.registry.register(counting(key))
    session = rig.session()
    say(session, "one")
    assert rig.registry.snapshot(session)["values"] == dict.fromkeys(keys, 1)


async def test_a_session_that_nobody_holds_is_forgotten(rig: Rig) -> None:
    rig.registry.register(counting())
    session = Session.create("loose")
    rig.registry.snapshot(session)
    cells: Any = rig.registry._cells  # type: ignore[attr-defined]
    assert len(cells) == 1
    del session
    assert len(cells) == 0
