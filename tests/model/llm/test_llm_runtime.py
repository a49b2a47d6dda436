from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any

import pytest

from dsh.base.json import FrozenDict, FrozenList
from dsh.base.signal import AbortController, AbortedError, AbortSignal
from dsh.kernel import Context, ValidationError
from dsh.model.chunks import StreamChunk, block_end, block_start, finish, text_delta
from dsh.model.failures import LlmError
from dsh.model.llm import (
    LLM_ADAPTERS_UPDATED,
    LLM_STREAM,
    AdapterCall,
    GenerateOptions,
    LlmAdapter,
    LlmModelInfo,
    LlmProviderInfo,
    LlmRuntime,
    LlmStream,
    NormalRetry,
    ReasoningEffort,
    ReasoningInfo,
    ResolvedModelInfo,
    RetryPolicy,
    call_config_of,
    is_loop_built,
    mark_loop_built,
)
from dsh.model.llm.grammar import GrammarViolation
from dsh.model.llm.runtime import plugin as runtime_plugin
from dsh.model.messages import create_assistant_message, create_user_message

HELLO: tuple[StreamChunk, ...] = (
    block_start(0, "text"),
    text_delta(0, "hello"),
    block_end(0, {"type": "text", "text": "hello"}),
    finish("stop"),
)
EFFORTS = ReasoningInfo((ReasoningEffort("low", "Low"), ReasoningEffort("high", "High")), "high")


class Fake(LlmAdapter):
    """An adapter whose chunks, facts and failures a test chooses."""

    def __init__(self, *chunks: StreamChunk, **facts: Any) -> None:
        self.chunks = chunks or HELLO
        self.facts = facts
        self.error: BaseException | None = None
        self.error_at = 0
        self.requests: list[GenerateOptions] = []
        self.closed = 0
        self.policy: RetryPolicy | None = NormalRetry()
        self.models: Sequence[LlmModelInfo] = ()
        self.name = "Fake"

    def provider_info(self, provider: str) -> LlmProviderInfo:
        return LlmProviderInfo(self.facts.get("id", provider), self.name)

    def retry_policy(self, provider: str) -> RetryPolicy | None:
        return self.policy

    async def list_models(self, provider: str) -> Sequence[LlmModelInfo]:
        return self.models

    async def resolve_model(
        self, provider: str, model: str, signal: AbortSignal | None = None
    ) -> ResolvedModelInfo:
        facts = {key: value for key, value in self.facts.items() if key != "id"}
        return ResolvedModelInfo(**{"provider": provider, "id": model, "name": model, **facts})

    async def stream(self, options: GenerateOptions) -> AsyncIterator[StreamChunk]:
        self.requests.append(options)
        try:
            for number, chunk in enumerate(self.chunks):
                if self.error is not None and number == self.error_at:
                    raise self.error
                yield chunk
        finally:
            self.closed += 1


@pytest.fixture
async def llm(root: Context) -> LlmRuntime:
    await root.plugin(runtime_plugin)
    return root.require(LlmRuntime)


def request(provider: str = "fake", model: str = "m", **more: Any) -> GenerateOptions:
    return GenerateOptions(provider, model, more.pop("messages", ()), **more)


async def collect(stream: Any) -> list[Any]:
    async with aclosing(stream):
        return [chunk async for chunk in stream]


def code_of(chunks: list[Any]) -> str:
    (last,) = [chunk for chunk in chunks if chunk["type"] == "finish"]
    assert last is chunks[-1]
    return str(last["reason"]["failure"]["code"])


@contextmanager
def raised(code: str) -> Iterator[None]:
    with pytest.raises(LlmError) as caught:
        yield
    assert caught.value.code == code


async def test_a_call_streams_what_the_adapter_says(llm: LlmRuntime) -> None:
    fake = Fake()
    llm.register_adapter(["fake"], fake)
    assert await collect(llm.stream(request())) == list(HELLO)
    assert fake.closed == 1


async def test_nothing_happens_before_the_first_chunk_is_asked_for(llm: LlmRuntime) -> None:
    fake = Fake()
    llm.register_adapter(["fake"], fake)
    stream = llm.stream(request())
    assert fake.requests == []
    await stream.aclose()
    assert await collect(stream) == []


