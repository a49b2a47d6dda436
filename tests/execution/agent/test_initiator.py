from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any, cast

import pytest

from dsh.execution.agent.frames import FRAME
from dsh.execution.agent.initiator import InitiatorScope
from dsh.execution.agent.service import Agent, InitiatorScopeDisposed, NoInitiator


class Someone:
    """Stands for an agent where only its identity counts."""

    def __init__(self, id: str) -> None:
        self.id = id


def someone(id: str) -> Agent:
    return cast("Agent", Someone(id))


@pytest.fixture
def scope() -> InitiatorScope:
    return InitiatorScope()


A, B = someone("a"), someone("b")


def test_outside_any_driver_nobody_is_current(scope: InitiatorScope) -> None:
    assert scope.current() is None
    with pytest.raises(NoInitiator, match="no initiating agent is active"):
        scope.require()


def test_a_synchronous_operation_returns_its_exact_object(scope: InitiatorScope) -> None:
    value = object()

    def operation() -> object:
        assert scope.current() is A
        return value

    assert scope.run(A, operation) is value
    assert scope.current() is None
    assert scope.active_runs == 0


async def test_one_agent_is_seen_after_every_await(scope: InitiatorScope) -> None:
    seen: list[Agent | None] = []

    async def body() -> None:
        seen.append(scope.current())
        await asyncio.sleep(0)
        seen.append(scope.current())
        await asyncio.to_thread(lambda: seen.append(scope.current()))
        async with asyncio.timeout(5):
            await asyncio.sleep(0)
            seen.append(scope.current())
        async with asyncio.TaskGroup() as group:
            group.create_task(_note(scope, seen))

    await scope.run(A, body)
    assert seen == [A] * 5
    assert scope.current() is None
    assert scope.active_runs == 0


async def _note(scope: InitiatorScope, seen: list[Agent | None]) -> None:
    await asyncio.sleep(0)
    seen.append(scope.current())


async def test_a_returned_future_is_the_same_object_and_holds_the_run(
    scope: InitiatorScope,
) -> None:
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    assert scope.run(A, lambda: future) is future
    assert scope.active_runs == 1

    future.set_result("done")
    await asyncio.sleep(0)
    assert scope.active_runs == 0
    assert await future == "done"


async def test_a_returned_task_is_the_same_object_and_keeps_its_agent(
    scope: InitiatorScope,
) -> None:
    async def body() -> Agent | None:
        await asyncio.sleep(0)
        return scope.current()

    task = scope.run(A, lambda: asyncio.create_task(body()))
    assert isinstance(task, asyncio.Task)
    assert scope.active_runs == 1
    assert await task is A
    await asyncio.sleep(0)
    assert scope.active_runs == 0


async def test_a_settled_future_holds_nothing(scope: InitiatorScope) -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    future.set_result(1)

    assert scope.run(A, lambda: future) is future
    assert scope.active_runs == 0


