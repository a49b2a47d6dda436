"""The interrupt matrix, exceptions: one is thrown into whatever a task of the turn waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from interrupt_world import CHILD, QUESTION, TIMEOUT_S, Throwing, World, mount_world, within
from loop_harness import reasons, results

from dsh.kernel import Context

pytestmark = pytest.mark.timeout(TIMEOUT_S)

TASKS: dict[str, Callable[[str], bool]] = {
    "driver": lambda name: name.startswith("agent:") and not name.endswith(CHILD),
    "child": lambda name: name.startswith("agent:") and name.endswith(CHILD),
    "dispatch": lambda name: name.startswith("call "),
    "body": lambda name: name.startswith("tool "),
    "question": lambda name: name.startswith(QUESTION),
}
THROWN: dict[str, Callable[[], BaseException]] = {
    "error": lambda: RuntimeError("thrown"),
    "foreign cancellation": asyncio.CancelledError,
}


async def interrupted_turn(world: World, throwing: Throwing) -> bool:
    """Play one turn and throw into it; say whether the turn was long enough for that."""
    before = asyncio.all_tasks()
    with throwing.installed():
        handle = await world.start(f"s{throwing.number}")
        agent = handle.agent
        await within(10, agent.when_idle())
    world.check_logs()
    calls = {call for call, *_ in results(agent)}
    assert calls in ({"left-call", "right-call", "asked-call", "delegate-call"}, set())
    assert reasons(agent)[0]["kind"] in ("error", "completed")
    await world.settle(before, agent.id)
    await world.goes_on(agent)
    await handle.dispose()
    await world.goes_on_from_log(agent.session)
    await world.settle(before)
    return throwing.hit is not None


@pytest.mark.parametrize("thrown", list(THROWN))
@pytest.mark.parametrize("where", list(TASKS))
async def test_what_is_thrown_at_any_resumption_leaves_a_log_to_go_on_from(
    root: Context, where: str, thrown: str
) -> None:
    world = await mount_world(root)
    number = 1
    while await interrupted_turn(world, Throwing(number, TASKS[where], THROWN[thrown])):
        number += 1
    assert number > 4
