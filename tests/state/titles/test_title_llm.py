"""A model names sessions: what it is asked, what is logged, and what is no name."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from title_support import (
    Model,
    Titles,
    first_turn,
    open_llm,
    request,
    settle,
    spoken,
    titles_of,
    write,
)

from dsh.kernel import Context, ValidationError
from dsh.model.chunks import block_end, block_start, finish, finish_failure
from dsh.model.failures import LlmError
from dsh.state.titles import SESSION_TITLE_LLM_REQUEST, all_prompts_llm, first_prompt_llm
from dsh.state.titles.llm import TitleCallFailed, TitleTimeout

SHIPPED = {
    "targetWords": 5,
    "targetCjkCharacters": 10,
    "maxInputBytes": 4096,
    "maxOutputTokens": 64,
    "timeoutMs": 60_000,
}


class Named(Titles):
    """Titles by a model of ours."""

    async def start(self, row: Any = first_prompt_llm, **config: Any) -> Named:
        await self.open()
        self.model: Model = await open_llm(self.root)
        self.row = await self.root.plugin(row, {**SHIPPED, **config})
        return self


@pytest.fixture
async def named(root: Context) -> Named:
    return await Named(root).start()


def logged_requests(session: Any) -> list[Any]:
    name = SESSION_TITLE_LLM_REQUEST.name
    return [event["data"] for event in session.events if event["type"] == name]


async def test_a_session_is_named_after_its_first_message(named: Named) -> None:
    session = named.session()
    said = first_turn(session, "Please make the parser accept tabs")
    await named.model.asked.wait()
    await settle()
    assert titles_of(session)[-1] == {
        "title": "A name",
        "messageSeqs": [said["seq"]],
        "source": {
            "kind": "provider",
            "provider": "session-title-first-prompt-llm",
            "model": {"provider": "script", "model": "m1"},
        },
    }


async def test_the_model_is_told_what_to_make_and_of_what(named: Named) -> None:
    session = named.session()
    said = first_turn(session, 'Say "yes" \u2603')
    await named.model.asked.wait()
    asked = named.model.calls[0]
    assert (asked.purpose, asked.session_id, asked.max_tokens) == ("session-title", session.id, 64)
    assert (asked.provider, asked.model, asked.tools) == ("script", "m1", None)
    system = asked.system or ""
    assert "about 5 words" in system
    assert "about 10 characters" in system
    for demand in ("one line of plain text", "language of the messages", "No quotation marks"):
        assert demand in system
    text: Any = asked.messages[0]["content"][0]
    quoted = text["text"].split("\n", 1)[1]
    assert json.loads(quoted) == [{"seq": said["seq"], "text": 'Say "yes" \u2603'}]


async def test_the_call_is_logged_before_it_is_made(named: Named) -> None:
    session = named.session()
    named.model.waits = asyncio.Event()
    said = first_turn(session, "hello")
    await named.model.asked.wait()
    assert logged_requests(session) == [
        {
            "titleProvider": "session-title-first-prompt-llm",
            "messageSeqs": [said["seq"]],
            "route": {"provider": "script", "model": "m1"},
            "system": named.model.calls[0].system,
            "messages": [named.model.calls[0].messages[0]],
            "maxTokens": 64,
        }
    ]
    named.model.waits.set()
    await settle()
    assert session.derive_messages()[0]["content"] == [{"type": "text", "text": "hello"}]
    assert len(session.derive_messages()) == 1


async def test_the_turn_does_not_wait_for_the_name(named: Named) -> None:
    named.model.waits = asyncio.Event()
    session = named.session()
    first_turn(session, "hello")
    await named.model.asked.wait()
    write(session, "the turn goes on", kind="plugin", plugin="x")
    assert [title["title"] for title in titles_of(session)] == ["hello"]
    named.model.waits.set()
    await settle()
    assert titles_of(session)[-1]["title"] == "A name"


async def test_a_route_of_its_own_is_used(root: Context) -> None:
    named = await Named(root).start(provider="script", model="small")
    session = named.session()
    write(session, "hello")
    made = await named.service.regenerate(session)
    assert made is not None
    assert made["source"]["model"] == {"provider": "script", "model": "small"}


async def test_without_any_route_the_request_says_so(named: Named) -> None:
    session = named.session()
    write(session, "hello")
    with pytest.raises(TitleCallFailed, match="made no request yet"):
        await named.service.regenerate(session)
    assert named.model.calls == []


async def test_all_messages_are_read_by_the_other_row(root: Context) -> None:
    named = await Named(root).start(all_prompts_llm)
    session = named.session()
    first = first_turn(session, "one")
    await named.model.asked.wait()
    await settle()
    named.model.asked.clear()
    second = write(session, "two")
    request(session, model="m2")
    await named.model.asked.wait()
    await settle()
    latest = titles_of(session)[-1]
    assert latest["messageSeqs"] == [first["seq"], second["seq"]]
    assert latest["source"]["provider"] == "session-title-all-prompts-llm"
    assert latest["source"]["model"]["model"] == "m2"


async def test_the_first_prompt_row_reads_no_more_than_that(named: Named) -> None:
    session = named.session()
    first = first_turn(session, "one")
    write(session, "two")
    await settle()
    made = await named.service.regenerate(session)
    assert made is not None
    assert made["messageSeqs"] == [first["seq"]]


async def test_too_much_to_read_is_not_sent(
    root: Context, caplog: pytest.LogCaptureFixture
) -> None:
    named = await Named(root).start(maxInputBytes=200)
    session = named.session()
    first_turn(session, "ä" * 100)
    await settle()
    assert named.model.calls == []
    assert logged_requests(session) == []
    assert "no more than 200" in caplog.text
    assert titles_of(session)[-1]["source"] == {"kind": "fallback"}


@pytest.mark.parametrize("late", [True, False])
async def test_a_model_that_takes_too_long_is_given_up(late: bool, root: Context) -> None:
    named = await Named(root).start(timeoutMs=20)
    named.model.waits = asyncio.Event()
    if late:
        named.model.chunks = [*spoken("too late")]
    session = named.session()
    first_turn(session, "hello")
    await settle()
    with pytest.raises(TitleTimeout, match=r"0\.02 s") as raised:
        await named.service.regenerate(session)
    assert raised.value.code == "SESSION_TITLE_TIMEOUT"
    named.model.waits.set()
    await settle()
    assert [title["title"] for title in titles_of(session)] == ["hello"]


async def test_a_stream_that_ends_after_the_deadline_is_too_late(
    root: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is whole, but the time was over when it came."""
    import time

    named = await Named(root).start(timeoutMs=1)

    class Slow(Model):
        async def stream(self, options: Any) -> Any:
            time.sleep(0.02)  # noqa: ASYNC251 - so that the timer is over and has not fired
            for chunk in spoken("late"):
                await asyncio.sleep(0)
                yield chunk

    slow = Slow()
    named.root.require("llm").register_adapter(["slow"], slow)
    session = named.session()
    write(session, "hello")
    request(session, provider="slow")
    with pytest.raises(TitleTimeout):
        await named.service.regenerate(session)


