"""A process with one agent a session, which does what the lines it reads say, and answers each.

``open ID`` resumes or creates a session, ``turn ID`` lets its agent do a turn, ``flush ID`` makes
it durable. The answers are the number of events or the code of the error, why the turn ended, and
the code of the error or ``null``, as JSON. A turn calls a tool once, which says ``"working"`` and
ends with the next line.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

from loop_harness import Loop, ScriptedModel, add_tool, calls, mount, reasons, says

from dsh.base.errors import DshError
from dsh.control.checkpoint import policy
from dsh.execution.agent.service import Agent, AgentOptions, ResumeAgent
from dsh.kernel import Context
from dsh.model.chunks import StreamChunk
from dsh.model.llm.service import GenerateOptions
from dsh.model.messages import SessionId, create_user_message
from dsh.state.persistence.errors import PersistenceError, SessionNotFound
from dsh.state.session.service import SessionStore
from dsh.testing.persistence.medium import Medium


async def main(plugin: str, config: str) -> None:
    root = Context()
    model = ScriptedModel()
    model.otherwise = _reply
    loop = await mount(root, model)
    await root.plugin(policy)
    await root.plugin(Medium(plugin, {}).load(), json.loads(config))
    add_tool(root, _work, name="work")
    agents: dict[str, Agent] = {}
    while line := await asyncio.to_thread(sys.stdin.readline):
        verb, name = line.split()
        if verb == "open":
            try:
                agents[name] = await _open(loop, name)
                _answer(agents[name].session.seq)
            except PersistenceError as error:
                _answer(error.code)
        elif verb == "turn":
            agents[name].followup(create_user_message("go on"))
            await agents[name].when_idle()
            _answer(reasons(agents[name])[-1])
        else:
            _answer(await _flush(root, agents[name]))


async def _open(loop: Loop, id: str) -> Agent:
    options = AgentOptions(provider="scripted", model="m")
    try:
        wanted = ResumeAgent(resume_session_id=SessionId(id), agent_options=options)
        return (await loop.agents.resume(wanted)).agent
    except SessionNotFound:
        return await loop.agent(id)


async def _flush(root: Context, agent: Agent) -> str | None:
    try:
        await root.require(SessionStore).flush(agent.session)
    except DshError as error:
        return error.code
    return None


def _reply(options: GenerateOptions) -> AsyncIterator[StreamChunk]:
    if options.messages[-1]["content"][0]["type"] == "tool-result":
        return says("Done.")(options)
    return calls((f"c{len(options.messages)}", "work", "{}"))(options)


async def _work() -> str:
    _answer("working")
    await asyncio.to_thread(sys.stdin.readline)
    return "done"


def _answer(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
