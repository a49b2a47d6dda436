"""The DeepSeek adapter against a real HTTP server in another process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from dsh.base.signal import AbortController
from dsh.kernel import Context
from dsh.model.llm import LlmRuntime
from dsh.testing.provider import Provider, start_provider

if TYPE_CHECKING:
    from tests.model.conftest import Model

KEY = "sk-secret-0123456789"
CALLS = [
    {"name": "read", "arguments": {"file_path": "/tmp/a.txt", "note": "größe 🙂"}},
    {"name": "bash", "arguments": {"command": "ls -la"}},
]


def reply(**more: Any) -> dict[str, Any]:
    return {"replies": [more]}


def cases(name: str, values: list[Any]) -> dict[str, Any]:
    """Number some values, so that prompts can name them."""
    return {f"{name} {number}.": value for number, value in enumerate(values)}


DIALECTS = cases(
    "dialect",
    [
        {"quirks": quirks, **more}
        for quirks in (
            ["null_fields"],
            ["empty_fields"],
            ["repeat_fields"],
            ["reuse_index"],
            ["no_index"],
            ["interleave"],
            ["interleave", "null_fields"],
            ["usage_with_finish"],
            ["crlf", "comments"],
            ["no_space", "bom"],
            ["done_without_blank_line"],
            ["crlf", "repeat_fields", "reuse_index", "done_without_blank_line"],
        )
        for more in ({}, {"write_bytes": 7})
    ],
)
STATUSES = cases(
    "status",
    [
        ({"status": 401, "message": "bad key"}, "AUTH", "DEEPSEEK_API_KEY"),
        ({"status": 403}, "AUTH", "403"),
        ({"status": 400, "message": "temperature is too high"}, "INVALID_REQUEST", "temperature"),
        (
            {"status": 400, "message": "This model's maximum context length is 5 tokens"},
            "CONTEXT_WINDOW_EXCEEDED",
            "maximum context",
        ),
        ({"status": 402, "message": "Insufficient Balance"}, "QUOTA", "Insufficient"),
        ({"status": 413}, "INVALID_REQUEST", "413"),
        ({"status": 422, "message": "no such field"}, "HTTP_422", "no such field"),
        ({"status": 429}, "RATE_LIMIT", "429"),
        ({"status": 429, "message": "you exceeded your current quota"}, "QUOTA", "quota"),
        ({"status": 500}, "SERVER", "500"),
        ({"status": 503}, "SERVER", "503"),
        ({"status": 529, "message": "overloaded"}, "SERVER", "overloaded"),
    ],
)
BROKEN = cases(
    "broken",
    [
        ({"reset": True}, "TRANSPORT", ""),
        ({"cut": 0}, "TRANSPORT", ""),
        ({"cut": 2}, "TRANSPORT", "abcd"),
        ({"close": 2}, "STREAM_CLOSED", "abcd"),
        ({"malformed": '{"choices": [', "after": 1}, "MALFORMED_RESPONSE", "ab"),
        ({"error": "overloaded", "code": "503", "after": 1}, "SERVER", "ab"),
        ({"empty": True}, "EMPTY_RESPONSE", ""),
        ({"body": "", "content_type": "text/event-stream"}, "EMPTY_RESPONSE", ""),
        ({"body": "<html>hi</html>", "content_type": "text/html"}, "INVALID_RESPONSE", ""),
        ({"body": '{"error": {"message": "slow down", "code": 429}}'}, "RATE_LIMIT", ""),
        ({"body": '{"id": 1}'}, "INVALID_RESPONSE", ""),
    ],
)


@pytest.fixture(scope="module")
def shared() -> Iterator[Provider]:
    """One provider for all cases that differ only in what the script says."""
    said = {"text": "Größe 🙂", "calls": CALLS, "chunk_size": 3}
    replies = {case: said | quirks for case, quirks in DIALECTS.items()}
    replies |= {case: {"fault": fault} for case, (fault, *_) in STATUSES.items()}
    replies |= {
        case: {"text": "abcdefgh", "chunk_size": 2, "fault": fault}
        for case, (fault, *_) in BROKEN.items()
    }
    plain = {"replies": [{"text": "x", "repeat": 9}]}
    script = [{"when": case, "replies": [entry]} for case, entry in replies.items()]
    with start_provider({"conversations": [*script, plain]}) as provider:
        yield provider


async def test_a_reply_streams_reasoning_text_and_calls_with_usage(model: Model) -> None:
    script = reply(
        reasoning="let me think",
        text="I will look.",
        calls=CALLS,
        chunk_size=5,
        usage={"input": 100, "output": 20, "cache_read": 60, "reasoning": 4},
    )
    with start_provider(script) as provider:
        await model.mount(provider.url)
        got = await model.ask()

    reasoning, text, read, bash = got.assembler.blocks()
    assert reasoning == {"type": "reasoning", "text": "let me think"}
    assert text == {"type": "text", "text": "I will look."}
    assert read["arguments"] == '{"file_path":"/tmp/a.txt","note":"größe 🙂"}'  # type: ignore[typeddict-item]
    assert bash["name"] == "bash"  # type: ignore[typeddict-item]
    assert got.kind == "tool-calls"
    assert got.assembler.usage == {
        "inputTokens": 40,
        "outputTokens": 20,
        "cacheReadTokens": 60,
        "reasoningTokens": 4,
    }
    assert len([chunk for chunk in got.chunks if chunk["type"] == "text-delta"]) == 3


@pytest.mark.parametrize("case", DIALECTS)
async def test_every_dialect_of_the_wire_gives_the_same_reply(
    model: Model, shared: Provider, case: str
) -> None:
    await model.mount(shared.url)
    got = await model.ask(case)

    assert got.failure is None
    blocks: Any = got.assembler.blocks()
    assert [block.get("name", block.get("text")) for block in blocks] == [
        "Größe 🙂",
        "read",
        "bash",
    ]
    assert blocks[1]["arguments"] == '{"file_path":"/tmp/a.txt","note":"größe 🙂"}'
    assert blocks[2]["arguments"] == '{"command":"ls -la"}'
    assert got.assembler.usage is not None


async def test_calls_with_one_id_stay_two_calls(model: Model) -> None:
    with start_provider(reply(calls=CALLS, quirks=["duplicate_ids"])) as provider:
        await model.mount(provider.url)
        got = await model.ask()

    blocks: Any = got.assembler.blocks()
    assert [block["name"] for block in blocks] == ["read", "bash"]
    assert blocks[0]["id"] != blocks[1]["id"]


@pytest.mark.parametrize("case", STATUSES)
async def test_each_http_error_has_its_class_and_names_the_address(
    model: Model, shared: Provider, case: str
) -> None:
    fault, code, says = STATUSES[case]
    await model.mount(shared.url)
    got = await model.ask(case)

    assert got.kind == "error"
    assert got.code == code
    assert got.failure["status"] == fault["status"]
    assert f"{shared.url}/chat/completions" in got.failure["message"]
    assert says in got.failure["message"]
    assert [chunk["type"] for chunk in got.chunks] == ["finish"]


@pytest.mark.parametrize(("header", "delay_ms"), [("7", 7000), ("0", None), ("later", None)])
async def test_the_delay_and_id_that_a_provider_sends_are_kept(
    model: Model, header: str, delay_ms: int | None
) -> None:
    fault = {"status": 429, "retry_after": header, "request_id": "req-1"}
    with start_provider(reply(fault=fault)) as provider:
        await model.mount(provider.url)
        got = await model.ask()

    assert got.failure.get("providerRetryAfterMs") == delay_ms
    assert got.failure["requestId"] == "req-1"


@pytest.mark.parametrize("case", BROKEN)
async def test_each_fault_of_the_stream_has_its_class_and_keeps_the_text_before_it(
    model: Model, shared: Provider, case: str
) -> None:
    _, code, text = BROKEN[case]
    await model.mount(shared.url)
    got = await model.ask(case)

    assert (got.kind, got.code) == ("error", code)
    assert got.text == text
    assert [chunk["type"] for chunk in got.chunks].count("finish") == 1
    if code in ("TRANSPORT", "STREAM_CLOSED", "INVALID_RESPONSE"):
        assert shared.url in got.failure["message"]


async def test_usage_of_a_reply_that_failed_is_still_reported(model: Model) -> None:
    entry = {"text": "x", "finish": "content_filter", "usage": {"input": 9, "output": 1}}
    with start_provider(reply(**entry)) as provider:
        await model.mount(provider.url)
        got = await model.ask()

    assert got.code == "CONTENT_FILTER"
    assert got.assembler.usage == {"inputTokens": 9, "outputTokens": 1}


async def test_a_reply_at_its_limit_loses_its_calls(model: Model) -> None:
    with start_provider(reply(text="I", calls=CALLS, finish="length")) as provider:
        await model.mount(provider.url)
        got = await model.ask()

    assert got.kind == "max-tokens"
    assert got.assembler.blocks() == [{"type": "text", "text": "I"}]


async def test_a_silent_stream_times_out_and_says_how_long_it_waited(model: Model) -> None:
    entry = {"text": "abcd", "chunk_size": 2, "fault": {"stall": 1}}
    with start_provider(reply(**entry)) as provider:
        await model.mount(provider.url, {"streamIdleTimeoutMs": 80})
        got = await model.ask()

    assert (got.kind, got.code, got.text) == ("error", "TIMEOUT", "ab")
    assert "0.08 s" in got.failure["message"]


async def test_silence_before_the_answer_times_out_too(model: Model) -> None:
    with start_provider(reply(text="x", first_delay_ms=60_000)) as provider:
        await model.mount(provider.url, {"streamIdleTimeoutMs": 80})
        got = await model.ask()

    assert got.code == "TIMEOUT"


async def test_comments_keep_a_silent_stream_alive(model: Model) -> None:
    with start_provider(reply(text="x", first_delay_ms=600, comment_ms=20)) as provider:
        await model.mount(provider.url, {"streamIdleTimeoutMs": 300})
        got = await model.ask()

    assert got.failure is None
    assert got.text == "x"


async def test_a_slow_consumer_is_not_taken_for_a_silent_provider(model: Model) -> None:
    with start_provider(reply(text="abcdef", chunk_size=1)) as provider:
        await model.mount(provider.url, {"streamIdleTimeoutMs": 100})
        text = ""
        async with aclosing(model.root.require(LlmRuntime).stream(model.options())) as stream:
            async for chunk in stream:
                if chunk["type"] == "text-delta":
                    text += chunk["text"]
                    await asyncio.sleep(0.15 if text == "a" else 0)
                assert chunk["type"] != "finish" or chunk["reason"] == {"kind": "stop"}

    assert text == "abcdef"


async def test_an_abort_in_midstream_ends_the_call_at_once_as_aborted(model: Model) -> None:
    controller = AbortController()
    entry = {"text": "abcd", "chunk_size": 2, "fault": {"stall": 1}}

    def abort_at_text(chunk: Any) -> None:
        if chunk["type"] == "text-delta":
            asyncio.get_running_loop().call_soon(controller.abort, "enough")

    with start_provider(reply(**entry)) as provider:
        await model.mount(provider.url)
        got = await model.ask(on_chunk=abort_at_text, signal=controller.signal)

    assert (got.kind, got.code, got.text) == ("aborted", "ABORTED", "ab")
    assert "enough" in got.failure["message"]


async def test_an_abort_while_waiting_for_the_answer_ends_the_call(model: Model) -> None:
    controller = AbortController()
    with start_provider(reply(text="x", first_delay_ms=60_000)) as provider:
        await model.mount(provider.url)
        asyncio.get_running_loop().call_later(0.05, controller.abort)
        got = await model.ask(signal=controller.signal)

    assert (got.kind, got.code) == ("aborted", "ABORTED")


async def test_a_call_that_is_aborted_before_it_starts_sends_nothing(model: Model) -> None:
    controller = AbortController()
    controller.abort()
    with start_provider(reply(text="x")) as provider:
        await model.mount(provider.url)
        got = await model.ask(signal=controller.signal)
        sent = provider.requests()

    assert (got.kind, got.code) == ("aborted", "ABORTED")
    assert sent == []


async def test_a_cancelled_consumer_is_cancelled_and_not_told_a_failure(model: Model) -> None:
    first = asyncio.Event()
    entry = {"text": "abcd", "chunk_size": 2, "fault": {"stall": 1}}
    with start_provider(reply(**entry)) as provider:
        await model.mount(provider.url)
        task = asyncio.create_task(model.ask(on_chunk=lambda chunk: first.set()))
        await first.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_consumer_that_stops_early_ends_the_request(model: Model) -> None:
    entry = {"text": "abcd", "chunk_size": 2, "fault": {"stall": 1}}
    with start_provider({"replies": [entry, {"text": "next"}]}) as provider:
        await model.mount(provider.url)
        async with aclosing(model.root.require(LlmRuntime).stream(model.options())) as stream:
            async for _ in stream:
                break
        assert (await model.ask()).text == "next"


async def test_an_unreachable_host_is_named_with_what_named_it(model: Model) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        await model.mount(url)
        got = await model.ask()

    assert got.code == "TRANSPORT"
    assert f"{url}/chat/completions" in got.failure["message"]
    assert "DEEPSEEK_BASE_URL" in got.failure["message"]


async def test_a_wrong_path_is_named_and_explained(model: Model) -> None:
    with start_provider(reply(text="x")) as provider:
        await model.mount(f"{provider.url}/wrong/path/")
        got = await model.ask()

    assert got.code == "HTTP_404"
    message = got.failure["message"]
    assert f"{provider.url}/wrong/path/chat/completions" in message
    assert "base URL" in message
    assert "DEEPSEEK_BASE_URL" in message


async def test_a_wrong_model_is_named(model: Model) -> None:
    script = {"models": ["deepseek-v4-flash"], **reply(text="x")}
    with start_provider(script) as provider:
        await model.mount(provider.url)
        got = await model.ask(model="deepseek-v9")

    assert got.code == "INVALID_REQUEST"
    assert "'deepseek-v9'" in got.failure["message"]


@pytest.mark.parametrize("url", ["localhost:80", "ftp://x/y", "http://", "http://[::1", "nonsense"])
async def test_an_address_that_is_none_is_refused_before_anything_is_sent(
    model: Model, url: str
) -> None:
    await model.mount(url)
    got = await model.ask()
    assert got.code == "INVALID_REQUEST"
    assert "DEEPSEEK_BASE_URL" in got.failure["message"]


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/", "/v1/chat/completions"])
async def test_the_base_url_may_end_in_any_usual_way(
    model: Model, shared: Provider, suffix: str
) -> None:
    await model.mount(shared.url + suffix)
    assert (await model.ask()).text == "x"


async def test_the_key_is_sent_and_never_shown(model: Model) -> None:
    fault = {"status": 401, "message": f"no such key: {KEY}"}
    script = {"api_key": KEY, "replies": [{"fault": fault}, {"text": "x"}]}
    with start_provider(script) as provider:
        await model.mount(provider.url.replace("http://", f"http://user:{KEY}@"))
        got = await model.ask()
        assert KEY not in repr(got.chunks)
        assert (await model.ask()).text == "x"
        assert KEY not in repr(provider.requests())


async def test_a_key_that_is_wrong_is_told_by_the_name_of_its_variable(model: Model) -> None:
    with start_provider({"api_key": "another", **reply(text="x")}) as provider:
        await model.mount(provider.url, {"apiKeyEnv": "GATEWAY_KEY"})
        missing = await model.ask()
        model.environment.values["GATEWAY_KEY"] = "cle-é"
        unusable = await model.ask()
        model.environment.values["GATEWAY_KEY"] = KEY
        wrong = await model.ask()

    assert (missing.code, unusable.code, wrong.code) == (
        "MISSING_CREDENTIAL",
        "INVALID_CREDENTIAL",
        "AUTH",
    )
    for got in (missing, unusable, wrong):
        assert "GATEWAY_KEY" in got.failure["message"]
        assert "cle-é" not in got.failure["message"]


async def test_a_foreign_endpoint_gets_no_ids_and_no_field_that_nobody_set(model: Model) -> None:
    with start_provider(reply(text="x")) as provider:
        await model.mount(provider.url)
        info = await model.root.require(LlmRuntime).prepare_call(
            {"provider": "deepseek-official", "model": "m"}
        )
        await model.ask(session_id="s-1", purpose="compaction")
        (request,) = provider.requests()

    assert info.adapter_defaults == {}
    assert set(request["body"]) == {"model", "messages", "stream", "stream_options"}
    assert not [name for name in request["headers"] if name.startswith("x-")]
    assert request["headers"]["user-agent"].startswith("dsh/")


async def test_connections_are_used_again_and_closed_with_the_plugin(
    model: Model, root: Context
) -> None:
    with start_provider({"replies": [{"text": "x", "repeat": 3}]}) as provider:
        await model.mount(provider.url)
        for _ in range(3):
            assert (await model.ask()).text == "x"
        connections = {request["connection"] for request in provider.requests()}
        await root.dispose()

    assert connections == {1}


async def test_an_abort_between_two_reads_is_no_cancellation_of_the_consumer(model: Model) -> None:
    controller = AbortController()
    entry = {"text": "abcdefgh", "chunk_size": 1, "write_bytes": 40}

    with start_provider(reply(**entry)) as provider:
        await model.mount(provider.url)
        kinds = []
        options = model.options(signal=controller.signal)
        async with aclosing(model.root.require(LlmRuntime).stream(options)) as stream:
            async for chunk in stream:
                kinds.append(chunk["reason"]["kind"] if chunk["type"] == "finish" else "")
                controller.abort()
                await asyncio.sleep(0.05)

    assert kinds[-1] == "aborted"