class UntrackableFuture(asyncio.Future[Any]):
    def add_done_callback(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no callbacks here")


async def test_a_future_that_refuses_callbacks_leaks_no_run(scope: InitiatorScope) -> None:
    future = UntrackableFuture()

    assert scope.run(A, lambda: future) is future
    assert scope.active_runs == 0
    await scope.drain()


def test_a_thread_future_holds_the_run(scope: InitiatorScope) -> None:
    future: concurrent.futures.Future[int] = concurrent.futures.Future()

    assert scope.run(A, lambda: future) is future
    assert scope.active_runs == 1
    future.set_result(1)
    assert scope.active_runs == 0


async def test_a_future_of_another_loop_is_released_when_it_settles(scope: InitiatorScope) -> None:
    ready, settled = threading.Event(), threading.Event()
    made: list[Any] = []

    def elsewhere() -> None:
        async def main() -> None:
            done = asyncio.Event()
            future = asyncio.get_running_loop().create_future()
            made.extend((future, asyncio.get_running_loop(), done))
            ready.set()
            await done.wait()
            await asyncio.sleep(0)
            settled.set()

        asyncio.run(main())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    await asyncio.to_thread(ready.wait)
    future, loop, done = made

    assert scope.run(A, lambda: future) is future
    drained = asyncio.ensure_future(scope.drain())
    await asyncio.sleep(0)
    assert not drained.done()
    loop.call_soon_threadsafe(lambda: (future.set_result(None), done.set()))
    await asyncio.wait_for(drained, 5)

    await asyncio.to_thread(thread.join)
    assert settled.is_set()


async def test_two_overlapping_agents_never_see_each_other(scope: InitiatorScope) -> None:
    met = 0
    together = asyncio.Event()

    async def body() -> set[Agent | None]:
        nonlocal met
        seen = {scope.current()}
        met += 1
        if met == 2:
            together.set()
        await together.wait()
        seen.add(scope.current())
        await asyncio.sleep(0)
        seen.add(scope.current())
        return seen

    assert await asyncio.gather(scope.run(A, body), scope.run(B, body)) == [{A}, {B}]
    assert scope.current() is None


async def test_a_parent_sees_itself_again_while_its_child_is_pending(
    scope: InitiatorScope,
) -> None:
    go = asyncio.Event()

    async def child() -> Agent | None:
        await go.wait()
        return scope.current()

    async def parent() -> None:
        assert scope.run(B, scope.current) is B
        assert scope.current() is A
        pending = scope.run(B, lambda: asyncio.create_task(child()))
        await asyncio.sleep(0)
        assert scope.current() is A
        go.set()
        assert await pending is B
        assert scope.current() is A

    await scope.run(A, parent)


async def test_a_clearing_boundary_holds_nobody(scope: InitiatorScope) -> None:
    seen: list[Agent | None] = []
    fired = asyncio.Event()

    def note() -> None:
        seen.append(scope.current())
        fired.set()

    async def parent() -> None:
        loop = asyncio.get_running_loop()
        assert scope.run(None, scope.current) is None
        assert scope.current() is A
        task = scope.run(None, lambda: asyncio.create_task(_note(scope, seen)))
        scope.run(None, lambda: loop.call_later(0, note))
        await task
        await fired.wait()
        assert scope.current() is A

    await scope.run(A, parent)
    assert seen == [None, None]


def test_a_synchronous_error_passes_and_restores(scope: InitiatorScope) -> None:
    error = LookupError("no")

    def operation() -> None:
        raise error

    with pytest.raises(LookupError) as caught:
        scope.run(A, operation)
    assert caught.value is error
    assert scope.current() is None
    assert scope.active_runs == 0


@pytest.mark.parametrize("error", [LookupError("no"), asyncio.CancelledError()])
async def test_an_asynchronous_error_passes_and_restores(
    scope: InitiatorScope, error: BaseException
) -> None:
    async def body() -> None:
        await asyncio.sleep(0)
        raise error

    with pytest.raises(type(error)) as caught:
        await scope.run(A, body)
    assert caught.value is error
    assert scope.current() is None
    assert scope.active_runs == 0


async def test_cancelling_the_awaiting_task_reaches_the_body_as_its_agent(
    scope: InitiatorScope,
) -> None:
    seen: list[Agent | None] = []

    async def body() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(scope.current())

    task = asyncio.create_task(scope.run(A, body))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == [A]
    assert scope.active_runs == 0


async def test_throw_into_a_coroutine_runs_as_its_agent(scope: InitiatorScope) -> None:
    async def body() -> Agent | None:
        try:
            await asyncio.get_running_loop().create_future()
        except LookupError:
            return scope.current()
        return None

    coroutine = scope.run(A, body)
    coroutine.send(None)
    with pytest.raises(StopIteration) as stopped:
        coroutine.throw(LookupError("x"))
    assert stopped.value.value is A
    assert scope.active_runs == 0


async def test_a_coroutine_keeps_its_agent_in_other_boundaries_and_tasks(
    scope: InitiatorScope,
) -> None:
    async def body() -> Agent | None:
        await asyncio.sleep(0)
        return scope.current()

    async def other() -> None:
        made = scope.run(A, body)
        assert scope.current() is B
        assert await made is A
        assert scope.current() is B
        assert await asyncio.create_task(scope.run(A, body)) is A
        assert scope.current() is B

    await scope.run(B, other)


async def test_other_variables_flow_to_the_awaiter(scope: InitiatorScope) -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)

    async def body() -> None:
        await asyncio.sleep(0)
        variable.set(1)

    await scope.run(A, body)
    assert variable.get() == 1


async def test_nested_boundaries_recognise_each_others_coroutines(scope: InitiatorScope) -> None:
    async def body() -> Agent | None:
        await asyncio.sleep(0)
        return scope.current()

    assert await scope.run(B, lambda: scope.run(A, body)) is A
    assert scope.active_runs == 0


