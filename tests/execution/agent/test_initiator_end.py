"""How an initiator scope ends: who is still served, who is waited for, what raises then."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import types
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

import pytest
from initiator_faces import ExecutionFace, RegistryFace, depth, mount_face, someone

from dsh.execution.agent.service import Agent
from dsh.kernel import Context

A, B = someone("a"), someone("b")


@pytest.fixture
async def face(root: Context, face_label: str) -> RegistryFace:
    return await mount_face(root, face_label)


@pytest.fixture
async def second() -> AsyncIterator[Context]:
    other = Context()
    yield other
    await other.dispose()


def assert_gone(face: RegistryFace) -> None:
    for call in face.calls():
        with pytest.raises(face.disposed, match=face.disposed_text):
            call()


@pytest.mark.parametrize("kind", ["coroutine", "generator", "async generator"])
async def test_a_first_step_after_closing_never_runs_the_body(
    face: RegistryFace, kind: str
) -> None:
    ran: list[str] = []

    async def body() -> None:
        ran.append("ran")

    def items() -> Iterator[int]:
        ran.append("ran")
        yield 1

    async def later_items() -> AsyncIterator[int]:
        ran.append("ran")
        yield 1

    coroutine = face.run(A, body)
    generator = face.run(A, items)
    agen = cast("Any", face.run(A, later_items))
    go = asyncio.Event()
    other = face.run(B, lambda: asyncio.create_task(go.wait()))
    ending = asyncio.ensure_future(face.fiber.dispose())
    await asyncio.sleep(0)

    async def first_step() -> None:
        if kind == "coroutine":
            await coroutine
        elif kind == "generator":
            next(generator)
        else:
            await anext(agen)

    with pytest.raises(face.disposed, match=face.disposed_text):
        await first_step()
    await agen.aclose()
    coroutine.close()
    go.set()
    await asyncio.gather(other, ending)
    assert ran == []


async def test_what_is_cancelled_before_its_first_step_ends_cancelled(face: RegistryFace) -> None:
    ran: list[str] = []

    async def body() -> None:
        ran.append("ran")

    task = asyncio.ensure_future(face.run(A, body))
    go = asyncio.Event()
    other = face.run(B, lambda: asyncio.create_task(go.wait()))
    ending = asyncio.ensure_future(face.fiber.dispose())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go.set()
    await asyncio.gather(other, ending)
    assert ran == []


@pytest.mark.parametrize("kind", ["coroutine", "generator", "async generator"])
async def test_what_refuses_to_be_closed_holds_up_nothing(face: RegistryFace, kind: str) -> None:
    @types.coroutine
    def never() -> Iterator[None]:
        try:
            yield
        except GeneratorExit:
            yield

    async def body() -> None:
        await never()

    def items() -> Iterator[None]:
        yield from never()

    async def later_items() -> AsyncIterator[None]:
        try:
            yield
        except GeneratorExit:
            yield

    async def close() -> None:
        if kind == "async generator":
            agen = cast("Any", face.run(A, later_items))
            await anext(agen)
            await agen.aclose()
            return
        stubborn = cast("Any", face.run(A, body if kind == "coroutine" else items))
        stubborn.send(None)
        stubborn.close()

    with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
        await close()
    assert face.active_runs == 0
    await asyncio.wait_for(face.fiber.dispose(), 5)


async def test_a_copied_context_outlives_the_boundary_until_disposal(face: RegistryFace) -> None:
    copied = face.run(A, contextvars.copy_context)
    assert copied.run(face.current) is A
    await face.fiber.dispose()
    with pytest.raises(face.disposed, match=face.disposed_text):
        copied.run(face.current)


async def test_a_copied_context_keeps_no_agent(face: RegistryFace) -> None:
    agent = someone("brief")
    gone = weakref.ref(agent)
    copied = face.run(agent, contextvars.copy_context)
    assert copied.run(face.current) is agent
    del agent
    gc.collect()
    assert gone() is None
    assert copied.run(face.current) is None


async def test_what_never_ran_keeps_no_agent_after_the_end(face: RegistryFace) -> None:
    agent = someone("brief")
    gone = weakref.ref(agent)

    def items() -> Iterator[int]:
        yield 1

    unused = face.run(agent, items)
    await face.root.fiber.dispose()
    del agent
    gc.collect()
    assert gone() is None
    del unused


async def test_two_registries_are_isolated_and_nest_either_way(
    face: RegistryFace, face_label: str, second: Context
) -> None:
    other = await mount_face(second, face_label)

    def both() -> tuple[Agent | None, Agent | None]:
        return face.current(), other.current()

    assert face.run(A, both) == (A, None)
    assert face.run(A, lambda: other.run(B, both)) == (A, B)
    assert other.run(B, lambda: face.run(A, both)) == (A, B)
    assert face.run(A, lambda: other.run(B, lambda: face.run(None, both))) == (None, B)
    await second.dispose()
    assert face.run(A, face.current) is A


async def test_disposal_waits_for_active_runs_and_then_everything_raises(
    face: RegistryFace,
) -> None:
    go = asyncio.Event()
    seen: list[Agent | None] = []

    async def body() -> None:
        await go.wait()
        seen.append(face.current())

    task = face.run(A, lambda: asyncio.create_task(body()))
    ending = asyncio.ensure_future(face.fiber.dispose())
    await asyncio.sleep(0)
    for enter in face.calls()[2:]:
        with pytest.raises(face.disposed, match=face.disposed_text):
            enter()
    assert face.root.get(face.key) is None
    assert face.current() is None
    with pytest.raises(face.missing, match=face.missing_text):
        face.require()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not ending.done()
    go.set()
    await asyncio.gather(task, ending)
    assert seen == [A]
    assert_gone(face)


async def test_the_end_waits_for_a_boundary_in_a_thread(face: RegistryFace) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold() -> Agent | None:
        entered.set()
        leave.wait(5)
        return face.current()

    working = asyncio.ensure_future(asyncio.to_thread(face.run, A, hold))
    await asyncio.to_thread(entered.wait, 5)
    ending = asyncio.ensure_future(face.fiber.dispose())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not ending.done()
    leave.set()
    assert await working is A
    await asyncio.wait_for(ending, 5)


@pytest.mark.parametrize("nested", [1, 2])
@pytest.mark.parametrize("ends", ["the service", "an ancestor"])
async def test_a_boundary_that_awaits_its_own_end_is_let_go(
    face_label: str, root: Context, nested: int, ends: str
) -> None:
    mounted: list[RegistryFace] = []

    async def app(ctx: Context) -> None:
        mounted.append(await mount_face(ctx, face_label))

    above = await root.plugin(app)
    face = mounted[0]
    doomed = above if ends == "an ancestor" else face.fiber
    order: list[str] = []

    async def dispose() -> None:
        await doomed.dispose()
        order.append("disposed")
        with pytest.raises(face.disposed, match=face.disposed_text):
            face.current()

    async def body() -> None:
        await (face.run(B, dispose) if nested == 2 else dispose())
        order.append("went on")

    await asyncio.wait_for(face.run(A, body), 5)
    assert order == ["disposed", "went on"]
    assert_gone(face)


async def test_a_boundary_that_awaits_a_restart_of_its_service_is_let_go(
    face: RegistryFace,
) -> None:
    async def body() -> None:
        await face.fiber.restart()

    old = face.service
    await asyncio.wait_for(face.run(A, body), 5)
    assert_gone(face)
    renewed = type(face)(face.root)
    assert renewed.service != old
    assert renewed.run(A, renewed.current) is A


async def test_a_boundary_that_awaits_the_end_of_the_root_is_let_go(face: RegistryFace) -> None:
    async def body() -> None:
        await face.root.dispose()

    await asyncio.wait_for(face.run(A, body), 5)
    assert_gone(face)


async def test_a_boundary_that_disposes_still_waits_for_unrelated_work(face: RegistryFace) -> None:
    go, order = asyncio.Event(), list[str]()
    unrelated = face.run(B, lambda: asyncio.create_task(go.wait()))

    async def body() -> None:
        order.append("begins")
        await face.fiber.dispose()
        order.append("disposed")

    task = asyncio.ensure_future(face.run(A, body))
    for _ in range(5):
        await asyncio.sleep(0)
    assert order == ["begins"]
    go.set()
    await asyncio.wait_for(asyncio.gather(task, unrelated), 5)
    assert order == ["begins", "disposed"]


async def test_a_later_joiner_inside_a_boundary_is_let_go_too(face: RegistryFace) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def joiner() -> None:
        begun.set()
        await go.wait()
        await face.fiber.dispose()

    task = face.run(A, lambda: asyncio.create_task(joiner()))
    await begun.wait()
    first = asyncio.ensure_future(face.fiber.dispose())
    await asyncio.sleep(0)
    go.set()
    await asyncio.wait_for(asyncio.gather(task, first), 5)


async def test_disposal_is_one_end_that_all_join(face: RegistryFace) -> None:
    await asyncio.gather(face.fiber.dispose(), face.fiber.dispose())
    await face.fiber.dispose()
    assert_gone(face)


async def test_agents_that_wake_each_other_do_not_lengthen_the_chain(
    face: RegistryFace, face_label: str, second: Context
) -> None:
    other = await mount_face(second, face_label)
    longest = 0

    async def hop(agents: list[Agent], left: int) -> asyncio.Task[Any] | None:
        nonlocal longest
        longest = max(longest, depth())
        await asyncio.sleep(0)
        if left == 0:
            return None
        follower = agents[left % 2]
        inner: Callable[[], asyncio.Task[Any]] = lambda: asyncio.create_task(  # noqa: E731
            hop(agents, left - 1)
        )
        return other.run(follower, lambda: face.run(follower, inner))

    agents = [someone("x"), someone("y")]
    disposed = weakref.ref(agents[0])
    task: asyncio.Task[Any] | None = face.run(
        agents[0], lambda: asyncio.create_task(hop(agents, 300))
    )
    while task is not None:
        task = await task
    assert longest <= 8
    agents.clear()
    del task
    await asyncio.sleep(0)
    gc.collect()
    assert disposed() is None


async def test_each_face_sees_the_boundaries_of_the_other(root: Context) -> None:
    execution = await mount_face(root, "agent_execution")
    agents = RegistryFace(root)

    async def body() -> tuple[Agent | None, Agent | None]:
        await asyncio.sleep(0)
        return agents.current(), execution.current()

    assert await agents.run(A, body) == (A, A)
    assert await execution.run(A, body) == (A, A)
    assert await agents.run(A, lambda: execution.run(B, body)) == (B, B)
    assert await execution.run(A, lambda: agents.run(None, body)) == (None, None)
    assert await agents.run(A, lambda: execution.run(None, body)) == (None, None)


async def test_the_end_of_the_facade_leaves_the_identities_to_the_registry(root: Context) -> None:
    execution = await mount_face(root, "agent_execution")
    agents = RegistryFace(root)
    elsewhere = agents.run(B, lambda: asyncio.create_task(asyncio.Event().wait()))

    async def body() -> Agent | None:
        await execution.fiber.dispose()
        return agents.current()

    assert await asyncio.wait_for(execution.run(A, body), 5) is A
    assert_gone(cast("RegistryFace", execution))
    assert agents.run(A, agents.current) is A
    elsewhere.cancel()
    await asyncio.wait([elsewhere])


async def test_the_registry_waits_for_work_that_the_ended_facade_let_go(root: Context) -> None:
    execution = await mount_face(root, "agent_execution")
    agents = RegistryFace(root)
    ended, go = asyncio.Event(), asyncio.Event()

    async def body() -> None:
        await execution.fiber.dispose()
        ended.set()
        await go.wait()

    task = asyncio.ensure_future(execution.run(A, body))
    await ended.wait()
    assert agents.active_runs == 1
    ending = asyncio.ensure_future(agents.fiber.dispose())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not ending.done()
    go.set()
    await asyncio.wait_for(asyncio.gather(task, ending), 5)


async def test_work_of_both_faces_holds_the_end_of_the_registry(root: Context) -> None:
    execution = await mount_face(root, "agent_execution")
    agents = RegistryFace(root)
    go = asyncio.Event()
    task = execution.run(A, lambda: asyncio.create_task(go.wait()))
    ending = asyncio.ensure_future(agents.fiber.dispose())
    await asyncio.sleep(0)
    with pytest.raises(ExecutionFace.disposed, match=ExecutionFace.disposed_text):
        execution.run(A, lambda: None)
    assert not ending.done()
    go.set()
    await asyncio.wait_for(asyncio.gather(task, ending), 5)
    assert_gone(execution)
    assert_gone(agents)


async def test_the_facade_comes_back_with_the_registry(root: Context) -> None:
    execution = await mount_face(root, "agent_execution")
    agents = RegistryFace(root)
    await agents.fiber.restart()
    await execution.fiber
    renewed = ExecutionFace(root)
    assert renewed.run(A, renewed.current) is A
    assert RegistryFace(root).run(A, renewed.current) is A