# registration


@pytest.mark.parametrize(
    ("providers", "code"),
    [
        ([], "INVALID_ADAPTER"),
        ([""], "INVALID_ADAPTER"),
        (["new", "taken"], "DUPLICATE_ADAPTER"),
        (["new", "new"], "DUPLICATE_ADAPTER"),
    ],
)
async def test_a_registration_is_all_or_nothing(
    llm: LlmRuntime, providers: list[str], code: str
) -> None:
    llm.register_adapter(["taken"], Fake())
    with raised(code):
        llm.register_adapter(providers, Fake())
    assert [info.id for info in llm.providers()] == ["taken"]


@pytest.mark.parametrize(("id", "name"), [("other", "Fake"), ("fake", "")])
async def test_an_adapter_that_describes_itself_wrongly_is_refused(
    llm: LlmRuntime, id: str, name: str
) -> None:
    fake = Fake(id=id)
    fake.name = name
    with raised("INVALID_ADAPTER"):
        llm.register_adapter(["fake"], fake)


async def test_routes_go_with_the_plugin_that_registered_them(
    root: Context, llm: LlmRuntime
) -> None:
    def body(ctx: Context) -> None:
        ctx.llm.register_adapter(["fake", "fake2"], Fake())

    fiber = await root.inject(["llm"], body)
    assert [info.id for info in llm.providers()] == ["fake", "fake2"]

    await fiber.dispose()

    assert llm.providers() == []
    assert code_of(await collect(llm.stream(request()))) == "NO_ADAPTER"


async def test_replace_swaps_all_routes_at_once_and_tells_once(
    root: Context, llm: LlmRuntime
) -> None:
    registration = llm.register_adapter(["a", "b"], Fake())
    llm.register_adapter(["x"], Fake())
    seen: list[list[str]] = []
    root.on(LLM_ADAPTERS_UPDATED, lambda _: seen.append([info.id for info in llm.providers()]))

    registration.replace(["b", "c"])
    with raised("DUPLICATE_ADAPTER"):
        registration.replace(["d", "x"])
    registration.replace([])

    assert seen == [["b", "x", "c"], ["x"]]


async def test_a_disposed_registration_cannot_be_replaced(llm: LlmRuntime) -> None:
    registration = llm.register_adapter(["a"], Fake())
    await registration.dispose()
    await registration.dispose()
    assert llm.providers() == []
    with raised("REGISTRATION_DISPOSED"):
        registration.replace(["a"])


async def test_a_failing_listener_does_not_stop_a_registration(
    root: Context, llm: LlmRuntime
) -> None:
    reports: list[str] = []
    root.set_reporter(lambda error, *rest: reports.append(str(error)))

    def fail(_: object) -> None:
        raise RuntimeError("listener broke")

    root.on(LLM_ADAPTERS_UPDATED, fail)
    llm.register_adapter(["a"], Fake())

    assert [info.id for info in llm.providers()] == ["a"]
    assert reports == ["listener broke"]


async def test_the_retry_policy_is_captured_when_the_route_is_registered(llm: LlmRuntime) -> None:
    fake = Fake()
    fake.policy = NormalRetry(max_retries=1)
    registration = llm.register_adapter(["fake"], fake)
    prepared = await llm.prepare_call({"provider": "fake", "model": "m"})

    fake.policy = NormalRetry(max_retries=9)
    assert llm.provider_retry_policy("fake") == NormalRetry(max_retries=1)
    registration.replace(["fake"])

    assert llm.provider_retry_policy("fake") == NormalRetry(max_retries=9)
    assert prepared.retry_policy == NormalRetry(max_retries=1)


async def test_an_unknown_provider_is_named_with_the_nearest_one(llm: LlmRuntime) -> None:
    llm.register_adapter(["deepseek-official"], Fake())
    with pytest.raises(LlmError, match=r"deepseek-oficial.*did you mean 'deepseek-official'"):
        await llm.prepare_call({"provider": "deepseek-oficial", "model": "m"})


