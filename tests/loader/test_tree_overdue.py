"""No plugin that never comes to rest holds up the tree: it is named, and later changes go on."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from loader_support import Shelf, loader_on, states
from tree_support import group, wait_until

from dsh.kernel import Context
from dsh.loader.audit import audit
from dsh.loader.loader import Loader


@pytest.fixture
async def loader(root: Context) -> Loader:
    """One with little patience."""
    root.set_lease_grace(0.02)
    loader = await loader_on(root)
    loader.patience_s = 0.05
    return loader


def hanging(plugins: Shelf, name: str = "hang") -> str:
    async def apply(ctx: Context, config: Any) -> None:
        plugins.log.append((f"{name} begins", config))
        if config != "fine":
            await asyncio.Event().wait()

    return plugins.module(name, apply=apply)


def stubborn(plugins: Shelf, end: asyncio.Event) -> str:
    async def apply(ctx: Context, config: Any) -> None:
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                continue

    return plugins.module("stubborn", apply=apply)


async def test_a_row_that_never_loads_is_named_and_the_tree_goes_on(
    loader: Loader, plugins: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"id": "slow", "name": hanging(plugins)}, {"id": "a", "name": plugins.recorder("a")}]
    with caplog.at_level(logging.WARNING):
        await loader.mount(rows)
    assert states(loader) == {"slow": "loading", "a": "active"}
    assert [each.id for each in loader.overdue()] == ["slow"]
    assert [text for text in caplog.messages if 'row "slow" (hang) is still loading' in text]
    await loader.quiesce()
    (problem,) = audit(loader.entries())
    assert 'row "slow" (hang) did not activate: it is still loading; its setup' in str(problem)


@pytest.mark.parametrize("inside", [False, True])
async def test_a_row_that_never_loads_can_be_removed_disabled_and_corrected(
    loader: Loader, plugins: Shelf, inside: bool
) -> None:
    row = {"id": "slow", "name": hanging(plugins)}
    rows = [group("g", row)] if inside else [row]
    parent = "g" if inside else None
    await loader.mount(rows)
    await loader.update("slow", {"config": "fine"})
    assert states(loader)["slow"] == "active"
    assert loader.overdue() == []

    await loader.update("slow", {"config": "bad"})
    await loader.update("slow", {"disabled": True})
    assert states(loader)["slow"] is None

    await loader.update("slow", {"disabled": None})
    await loader.update("slow", {"name": plugins.recorder("good")})
    assert states(loader)["slow"] == "active"

    await loader.update("slow", {"name": "hang"})
    await loader.remove("slow")
    assert "slow" not in states(loader)
    await loader.create({"id": "slow", "name": "good"}, parent)
    assert states(loader)["slow"] == "active"


async def test_many_rows_that_never_load_cost_the_patience_of_one(
    loader: Loader, plugins: Shelf
) -> None:
    loader.patience_s = 0.2
    name = hanging(plugins)
    began = asyncio.get_running_loop().time()
    await loader.mount([{"id": f"r{n}", "name": name} for n in range(20)])
    assert asyncio.get_running_loop().time() - began < 2
    assert len(loader.overdue()) == 20


async def test_a_group_goes_at_once_though_a_row_in_it_never_loads(
    loader: Loader, plugins: Shelf
) -> None:
    loader.patience_s = 3600
    mounting = asyncio.ensure_future(
        loader.mount([group("g", {"id": "slow", "name": hanging(plugins)})])
    )
    await wait_until(lambda: plugins.did() == ["hang begins"])
    await loader.ctx.root.dispose()
    done, _ = await asyncio.wait([mounting], timeout=5)
    assert done
    mounting.exception()  # looked at; whatever a tree that goes answers


async def test_a_row_that_comes_up_late_is_waited_for_again(loader: Loader, plugins: Shelf) -> None:
    go = asyncio.Event()

    async def apply(ctx: Context, config: Any) -> None:
        await go.wait()

    await loader.mount([{"id": "late", "name": plugins.module("late", apply=apply)}])
    assert [each.id for each in loader.overdue()] == ["late"]
    go.set()
    await loader.resolve("late").fiber  # type: ignore[misc]
    await asyncio.sleep(0)
    assert loader.overdue() == []
    go.clear()
    loader.patience_s = 3600
    changing = asyncio.ensure_future(loader.update("late", {"config": 1}))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not changing.done()
    go.set()
    await changing
    assert states(loader) == {"late": "active"}


async def test_other_code_takes_over_from_a_body_that_never_ends(
    loader: Loader, plugins: Shelf
) -> None:
    await loader.mount([{"id": "slow", "name": hanging(plugins)}])
    fixed = plugins.recorder("fixed")
    await loader.replace({loader.resolve("slow"): loader.import_(fixed, None)})
    assert states(loader) == {"slow": "active"}


async def test_other_code_that_never_loads_does_not_hold_up_the_next(
    loader: Loader, plugins: Shelf
) -> None:
    await loader.mount([{"id": "a", "name": plugins.recorder("good")}])
    entry = loader.resolve("a")
    await loader.replace({entry: loader.import_(hanging(plugins), None)})
    assert states(loader) == {"a": "loading"}
    await loader.replace({entry: loader.import_("good", None)})
    assert states(loader) == {"a": "active"}


async def test_a_body_that_resists_its_cancellation_does_not_hold_up_the_tree(
    loader: Loader, plugins: Shelf
) -> None:
    end = asyncio.Event()
    await loader.mount([{"id": "x", "name": stubborn(plugins, end)}])
    stray = loader.resolve("x").fiber
    try:
        await loader.update("x", {"name": plugins.recorder("good")})
        assert states(loader) == {"x": "active"}
        await loader.remove("x")
    finally:
        end.set()
    assert stray is not None
    await stray.dispose()


async def test_an_undo_that_never_ends_does_not_hold_up_the_tree(
    loader: Loader, plugins: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    end = asyncio.Event()

    def apply(ctx: Context, config: Any) -> None:
        ctx.defer(end.wait)

    await loader.mount([{"id": "x", "name": plugins.module("m", apply=apply)}])
    stray = loader.resolve("x").fiber
    with caplog.at_level(logging.WARNING):
        await loader.remove("x")
    assert states(loader) == {}
    assert [text for text in caplog.messages if 'row "x" (m) is still unloading' in text]
    await loader.create({"id": "x", "name": plugins.recorder("good")})
    end.set()
    assert stray is not None
    await stray.dispose()


async def test_a_start_has_more_patience_with_rows_that_it_cannot_do_without(
    loader: Loader, plugins: Shelf
) -> None:
    go = asyncio.Event()

    async def apply(ctx: Context, config: Any) -> None:
        await go.wait()

    name = plugins.module("m", apply=apply)
    loader.starting = True
    mounting = asyncio.ensure_future(
        loader.mount(
            [{"id": "other", "name": name}, {"id": "own", "name": name}],
            may_leave_out=lambda entry: entry.id == "other",
        )
    )
    await wait_until(loader.overdue)
    assert [each.id for each in loader.overdue()] == ["other"]
    assert not mounting.done()
    go.set()
    await mounting
    loader.announce_ready()
    assert loader.patience_for(loader.resolve("own")) == 0.05


async def test_a_change_that_a_tool_asks_for_does_not_wait_for_one_that_waits_for_the_tool(
    root: Context, plugins: Shelf
) -> None:
    root.set_lease_grace(3600)
    loader = await loader_on(root)
    entered, ask = asyncio.Event(), asyncio.Event()

    def apply(ctx: Context, config: Any) -> None:
        async def call() -> None:
            with ctx.fiber.lease("call"):
                entered.set()
                await ask.wait()
                await loader.update("other", {"config": 2})

        plugins.log.append(("task", root.fiber.own_task(call(), "call", cancel=False)))

    await loader.mount(
        [
            {"id": "tool", "name": plugins.module("tool", apply=apply)},
            {"id": "other", "name": plugins.recorder("other")},
        ]
    )
    await entered.wait()
    removing = asyncio.ensure_future(loader.remove("tool"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not removing.done()
    ask.set()
    async with asyncio.timeout(5):
        await removing
        await plugins.log[0][1]
    assert loader.resolve("other").options["config"] == 2
