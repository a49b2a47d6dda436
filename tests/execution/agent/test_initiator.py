"""Initiator boundaries around what is done at once, and around futures and tasks."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from typing import Any

import pytest
from initiator_faces import RegistryFace, mount_face, someone

from dsh.execution.agent.service import Agent
from dsh.kernel import Context


@pytest.fixture
async def face(root: Context, face_label: str) -> RegistryFace:
    return await mount_face(root, face_label)


A, B = someone("a"), someone("b")


async def drained(face: RegistryFace) -> None:
    """Dispose of the face, which waits for its active runs."""
    await face.fiber.dispose()


async def test_outside_any_driver_nobody_is_current(face: RegistryFace) -> None:
    assert face.current() is None
    with pytest.raises(face.missing, match=face.missing_text):
        face.require()


async def test_a_synchronous_operation_returns_its_exact_object(face: RegistryFace) -> None:
    value = object()

    def operation() -> object:
        assert face.current() is A
        return value

    assert face.run(A, operation) is value
    assert face.current() is None
    assert face.active_runs == 0


async def test_one_agent_is_seen_after_every_await(face: RegistryFace) -> None:
    seen: list[Agent | None] = []

    async def body() -> None:
        seen.append(face.current())
        await asyncio.sleep(0)
        seen.append(face.current())
        await asyncio.to_thread(lambda: seen.append(face.current()))
        async with asyncio.timeout(5):
            await asyncio.sleep(0)
            seen.append(face.current())
        async with asyncio.TaskGroup() as group:
            group.create_task(_note(face, seen))

    await face.run(A, body)
    assert seen == [A] * 5
    assert face.current() is None
    assert face.active_runs == 0


async def _note(face: RegistryFace, seen: list[Agent | None]) -> None:
    await asyncio.sleep(0)
    seen.append(face.current())


async def test_a_returned_future_is_the_same_object_and_holds_the_run(
    face: RegistryFace,
) -> None:
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    assert face.run(A, lambda: future) is future
    assert face.active_runs == 1

    future.set_result("done")
    await asyncio.sleep(0)
    assert face.active_runs == 0
    assert await future == "done"


async def test_a_returned_task_is_the_same_object_and_keeps_its_agent(
    face: RegistryFace,
) -> None:
    async def body() -> Agent | None:
        await asyncio.sleep(0)
        return face.current()

    task = face.run(A, lambda: asyncio.create_task(body()))
    assert isinstance(task, asyncio.Task)
    assert face.active_runs == 1
    assert await task is A
    await asyncio.sleep(0)
    assert face.active_runs == 0


async def test_a_settled_future_holds_nothing(face: RegistryFace) -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    future.set_result(1)

    assert face.run(A, lambda: future) is future
    assert face.active_runs == 0


class UntrackableFuture(asyncio.Future[Any]):
    def add_done_callback(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no callbacks here")


async def test_a_future_that_refuses_callbacks_leaks_no_run(face: RegistryFace) -> None:
    future = UntrackableFuture()

    assert face.run(A, lambda: future) is future
    assert face.active_runs == 0
    await drained(face)


async def test_a_thread_future_holds_the_run(face: RegistryFace) -> None:
    future: concurrent.futures.Future[int] = concurrent.futures.Future()

    assert face.run(A, lambda: future) is future
    assert face.active_runs == 1
    future.set_result(1)
    assert face.active_runs == 0


async def test_a_future_of_another_loop_is_released_when_it_settles(face: RegistryFace) -> None:
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

    assert face.run(A, lambda: future) is future
    ending = asyncio.ensure_future(drained(face))
    await asyncio.sleep(0)
    assert not ending.done()
    loop.call_soon_threadsafe(lambda: (future.set_result(None), done.set()))
    await asyncio.wait_for(ending, 5)

    await asyncio.to_thread(thread.join)
    assert settled.is_set()


async def test_two_overlapping_agents_never_see_each_other(face: RegistryFace) -> None:
    met = 0
    together = asyncio.Event()

    async def body() -> set[Agent | None]:
        nonlocal met
        seen = {face.current()}
        met += 1
        if met == 2:
            together.set()
        await together.wait()
        seen.add(face.current())
        await asyncio.sleep(0)
        seen.add(face.current())
        return seen

    assert await asyncio.gather(face.run(A, body), face.run(B, body)) == [{A}, {B}]
    assert face.current() is None


async def test_a_parent_sees_itself_again_while_its_child_is_pending(
    face: RegistryFace,
) -> None:
    go = asyncio.Event()

    async def child() -> Agent | None:
        await go.wait()
        return face.current()

    async def parent() -> None:
        assert face.run(B, face.current) is B
        assert face.current() is A
        pending = face.run(B, lambda: asyncio.create_task(child()))
        await asyncio.sleep(0)
        assert face.current() is A
        go.set()
        assert await pending is B
        assert face.current() is A

    await face.run(A, parent)


async def test_a_clearing_boundary_holds_nobody(face: RegistryFace) -> None:
    seen: list[Agent | None] = []
    fired = asyncio.Event()

    def note() -> None:
        seen.append(face.current())
        fired.set()

    async def parent() -> None:
        loop = asyncio.get_running_loop()
        assert face.run(None, face.current) is None
        assert face.current() is A
        task = face.run(None, lambda: asyncio.create_task(_note(face, seen)))
        face.run(None, lambda: loop.call_later(0, note))
        await task
        await fired.wait()
        assert face.current() is A

    await face.run(A, parent)
    assert seen == [None, None]


async def test_a_synchronous_error_passes_and_restores(face: RegistryFace) -> None:
    error = LookupError("no")

    def operation() -> None:
        raise error

    with pytest.raises(LookupError) as caught:
        face.run(A, operation)
    assert caught.value is error
    assert face.current() is None
    assert face.active_runs == 0


@pytest.mark.parametrize("error", [LookupError("no"), asyncio.CancelledError()])
async def test_an_asynchronous_error_passes_and_restores(
    face: RegistryFace, error: BaseException
) -> None:
    async def body() -> None:
        await asyncio.sleep(0)
        raise error

    with pytest.raises(type(error)) as caught:
        await face.run(A, body)
    assert caught.value is error
    assert face.current() is None
    assert face.active_runs == 0


async def test_cancelling_the_awaiting_task_reaches_the_body_as_its_agent(
    face: RegistryFace,
) -> None:
    seen: list[Agent | None] = []

    async def body() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(face.current())

    task = asyncio.create_task(face.run(A, body))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == [A]
    assert face.active_runs == 0


async def test_a_task_made_in_a_boundary_is_not_waited_for(face: RegistryFace) -> None:
    go = asyncio.Event()
    made: list[asyncio.Task[Agent | None]] = []

    async def detached() -> Agent | None:
        await go.wait()
        return face.current()

    face.run(A, lambda: made.append(asyncio.create_task(detached())))
    assert face.active_runs == 0
    go.set()
    assert await made[0] is A


async def test_the_end_does_not_wait_for_a_detached_task(face: RegistryFace) -> None:
    made: list[asyncio.Task[Any]] = []
    face.run(A, lambda: made.append(asyncio.create_task(asyncio.Event().wait())))
    await asyncio.wait_for(drained(face), 5)
    assert not made[0].done()
    made[0].cancel()
    await asyncio.wait(made)


async def test_timers_and_callbacks_inherit_the_agent(face: RegistryFace) -> None:
    loop = asyncio.get_running_loop()
    seen: list[Agent | None] = []
    done = asyncio.Event()
    future = loop.create_future()

    def body() -> None:
        loop.call_soon(lambda: seen.append(face.current()))
        future.add_done_callback(lambda _: seen.append(face.current()))
        loop.call_later(0.001, lambda: (seen.append(face.current()), done.set()))

    face.run(A, body)
    future.set_result(None)
    await done.wait()
    assert seen == [A, A, A]


async def test_plain_executors_and_queue_consumers_do_not_inherit(face: RegistryFace) -> None:
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[asyncio.Future[Agent | None]] = asyncio.Queue()

    async def consume() -> None:
        reply = await queue.get()
        reply.set_result(face.current())

    consumer = asyncio.create_task(consume())
    await asyncio.sleep(0)

    async def body() -> tuple[Agent | None, ...]:
        reply: asyncio.Future[Agent | None] = loop.create_future()
        queue.put_nowait(reply)
        return (
            await loop.run_in_executor(None, face.current),
            await reply,
            await asyncio.to_thread(face.current),
        )

    assert await face.run(A, body) == (None, None, A)
    await consumer