# models


async def test_listed_models_are_checked(llm: LlmRuntime) -> None:
    fake = Fake()
    llm.register_adapter(["fake"], fake)
    fake.models = [LlmModelInfo("fake", "a", "A"), LlmModelInfo("fake", "b", "B")]
    assert [entry.id for entry in await llm.list_models("fake")] == ["a", "b"]
    fake.models = [LlmModelInfo("fake", "a", "A"), LlmModelInfo("fake", "a", "B")]
    with raised("INVALID_CATALOG"):
        await llm.list_models("fake")
    fake.models = [LlmModelInfo("other", "a", "A")]
    with raised("INVALID_CATALOG"):
        await llm.list_models("fake")


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ({"id": "x", "provider": "y"}, "INVALID_MODEL_INFO"),
        ({"name": ""}, "INVALID_MODEL_INFO"),
        ({"context_window": 0}, "INVALID_MODEL_CONTEXT"),
        ({"context_window": 1.5}, "INVALID_MODEL_CONTEXT"),
        ({"default_max_tokens": -1}, "INVALID_MODEL_MAX_TOKENS"),
        ({"reasoning": ReasoningInfo(())}, "INVALID_MODEL_REASONING"),
        (
            {"reasoning": ReasoningInfo((ReasoningEffort("a", "A"),), "b")},
            "INVALID_MODEL_REASONING",
        ),
    ],
)
async def test_what_an_adapter_says_of_a_model_is_checked(
    llm: LlmRuntime, facts: dict[str, Any], code: str
) -> None:
    facts.pop("id", None)
    llm.register_adapter(["fake"], Fake(**facts))
    with raised(code):
        await llm.resolve_model_info("fake", "m")


async def test_defaults_fill_only_what_is_absent_and_are_told(llm: LlmRuntime) -> None:
    llm.register_adapter(["fake"], Fake(default_max_tokens=99, reasoning=EFFORTS))

    filled = await llm.prepare_call({"provider": "fake", "model": "m"})
    given = await llm.prepare_call(
        {"provider": "fake", "model": "m", "maxTokens": 5, "reasoningEffort": "low"}
    )

    assert filled.config == {
        "provider": "fake",
        "model": "m",
        "maxTokens": 99,
        "reasoningEffort": "high",
    }
    assert filled.adapter_defaults == {"maxTokens": True, "reasoningEffort": True}
    assert given.config["maxTokens"] == 5
    assert given.adapter_defaults == {}
    assert await llm.resolve_call_config({"provider": "fake", "model": "m"}) == filled.config


async def test_an_effort_that_is_not_offered_is_refused_and_never_changed(llm: LlmRuntime) -> None:
    llm.register_adapter(["thinks"], Fake(reasoning=EFFORTS))
    llm.register_adapter(["plain"], Fake())
    for provider in ("thinks", "plain"):
        with raised("UNSUPPORTED_REASONING_EFFORT"):
            await llm.prepare_call({"provider": provider, "model": "m", "reasoningEffort": "max"})


# prepared calls


async def test_a_prepared_call_is_streamed_once_and_as_it_was_prepared(llm: LlmRuntime) -> None:
    llm.register_adapter(["fake"], Fake(default_max_tokens=9))
    prepared = await llm.prepare_call({"provider": "fake", "model": "m"})

    with raised("INVALID_PREPARED_CALL"):
        prepared.stream(request())
    assert await collect(prepared.stream(request(max_tokens=9))) == list(HELLO)
    with raised("INVALID_PREPARED_CALL"):
        prepared.stream(request(max_tokens=9))


async def test_a_prepared_call_outlives_the_registration_it_came_from(llm: LlmRuntime) -> None:
    first = Fake()
    registration = llm.register_adapter(["fake"], first)
    prepared = await llm.prepare_call({"provider": "fake", "model": "m"})
    await registration.dispose()
    llm.register_adapter(["fake"], Fake(finish("max-tokens")))

    assert await collect(prepared.stream(request())) == list(HELLO)
    assert len(first.requests) == 1


