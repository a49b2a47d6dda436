"""No part of the key comes out of the adapter, whatever a server does with it."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import pytest
from byte_server import Server, answer, serving

from dsh.model.adapters.deepseek.endpoint import Credential, resolve_endpoint
from dsh.model.adapters.deepseek.errors import final_error
from dsh.model.adapters.deepseek.exchange import Call
from dsh.model.failures import LlmError

if TYPE_CHECKING:
    from tests.model.conftest import Model

KEY = "sk-secret-0123456789"
K = KEY.encode()
HERE = resolve_endpoint("http://127.0.0.1:9", "X")
EVENTS = b"Content-Type: text/event-stream"


def refusal(status: int, body: bytes, *headers: bytes) -> bytes:
    return b"\r\n".join([b"HTTP/1.1 %d X" % status, *headers, b"", body])


def events(*data: bytes) -> bytes:
    body = b"".join(b"data: %b\n\n" % item for item in data)
    return answer(body, EVENTS)


ECHOES = {
    "error body": refusal(401, b'{"error": {"message": "no such key: %b"}}' % K),
    "error body in upper case": refusal(400, b"KEY %b" % K.upper()),
    "error body that is cut inside the key": refusal(400, b"x" * 390 + b" " + K),
    "error body that is read up to inside the key": refusal(400, b" " * (64 * 1024 - 10) + K),
    "plain body": refusal(500, b"trace: Authorization: Bearer %b" % K),
    "request id": refusal(429, b"slow", b"X-Request-Id: %b" % K),
    "redirect": refusal(302, b"", b"Location: http://x/%b?k=%b" % (K, K)),
    "content type": answer(b"x", b"Content-Type: text/%b" % K),
    "content coding": answer(b"x", EVENTS, b"Content-Encoding: %b" % K),
    "status line": K + b"\r\n\r\n",
    "status line that is cut inside the key": b"x" * 50 + K + b"\r\n\r\n",
    "header": refusal(200, b"", K),
    "length": answer(b"x", b"Content-Length: %b" % K),
    "transfer coding": answer(b"x", b"Transfer-Encoding: %b" % K),
    "chunk size": answer(K + b"\r\n", EVENTS, b"Transfer-Encoding: chunked"),
    "error event": events(b'{"error": {"message": "bad %b"}}' % K),
    "error event that is cut inside the key": events(
        b'{"error": {"message": "%b %b"}}' % (b"y" * 490, K)
    ),
    "error in json": answer(b'{"error": "%b"}' % K, b"Content-Type: application/json"),
    "malformed event": events(b'{"x": "%b' % K),
    "malformed event that is cut inside the key": events(b"z" * 110 + K),
    "unexpected field": events(b'{"choices": "%b"}' % K),
    "field of a call": events(
        b'{"choices":[{"delta":{"tool_calls":[{"index":0,"function":"%b"}]}}]}' % K
    ),
    "finish reason": events(b'{"choices":[{"delta":{},"finish_reason":"%b"}]}' % K, b"[DONE]"),
}


@pytest.mark.parametrize("place", ECHOES)
async def test_a_server_that_echoes_the_key_does_not_get_it_into_a_failure(
    model: Model, place: str
) -> None:
    async with serving(Server(ECHOES[place], close=True)) as url:
        await model.mount(url.removesuffix("/x?q=1"))
        got = await model.ask()
    assert got.kind == "error"
    assert KEY[:10].lower() not in repr(got.chunks).lower()


@pytest.mark.parametrize("place", ["error body", "status line", "malformed event", "error event"])
async def test_nor_into_the_exception_or_what_stands_behind_it(model: Model, place: str) -> None:
    raised: list[BaseException] = []
    adapter: Any = None
    async with serving(Server(ECHOES[place], close=True)) as url:
        await model.mount(url.removesuffix("/x?q=1"))
        adapter = model.root.require("llm")._routes["deepseek-official"].adapter  # type: ignore[attr-defined]
        try:
            async for _ in adapter.stream(model.options()):
                pass
        except LlmError as error:
            raised.append(error)
            shown = "".join(traceback.format_exception(error))
    (error,) = raised
    assert error.__cause__ is None
    assert error.__context__ is None
    assert KEY[:10] not in shown + repr(error)


def test_a_failure_keeps_its_facts_when_the_key_is_taken_out() -> None:
    credential = Credential(KEY, "DEEPSEEK_API_KEY")
    error = LlmError(f"a {KEY}, b", code="SERVER", status=503, retry_after_ms=5, request_id="r")
    assert final_error(error, HERE, credential).failure == {
        "message": f"a [key], b (from {HERE.shown})",
        "code": "SERVER",
        "status": 503,
        "providerRetryAfterMs": 5,
        "requestId": "r",
    }


def test_words_that_only_begin_like_a_key_stay() -> None:
    credential = Credential(KEY, "DEEPSEEK_API_KEY")
    text = f"{HERE.shown}: keys begin with sk-; yours ends in 6789"
    assert final_error(LlmError(text), HERE, credential).message == text


def test_a_text_that_is_too_short_for_a_key_does_not_garble_messages() -> None:
    error = LlmError(f"a bad thing of {HERE.shown}")
    assert final_error(error, HERE, Credential("a", "X")).message == error.message


def test_values_that_hold_the_key_do_not_show_it() -> None:
    credential = Credential(KEY, "DEEPSEEK_API_KEY")
    endpoint = resolve_endpoint("http://127.0.0.1:9/?token=hidden", "X")
    call = Call(endpoint, credential, "m", {"authorization": f"Bearer {KEY}"}, b"{}", 0)
    assert KEY not in repr(credential) + repr(call)
    assert "hidden" not in repr(call)
