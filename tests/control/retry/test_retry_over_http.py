"""The retry policy in a real loop, against a provider that fails over real HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from dsh.control.retry import policy as retry_plugin
from dsh.execution.agent.registry import LiveAgents
from dsh.execution.agent.service import Agent, AgentOptions, AgentRegistry, CreateAgent
from dsh.execution.loop.plugin import TurnLoop
from dsh.execution.prompt.assembly import LayeredSystemPrompt
from dsh.execution.tools.runtime import plugin as tool_runtime
from dsh.kernel import Context
from dsh.model.adapters import deepseek
from dsh.model.llm.runtime import AdapterRuntime
from dsh.model.messages import SessionId, create_user_message, text_of
from dsh.state.session import invariants
from dsh.state.session.store import LocalSessionStore
from dsh.testing.provider import Provider, start_provider

SOON = {"backoff": {"initialDelayMs": 1, "maxDelayMs": 2000, "jitterRatio": 0}}


class Environment:
    """Launch layers, as far as adapters look at them."""

    def __init__(self, **values: str) -> None:
        self.values = values

    def value(self, name: str) -> str | None:
        return self.values.get(name)


async def run(root: Context, provider: Provider, **config: Any) -> Agent:
    """Mount everything, ask one question, and return the agent when it is done."""
    environment = Environment(DEEPSEEK_API_KEY="sk-1234", DEEPSEEK_BASE_URL=provider.url)
    root.provide("launch_environment", environment)
    for part in (
        LocalSessionStore,
        invariants,
        AdapterRuntime,
        LayeredSystemPrompt,
        tool_runtime,
        LiveAgents,
    ):
        await root.plugin(part)
    await root.plugin(TurnLoop, {})
    await root.plugin(deepseek, {"retryPolicy": SOON, **config})
    await root.plugin(retry_plugin)
    options = AgentOptions(provider="deepseek-official", model="m")
    created = CreateAgent(session_id=SessionId("s1"), agent_options=options)
    handle = await root.require(AgentRegistry).create(created)
    handle.agent.followup(create_user_message("go"))
    await handle.agent.when_idle()
    return handle.agent


def of(agent: Agent, kind: str) -> list[Any]:
    return [event["data"] for event in agent.session.events if event["type"] == kind]


async def test_failures_before_and_in_midstream_are_retried_and_leave_one_copy_of_the_text(
    root: Context,
) -> None:
    entry = {"text": "Recovered and well.", "chunk_size": 4, "usage": {"input": 7, "output": 3}}
    script = {
        "replies": [
            {"fault": {"status": 503}},
            {**entry, "fault": {"cut": 0}},
            {**entry, "fault": {"cut": 3}},
            {"fault": {"status": 429, "retry_after": 1}},
            entry,
        ]
    }
    with start_provider(script) as provider:
        agent = await run(root, provider)
        bodies = provider.bodies()
        retries, (message,) = of(agent, "llm/retry"), of(agent, "assistant/message")
        started, ended = of(agent, "llm/retry-started"), of(agent, "turn/end")
        derived = agent.session.derive_messages()
        await root.dispose()

    assert [retry["failure"]["code"] for retry in retries] == [
        "SERVER",
        "TRANSPORT",
        "TRANSPORT",
        "RATE_LIMIT",
    ]
    assert [retry["retry"] for retry in retries] == [1, 2, 3, 4]
    assert retries[3]["delayMs"] == 1000
    assert [entry["retryId"] for entry in started] == [entry["retryId"] for entry in retries]
    assert text_of(message["message"]) == "Recovered and well."
    assert message["usage"] == {"inputTokens": 7, "outputTokens": 3}
    assert [text_of(derived_message) for derived_message in derived][-1] == "Recovered and well."
    assert len(bodies) == 5
    assert len(set(bodies)) == 1
    assert len(ended) == 1


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404])
async def test_a_failure_that_stays_is_sent_once_and_told_in_its_own_words(
    root: Context, status: int
) -> None:
    fault = {"status": status, "message": "these very words"}
    with start_provider({"replies": [{"fault": fault}, {"text": "never"}]}) as provider:
        agent = await run(root, provider)
        requests = provider.requests()
        (ended,) = of(agent, "turn/end")
        await root.dispose()

    assert len(requests) == 1
    assert of(agent, "llm/retry") == []
    assert "these very words" in repr(ended)


async def test_retries_end_and_the_last_failure_is_told(root: Context) -> None:
    script = {"replies": [{"fault": {"status": 500, "message": "still down"}, "repeat": 4}]}
    with start_provider(script) as provider:
        agent = await run(root, provider, retryPolicy={"maxRetries": 2, **SOON})
        requests = provider.requests()
        (ended,) = of(agent, "turn/end")
        await root.dispose()

    assert len(requests) == 3
    assert len(of(agent, "llm/retry")) == 2
    assert "still down" in repr(ended)