async def test_an_adapter_may_pin_a_generation_of_its_own(llm: LlmRuntime) -> None:
    class Dynamic(Fake):
        async def prepare_call(
            self, provider: str, model: str, signal: AbortSignal | None = None
        ) -> AdapterCall:
            info = await self.resolve_model(provider, model, signal)
            return AdapterCall(info, Fake(finish("max-tokens")).stream)

    llm.register_adapter(["fake"], Dynamic())
    prepared = await llm.prepare_call({"provider": "fake", "model": "m"})
    assert await collect(prepared.stream(request())) == [finish("max-tokens")]


def test_call_config_leaves_out_what_is_absent() -> None:
    assert call_config_of(request()) == {"provider": "fake", "model": "m"}
    assert call_config_of(request(temperature=0.0, stop=("a",))) == {
        "provider": "fake",
        "model": "m",
        "temperature": 0.0,
        "stop": ["a"],
    }


# failures


@pytest.mark.parametrize("error_at", [0, 1, 3])
async def test_a_failure_of_the_adapter_is_one_finish_at_the_end(
    llm: LlmRuntime, error_at: int
) -> None:
    fake = Fake()
    fake.error, fake.error_at = LlmError("slow", code="TIMEOUT"), error_at
    llm.register_adapter(["fake"], fake)

    chunks = await collect(llm.stream(request()))

    assert chunks[:-1] == list(HELLO[:error_at])
    assert chunks[-1]["reason"] == {
        "kind": "error",
        "failure": {"message": "slow", "code": "TIMEOUT"},
    }
    assert fake.closed == 1


async def test_a_stream_without_a_finish_gets_one(llm: LlmRuntime) -> None:
    llm.register_adapter(["fake"], Fake(*HELLO[:-1]))
    assert code_of(await collect(llm.stream(request()))) == "STREAM_CLOSED"


async def test_nothing_comes_after_the_finish(llm: LlmRuntime) -> None:
    llm.register_adapter(["fake"], Fake(*HELLO, text_delta(0, "more"), finish("stop")))
    assert await collect(llm.stream(request())) == list(HELLO)


async def test_a_failure_after_an_abort_counts_as_aborted(llm: LlmRuntime) -> None:
    controller = AbortController()
    fake = Fake()
    fake.error, fake.error_at = OSError("reset"), 2
    llm.register_adapter(["fake"], fake)
    kinds = []
    async with aclosing(llm.stream(request(signal=controller.signal))) as stream:
        async for chunk in stream:
            controller.abort()
            kinds.append(chunk["reason"]["kind"] if chunk["type"] == "finish" else "")
    assert kinds == ["", "", "aborted"]


async def test_an_aborted_error_counts_as_aborted_without_a_signal(llm: LlmRuntime) -> None:
    fake = Fake()
    fake.error = AbortedError("stop")
    llm.register_adapter(["fake"], fake)
    (last,) = await collect(llm.stream(request()))
    assert last["reason"]["kind"] == "aborted"


async def test_a_consumer_that_stops_early_closes_the_adapter(llm: LlmRuntime) -> None:
    fake = Fake()
    llm.register_adapter(["fake"], fake)
    async with aclosing(llm.stream(request())) as stream:
        async for _ in stream:
            break
        assert fake.closed == 0
    assert fake.closed == 1


async def test_an_exception_of_the_consumer_stays_one(llm: LlmRuntime) -> None:
    fake = Fake()
    llm.register_adapter(["fake"], fake)

    async def consume() -> None:
        async with aclosing(llm.stream(request())) as stream:
            async for _ in stream:
                raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        await consume()
    assert fake.closed == 1


async def test_cancellation_of_the_caller_passes_through(llm: LlmRuntime) -> None:
    waiting = asyncio.Event()

    class Waits(Fake):
        async def stream(self, options: GenerateOptions) -> AsyncIterator[StreamChunk]:
            waiting.set()
            await asyncio.Event().wait()
            yield HELLO[0]

    llm.register_adapter(["fake"], Waits())
    task = asyncio.create_task(collect(llm.stream(request())))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# listeners


