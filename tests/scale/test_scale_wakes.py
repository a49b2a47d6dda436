"""Two agents that wake each other without end."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextvars import copy_context

import pytest
from scale_harness import Crowd, gather, reasons

from dsh.execution.agent.events import AGENT_PRE_STEP, AgentPreStep, Enter, PreStepDecision
from dsh.execution.agent.frames import FRAME
from dsh.kernel import Context, Next
from dsh.model.chunks import StreamChunk, finish, text_delta
from dsh.model.llm.service import GenerateOptions
from dsh.model.messages import create_user_message

WAKES = 10_000


def depth() -> int:
    length, frame = 0, FRAME.get()
    while frame is not None:
        length, frame = length + 1, frame.parent
    return length


class PingPong(Crowd):
    """Each turn wakes the other agent, so many times; every tenth turn in the middle of a reply.

    The other turns wake in front of their first step, and take none.
    """

    def __init__(self, root: Context) -> None:
        super().__init__(root)
        self.wakes = WAKES
        self.over = asyncio.Event()
        self.depths: set[int] = set()
        self.variables: set[int] = set()

    def wake_other(self, session: str) -> None:
        self.check("before a wake", session)
        self.depths.add(depth())
        self.variables.add(len(copy_context()))
        if self.wakes == 0:
            self.over.set()
            return
        self.wakes -= 1
        (other,) = (agent for agent in self.agents.all() if agent.id != session)
        other.followup(create_user_message("your turn"))
        self.check("after a wake", session)

    async def before_step(
        self, event: AgentPreStep, next: Next[PreStepDecision]
    ) -> PreStepDecision:
        if self.wakes % 10 == 0:
            return await next()
        self.wake_other(event.agent.id)
        return Enter(())

    async def stream(self, options: GenerateOptions) -> AsyncIterator[StreamChunk]:
        self.wake_other(str(options.session_id))
        yield text_delta(0, "done")
        yield finish("stop")


@pytest.mark.timeout(120)
async def test_ten_thousand_wakes_lengthen_nothing_and_hold_nobody(root: Context) -> None:
    game = await gather(root, PingPong)
    root.on(AGENT_PRE_STEP, game.before_step)
    handles = [await game.create("ping"), await game.create("pong")]
    refs = [weakref.ref(handle.agent) for handle in handles]

    handles[0].agent.followup(create_user_message("start"))
    await game.over.wait()
    for handle in handles:
        await handle.agent.when_idle()

    assert [len(reasons(handle)) for handle in handles] == [WAKES // 2 + 1, WAKES // 2]
    assert max(game.depths) <= 4
    assert len(game.variables) == 1
    assert {len(handle.agent.inbox.next_turn) for handle in handles} == {0}
    assert game.strangers == []
    for handle in handles:
        await handle.dispose()
    handles.clear()
    del handle
    await asyncio.sleep(0)
    gc.collect()
    assert [ref() for ref in refs] == [None, None]
