"""Initiator boundaries around what runs later: coroutines and generators of both kinds."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import pytest
from initiator_faces import RegistryFace, mount_face, someone

from dsh.execution.agent.initiator import InitiatorScope
from dsh.execution.agent.service import Agent
from dsh.kernel import Context


@pytest.fixture
async def face(root: Context, face_label: str) -> RegistryFace:
    return await mount_face(root, face_label)


A, B = someone("a"), someone("b")


async def drained(face: RegistryFace) -> None:
    """Dispose of the face, which waits for its active runs."""
    await face.fiber.dispose()


async def test_throw_into_a_coroutine_runs_as_its_agent(face: RegistryFace) -> None:
    async def body() -> Agent | None:
        try:
            await asyncio.get_running_loop().create_future()
        except LookupError:
            return face.current()
        return None

    coroutine = face.run(A, body)
    coroutine.send(None)
    with pytest.raises(StopIteration) as stopped:
        coroutine.throw(LookupError("x"))
    assert stopped.value.value is A
    assert face.active_runs == 0


async def test_a_coroutine_keeps_its_agent_in_other_boundaries_and_tasks(
    face: RegistryFace,
) -> None:
    async def body() -> Agent | None:
        await asyncio.sleep(0)
        return face.current()

    async def other() -> None:
        made = face.run(A, body)
        assert face.current() is B
        assert await made is A
        assert face.current() is B
        assert await asyncio.create_task(face.run(A, body)) is A
        assert face.current() is B

    await face.run(B, other)


async def test_other_variables_flow_to_the_awaiter(face: RegistryFace) -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)

    async def body() -> None:
        await asyncio.sleep(0)
        variable.set(1)

    await face.run(A, body)
    assert variable.get() == 1


async def test_nested_boundaries_recognise_each_others_coroutines(face: RegistryFace) -> None:
    async def body() -> Agent | None:
        await asyncio.sleep(0)
        return face.current()

    assert await face.run(B, lambda: face.run(A, body)) is A
    assert face.active_runs == 0


async def test_asyncio_takes_a_bound_coroutine_for_one(face: RegistryFace) -> None:
    async def body(value: int) -> int:
        assert asyncio.current_task() is not None
        await asyncio.sleep(0)
        return value

    assert asyncio.iscoroutine(bound := face.run(A, lambda: body(1)))
    assert await asyncio.wait_for(bound, 5) == 1
    assert await asyncio.gather(face.run(A, lambda: body(2)), body(3)) == [2, 3]
    assert "body" in bound.__name__


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
async def test_a_coroutine_that_is_never_awaited_holds_nothing(face: RegistryFace) -> None:
    ran: list[str] = []

    async def body() -> None:
        ran.append("ran")

    unused = face.run(A, body)
    closed = face.run(A, body)
    closed.close()
    assert face.active_runs == 0
    assert face.current() is None
    await asyncio.wait_for(drained(face), 5)
    del unused
    gc.collect()
    assert ran == []


async def test_an_abandoned_coroutine_ends_as_its_agent(face: RegistryFace) -> None:
    seen: list[Agent | None] = []

    async def body() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            seen.append(face.current())

    coroutine = face.run(A, body)
    coroutine.send(None)
    assert face.active_runs == 1
    del coroutine
    gc.collect()

    assert seen == [A]
    assert face.active_runs == 0


async def test_a_generator_runs_as_its_agent_and_its_consumer_does_not(face: RegistryFace) -> None:
    def body() -> Iterator[Agent | None]:
        try:
            yield face.current()
            yield face.current()
        finally:
            assert face.current() is A

    for item in (made := face.run(A, body)):
        assert item is A
        assert face.current() is None
        assert face.active_runs == 1
    assert face.active_runs == 0
    del made


async def test_an_async_generator_runs_as_its_agent_to_its_end(face: RegistryFace) -> None:
    ended: list[Agent | None] = []

    async def body() -> AsyncIterator[Agent | None]:
        try:
            for _ in range(3):
                await asyncio.sleep(0)
                yield face.current()
        finally:
            await asyncio.sleep(0)
            ended.append(face.current())

    async def consume() -> None:
        async for item in face.run(A, body):
            assert item is A
            assert face.current() is B

    await face.run(B, consume)
    assert ended == [A]
    assert face.active_runs == 0


async def test_closing_an_async_generator_early_releases_its_run(face: RegistryFace) -> None:
    ended: list[Agent | None] = []

    async def body() -> AsyncIterator[Agent | None]:
        try:
            while True:
                yield face.current()
        finally:
            await asyncio.sleep(0)
            ended.append(face.current())

    async with aclosing(cast("Any", face.run(A, body))) as items:
        async for _ in items:
            assert face.active_runs == 1
            break
    assert ended == [A]
    assert face.active_runs == 0


async def test_throwing_into_an_async_generator_runs_as_its_agent(face: RegistryFace) -> None:
    async def body() -> AsyncIterator[Agent | None]:
        try:
            yield None
        except LookupError:
            yield face.current()

    items = cast("Any", face.run(A, body))
    assert await anext(items) is None
    assert await items.athrow(LookupError("x")) is A
    with pytest.raises(LookupError):
        await items.athrow(LookupError("y"))
    assert face.current() is None
    assert face.active_runs == 0


async def test_an_abandoned_async_generator_ends_as_its_agent(face: RegistryFace) -> None:
    ended: list[Agent | None] = []
    done = asyncio.Event()

    async def body() -> AsyncIterator[None]:
        try:
            yield
        finally:
            ended.append(face.current())
            done.set()

    items = cast("Any", face.run(A, body))
    await anext(items)
    del items
    gc.collect()
    await asyncio.wait_for(done.wait(), 5)
    await asyncio.sleep(0)
    assert ended == [A]
    assert face.active_runs == 0


async def test_a_step_that_is_refused_does_not_settle_the_run(face: RegistryFace) -> None:
    go = asyncio.Event()

    async def body() -> AsyncIterator[Agent | None]:
        await go.wait()
        yield face.current()

    items = cast("Any", face.run(A, body))
    first = asyncio.ensure_future(anext(items))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="already running"):
        await anext(items)
    assert face.active_runs == 1
    go.set()
    assert await first is A
    await items.aclose()
    assert face.active_runs == 0


def test_what_is_over_or_never_began_leaves_nothing_in_the_scope() -> None:
    def body() -> Iterator[int]:
        yield 1

    scope = InitiatorScope()
    assert list(scope.run(A, body)) == [1]
    unused = scope.run(A, body)
    assert len(scope._pending) == 1
    del unused
    assert scope._pending == scope._active == set()


def test_what_the_collector_finds_in_the_middle_of_a_boundary_is_ended_safely() -> None:
    child = Path(__file__).with_name("collected_child.py")
    done = subprocess.run([sys.executable, child], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