async def test_a_listener_may_wrap_the_stream(root: Context, llm: LlmRuntime) -> None:
    llm.register_adapter(["fake"], Fake())

    async def shout(event: LlmStream, next: Callable[[], Any]) -> Any:
        source = await next()

        async def louder() -> AsyncIterator[Any]:
            async with aclosing(source):
                async for chunk in source:
                    is_text = chunk["type"] == "text-delta"
                    yield text_delta(0, chunk["text"].upper()) if is_text else chunk

        return louder()

    root.on(LLM_STREAM, shout)
    chunks = await collect(llm.stream(request()))
    assert chunks[1] == text_delta(0, "HELLO")


async def test_a_listener_may_answer_for_a_provider_that_nobody_serves(
    root: Context, llm: LlmRuntime
) -> None:
    async def answer(event: LlmStream, next: Callable[[], Any]) -> Any:
        return Fake().stream(event.options)

    root.on(LLM_STREAM, answer)
    assert await collect(llm.stream(request("nobody"))) == list(HELLO)


async def test_a_listener_may_send_a_one_shot_request_elsewhere(
    root: Context, llm: LlmRuntime
) -> None:
    there = Fake()
    llm.register_adapter(["there"], there)

    async def reroute(event: LlmStream, next: Callable[[], Any]) -> Any:
        event.options = request("there", "other")
        return await next()

    root.on(LLM_STREAM, reroute)
    assert await collect(llm.stream(request("nobody"))) == list(HELLO)
    assert there.requests[0].model == "other"


async def test_a_listener_may_not_change_a_request_that_is_logged(
    root: Context, llm: LlmRuntime
) -> None:
    llm.register_adapter(["fake"], Fake())

    async def reroute(event: LlmStream, next: Callable[[], Any]) -> Any:
        event.options = request("fake", "other")
        return await next()

    root.on(LLM_STREAM, reroute)
    prepared = await llm.prepare_call({"provider": "fake", "model": "m"})
    with raised("INVALID_PREPARED_CALL"):
        await collect(prepared.stream(request()))
    with raised("INVALID_PREPARED_CALL"):
        await collect(llm.stream(mark_loop_built(request())))


async def test_an_exception_of_a_listener_is_raised(root: Context, llm: LlmRuntime) -> None:
    llm.register_adapter(["fake"], Fake())

    async def fail(event: LlmStream, next: Callable[[], Any]) -> Any:
        raise RuntimeError("listener broke")

    root.on(LLM_STREAM, fail)
    with pytest.raises(RuntimeError, match="listener broke"):
        await collect(llm.stream(request()))


def test_requests_of_the_loop_are_known_by_identity() -> None:
    built, copy = request(), request()
    assert mark_loop_built(built) is built
    assert is_loop_built(built)
    assert not is_loop_built(copy)


# the last boundary


async def test_replay_state_of_other_adapters_is_taken_out_and_the_rest_stays(
    llm: LlmRuntime,
) -> None:
    fake, other = Fake(), Fake()
    llm.register_adapter(["fake", "alias"], fake)
    llm.register_adapter(["other"], other)
    state: Any = {"response": {"id": 1}}
    messages = FrozenList(
        create_assistant_message([], provider, "m", state)
        for provider in ("fake", "alias", "other", "gone")
    )

    await collect(llm.stream(request(messages=messages)))

    (sent,) = fake.requests
    assert ["replayState" in message["source"] for message in sent.messages] == [
        True,
        True,
        False,
        False,
    ]
    assert sent.messages[0] is messages[0]
    stripped = sent.messages[2]
    assert stripped["id"] == messages[2]["id"]
    assert stripped["source"] == {"kind": "model", "provider": "other", "model": "m"}
    assert type(stripped) is FrozenDict
    assert type(stripped["source"]) is FrozenDict
    assert messages[2]["source"]["replayState"] == state


async def test_a_conversation_without_anything_to_take_out_is_passed_as_it_is(
    llm: LlmRuntime,
) -> None:
    fake = Fake()
    llm.register_adapter(["fake"], fake)
    options = request(messages=FrozenList([create_user_message("hi")]))
    await collect(llm.stream(options))
    assert fake.requests == [options]