async def test_asyncio_takes_a_bound_coroutine_for_one(scope: InitiatorScope) -> None:
    async def body(value: int) -> int:
        assert asyncio.current_task() is not None
        await asyncio.sleep(0)
        return value

    assert asyncio.iscoroutine(bound := scope.run(A, lambda: body(1)))
    assert await asyncio.wait_for(bound, 5) == 1
    assert await asyncio.gather(scope.run(A, lambda: body(2)), body(3)) == [2, 3]
    assert "body" in repr(bound.__qualname__)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
async def test_a_coroutine_that_is_never_awaited_holds_nothing(scope: InitiatorScope) -> None:
    ran: list[str] = []

    async def body() -> None:
        ran.append("ran")

    unused = scope.run(A, body)
    closed = scope.run(A, body)
    closed.close()
    await scope.drain()
    del unused
    gc.collect()

    assert ran == []
    assert scope.active_runs == 0
    assert scope.current() is None


async def test_an_abandoned_coroutine_ends_as_its_agent(scope: InitiatorScope) -> None:
    seen: list[Agent | None] = []

    async def body() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            seen.append(scope.current())

    coroutine = scope.run(A, body)
    coroutine.send(None)
    assert scope.active_runs == 1
    del coroutine
    gc.collect()

    assert seen == [A]
    assert scope.active_runs == 0


async def test_a_first_step_after_closing_never_runs_the_body(scope: InitiatorScope) -> None:
    ran: list[str] = []

    async def body() -> None:
        ran.append("ran")

    coroutine = scope.run(A, body)
    scope.close()
    with pytest.raises(InitiatorScopeDisposed, match="agent initiator scope is disposed"):
        await coroutine
    assert ran == []


def test_a_generator_runs_as_its_agent_and_its_consumer_does_not(scope: InitiatorScope) -> None:
    def body() -> Iterator[Agent | None]:
        try:
            yield scope.current()
            yield scope.current()
        finally:
            assert scope.current() is A

    for item in (made := scope.run(A, body)):
        assert item is A
        assert scope.current() is None
        assert scope.active_runs == 1
    assert scope.active_runs == 0
    del made


async def test_an_async_generator_runs_as_its_agent_to_its_end(scope: InitiatorScope) -> None:
    ended: list[Agent | None] = []

    async def body() -> AsyncIterator[Agent | None]:
        try:
            for _ in range(3):
                await asyncio.sleep(0)
                yield scope.current()
        finally:
            await asyncio.sleep(0)
            ended.append(scope.current())

    async def consume() -> None:
        async for item in scope.run(A, body):
            assert item is A
            assert scope.current() is B

    await scope.run(B, consume)
    assert ended == [A]
    assert scope.active_runs == 0


async def test_closing_an_async_generator_early_releases_its_run(scope: InitiatorScope) -> None:
    ended: list[Agent | None] = []

    async def body() -> AsyncIterator[Agent | None]:
        try:
            while True:
                yield scope.current()
        finally:
            await asyncio.sleep(0)
            ended.append(scope.current())

    async with aclosing(cast("Any", scope.run(A, body))) as items:
        async for _ in items:
            assert scope.active_runs == 1
            break
    assert ended == [A]
    assert scope.active_runs == 0


async def test_throwing_into_an_async_generator_runs_as_its_agent(scope: InitiatorScope) -> None:
    async def body() -> AsyncIterator[Agent | None]:
        try:
            yield None
        except LookupError:
            yield scope.current()

    items = cast("Any", scope.run(A, body))
    assert await anext(items) is None
    assert await items.athrow(LookupError("x")) is A
    with pytest.raises(LookupError):
        await items.athrow(LookupError("y"))
    assert scope.active_runs == 0


async def test_a_task_made_in_a_boundary_is_not_waited_for(scope: InitiatorScope) -> None:
    go = asyncio.Event()
    made: list[asyncio.Task[Agent | None]] = []

    async def detached() -> Agent | None:
        await go.wait()
        return scope.current()

    scope.run(A, lambda: made.append(asyncio.create_task(detached())))
    await asyncio.wait_for(scope.drain(), 5)
    go.set()
    assert await made[0] is A


async def test_timers_and_callbacks_inherit_the_agent(scope: InitiatorScope) -> None:
    loop = asyncio.get_running_loop()
    seen: list[Agent | None] = []
    done = asyncio.Event()
    future = loop.create_future()

    def body() -> None:
        loop.call_soon(lambda: seen.append(scope.current()))
        future.add_done_callback(lambda _: seen.append(scope.current()))
        loop.call_later(0.001, lambda: (seen.append(scope.current()), done.set()))

    scope.run(A, body)
    future.set_result(None)
    await done.wait()
    assert seen == [A, A, A]


