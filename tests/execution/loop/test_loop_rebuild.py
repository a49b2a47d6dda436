"""Whatever plugins do, the log alone tells what each request was."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interrupt_world import TIMEOUT_S
from loop_harness import (
    Loop,
    ScriptedModel,
    add_tool,
    assert_balanced,
    assert_paired,
    calls,
    fails,
    mount,
    says,
    shelve,
    user,
)

from dsh.base.json import dumps
from dsh.base.values import changed
from dsh.execution.agent.events import (
    AGENT_PRE_STEP,
    AGENT_REQUEST,
    AGENT_REQUEST_ERROR,
    AGENT_TURN_STOPPING,
    INBOX_SPLICED,
    Enter,
    Reject,
    Retry,
)
from dsh.execution.agent.service import USER_CANCEL, AgentHandle, AgentOptions, ResumeAgent
from dsh.execution.prompt.events import SYSTEM_PROMPT_ASSEMBLE
from dsh.execution.prompt.service import PromptContext, PromptSection, SystemPrompt
from dsh.execution.tools.author import define_tool
from dsh.execution.tools.events import TOOLS_POST_EXECUTE, TOOLS_PRE_EXECUTE, Accept, Block, Deny
from dsh.execution.tools.service import ToolRunContext, ToolRuntime
from dsh.kernel import Context
from dsh.model.chunks import StreamChunk
from dsh.model.llm.service import GenerateOptions, call_config_of
from dsh.model.messages import SessionId
from dsh.state.session.events import CORE_EVENT_TYPES, USER_MESSAGE
from dsh.state.session.request import fold_request_header
from dsh.state.session.session import Session

Request = tuple[GenerateOptions, Session, int]
"""What went out, and the log it went out on with its length at that time."""


def rebuild(session: Session, cut: int) -> bytes:
    """Build a request again from nothing but the first ``cut`` events of a log."""
    prefix = list(session.events[:cut])
    header: Any = fold_request_header(prefix)
    own = [each for each in (INBOX_SPLICED,) if each.name not in CORE_EVENT_TYPES]
    seed = Session.create("again", prefix, types=own)
    return dumps(
        {
            "config": sorted(header["config"].items()),
            "system": header.get("system"),
            "tools": header.get("tools"),
            "messages": seed.derive_messages(),
        }
    )


def sent(request: GenerateOptions) -> bytes:
    return dumps(
        {
            "config": sorted(call_config_of(request).items()),
            "system": request.system,
            "tools": request.tools,
            "messages": list(request.messages),
        }
    )


class Chaos:
    """Plugins that come, go, rewrite, refuse and interrupt, all by the same dice."""

    def __init__(self, loop: Loop, dice: random.Random) -> None:
        self.loop = loop
        self.dice = dice
        self.requests: list[Request] = []
        self.effects: list[Any] = []
        self.changes: list[Callable[[], None]] = []
        self.serial = 0
        self.handle: AgentHandle
        loop.model.otherwise = self.reply

    @property
    def agent(self) -> Any:
        return self.handle.agent

    def chance(self, share: float) -> bool:
        return self.dice.random() < share

    async def work(self, run: ToolRunContext, key: str) -> str:
        for _ in range(self.dice.randrange(3)):
            await asyncio.sleep(0)
        if self.chance(0.2):
            raise RuntimeError("broken")
        if self.chance(0.1):
            self.agent.cancel(USER_CANCEL, keep_inbox=self.chance(0.5))
            await asyncio.sleep(0)
        if self.chance(0.2):
            self.agent.inject(user(f"note {key}"))
        if self.chance(0.2):
            run.defer_context(user(f"context {key}"))
        if self.chance(0.1):
            run.conclude_turn()
        return key

    async def reply(self, options: GenerateOptions) -> AsyncIterator[StreamChunk]:
        self.requests.append((options, self.agent.session, self.agent.session.seq))
        self.serial += 1
        if self.effects and self.chance(0.4):
            self.effects.pop(self.dice.randrange(len(self.effects))).dispose()
        for change in self.changes:
            if self.chance(0.3):
                change()
        async for chunk in self.script()(options):
            if self.chance(0.02):
                self.agent.cancel(USER_CANCEL, keep_inbox=True)
            yield chunk

    def script(self) -> Any:
        kind = self.dice.randrange(6)
        if kind == 0:
            return fails()
        if kind <= 2:
            names = [
                self.dice.choice(["par", "exc", "gone"]) for _ in range(self.dice.randrange(1, 5))
            ]
            asked = [(f"k{self.serial}-{n}", name, '{"key": "x"}') for n, name in enumerate(names)]
            return calls(*asked, text="working" if self.chance(0.5) else "")
        return says("words", kind=self.dice.choice(["stop", "stop", "max-tokens"]))

    async def resume(self) -> None:
        """Go on in another agent with nothing but the log."""
        old = self.agent.session
        await self.handle.dispose()
        shelf: Any = await shelve(self.loop, old)
        self.handle = await self.loop.agents.resume(
            ResumeAgent(
                resume_session_id=SessionId(old.id),
                agent_options=AgentOptions(provider="scripted", model="m"),
            )
        )
        await shelf.ctx.fiber.dispose()


# who takes part


def sections(chaos: Chaos) -> None:
    def change() -> None:
        ctx = chaos.dice.choice([chaos.loop.root, chaos.agent.ctx])
        section = PromptSection(f"p{chaos.serial}", 5, "words on {{model}}")
        chaos.effects.append(ctx.require(SystemPrompt).section(section))

    chaos.changes.append(change)


def contexts(chaos: Chaos) -> None:
    def change() -> None:
        ctx = chaos.dice.choice([chaos.loop.root, chaos.agent.ctx])
        context = PromptContext(f"c{chaos.serial}", 5, f"fact {chaos.dice.randrange(3)}")
        chaos.effects.append(ctx.require(SystemPrompt).context(context))

    chaos.changes.append(change)


def tools(chaos: Chaos) -> None:
    def change() -> None:
        ctx = chaos.dice.choice([chaos.loop.root, chaos.agent.ctx])
        made = define_tool(chaos.work, name=f"tool{chaos.serial}", description="does it")
        chaos.effects.append(ctx.require(ToolRuntime).register(made))

    chaos.changes.append(change)


def assembly(chaos: Chaos) -> None:
    async def rewrite(_: Any, next: Any) -> Any:
        made = await next()
        return changed(made, tools=()) if chaos.chance(0.2) else made

    chaos.loop.root.on(SYSTEM_PROMPT_ASSEMBLE, rewrite)


def batches(chaos: Chaos) -> None:
    async def decide(event: Any, next: Any) -> Any:
        if chaos.chance(0.1):
            return Reject()
        decision = await next()
        if chaos.chance(0.2) and isinstance(decision, Enter):
            return Enter((*decision.messages, user("extra")))
        return decision

    chaos.loop.root.on(AGENT_PRE_STEP, decide)


def routes(chaos: Chaos) -> None:
    async def choose(_: Any, next: Any) -> Any:
        config = dict(await next())
        if chaos.chance(0.2):
            config["temperature"] = chaos.dice.choice([0, 0.5, 1])
        if chaos.chance(0.2):
            config["model"] = chaos.dice.choice(["m", "n"])
        if chaos.chance(0.1):
            config["maxTokens"] = 100
        return config

    chaos.loop.root.on(AGENT_REQUEST, choose)


def retries(chaos: Chaos) -> None:
    chaos.loop.root.on(AGENT_REQUEST_ERROR, lambda *_: Retry() if chaos.chance(0.8) else None)


def stops(chaos: Chaos) -> None:
    def stopping(event: Any) -> None:
        if chaos.chance(0.2):
            event.agent.steer(user("one more"))

    chaos.loop.root.on(AGENT_TURN_STOPPING, stopping)


def policies(chaos: Chaos) -> None:
    async def before(_: Any, next: Any) -> Any:
        return Deny("not now") if chaos.chance(0.1) else await next()

    async def after(_: Any, next: Any) -> Any:
        if chaos.chance(0.1):
            return Block([{"type": "text", "text": "not that"}])
        if chaos.chance(0.2):
            return Accept(additional_contexts=(user("a thought"),))
        return await next()

    chaos.loop.root.on(TOOLS_PRE_EXECUTE, before)
    chaos.loop.root.on(TOOLS_POST_EXECUTE, after)


def compaction(chaos: Chaos) -> None:
    async def compact(_: Any, next: Any) -> Any:
        session = chaos.agent.session
        nodes = session.surface.nodes
        messages = [session.events[seq] for seq in nodes]
        # Up to a prompt, so that no call is cut off from its result.
        ends = [
            n
            for n, event in enumerate(messages)
            if n and event["type"] == "user/message" and n < len(nodes) - 1
        ]
        if ends and chaos.chance(0.3):
            last = chaos.dice.choice(ends) - 1
            session.append(
                USER_MESSAGE,
                user("what was before, in short"),
                surface_op={"op": "replace", "start": nodes[0], "end": nodes[last]},
                source_event_seqs=list(nodes[: last + 1]),
            )
        return await next()

    chaos.loop.root.on(AGENT_PRE_STEP, compact, prepend=True)


PARTICIPANTS: Mapping[str, Callable[[Chaos], None]] = {
    each.__name__: each
    for each in (
        sections,
        contexts,
        tools,
        assembly,
        batches,
        routes,
        retries,
        stops,
        policies,
        compaction,
    )
}


async def play(mix: set[str], resumes: bool, seed: int) -> None:
    root, dice = Context(), random.Random(seed)
    chaos = Chaos(await mount(root, ScriptedModel()), dice)
    add_tool(root, chaos.work, name="par", parallel=True)
    add_tool(root, chaos.work, name="exc")
    for name in sorted(mix):
        PARTICIPANTS[name](chaos)
    chaos.handle = await chaos.loop.create()
    for number in range(6):
        if resumes and number == 3:
            await chaos.resume()
        for way in dice.sample(["followup", "steer", "inject"], k=2):
            getattr(chaos.agent, way)(user(f"{way} {number}"))
        await asyncio.wait_for(chaos.agent.when_idle(), 20)
    await root.fiber.dispose()
    assert chaos.requests or "batches" in mix
    for request, session, cut in chaos.requests:
        assert_paired(request.messages)
        assert rebuild(session, cut) == sent(request)
    assert_balanced(chaos.agent.session)


@pytest.mark.timeout(TIMEOUT_S)
@settings(deadline=None, max_examples=60)
@given(
    mix=st.sets(st.sampled_from(sorted(PARTICIPANTS))),
    resumes=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_every_request_is_rebuilt_from_the_log_alone(
    mix: set[str], resumes: bool, seed: int
) -> None:
    asyncio.run(play(mix, resumes, seed))


@pytest.mark.timeout(TIMEOUT_S)
def test_every_request_is_rebuilt_with_all_plugins_at_once() -> None:
    for seed in range(15):
        asyncio.run(play(set(PARTICIPANTS), True, seed))