@pytest.mark.parametrize("prepared", [True, False])
async def test_images_become_text_for_a_model_that_reads_text_only(
    llm: LlmRuntime, prepared: bool
) -> None:
    image = {"type": "image", "attachment": {"attachmentId": "sha256:0123456789abcdef"}}
    blocks: Any = [image, {"type": "tool-result", "toolCallId": "c", "content": [image]}]
    fake = Fake(input_modalities=("text",))
    llm.register_adapter(["fake"], fake)
    options = request(messages=[create_user_message(blocks)])

    if prepared:
        call = await llm.prepare_call({"provider": "fake", "model": "m"})
        await collect(call.stream(options))
    else:
        await collect(llm.stream(options))

    top, result = fake.requests[0].messages[0]["content"]
    assert top["type"] == "text"
    assert "01234567" in top["text"]  # type: ignore[typeddict-item]
    assert result["content"] == [top]  # type: ignore[typeddict-item]


async def test_images_stay_for_a_model_that_reads_them(llm: LlmRuntime) -> None:
    image: Any = {"type": "image", "attachment": {"attachmentId": "sha256:00"}}
    fake = Fake(input_modalities=("text", "image"))
    llm.register_adapter(["fake"], fake)
    options = request(messages=[create_user_message([image])])
    await collect(llm.stream(options))
    assert fake.requests == [options]


# the grammar check


@pytest.mark.parametrize(
    ("chunks", "problem"),
    [
        ([text_delta(0, "x"), finish("stop")], "without an open block"),
        ([block_start(0, "text"), block_start(0, "text")], "starts a block twice"),
        ([block_start(-1, "text")], "natural number"),
        ([block_start(0, "text"), block_end(0, {"type": "reasoning", "text": ""})], "not open"),
        ([block_start(0, "text"), finish("stop")], "open blocks"),
        ([{"type": "usage", "usage": {}}, {"type": "usage", "usage": {}}], "usage twice"),
        ([{"type": "sparkle"}], "unknown type"),
    ],
)
async def test_the_grammar_can_be_enforced(root: Context, chunks: list[Any], problem: str) -> None:
    await root.plugin(runtime_plugin, {"checkGrammar": True})
    llm = root.require(LlmRuntime)
    llm.register_adapter(["fake"], Fake(*chunks))
    with pytest.raises(GrammarViolation, match=problem):
        await collect(llm.stream(request()))


async def test_a_failure_may_leave_blocks_open(root: Context) -> None:
    await root.plugin(runtime_plugin, {"checkGrammar": True})
    llm = root.require(LlmRuntime)
    fake = Fake()
    fake.error, fake.error_at = OSError("gone"), 2
    llm.register_adapter(["fake"], fake)
    assert code_of(await collect(llm.stream(request()))) == "UNKNOWN"


async def test_a_cancellation_inside_the_adapter_is_its_failure(llm: LlmRuntime) -> None:
    fake = Fake()
    fake.error = asyncio.CancelledError()
    llm.register_adapter(["fake"], fake)
    assert code_of(await collect(llm.stream(request()))) == "UNKNOWN"


async def test_a_call_that_could_not_begin_is_not_made_again(
    llm: LlmRuntime, root: Context
) -> None:
    asked: list[LlmStream] = []

    def fail(payload: LlmStream, next: Any) -> Any:
        asked.append(payload)
        raise RuntimeError("listener")

    root.on(LLM_STREAM, fail)
    stream = llm.stream(request())
    with pytest.raises(RuntimeError, match="listener"):
        await anext(stream)  # type: ignore[arg-type]
    with pytest.raises(StopAsyncIteration):
        await anext(stream)  # type: ignore[arg-type]
    assert len(asked) == 1


def test_importing_the_runtime_does_not_import_pydantic() -> None:
    code = "import sys, dsh.model.llm.runtime; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_a_wrong_setting_of_the_runtime_is_refused(root: Context) -> None:
    with pytest.raises(ValidationError, match="checkGramar"):
        await root.plugin(runtime_plugin, {"checkGramar": True})
