from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from tool_harness import FakeAgent, Harness

from dsh.execution.tools.author import define_tool
from dsh.execution.tools.resources import (
    MAX_RESOURCES,
    ResourceQueue,
    canonical,
    file_resource,
)
from dsh.execution.tools.service import EXCLUSIVE, ExecutionMode, Resource


def use(*keys: str) -> list[Resource]:
    """Uses by key; a leading ``~`` means shared."""
    return [Resource(key.lstrip("~"), key.startswith("~")) for key in keys]


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        (["t:1"], ["t:1"], False),
        (["t:1"], ["t:2"], True),
        (["~t:1"], ["~t:1"], True),
        (["~t:1"], ["t:1"], False),
        (["t:1"], ["~t:1"], False),
        (["file:/a"], ["file:/a/b/c"], False),
        (["file:/a/b/c"], ["file:/a"], False),
        (["~file:/a"], ["~file:/a/b"], True),
        (["~file:/a/b"], ["file:/a"], False),
        (["file:/a"], ["file:/ab"], True),
        (["file:/"], ["~file:/x"], False),
        (["file:/a"], ["terminal:/a"], True),
        (["t:1", "t:2"], ["t:3", "t:2"], False),
        (["~t:1", "t:1"], ["~t:1"], False),
        ([], ["t:1"], True),
    ],
)
def test_who_may_overlap(first: list[str], second: list[str], together: bool) -> None:
    queue = ResourceQueue()
    earlier = queue.enter(use(*first))
    later = queue.enter(use(*second))
    assert earlier.is_ready
    assert later.is_ready is together

    freed = queue.leave(earlier)

    assert later.is_ready
    assert freed == ([] if together else [later])


def test_users_of_one_resource_come_in_the_order_of_arrival() -> None:
    queue = ResourceQueue()
    places = [queue.enter(use(key)) for key in ("f:1", "~f:1", "~f:1", "f:1")]
    assert [place.is_ready for place in places] == [True, False, False, False]
    assert queue.leave(places[0]) == places[1:3]
    assert queue.leave(places[0]) == []
    assert queue.leave(places[2]) == []
    assert queue.leave(places[1]) == places[3:]


def test_whoever_gives_up_a_place_blocks_nobody_and_leaves_nothing() -> None:
    queue = ResourceQueue()
    first, second, third = (queue.enter(use("file:/a/b")) for _ in range(3))
    queue.leave(second)
    assert not third.is_ready
    assert queue.leave(first) == [third]
    queue.leave(third)
    queue.leave(third)
    assert (len(queue), queue._below) == (0, {})


@pytest.mark.parametrize("seed", range(30))
def test_nobody_overlaps_an_earlier_conflict_and_everybody_gets_a_turn(seed: int) -> None:
    rng = random.Random(seed)
    keys = ["t:1", "t:2", "file:/a", "file:/a/b", "file:/a/b/c", "file:/d"]
    plans = [
        use(*(rng.choice(["", "~"]) + rng.choice(keys) for _ in range(rng.randint(0, 3))))
        for _ in range(40)
    ]
    queue = ResourceQueue()
    live: dict[int, Any] = {}
    arriving = iter(enumerate(plans))
    while True:
        arrival = next(arriving, None) if len(live) < 12 else None
        if arrival is not None:
            live[arrival[0]] = queue.enter(arrival[1])
            if rng.random() < 0.6:
                continue
        elif not live:
            break
        for at, place in live.items():
            earlier = [plans[other] for other in live if other < at]
            assert place.is_ready is not any(conflict(plans[at], other) for other in earlier)
        queue.leave(live.pop(rng.choice([at for at, place in live.items() if place.is_ready])))
    assert len(queue) == 0


def conflict(one: list[Resource], other: list[Resource]) -> bool:
    return any(
        not (a.shared and b.shared)
        and (a.key == b.key or a.key.startswith(f"{b.key}/") or b.key.startswith(f"{a.key}/"))
        for a in one
        for b in other
    )


