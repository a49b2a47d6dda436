"""The interrupt matrix, SIGINT: as ``asyncio.run`` hears it, and as a host of dsh does."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Callable, Iterator

import pytest
from interrupt_world import QUESTION, TIMEOUT_S, Throwing, World, at_resumption, mount_world, within
from loop_harness import reasons

from dsh.execution.agent.service import USER_CANCEL
from dsh.kernel import Context
from dsh.loader.events import HOST_EXIT, HostExit
from dsh.loader.shutdown import ShutdownController

pytestmark = pytest.mark.timeout(TIMEOUT_S)


@pytest.fixture(autouse=True)
def nothing_is_lost(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail when the event loop finds a task that nobody ended, or an error that nobody took."""
    yield
    gc.collect()
    phases = [caplog.get_records(phase) for phase in ("setup", "call")]
    told = [record.getMessage() for records in phases for record in records]
    assert [text for text in told if "never retrieved" in text or "destroyed" in text] == []


async def goes_on_elsewhere(worlds: list[World]) -> None:
    """Go on with the session of the agent in a tree of its own."""
    root = Context()
    world = await mount_world(root)
    await world.goes_on_from_log(worlds[0].sessions[0])
    await root.dispose()


def interrupted_run(number: int, tidy: bool, worlds: list[World]) -> bool:
    """Play a turn under ``asyncio.run`` and press Ctrl+C; say whether there was time for that."""
    pressed: list[bool] = []

    def press() -> None:
        pressed.append(not reasons(worlds[0].sessions[0]))
        signal.raise_signal(signal.SIGINT)

    async def main() -> None:
        root = Context()
        worlds.append(await mount_world(root))
        handle = await worlds[0].start("s")
        try:
            with at_resumption(number, press):
                await within(10, handle.agent.when_idle())
        finally:
            if tidy:
                await root.dispose()

    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        assert pressed
    worlds[0].check_logs()
    (reason,) = reasons(worlds[0].sessions[0])
    assert reason in ({"kind": "aborted", "reason": {"kind": "disposed"}}, {"kind": "completed"})
    assert pressed == [True] or reason == {"kind": "completed"}
    assert worlds[0].kept() <= worlds[0].in_time
    asyncio.run(goes_on_elsewhere(worlds))
    return bool(pressed)


@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("tidy", [True, False], ids=["disposes the tree", "just ends"])
def test_an_interrupted_program_leaves_logs_to_go_on_from(tidy: bool, first: int) -> None:
    number = first
    while interrupted_run(number, tidy, []):
        number += 2
    assert number > 100


async def interrupted_host(number: int) -> bool:
    """Play a turn in a tree that a host ends on SIGINT; say whether there was time for that."""
    root, sent, forced = Context(), [False], list[int]()
    world = await mount_world(root)
    controller = ShutdownController(sigterm=143, force=forced.append)
    controller.attach(root)
    handle = await world.start("s")

    async def leave(_: HostExit) -> None:
        handle.agent.cancel(USER_CANCEL)
        await handle.agent.when_idle()

    def press() -> None:
        sent[:] = [True]
        os.kill(os.getpid(), signal.SIGINT)

    root.on(HOST_EXIT, leave)
    with controller.signals():
        with at_resumption(number, press):
            await within(10, handle.agent.when_idle())
        if not sent[0]:
            controller.shutdown(0)
        code = await within(10, controller.finished())
    assert (code, forced) == (130 if sent[0] else 0, [])
    world.check_logs()
    assert world.kept() == world.in_time
    (reason,) = reasons(handle.agent)
    assert reason in ({"kind": "aborted", "reason": {"kind": "user"}}, {"kind": "completed"})
    await goes_on_elsewhere([world])
    return sent[0]


@pytest.mark.parametrize("first", [1, 2])
async def test_a_host_that_is_interrupted_leaves_logs_to_go_on_from(first: int) -> None:
    number = first
    while await interrupted_host(number):
        number += 2
    assert number > 100


TASKS: dict[str, Callable[[str], bool]] = {
    "agent": lambda name: name.startswith("agent:"),
    "call": lambda name: name.startswith("call "),
    "tool": lambda name: name.startswith("tool "),
    "question": lambda name: name.startswith(QUESTION),
}


def thrown_run(number: int, where: str, kind: type[BaseException], worlds: list[World]) -> bool:
    """Play a turn and let a task of it raise what ends a program."""
    throwing = Throwing(number, TASKS[where], kind)

    async def main() -> None:
        worlds.append(await mount_world(Context()))
        with throwing.installed():
            handle = await worlds[0].start("s")
            await within(10, handle.agent.when_idle())

    try:
        asyncio.run(main())
    except kind:
        assert throwing.hit
    worlds[0].check_logs()
    asyncio.run(goes_on_elsewhere(worlds))
    return throwing.hit is not None


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("where", list(TASKS))
def test_what_ends_the_program_in_a_task_of_a_turn_leaves_logs_to_go_on_from(
    where: str, kind: type[BaseException]
) -> None:
    number = 1
    while thrown_run(number, where, kind, []):
        number += 1
    assert number > 4