CALL: Any = {"type": "tool-call", "id": "c", "name": "t", "arguments": "{}"}
FAILURE: Any = {"message": "overloaded", "code": "SERVER"}


@pytest.mark.parametrize(
    ("chunks", "error", "problem"),
    [
        (spoken("half a na", "max-tokens"), TitleCallFailed, "maxOutputTokens"),
        (spoken("a name", "tool-calls"), TitleCallFailed, "tool-calls"),
        (spoken(" \n "), TitleCallFailed, "without any text"),
        ([finish("stop")], TitleCallFailed, "without any text"),
        (
            [block_start(0, "tool-call"), block_end(0, CALL), finish("tool-calls")],
            TitleCallFailed,
            "called a tool",
        ),
        ([finish_failure(FAILURE)], LlmError, "overloaded"),
        (LlmError("bad key", code="AUTH"), LlmError, "bad key"),
    ],
)
async def test_an_answer_that_is_no_whole_text_is_refused(
    chunks: Any, error: type[Exception], problem: str, named: Named
) -> None:
    session = named.session()
    first_turn(session, "hello")
    await settle()
    before = titles_of(session)
    named.model.chunks = chunks
    with pytest.raises(error, match=problem):
        await named.service.regenerate(session)
    assert titles_of(session) == before


async def test_reasoning_is_no_part_of_a_name(named: Named) -> None:
    thought: Any = {"type": "reasoning", "text": "hm"}
    named.model.chunks = [block_start(0, "reasoning"), block_end(0, thought)]
    named.model.chunks += [
        block_start(1, "text"),
        block_end(1, {"type": "text", "text": "A name"}),
        finish("stop"),
    ]
    session = named.session()
    first_turn(session, "hello")
    await settle()
    assert titles_of(session)[-1]["title"] == "A name"


async def test_the_row_ends_its_call_when_it_unloads(named: Named) -> None:
    named.model.waits = asyncio.Event()
    session = named.session()
    first_turn(session, "hello")
    await named.model.asked.wait()
    await named.row.dispose()
    named.model.waits.set()
    await settle()
    assert [title["title"] for title in titles_of(session)] == ["hello"]


@pytest.mark.parametrize(
    "config",
    [
        {"targetWords": 0},
        {"timeoutMs": 2**31},
        {"provider": "script"},
        {"model": "m1"},
        {"prompt": "mine"},
    ],
)
async def test_a_config_that_does_not_fit_is_refused(config: Any, root: Context) -> None:
    for need in ("session_title", "llm", "sessions"):
        root.provide(need, object())
    with pytest.raises(ValidationError):
        await root.plugin(first_prompt_llm, {**SHIPPED, **config})
    with pytest.raises(ValidationError, match="targetWords"):
        await root.plugin(all_prompts_llm, {})