async def test_plain_executors_and_queue_consumers_do_not_inherit(scope: InitiatorScope) -> None:
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[asyncio.Future[Agent | None]] = asyncio.Queue()

    async def consume() -> None:
        reply = await queue.get()
        reply.set_result(scope.current())

    consumer = asyncio.create_task(consume())
    await asyncio.sleep(0)

    async def body() -> tuple[Agent | None, ...]:
        reply: asyncio.Future[Agent | None] = loop.create_future()
        queue.put_nowait(reply)
        return (
            await loop.run_in_executor(None, scope.current),
            await reply,
            await asyncio.to_thread(scope.current),
        )

    assert await scope.run(A, body) == (None, None, A)
    await consumer


def test_a_copied_context_outlives_the_boundary_until_disposal(scope: InitiatorScope) -> None:
    copied = scope.run(A, contextvars.copy_context)
    assert copied.run(scope.current) is A
    scope.close()
    assert copied.run(scope.current) is A
    scope.dispose()
    with pytest.raises(InitiatorScopeDisposed):
        copied.run(scope.current)


def test_two_scopes_are_isolated_and_nest_either_way(scope: InitiatorScope) -> None:
    other = InitiatorScope()

    def both() -> tuple[Agent | None, Agent | None]:
        return scope.current(), other.current()

    assert scope.run(A, both) == (A, None)
    assert scope.run(A, lambda: other.run(B, both)) == (A, B)
    assert other.run(B, lambda: scope.run(A, both)) == (A, B)
    assert scope.run(A, lambda: other.run(B, lambda: scope.run(None, both))) == (None, B)


async def test_disposal_waits_for_active_runs_and_then_everything_raises(
    scope: InitiatorScope,
) -> None:
    go = asyncio.Event()

    async def body() -> Agent | None:
        await go.wait()
        return scope.current()

    task = scope.run(A, lambda: asyncio.create_task(body()))
    scope.close()
    with pytest.raises(InitiatorScopeDisposed):
        scope.run(B, lambda: None)
    assert scope.current() is None
    drained = asyncio.create_task(scope.drain())
    await asyncio.sleep(0)
    assert not drained.done()
    go.set()
    await drained
    assert await task is A

    scope.dispose()
    for read in (scope.current, scope.require, lambda: scope.run(A, lambda: None)):
        with pytest.raises(InitiatorScopeDisposed):
            read()


async def test_a_boundary_that_waits_for_the_end_waits_only_for_the_others(
    scope: InitiatorScope,
) -> None:
    go = asyncio.Event()
    unrelated = scope.run(B, lambda: asyncio.create_task(go.wait()))
    order: list[str] = []

    async def dispose() -> None:
        scope.close()
        scope.release_chain()
        await scope.drain()
        order.append("drained")

    async def nested() -> None:
        await scope.run(B, dispose)

    task = asyncio.create_task(scope.run(A, nested))
    await asyncio.sleep(0)
    assert order == []
    go.set()
    await asyncio.wait_for(task, 5)
    await unrelated
    assert order == ["drained"]


async def test_agents_that_wake_each_other_do_not_lengthen_the_chain(
    scope: InitiatorScope,
) -> None:
    other = InitiatorScope()
    longest = 0
    disposed: weakref.ref[Any] | None = None

    def depth() -> int:
        length, frame = 0, FRAME.get()
        while frame is not None:
            length, frame = length + 1, frame.parent
        return length

    async def hop(agents: list[Agent], left: int) -> asyncio.Task[Any] | None:
        nonlocal longest
        longest = max(longest, depth())
        await asyncio.sleep(0)
        if left == 0:
            return None
        follower = agents[left % 2]
        return other.run(
            follower,
            lambda: scope.run(follower, lambda: asyncio.create_task(hop(agents, left - 1))),
        )

    agents = [someone("x"), someone("y")]
    disposed = weakref.ref(agents[0])
    task: asyncio.Task[Any] | None = scope.run(
        agents[0], lambda: asyncio.create_task(hop(agents, 1_000))
    )
    while task is not None:
        task = await task
    assert longest <= 8
    agents.clear()
    del task
    await asyncio.sleep(0)
    gc.collect()
    assert disposed() is None
