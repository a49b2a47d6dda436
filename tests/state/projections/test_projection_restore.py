"""What the registry makes of stored states: what fits, and never a wrong value."""

from __future__ import annotations

from typing import Any

import pytest
from projection_support import counting, hidden, recording
from state_logs import say, whole_turn

from dsh.kernel import Context
from dsh.state.projections import ProjectionRegistry, ProjectionUnit
from dsh.state.projections.errors import ProjectionFailed, RestoreRefused
from dsh.state.projections.registry import SessionProjections
from dsh.state.session.session import Session
from dsh.state.session.store import LocalSessionStore


@pytest.fixture
async def registry(root: Context) -> ProjectionRegistry:
    await root.plugin(LocalSessionStore)
    await root.plugin(SessionProjections)
    return root.require(ProjectionRegistry)


def log(turns: int = 2) -> Session:
    session = Session.create("stored")
    for turn in range(1, turns + 1):
        whole_turn(session, turn)
    return session


async def test_a_state_is_continued_from_where_it_was_kept(registry: ProjectionRegistry) -> None:
    registry.register(counting())
    registry.register(recording())
    session = log()
    kept = registry.checkpoint(session)
    floor = registry.restore_floor(kept)
    assert floor == session.seq - 1
    say(session, "after")
    restored = registry.restore(kept, session.events[floor:], floor)
    assert restored.snapshot == registry.snapshot(session)
    assert restored.checkpoint == registry.checkpoint(session)


async def test_without_units_there_is_nothing_to_restore(registry: ProjectionRegistry) -> None:
    assert registry.restore_floor({}) is None
    assert registry.restore({}, log().events, 0).snapshot["values"] == {}


async def test_a_unit_without_a_row_needs_the_whole_log(registry: ProjectionRegistry) -> None:
    registry.register(counting())
    kept = registry.checkpoint(log())
    registry.register(recording())
    assert registry.restore_floor(kept) == 0
    with pytest.raises(RestoreRefused, match=r"'types'.*from event 0"):
        registry.restore(kept, log().events[5:], 5)


async def test_a_unit_without_a_schema_is_folded_anew(registry: ProjectionRegistry) -> None:
    registry.register(hidden())
    session = log()
    assert registry.checkpoint(session) == {}
    assert registry.restore_floor({"hidden": {"ver": 1, "seq": 3, "val": 3}}) == 0
    assert registry.restore({}, session.events, 0).checkpoint == {}


@pytest.mark.parametrize(
    "row",
    [
        None,
        [],
        {},
        {"ver": 1, "seq": 3},
        {"ver": 2, "seq": 3, "val": 4},
        {"ver": True, "seq": 3, "val": 4},
        {"ver": 1, "seq": -2, "val": 4},
        {"ver": 1, "seq": 3.0, "val": 4},
        {"ver": 1, "seq": "3", "val": 4},
        {"ver": 1, "seq": 3, "val": "4"},
        {"ver": 1, "seq": 3, "val": {"n": 4}},
        {"ver": 1, "seq": 999, "val": 4},
    ],
)
async def test_a_row_that_does_not_fit_is_folded_anew(
    row: Any, registry: ProjectionRegistry
) -> None:
    registry.register(counting())
    session = log()
    restored = registry.restore({"count": row}, session.events, 0)
    assert restored.snapshot["values"] == {"count": session.seq}
    with pytest.raises(RestoreRefused):
        registry.restore({"count": row}, session.events[5:], 5)


async def test_a_log_that_shrank_is_noticed(registry: ProjectionRegistry) -> None:
    registry.register(counting())
    session = log()
    kept = registry.checkpoint(session)
    floor = registry.restore_floor(kept)
    assert floor is not None
    with pytest.raises(RestoreRefused):
        registry.restore(kept, [], floor)


async def test_a_row_that_is_older_than_what_was_read_is_refused(
    registry: ProjectionRegistry,
) -> None:
    registry.register(counting())
    session = log()
    kept = {"count": {"ver": 1, "seq": 3, "val": 4}}
    assert registry.restore(kept, session.events[4:], 4).snapshot == registry.snapshot(session)
    with pytest.raises(RestoreRefused, match="from event 0"):
        registry.restore(kept, session.events[5:], 5)


async def test_views_of_rows_that_do_not_fit_are_left_out(registry: ProjectionRegistry) -> None:
    registry.register(counting())
    registry.register(recording())
    registry.register(hidden())
    rows = {
        "count": {"ver": 1, "seq": 3, "val": "no"},
        "types": {"ver": 1, "seq": 3, "val": ["a", "b"]},
        "hidden": {"ver": 1, "seq": 3, "val": 3},
        "unknown": {"ver": 1, "seq": 3, "val": 3},
    }
    assert registry.view_checkpoint(rows) == {"types": {"last": "b"}}


async def test_a_stored_state_that_breaks_the_fold_is_not_used(
    registry: ProjectionRegistry,
) -> None:
    unit = ProjectionUnit[list[int]](
        "sizes",
        state_schema=lambda _: None,
        init=lambda: [0],
        apply=lambda state, event: [state[0] + 1],
        view=lambda state: state[0],
    )
    registry.register(unit)
    session = log()
    restored = registry.restore({"sizes": {"ver": 1, "seq": 3, "val": []}}, session.events, 0)
    assert restored.snapshot["values"] == {"sizes": session.seq}
    assert registry.view_checkpoint({"sizes": {"ver": 1, "seq": 3, "val": []}}) == {}


async def test_a_unit_that_fails_on_a_sound_log_is_named(registry: ProjectionRegistry) -> None:
    def fail(state: int, event: object) -> int:
        raise RuntimeError("cannot")

    registry.register(
        ProjectionUnit("bad", init=lambda: 0, apply=fail, state_schema=lambda _: None)
    )
    with pytest.raises(ProjectionFailed, match="'bad'"):
        registry.restore({}, log().events, 0)


async def test_events_must_begin_where_they_are_said_to(registry: ProjectionRegistry) -> None:
    with pytest.raises(ValueError, match="begin at 2, not at 1"):
        registry.restore({}, log().events[2:], 1)
