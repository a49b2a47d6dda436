"""The interrupt matrix, creations and resumptions: an agent lives or there is nothing of it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from interrupt_world import ROUTE, TIMEOUT_S, World, at_resumption, breathe, mount_world
from loop_harness import shelve, until

from dsh.base.signal import AbortController
from dsh.execution.agent.service import AgentHandle, AgentRegistry, CreateAgent, ResumeAgent
from dsh.kernel import Context
from dsh.model.messages import SessionId
from dsh.state.session.session import Session

pytestmark = pytest.mark.timeout(TIMEOUT_S)


class _Creations:
    """Makes agents, and knows what is left over of those that were not made."""

    def __init__(self, world: World) -> None:
        self.world = world

    def begin(
        self, agents: AgentRegistry, session_id: SessionId, stop: AbortController
    ) -> Coroutine[Any, Any, AgentHandle]:
        request = CreateAgent(
            session_id=session_id, agent_options=ROUTE, signal=stop.signal, setup=_setup
        )
        return agents.create(request)

    def check(self) -> None:
        """Nothing else than what the world settles."""


class _Resumptions(_Creations):
    """Brings agents back from a store that takes its time."""

    def __init__(self, world: World, shelf: Any) -> None:
        super().__init__(world)
        self.shelf = shelf
        self.held: list[str] = []
        self._prepare = shelf.prepare
        shelf.prepare = self.prepare

    async def prepare(self, id: str) -> Any:
        await breathe()
        prepared = await self._prepare(id)
        self.held.append(id)
        return prepared

    def begin(
        self, agents: AgentRegistry, session_id: SessionId, stop: AbortController
    ) -> Coroutine[Any, Any, AgentHandle]:
        self.shelf.stored[session_id] = Session.create(session_id)
        request = ResumeAgent(
            resume_session_id=session_id, agent_options=ROUTE, signal=stop.signal, setup=_setup
        )
        return agents.resume(request)

    def check(self) -> None:
        assert self.shelf.released == self.held


async def _setup(ctx: Context) -> None:
    await breathe()
    await ctx.plugin(lambda ctx: None)
    await breathe()


async def interrupted_creation(creations: _Creations, number: int, how: str) -> bool:
    """Create an agent, interrupt that, and say whether it took long enough for it."""
    world = creations.world
    before, reached = asyncio.all_tasks(), list[bool]()
    session_id, stop = SessionId(f"c{number}"), AbortController()
    held: list[Context] = []
    owner = world.root.inject([AgentRegistry], held.append)
    await owner

    def action() -> None:
        reached.append(not creating.done())
        {"cancel": creating.cancel, "signal": stop.abort, "owner": owner.dispose}[how]()

    with at_resumption(number, action):
        creating = asyncio.create_task(
            creations.begin(held[0].require(AgentRegistry), session_id, stop)
        )
        await asyncio.wait([creating])
    if creating.cancelled() or creating.exception() is not None:
        await until(lambda: world.agents.get(session_id) is None)
    elif not (reached and how == "owner"):
        await world.goes_on(creating.result().agent)
    await owner.dispose()
    await world.settle(before)
    creations.check()
    return bool(reached)


@pytest.mark.parametrize("how", ["cancel", "signal", "owner"])
@pytest.mark.parametrize("what", ["create", "resume"])
async def test_an_interrupt_between_any_two_resumptions_of_a_creation_leaves_nothing(
    root: Context, what: str, how: str
) -> None:
    world = await mount_world(root)
    creations = _Creations(world)
    if what == "resume":
        creations = _Resumptions(world, await shelve(world))
    number = 1
    while await interrupted_creation(creations, number, how):
        number += 1
    assert number > 5
