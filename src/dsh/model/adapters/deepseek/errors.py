"""From failed HTTP exchanges to failures that say what was called and what may help."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dsh.base.errors import error_chain
from dsh.base.json import loads
from dsh.model.adapters.deepseek.endpoint import Credential, Endpoint
from dsh.model.failures import LlmError, create_llm_failure, normalize_llm_failure
from dsh.model.http_failures import code_of_error_event, code_of_status, parse_retry_after

__all__ = [
    "MAX_ERROR_BYTES",
    "final_error",
    "idle_error",
    "not_a_stream",
    "status_error",
    "transport_error",
    "unreadable_coding",
]

MAX_ERROR_BYTES = 64 * 1024
"""How much of an error's body is read."""
_SHOWN = 400
_SPACES = re.compile(r"\s+")
_HIDDEN = "[key]"
_LEAST_KEY = 4
_TELLING = 8


def status_error(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    endpoint: Endpoint,
    credential: Credential,
    model: str,
    now_ms: int,
) -> LlmError:
    """Return the failure that an answer with an error status stands for."""
    message, words = _provider_words(body)
    code = code_of_status(status, words)
    said = f": {message}" if message else ""
    hint = _hint(code, status, message, endpoint=endpoint, credential=credential, model=model)
    moved = _elsewhere(headers) if 300 <= status < 400 else ""
    text = f"HTTP {status} from {endpoint.shown}{moved}{said}{hint}"
    return LlmError(
        text,
        code=code,
        status=status if 100 <= status <= 599 else None,
        retry_after_ms=parse_retry_after(headers.get("retry-after"), now_ms),
        request_id=headers.get("x-request-id") or headers.get("x-deepseek-request-id") or None,
    )


def not_a_stream(content_type: str, body: bytes, *, endpoint: Endpoint) -> LlmError:
    """Return the failure of a 200 answer that is no event stream."""
    try:
        value = loads(body)
    except ValueError:
        value = None
    if isinstance(value, dict) and value.get("error"):
        error = value["error"]
        facts = error if isinstance(error, dict) else {"message": str(error)}
        said = _short(str(facts.get("message") or facts))
        text = f"{endpoint.shown} answered with an error: {said}"
        return LlmError(text, code=code_of_error_event(facts))
    text = (
        f"{endpoint.shown} answered with {content_type!r} instead of an event stream"
        f"{_where(endpoint)}"
    )
    return LlmError(text, code="INVALID_RESPONSE")


def transport_error(error: Exception, *, endpoint: Endpoint, streaming: bool) -> LlmError:
    """Return the failure of a connection that was not made or did not last."""
    what = "the reply broke off" if streaming else "no connection"
    reason = _short(error_chain(error)) or type(error).__name__
    text = f"{what}: {endpoint.shown}: {reason}"
    if not streaming:
        text += f"; is the address right ({endpoint.origin}) and the server up?"
    return LlmError(text, code="TRANSPORT")


def idle_error(endpoint: Endpoint, seconds: float) -> LlmError:
    """Return the failure of an endpoint that fell silent."""
    return LlmError(
        f"{endpoint.shown} sent nothing for {seconds:g} s (streamIdleTimeoutMs)", code="TIMEOUT"
    )


def unreadable_coding(coding: str, *, endpoint: Endpoint) -> LlmError:
    """Return the failure of a reply that is compressed in a way nobody asked for."""
    return LlmError(
        f"{endpoint.shown} answered in the content coding {_short(coding)!r}, though none was "
        "asked for; a proxy or gateway on the way may add it",
        code="INVALID_RESPONSE",
    )


def final_error(error: Exception, endpoint: Endpoint, credential: Credential) -> LlmError:
    """Return the failure that ``error`` stands for: it names the address, and never the key.

    Servers put the key into whatever they send. The causes of ``error`` are left behind, because
    their texts quote it.
    """
    facts = normalize_llm_failure(error)
    key = credential.key
    message = facts["message"]
    if endpoint.shown not in message:
        message = f"{message} (from {endpoint.shown})"
    message = _redact(message, key)
    code = facts["code"]
    request_id = facts.get("requestId")
    clean = create_llm_failure(
        message,
        code if _redact(code, key) == code else "UNKNOWN",
        status=facts.get("status"),
        retry_after_ms=facts.get("providerRetryAfterMs"),
        request_id=None if request_id is None else _redact(request_id, key),
    )
    return LlmError.of(clean)


def _provider_words(body: bytes) -> tuple[str, str]:
    """Return the provider's message, and all its words for the classifiers."""
    text = body.decode("utf-8", "replace")
    try:
        value: Any = loads(body)
    except ValueError:
        value = None
    error = value.get("error", value) if isinstance(value, dict) else None
    if isinstance(error, dict):
        words = " ".join(str(error.get(key) or "") for key in ("code", "type", "message"))
        message = error.get("message") or error.get("detail")
        if isinstance(message, str) and message:
            return _short(message), words
        return _short(text), f"{words} {text}"
    if isinstance(error, str):
        return _short(error), error
    if "<html" in text[:1000].lower():
        return "an HTML page", text
    return _short(text), text


def _hint(
    code: str,
    status: int,
    message: str,
    *,
    endpoint: Endpoint,
    credential: Credential,
    model: str,
) -> str:
    lowered = message.lower()
    if "model" in lowered and ("not exist" in lowered or "not found" in lowered):
        return f"; the request named model {model!r}"
    if code == "AUTH":
        return f"; is the key in {credential.reference} right?"
    if status in (404, 405) or 300 <= status < 400:
        return _where(endpoint)
    return ""


def _where(endpoint: Endpoint) -> str:
    return (
        f"; is the base URL right ({endpoint.origin})? it is what stands before /chat/completions"
    )


def _elsewhere(headers: Mapping[str, str]) -> str:
    """Say where a redirect leads. It is never followed: the key is for the address called."""
    target = headers.get("location", "").partition("?")[0]
    return f", which points to {_short(target)!r}; redirects are not followed" if target else ""


def _short(text: str) -> str:
    text = _SPACES.sub(" ", text).strip()
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _redact(text: str, key: str) -> str:
    """Take the key out of ``text``, also where it was cut off or its case was changed."""
    if len(key) < _LEAST_KEY:
        return text  # too short for a key, and taking it out would garble the message
    parts: list[str] = []
    end = 0
    for found in re.finditer(re.escape(key[:_TELLING]), text, re.IGNORECASE):
        if found.start() < end:
            continue
        parts += text[end : found.start()], _HIDDEN
        end = found.end()
        while end < len(text) and end - found.start() < len(key):
            if text[end].lower() != key[end - found.start()].lower():
                break
            end += 1
    return "".join([*parts, text[end:]])
