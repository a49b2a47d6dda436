from __future__ import annotations

from typing import Any

import pytest
from loop_harness import (
    Loop,
    ScriptedModel,
    events_of,
    reasons,
    says,
    user,
)

from dsh.control.default_model.service import ModelSelection
from dsh.execution.agent.events import (
    AGENT_PRE_STEP,
    AGENT_REQUEST,
    Enter,
)
from dsh.execution.agent.selection import SelectionRef, install_model_selection
from dsh.execution.agent.service import AgentOptions
from dsh.execution.prompt.service import (
    CONTEXT_CLEARED,
    RUNTIME_CONTEXT_SOURCE,
    PromptContext,
    PromptSection,
    SystemPrompt,
)
from dsh.model.llm.events import LLM_STREAM, is_loop_built
from dsh.model.messages import text_of
from dsh.state.session.events import USER_MESSAGE


def logged_headers(agent: Any) -> list[tuple[str, dict[str, Any]]]:
    return [(data["reason"], data["header"]) for data in events_of(agent, "request/header")]


async def turn(agent: Any, text: str = "go") -> None:
    agent.followup(user(text))
    await agent.when_idle()


async def test_the_header_is_logged_once_and_again_only_when_it_changes(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.otherwise = says("ok")
    await turn(agent)
    await turn(agent)
    assert [reason for reason, _ in logged_headers(agent)] == ["initial"]

    section = loop.root.require(SystemPrompt).section(PromptSection("more", 5, "be brief"))
    await turn(agent)
    section.dispose()
    await turn(agent)
    assert [reason for reason, _ in logged_headers(agent)] == ["initial", "change", "change"]
    assert "be brief" in logged_headers(agent)[1][1]["system"]


async def test_defaults_of_the_adapter_are_marked_and_derived_again(
    loop: Loop, model: ScriptedModel
) -> None:
    agent = await loop.agent()
    model.otherwise = says("ok")
    model.default_max_tokens = 100
    await turn(agent)
    model.default_max_tokens = 200
    await turn(agent)

    (_, first), (_, second) = logged_headers(agent)
    assert first["config"]["maxTokens"] == 100
    assert first["adapterDefaults"] == {"maxTokens": True}
    assert second["config"]["maxTokens"] == 200


async def test_an_explicit_limit_stays_explicit(loop: Loop, model: ScriptedModel) -> None:
    options = AgentOptions(provider="scripted", model="m", max_tokens=7)
    agent = await loop.agent(agent_options=options)
    model.otherwise = says("ok")
    model.default_max_tokens = 100
    await turn(agent)
    await turn(agent)
    ((_, header),) = logged_headers(agent)
    assert header["config"]["maxTokens"] == 7
    assert "adapterDefaults" not in header
    assert model.requests[-1].max_tokens == 7


async def test_the_context_is_logged_when_route_or_capacity_change(
    loop: Loop, model: ScriptedModel
) -> None:
    agent = await loop.agent()
    model.otherwise = says("ok")
    model.context_window = 1000
    await turn(agent)
    await turn(agent)
    model.context_window = None
    await turn(agent)
    assert events_of(agent, "request/context") == [
        {"provider": "scripted", "model": "m", "contextWindow": 1000},
        {"provider": "scripted", "model": "m"},
    ]


async def test_a_listener_may_choose_the_route_and_its_choice_stays(loop: Loop) -> None:
    agent = await loop.agent(agent_options=AgentOptions())
    loop.model.otherwise = says("ok")
    seeds: list[Any] = []

    async def choose(event: Any, next: Any) -> Any:
        seeds.append(await next())
        return {"provider": "scripted", "model": "chosen", "temperature": 0.5}

    choosing = loop.root.on(AGENT_REQUEST, choose)
    await turn(agent)
    choosing.dispose()
    await turn(agent)

    assert seeds == [{}]
    assert [request.model for request in loop.model.requests] == ["chosen", "chosen"]
    assert loop.model.requests[1].temperature == 0.5


async def test_without_a_route_the_turn_says_what_to_do(loop: Loop) -> None:
    agent = await loop.agent(agent_options=AgentOptions())
    await turn(agent)
    text = reasons(agent)[0]["error"]["message"]
    assert "'s1'" in text
    assert "agent-default-model" in text


async def test_a_listener_of_the_stream_may_serve_a_route_without_adapter(loop: Loop) -> None:
    agent = await loop.agent(agent_options=AgentOptions(provider="elsewhere", model="m"))
    built: list[bool] = []

    async def serve(payload: Any, next: Any) -> Any:
        built.append(is_loop_built(payload.options))
        return says("served")(payload.options)

    loop.root.on(LLM_STREAM, serve)
    await turn(agent)
    assert reasons(agent) == [{"kind": "completed"}]
    assert built == [True]
    assert text_of(agent.session.derive_messages()[-1]) == "served"


async def test_other_refusals_of_the_adapter_end_the_turn(loop: Loop) -> None:
    agent = await loop.agent()

    async def choose(event: Any, next: Any) -> Any:
        return {**await next(), "reasoningEffort": "enormous"}

    loop.root.on(AGENT_REQUEST, choose)
    await turn(agent)
    assert reasons(agent)[0]["error"]["code"] == "UNSUPPORTED_REASONING_EFFORT"


async def test_the_request_carries_signal_session_and_shared_frozen_messages(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.otherwise = says("ok")
    await turn(agent)
    await turn(agent)
    first, second = loop.model.requests
    assert first.session_id == "s1"
    assert first.signal is not second.signal
    assert second.messages[0] is first.messages[0]
    with pytest.raises(TypeError):
        second.messages.append({})  # type: ignore[attr-defined]


async def test_the_prompt_knows_route_and_folder(loop: Loop) -> None:
    agent = await loop.agent(meta={"cwd": "/tmp"})
    loop.model.will("ok")
    prompt = loop.root.require(SystemPrompt)
    prompt.section(PromptSection("where", 5, "{{provider}}/{{model}} in {{cwd}}"))
    await turn(agent)
    assert "scripted/m in /tmp" in str(loop.model.requests[0].system)


# the runtime context


def snapshots(agent: Any) -> list[str]:
    return [
        text_of(data)
        for data in events_of(agent, "user/message")
        if data["source"].get("plugin") == RUNTIME_CONTEXT_SOURCE
    ]


async def test_the_runtime_context_is_told_when_it_changed_and_only_then(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.otherwise = says("ok")
    facts = {"text": "mode: read"}
    context = loop.root.require(SystemPrompt).context(
        PromptContext("mode", 1, lambda _: facts["text"])
    )
    await turn(agent)
    await turn(agent)
    assert len(snapshots(agent)) == 1
    facts["text"] = "mode: write"
    await turn(agent)
    assert len(snapshots(agent)) == 2
    assert "mode: write" in snapshots(agent)[1]
    context.dispose()
    await turn(agent)
    await turn(agent)
    assert snapshots(agent)[2:] == [CONTEXT_CLEARED]

    source = events_of(agent, "user/message")[1]["source"]
    assert source["form"] == "snapshot"
    assert source["sections"] == [{"name": "mode", "text": "mode: read"}]


async def test_a_snapshot_that_was_not_entered_is_proposed_again(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.otherwise = says("ok")
    loop.root.require(SystemPrompt).context(PromptContext("mode", 1, "mode: read"))
    refusing = loop.root.on(AGENT_PRE_STEP, lambda event, _: Enter(event.messages))
    await turn(agent)
    refusing.dispose()
    assert snapshots(agent) == []
    await turn(agent)
    assert len(snapshots(agent)) == 1


async def test_a_compaction_that_takes_the_snapshot_makes_it_due_again(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.otherwise = says("ok")
    loop.root.require(SystemPrompt).context(PromptContext("mode", 1, "mode: read"))
    await turn(agent)
    await turn(agent)
    nodes = agent.session.surface.nodes
    agent.session.append(
        USER_MESSAGE,
        user("summary"),
        surface_op={"op": "replace", "start": nodes[0], "end": nodes[2]},
        source_event_seqs=list(nodes[:3]),
    )
    await turn(agent)
    assert len(snapshots(agent)) == 2


async def test_a_resumed_agent_does_not_repeat_the_snapshot(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.otherwise = says("ok")
    loop.root.require(SystemPrompt).context(PromptContext("mode", 1, "mode: read"))
    await turn(agent)
    again = await loop.agent("s2", seed=list(agent.session.events))
    await turn(again)
    assert len(snapshots(again)) == 1


# selections


async def test_a_selection_reaches_prompt_and_request_together(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.otherwise = says("ok")
    ref = SelectionRef(ModelSelection("scripted", "chosen"))
    end = install_model_selection(agent.ctx, ref)
    loop.root.require(SystemPrompt).section(PromptSection("route", 5, "on {{model}}"))

    async def switch(event: Any, following: Any) -> Any:
        ref.current = ModelSelection("scripted", "later")
        return await following()

    switching = agent.ctx.on(AGENT_PRE_STEP, switch)
    await turn(agent)
    switching.dispose()
    await turn(agent)
    end()
    await turn(agent)

    assert [request.model for request in loop.model.requests] == ["chosen", "later", "later"]
    assert "on chosen" in str(loop.model.requests[0].system)
    assert "on later" in str(loop.model.requests[1].system)


async def test_a_selection_without_effort_drops_an_inherited_one(loop: Loop) -> None:
    agent = await loop.agent()
    seen: list[Any] = []
    loop.model.otherwise = says("ok")
    install_model_selection(agent.ctx, SelectionRef(ModelSelection("scripted", "m")))

    async def effort(event: Any, following: Any) -> Any:
        return {**await following(), "reasoningEffort": "high"}

    async def outer(event: Any, following: Any) -> Any:
        seen.append(await following())
        return seen[-1]

    loop.root.on(AGENT_REQUEST, effort)
    loop.root.on(AGENT_REQUEST, outer, prepend=True)
    await turn(agent)
    assert seen == [{"provider": "scripted", "model": "m"}]
