"""The interrupt matrix: a turn is interrupted before each callback of the event loop in turn.

Whatever the moment, the log is whole afterwards, finished work is in it, nothing is left alive, and
the conversation goes on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial

import pytest
from interrupt_world import (
    CHILD,
    QUESTION,
    TIMEOUT_S,
    World,
    at_resumption,
    at_resumptions,
    cancel_tasks,
    mount_world,
    tasks_named,
    within,
)
from loop_harness import reasons, results

from dsh.execution.agent.service import USER_CANCEL, AgentHandle
from dsh.execution.loop.service import AgentLoop
from dsh.kernel import Context

pytestmark = pytest.mark.timeout(TIMEOUT_S)

SLICES = 3
"""Tests that share the moments of one kind of interrupt, so that none of them takes long."""

Interrupt = Callable[[World, AgentHandle], bool]
"""Interrupts what there is to interrupt; says whether there was anything."""


def cancel_agent(world: World, handle: AgentHandle) -> bool:
    handle.agent.cancel(USER_CANCEL)
    return True


def cancel_driver(world: World, handle: AgentHandle) -> bool:
    return cancel_tasks(f"agent:{handle.agent.id}", whole=True)


def cancel_driver_twice(world: World, handle: AgentHandle) -> bool:
    drivers = tasks_named(f"agent:{handle.agent.id}", whole=True)
    for driver in drivers:
        driver.cancel()
        asyncio.get_running_loop().call_soon(driver.cancel)
    return bool(drivers)


def cancel_driver_and_dispose(world: World, handle: AgentHandle) -> bool:
    hit = cancel_driver(world, handle)
    return dispose(world, handle) or hit


def cancel_all_tasks_of_the_turn(world: World, handle: AgentHandle) -> bool:
    return sum(cancel_tasks(prefix) for prefix in ("call ", "tool ", QUESTION, "agent:")) > 0


def dispose(world: World, handle: AgentHandle) -> bool:
    handle.end()  # type: ignore[attr-defined]
    return True


def restart_loop(world: World, handle: AgentHandle) -> bool:
    fiber = world.root.require(AgentLoop).ctx.fiber
    world.root.spawn(fiber.restart(), "restart of the loop")
    return True


def cancel_dispatches(world: World, handle: AgentHandle) -> bool:
    return cancel_tasks("call ")


def cancel_bodies(world: World, handle: AgentHandle) -> bool:
    return cancel_tasks("tool ")


def cancel_questions(world: World, handle: AgentHandle) -> bool:
    return cancel_tasks(QUESTION)


def cancel_child(world: World, handle: AgentHandle) -> bool:
    children = [agent for agent in world.agents.all() if agent.id.endswith(CHILD)]
    for child in children:
        child.cancel(USER_CANCEL)
    return bool(children)


def cancel_child_driver(world: World, handle: AgentHandle) -> bool:
    return cancel_tasks(f"agent:{handle.agent.id}{CHILD}")


ENDING: tuple[Interrupt, ...] = (
    cancel_agent,
    cancel_driver,
    cancel_driver_twice,
    cancel_driver_and_dispose,
    cancel_all_tasks_of_the_turn,
    dispose,
    restart_loop,
)
HARD = ENDING[1:-2]
"""These end policies too, and what a policy was judging is not shown."""
PARTIAL: tuple[Interrupt, ...] = (
    cancel_dispatches,
    cancel_bodies,
    cancel_questions,
    cancel_child,
    cancel_child_driver,
)


async def interrupted_turn(world: World, number: int, interrupt: Interrupt) -> bool:
    """Play one turn and interrupt it; say whether the turn was long enough for that."""
    before = asyncio.all_tasks()
    turn_was_open: list[bool] = []

    def action() -> None:
        turn_was_open.append(not reasons(handle.agent))
        world.hits += interrupt(world, handle)

    handle = await world.start(f"s{number}")
    agent = handle.agent
    with at_resumption(number, action):
        await within(10, agent.when_idle())

    world.check_logs()
    calls = {call for call, *_ in results(agent)}
    assert calls in ({"left-call", "right-call", "asked-call", "delegate-call"}, set())
    if interrupt in ENDING:
        ended = "aborted" if turn_was_open == [True] else "completed"
        assert [reason["kind"] for reason in reasons(agent)] == [ended]
        assert world.kept() <= world.in_time
    if interrupt not in HARD and interrupt in ENDING:
        assert world.in_time <= world.kept()
    log = agent.session
    if interrupt in (dispose, cancel_driver_and_dispose, restart_loop) and turn_was_open:
        await within(10, handle.dispose())
    else:
        await world.settle(before, agent.id)
        await world.goes_on(agent)
        await within(10, handle.dispose())
    await world.settle(before)
    await world.goes_on_from_log(log)
    await world.settle(before)
    return bool(turn_was_open)


@pytest.mark.parametrize("first", range(1, SLICES + 1))
@pytest.mark.parametrize("interrupt", [*ENDING, *PARTIAL], ids=lambda each: each.__name__)
async def test_an_interrupt_between_any_two_resumptions_leaves_a_log_to_go_on_from(
    root: Context, interrupt: Interrupt, first: int
) -> None:
    world = await mount_world(root)
    number = first
    while await interrupted_turn(world, number, interrupt):
        number += SLICES
    assert number > 100
    assert world.hits > 1


async def interrupted_twice(world: World, dice: random.Random, name: str) -> None:
    before = asyncio.all_tasks()
    handle = await world.start(name)
    moments = sorted(dice.sample(range(1, 170), k=2))
    kinds = [dice.choice([*ENDING[:-1], *PARTIAL]) for _ in moments]
    actions = {
        moment: partial(kind, world, handle) for moment, kind in zip(moments, kinds, strict=True)
    }
    with at_resumptions(actions):
        await within(10, handle.agent.when_idle())
        await within(10, handle.dispose())
    world.check_logs()
    assert world.kept() <= world.in_time
    await world.settle(before)
    await world.goes_on_from_log(handle.agent.session)
    await world.settle(before)


@pytest.mark.parametrize("seed", range(4))
async def test_two_interrupts_leave_a_log_to_go_on_from_as_well(root: Context, seed: int) -> None:
    world, dice = await mount_world(root), random.Random(seed)
    for number in range(100):
        await interrupted_twice(world, dice, f"s{number}")
