"""A tool's output that cannot be encoded as it is poisons no session, in no store."""

from __future__ import annotations

from crash_media import Media
from loop_harness import events_of
from working_agents import STEPS, WorkingAgents

from dsh.base.json import dumps, loads
from dsh.kernel import Context
from dsh.state.session.session import Session
from dsh.testing.persistence.medium import Host

OUTPUTS = {
    "high surrogate": "a\ud83db",
    "low surrogate": "a\ude00b",
    "surrogates in the wrong order": "\ude00\ud83d",
    "a pair in two parts": "\ud83d" + "\ude00",
    "the end of a pair cut off": "smile \U0001f600"[:-1] + "\ud83d",
    "NUL and other controls": "a\0b\x1b[31m\x7f\x85",
    "no characters": "\ufffe\uffff\U0001ffff\ufdd0",
    "a cluster cut in two": "e\u0301\u0301"[:2] + "\u200d\U0001f469",
    "line ends of all kinds": "a\r\nb\u2028c\u2029d\x0b\x0c",
    "what looks like an escape": "\\ud83d \\u0000 \\",
}


async def outlive(root: Context, media: Media) -> None:
    """Let turns have such outputs, then resume their sessions elsewhere."""
    agents = await WorkingAgents(root, media.medium).open()
    agents.outputs = dict(OUTPUTS)
    logs: dict[str, Session] = {}
    for name in OUTPUTS:
        agent = await agents.loop.agent(name)
        for _ in range(2):
            assert await agents.turn(agent) == {"kind": "completed"}
        await agents.flush(agent)
        assert await agents.stored(name) == list(agent.session.events)
        assert len(events_of(agent, "tool/result")) == 2 * STEPS
        logs[name] = agent.session
    for request in agents.model.requests:
        assert loads(dumps(request.messages).decode("utf-8")) == request.messages
    await agents.provider.dispose()

    host = await Host(media.medium).open()
    for name, log in logs.items():
        resumed = await host.resume(name)
        assert resumed.derive_messages() == log.derive_messages()
    await host.close()


async def test_any_output_comes_back(root: Context, media: Media) -> None:
    await outlive(root, media)


async def test_any_output_comes_back_from_a_server(root: Context, server_media: Media) -> None:
    await outlive(root, server_media)
