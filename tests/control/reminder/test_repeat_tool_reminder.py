from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from loop_harness import (
    Loop,
    ScriptedModel,
    add_tool,
    assert_balanced,
    calls,
    events_of,
    mount,
    reasons,
    says,
    user,
)

from dsh.base.json import freeze
from dsh.base.signal import AbortController
from dsh.control.reminder import policy
from dsh.control.reminder.policy import Config, Reminder
from dsh.execution.agent.service import Agent
from dsh.execution.tools.events import (
    TOOLS_POST_EXECUTE,
    TOOLS_PRE_EXECUTE,
    Accept,
    Block,
    Deny,
    ToolPostExecute,
)
from dsh.execution.tools.service import ToolInput, ToolRunContext, ToolRuntime
from dsh.kernel import Context
from dsh.kernel.errors import ValidationError
from dsh.model.messages import CallId, UserMessage, create_user_message


async def reminded(root: Context, **config: Any) -> Loop:
    loop = await mount(root, ScriptedModel())
    await root.plugin(policy, config)
    for name in ("look", "read", "list"):
        add_tool(root, same, name=name)
    return loop


async def same(n: int = 0, path: str = "") -> str:
    return "same"


def theirs() -> UserMessage:
    return create_user_message("theirs", {"kind": "plugin", "plugin": "other"})


async def play(loop: Loop, agent: Agent, *asked: str, text: str = "go") -> None:
    """One turn in which the model makes these calls, a step each."""
    start = len(loop.model.requests)
    for index, each in enumerate(asked):
        name, _, arguments = each.partition(" ")
        loop.model.will(calls((f"c{start + index}", name, arguments or "{}")))
    loop.model.will(says("done"))
    agent.followup(user(text))
    await agent.when_idle()
    assert reasons(agent)[-1] == {"kind": "completed"}
    assert_balanced(agent.session)


def notices(agent: Agent) -> list[Any]:
    return [
        message
        for message in events_of(agent, "user/message")
        if message["source"].get("plugin") == "repeat-tool-reminder"
    ]


def summaries(agent: Agent) -> list[str]:
    return [message["source"]["summary"] for message in notices(agent)]


async def test_it_speaks_at_each_threshold_exactly(root: Context) -> None:
    loop = await reminded(root)
    agent = await loop.agent()
    await play(loop, agent, *["look"] * 12)
    assert summaries(agent) == ["look × 3", "look × 5", "look × 8"]  # noqa: RUF001


async def test_the_message_is_a_notice_right_after_the_result(root: Context) -> None:
    loop = await reminded(root, thresholds=[2])
    agent = await loop.agent()
    await play(loop, agent, "look", "look")
    [notice] = notices(agent)
    assert notice["role"] == "user"
    assert notice["source"] == {
        "kind": "plugin",
        "plugin": "repeat-tool-reminder",
        "form": "notice",
        "summary": "look × 2",  # noqa: RUF001
    }
    result, message = loop.model.requests[-1].messages[-2:]
    assert result["source"]["kind"] == "tool"
    assert message["id"] == notice["id"]


async def test_the_first_message_is_gentle_and_later_ones_name_the_call(root: Context) -> None:
    loop = await reminded(root, thresholds=[5, 2])
    agent = await loop.agent()
    await play(loop, agent, *['look {"path": "/a", "n": 1}'] * 5)
    gentle, plain = (message["content"][0]["text"] for message in notices(agent))
    assert "look" not in gentle
    assert "look 5 times" in plain
    assert '{"n":1,"path":"/a"}' in plain
    assert "more chars" not in plain


async def test_long_arguments_are_cut(root: Context) -> None:
    loop = await reminded(root, thresholds=[2, 3], argumentsPreviewChars=10)
    agent = await loop.agent()
    await play(loop, agent, *['look {"path": "0123456789"}'] * 3)
    text = notices(agent)[1]["content"][0]["text"]
    assert '{"path":"0… (+11 more chars)' in text


async def test_the_order_of_keys_makes_no_other_call(root: Context) -> None:
    loop = await reminded(root, thresholds=[2])
    agent = await loop.agent()
    await play(loop, agent, 'look {"n": 1, "path": "x"}', 'look {"path": "x", "n": 1}')
    assert summaries(agent) == ["look × 2"]  # noqa: RUF001


@pytest.mark.parametrize(
    "between", ["read", 'look {"n": 1}', 'look {"path": "a"}'], ids=["tool", "value", "key"]
)
async def test_another_call_between_starts_the_count_over(root: Context, between: str) -> None:
    loop = await reminded(root, thresholds=[3])
    agent = await loop.agent()
    await play(loop, agent, "look", "look", between, "look", "look")
    assert notices(agent) == []


async def test_arguments_that_cannot_be_read_count_as_their_text(root: Context) -> None:
    loop = await reminded(root, thresholds=[2, 3])
    agent = await loop.agent()
    await play(loop, agent, *["look {broken"] * 3)
    assert "{broken" in notices(agent)[1]["content"][0]["text"]


async def test_denied_calls_count(root: Context) -> None:
    loop = await reminded(root, thresholds=[2])
    root.on(TOOLS_PRE_EXECUTE, lambda execution, _: Deny("no"))
    agent = await loop.agent()
    await play(loop, agent, "look", "look")
    assert summaries(agent) == ["look × 2"]  # noqa: RUF001