def test_all_names_of_a_file_are_one_key(tmp_path: Path, monkeypatch: Any) -> None:
    home = Path(os.path.realpath(tmp_path))
    (home / "real").mkdir()
    (home / "real" / "f").touch()
    (home / "link").symlink_to("real")
    (home / "alias").symlink_to("link/f")
    monkeypatch.chdir(home)

    names = ["real/f", "./real//f", "link/f", "alias", "link/../real/f", str(home / "real" / "f")]

    assert {canonical(f"file:{name}", str(home)).key for name in names} == {f"file:{home}/real/f"}
    assert canonical(file_resource("link/new/g", shared=True), None) == Resource(
        f"file:{home}/real/new/g", shared=True
    )


def test_other_resources_keep_their_name() -> None:
    assert canonical("terminal:1", None) == Resource("terminal:1")
    assert canonical("branch:/x/../y/", None) == Resource("branch:/y")


@pytest.mark.parametrize("bad", ["", "file", "file:", ":x", "file:a\0b", 7, None])
def test_what_names_no_resource_is_refused(bad: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        canonical(bad, "/")


def writer(path: str) -> str:
    """Write.

    Args:
        path: Where.
    """
    return path


async def test_a_parallel_call_names_its_resources_under_their_own_key(
    harness: Harness, tmp_path: Path
) -> None:
    def touched(args: Any) -> list[Resource | str]:
        return [f"file:{args.path}", Resource("disk:1", shared=True)]

    harness.tools.register(define_tool(writer, parallel=True, resources=touched))
    agent: Any = harness.agent()
    agent.session = FakeAgent()
    agent.session.header = {"cwd": str(tmp_path)}

    mode = harness.tools.execution_mode(harness.input("writer", {"path": "x/../f"}, agent=agent))

    assert mode == ExecutionMode(
        "parallel",
        (Resource(f"file:{tmp_path}/f"), Resource("disk:1", shared=True)),
    )


@pytest.mark.parametrize(
    "resources", [lambda _: ["nothing"], lambda _: 1 / 0, lambda _: "file:/a", lambda _: None]
)
async def test_a_call_whose_resources_cannot_be_told_runs_alone(
    harness: Harness, resources: Any
) -> None:
    harness.tools.register(define_tool(writer, parallel=True, resources=resources))
    assert harness.tools.execution_mode(harness.input("writer", {"path": "f"})) is EXCLUSIVE


def without_end(_: Any) -> Any:
    while True:
        yield "t:1"


async def test_a_call_that_names_resources_without_end_runs_alone(harness: Harness) -> None:
    harness.tools.register(define_tool(writer, parallel=True, resources=without_end))
    assert harness.tools.execution_mode(harness.input("writer", {"path": "f"})) is EXCLUSIVE


@pytest.mark.parametrize(("count", "kind"), [(MAX_RESOURCES, "parallel"), (101, "exclusive")])
async def test_a_call_names_a_hundred_resources_at_most(
    harness: Harness, count: int, kind: str
) -> None:
    def touched(_: Any) -> list[str]:
        return [f"file:{number}" for number in range(count)]

    harness.tools.register(define_tool(writer, parallel=True, resources=touched))
    assert harness.tools.execution_mode(harness.input("writer", {"path": "f"})).kind == kind


@pytest.mark.parametrize(("path", "told"), [("f", ["a call of tool 'writer' runs alone"]), (1, [])])
async def test_a_mistake_in_a_resources_callback_is_told_and_odd_arguments_are_not(
    harness: Harness, caplog: pytest.LogCaptureFixture, path: Any, told: list[str]
) -> None:
    harness.tools.register(define_tool(writer, parallel=True, resources=lambda args: args.gone))
    mode = harness.tools.execution_mode(harness.input("writer", {"path": path}))
    assert mode is EXCLUSIVE
    assert [record.getMessage() for record in caplog.records] == told


async def test_an_exclusive_tool_is_not_asked_for_resources(harness: Harness) -> None:
    asked: list[object] = []
    harness.tools.register(define_tool(writer, resources=asked.append))  # type: ignore[arg-type]
    assert harness.tools.execution_mode(harness.input("writer", {"path": "f"})) is EXCLUSIVE
    assert asked == []


def test_polling_is_told_by_arguments_and_softly() -> None:
    definition = define_tool(writer, polls=lambda args: args.path == "job")
    assert definition.polls is not None
    assert [definition.polls({"path": path}) for path in ("job", "x", 3)] == [True, False, False]
    assert define_tool(writer).polls is None
