"""A setup that nobody wants any more ends by itself, or is cancelled when the grace is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kernel_support import Reports, provider, ticks

from dsh.kernel import Context, FiberState, SetupOverdue, plugin

S = FiberState


@pytest.fixture
def reports(root: Context) -> Reports:
    made = Reports()
    root.set_reporter(made)
    return made


async def test_a_body_that_never_ends_is_cancelled_when_its_disposal_has_waited(
    root: Context, reports: Reports
) -> None:
    root.set_lease_grace(0.01)
    log: list[str] = []

    async def hang(ctx: Context) -> None:
        ctx.defer(lambda: log.append("undone"))
        try:
            await asyncio.Event().wait()
        finally:
            log.append("cancelled")

    fiber = root.plugin(hang)
    await ticks()
    await fiber.dispose()
    assert (fiber.state, log) == (S.DISPOSED, ["cancelled", "undone"])
    assert [type(each) for each in reports.errors] == [SetupOverdue]
    assert "'hang'" in reports.texts[0]


async def test_a_body_that_ends_within_the_grace_is_not_cancelled(
    root: Context, reports: Reports
) -> None:
    root.set_lease_grace(3600)
    end, log = asyncio.Event(), list[str]()

    async def slow(ctx: Context) -> None:
        await end.wait()
        log.append("ended")

    fiber = root.plugin(slow)
    await ticks()
    gone = fiber.dispose()
    await ticks()
    end.set()
    await gone
    assert (log, reports.errors) == (["ended"], [])


async def test_a_body_that_is_wanted_may_take_longer_than_the_grace(
    root: Context, reports: Reports
) -> None:
    root.set_lease_grace(0.001)

    async def slow(ctx: Context) -> None:
        await asyncio.sleep(0.02)

    fiber = await root.plugin(slow)
    assert (fiber.state, reports.errors) == (S.ACTIVE, [])


async def test_a_restart_runs_the_body_again_after_one_that_never_ends(
    root: Context, reports: Reports
) -> None:
    root.set_lease_grace(0.01)
    configs: list[Any] = []

    async def hang_once(ctx: Context, config: Any) -> None:
        configs.append(config)
        if len(configs) == 1:
            await asyncio.Event().wait()
        await asyncio.sleep(0)

    fiber = root.plugin(hang_once, 1)
    await ticks()
    await fiber.update(2)
    assert (fiber.state, configs) == (S.ACTIVE, [1, 2])
    assert [type(each) for each in reports.errors] == [SetupOverdue]


async def test_a_provider_goes_though_its_dependant_never_ends_its_setup(
    root: Context, reports: Reports
) -> None:
    root.set_lease_grace(0.01)
    service = await root.plugin(provider(1))

    @plugin(name="dependant", inject=["foo"])
    async def dependant(ctx: Context) -> None:
        await asyncio.Event().wait()

    fiber = root.plugin(dependant)
    await ticks()
    await service.dispose()
    assert (service.state, fiber.state) == (S.DISPOSED, S.PENDING)
    await root.plugin(provider(2))
    await ticks()
    assert fiber.state is S.LOADING
    await fiber.dispose()


async def test_an_effect_whose_setup_never_ends_is_cancelled_with_its_body(
    root: Context, reports: Reports
) -> None:
    root.set_lease_grace(0.01)
    log: list[str] = []

    @asynccontextmanager
    async def connect() -> AsyncIterator[None]:
        try:
            await asyncio.Event().wait()
            yield
        finally:
            log.append("closed")

    async def hang(ctx: Context) -> None:
        await ctx.enter_async(connect(), "connection")

    fiber = root.plugin(hang)
    await ticks()
    await fiber.dispose()
    assert (fiber.state, log) == (S.DISPOSED, ["closed"])
    assert [type(each) for each in reports.errors] == [SetupOverdue, SetupOverdue]
    assert reports.labels == ["apply", "connection"]


async def test_the_root_goes_though_a_body_never_ends(root: Context, reports: Reports) -> None:
    root.set_lease_grace(0.01)

    async def hang(ctx: Context) -> None:
        ctx.plugin(inner)
        await asyncio.Event().wait()

    async def inner(ctx: Context) -> None:
        await asyncio.Event().wait()

    root.plugin(hang)
    await ticks()
    await root.dispose()
    assert len(reports.errors) == 2


async def test_a_body_in_an_async_iterator_is_cancelled_and_closed(
    root: Context, reports: Reports
) -> None:
    root.set_lease_grace(0.01)
    log: list[str] = []

    async def hang(ctx: Context) -> AsyncIterator[Any]:
        try:
            yield lambda: log.append("undone")
            await asyncio.Event().wait()
        finally:
            log.append("closed")

    fiber = root.plugin(hang)
    await ticks()
    await fiber.dispose()
    assert (fiber.state, log) == (S.DISPOSED, ["closed", "undone"])


async def test_a_body_that_swallows_its_cancellation_and_ends_is_unloaded(
    root: Context, reports: Reports
) -> None:
    root.set_lease_grace(0.01)

    async def stubborn(ctx: Context) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)

    fiber = root.plugin(stubborn)
    await ticks()
    await fiber.dispose()
    assert fiber.state is S.DISPOSED