async def test_it_never_blocks(root: Context) -> None:
    loop = await reminded(root)
    agent = await loop.agent()
    await play(loop, agent, *["look"] * 30)
    assert all(
        not data["message"]["content"][0].get("isError") for data in events_of(agent, "tool/result")
    )


async def test_excluded_tools_are_passed_over(root: Context) -> None:
    loop = await reminded(root, thresholds=[2], exclude=["re*"])
    agent = await loop.agent()
    await play(loop, agent, "read", "read", "look", "read", "look")
    assert summaries(agent) == ["look × 2"]  # noqa: RUF001


async def test_only_included_tools_count(root: Context) -> None:
    loop = await reminded(root, thresholds=[2], include=["l*k", "rea"])
    agent = await loop.agent()
    await play(loop, agent, "list", "list", "read", "read", "look", "list", "look")
    assert summaries(agent) == ["look × 2"]  # noqa: RUF001


async def test_a_star_is_the_only_wildcard(root: Context) -> None:
    loop = await reminded(root, thresholds=[2], exclude=["l..k", "l?ok", "[l]ook"])
    agent = await loop.agent()
    await play(loop, agent, "look", "look")
    assert summaries(agent) == ["look × 2"]  # noqa: RUF001


async def test_a_message_of_the_user_starts_the_count_over(root: Context) -> None:
    loop = await reminded(root, thresholds=[3])
    agent = await loop.agent()
    await play(loop, agent, "look", "look")
    await play(loop, agent, "look", "look")
    assert notices(agent) == []


async def test_a_message_of_a_plugin_does_not(root: Context) -> None:
    loop = await reminded(root, thresholds=[3])
    agent = await loop.agent()
    await play(loop, agent, "look", "look")
    loop.model.will(calls(("x", "look", "{}")), says("done"))
    agent.followup(create_user_message("go on", {"kind": "plugin", "plugin": "driver"}))
    await agent.when_idle()
    assert summaries(agent) == ["look × 3"]  # noqa: RUF001


async def test_each_agent_has_its_own_count(root: Context) -> None:
    loop = await reminded(root, thresholds=[3])
    one, two = await loop.agent("one"), await loop.agent("two")
    for agent in (one, two):
        await play(loop, agent, "look", "look")
    assert notices(one) == notices(two) == []


async def test_calls_without_an_agent_are_left_alone(root: Context) -> None:
    loop = await reminded(root, thresholds=[2])
    tools = loop.ctx.require(ToolRuntime)
    for n in range(4):
        signal = AbortController().signal
        result = await tools.execute(ToolInput(CallId(f"c{n}"), "look", freeze({}), signal))
        assert result.additional_contexts == ()


async def test_it_speaks_before_what_other_policies_add(root: Context) -> None:
    loop = await reminded(root, thresholds=[2])
    root.on(TOOLS_POST_EXECUTE, lambda event, _: Accept(additional_contexts=(theirs(),)))
    agent = await loop.agent()
    loop.model.will(calls(("a", "look", "{}"), ("b", "look", "{}")), says("done"))
    agent.followup(user("go"))
    await agent.when_idle()
    added = [
        message["source"]["plugin"]
        for message in events_of(agent, "user/message")
        if message["source"]["kind"] == "plugin"
    ]
    assert added == ["other", "repeat-tool-reminder", "other"]


async def test_a_result_that_another_policy_blocks_stays_blocked(root: Context) -> None:
    loop = await reminded(root, thresholds=[2])
    feedback = freeze([{"type": "text", "text": "not like this"}])
    root.on(TOOLS_POST_EXECUTE, lambda event, _: Block(feedback=feedback))
    agent = await loop.agent()
    await play(loop, agent, "look", "look")
    assert all(data["message"]["content"][0]["isError"] for data in events_of(agent, "tool/result"))
    assert summaries(agent) == ["look × 2"]  # noqa: RUF001


async def test_an_agent_that_is_gone_is_not_held(root: Context) -> None:
    reminder = Reminder(Config())

    class Gone:
        pass

    agent: Any = Gone()
    execution = ToolRunContext(
        CallId("c"),
        "look",
        freeze({}),
        AbortController().signal,
        agent,
        CallId("c"),
        None,
        None,  # type: ignore[arg-type]
    )
    result: Any = None

    async def accept() -> Accept:
        return Accept()

    await reminder.after_call(ToolPostExecute(execution, result), accept)
    assert len(reminder._runs) == 1
    ref = weakref.ref(agent)
    del agent, execution
    gc.collect()
    assert ref() is None
    assert len(reminder._runs) == 0


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"thresholds": []}, "thresholds"),
        ({"thresholds": [1, 3]}, "thresholds"),
        ({"thresholds": [3, 3]}, "thresholds"),
        ({"thresholds": [3.5]}, "thresholds"),
        ({"thresholds": [3.0]}, "thresholds"),
        ({"thresholds": ["3"]}, "thresholds"),
        ({"thresholds": [True]}, "thresholds"),
        ({"argumentsPreviewChars": 0}, "argumentsPreviewChars"),
        ({"argumentsPreviewChars": 1.5}, "argumentsPreviewChars"),
        ({"includes": []}, "includes"),
    ],
)
def test_an_unusable_configuration_is_refused(config: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        Config.validate(config)


def test_the_defaults_are_those_of_the_format() -> None:
    config = Config()
    assert (config.thresholds, config.include, config.exclude) == ((3, 5, 8), (), ())
    assert config.arguments_preview_chars == 500
