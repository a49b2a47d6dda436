"""What the kernel says: whose error it is, why a plugin waits, who dispatches where it must not."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from kernel_support import Reports, ticks

from dsh.kernel import (
    Bail,
    Context,
    Emit,
    Fiber,
    FiberState,
    InactiveEffect,
    Parallel,
    Serial,
    Service,
    Waterfall,
    WaterfallSync,
    WrongLoop,
    inject,
    plugin,
)
from dsh.kernel._root import log_report

# dispatch from elsewhere


def _in_thread(action: Any) -> BaseException | None:
    found: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0] if found else None


def _await(work: Any) -> None:
    asyncio.run(_wrapped(work))


async def _wrapped(work: Any) -> None:
    await work()


EVENTS = [
    (Emit[None]("test/emit"), lambda ctx, event: ctx.emit(event, None)),
    (Emit[None]("test/prepare"), lambda ctx, event: ctx.prepare(event, None)),
    (Bail[None, int]("test/bail"), lambda ctx, event: ctx.bail(event, None)),
    (
        WaterfallSync[None, int]("test/sync"),
        lambda ctx, event: ctx.waterfall_sync(event, None, lambda: 1),
    ),
    (
        Parallel[None]("test/parallel"),
        lambda ctx, event: _await(lambda: ctx.parallel(event, None)),
    ),
    (Serial[None, int]("test/serial"), lambda ctx, event: _await(lambda: ctx.serial(event, None))),
    (
        Waterfall[None, int]("test/waterfall"),
        lambda ctx, event: _await(lambda: ctx.waterfall(event, None, lambda: 1)),
    ),
]


@pytest.mark.parametrize(("event", "dispatch"), EVENTS, ids=lambda item: getattr(item, "name", ""))
async def test_no_event_is_dispatched_from_another_thread(
    root: Context, event: Any, dispatch: Any
) -> None:
    heard: list[object] = []
    await root.plugin(lambda ctx: None)
    root.on(event, lambda *_: heard.append(event))

    error = _in_thread(lambda: dispatch(root, event))

    assert isinstance(error, WrongLoop)
    assert repr(event.name) in str(error)
    assert "call_soon_threadsafe" in str(error)
    assert heard == []


def test_events_need_no_loop_before_the_first_one() -> None:
    root, heard = Context(), []
    event = Emit[int]("test/early")
    root.on(event, heard.append)
    root.emit(event, 1)
    assert heard == [1]


# whose error it is


async def test_a_plugin_without_a_name_is_told_by_where_it_is_written(
    root: Context, reports: Reports
) -> None:
    class Nameless:
        def apply(self, ctx: Context) -> None:
            raise ValueError("boom")

    @plugin(name="outer")
    def outer(ctx: Context) -> None:
        ctx.plugin(Nameless())

    await root.plugin(outer)
    await ticks()

    [error] = reports.errors
    [note] = error.__notes__
    assert "in plugin 'test_diagnosis." in note
    assert "Nameless.apply'" in note
    assert reports.owners == ["outer"]


async def test_the_log_names_it_the_same(root: Context, caplog: pytest.LogCaptureFixture) -> None:
    fiber = await root.plugin(lambda ctx: None)
    log_report(ValueError("boom"), fiber, "listener")

    assert "told_by" not in caplog.text
    assert "plugin 'test_diagnosis.test_the_log_names_it_the_same.<locals>.<lambda>'" in caplog.text


async def test_an_injected_method_is_told_by_its_own_place(root: Context) -> None:
    class Holder:
        def __init__(self, ctx: Context) -> None: ...

        @inject("foo")
        def with_foo(self) -> None: ...

    fiber = await root.plugin(Holder)
    [child] = [item for item in fiber._effects.values() if isinstance(item, Fiber)]

    assert child.title.endswith("Holder.with_foo")
    assert child.name == "Holder"


async def test_a_name_is_preferred(root: Context) -> None:
    @plugin(name="named")
    def body(ctx: Context) -> None: ...

    fiber = await root.plugin(body)
    await fiber.dispose()

    with pytest.raises(InactiveEffect, match="plugin 'named'"):
        fiber.ctx.defer(lambda: None)
    assert fiber.title == fiber.name == "named"


# listeners that never end


async def test_a_listener_that_never_ends_is_cancelled_after_the_grace(
    root: Context, reports: Reports
) -> None:
    root.set_lease_grace(0.01)
    event, ended = Emit[None]("test/hang"), []

    async def hang(_: None) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    def listening(ctx: Context) -> None:
        ctx.on(event, hang)

    fiber = await root.plugin(listening)
    root.emit(event, None)
    await ticks(1)

    await fiber.dispose()

    assert ended == [True]
    assert fiber.state is FiberState.DISPOSED
    [text] = reports.texts
    assert (
        "plugin 'listening' is unloaded with work still in flight after 0.01 s: ctx.on(\"test/"
        in text
    )


async def test_a_listener_that_ends_in_time_is_let_end(root: Context, reports: Reports) -> None:
    event, ended, go = Emit[None]("test/slow"), [], asyncio.Event()

    async def slow(_: None) -> None:
        await go.wait()
        ended.append(True)

    fiber = await root.plugin(lambda ctx: ctx.on(event, slow) and None)
    root.emit(event, None)
    disposal = fiber.dispose()
    await ticks()
    go.set()
    await disposal

    assert ended == [True]
    assert not reports.errors


# why it waits


def needing(name: str, *needs: str, provides: str | None = None) -> Any:
    def body(ctx: Context) -> None:
        if provides is not None:
            ctx.provide(provides, name)

    body.name, body.inject = name, needs  # type: ignore[attr-defined]
    if provides is not None:
        body.provide = provides  # type: ignore[attr-defined]
    return body


async def test_a_near_name_is_suggested(root: Context) -> None:
    root.provide("filesystem", 1)
    root.plugin(needing("promise", "nothing", provides="credentials"))
    fiber = root.plugin(needing("reader", "filesytem", "credential", "zebra"))
    await ticks()

    assert [missing.reason for missing in fiber.explain()] == [
        "absent (did you mean 'filesystem'?)",
        "absent (did you mean 'credentials'?)",
        "absent",
    ]


async def test_a_provider_that_waits_itself_is_named(root: Context) -> None:
    class Store(Service):
        name = "store"
        inject = ("disk",)

    root.plugin(Store)
    fiber = root.plugin(needing("reader", "store"))
    await ticks()

    [missing] = fiber.explain()
    assert missing.reason == "'store' would provide it, but waits for disk"


async def test_a_circle_of_waits_is_told_whole(root: Context) -> None:
    first = root.plugin(needing("a", "c", provides="a"))
    root.plugin(needing("b", "a", provides="b"))
    root.plugin(needing("c", "x", "b", provides="c"))
    own = root.plugin(needing("own", "own", provides="own"))
    await ticks()

    [missing] = first.explain()
    assert missing.reason == (
        "a circle: it would come from 'c', which waits for 'b' of 'b', "
        "which waits for 'a' of this plugin"
    )
    assert [missing.reason for missing in own.explain()] == [
        "only this plugin itself says that it provides it"
    ]


async def test_a_promise_in_another_scope_does_not_count(root: Context) -> None:
    root.isolate("a").plugin(needing("a", "zebra", provides="a"))
    fiber = root.plugin(needing("reader", "a"))
    await ticks()

    assert fiber.explain()[0].reason.startswith("absent")
