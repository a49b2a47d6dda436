"""From failed HTTP exchanges to failures that say what was called and what may help."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dsh.base.errors import error_chain
from dsh.base.json import loads
from dsh.model.adapters.deepseek.endpoint import Credential, Endpoint
from dsh.model.failures import LlmError
from dsh.model.http_failures import code_of_error_event, code_of_status, parse_retry_after

__all__ = ["MAX_ERROR_BYTES", "idle_error", "not_a_stream", "status_error", "transport_error"]

MAX_ERROR_BYTES = 64 * 1024
"""How much of an error's body is read."""
_SHOWN = 400
_SPACES = re.compile(r"\s+")
_HIDDEN = "[key]"


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
    text = f"HTTP {status} from {endpoint.shown}{said}{hint}"
    return LlmError(
        _redact(text, credential),
        code=code,
        status=status if 100 <= status <= 599 else None,
        retry_after_ms=parse_retry_after(headers.get("retry-after"), now_ms),
        request_id=headers.get("x-request-id") or headers.get("x-deepseek-request-id") or None,
    )


def not_a_stream(
    content_type: str, body: bytes, *, endpoint: Endpoint, credential: Credential
) -> LlmError:
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
        return LlmError(_redact(text, credential), code=code_of_error_event(facts))
    text = (
        f"{endpoint.shown} answered with {content_type!r} instead of an event stream"
        f"{_where(endpoint)}"
    )
    return LlmError(_redact(text, credential), code="INVALID_RESPONSE")


def transport_error(
    error: Exception, *, endpoint: Endpoint, credential: Credential, streaming: bool
) -> LlmError:
    """Return the failure of a connection that was not made or did not last."""
    what = "the reply broke off" if streaming else "no connection"
    reason = _short(error_chain(error)) or type(error).__name__
    text = f"{what}: {endpoint.shown}: {reason}"
    if not streaming:
        text += f"; is the address right ({endpoint.origin}) and the server up?"
    return LlmError(_redact(text, credential), code="TRANSPORT")


def idle_error(endpoint: Endpoint, seconds: float) -> LlmError:
    """Return the failure of an endpoint that fell silent."""
    return LlmError(
        f"{endpoint.shown} sent nothing for {seconds:g} s (streamIdleTimeoutMs)", code="TIMEOUT"
    )


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


def _short(text: str) -> str:
    text = _SPACES.sub(" ", text).strip()
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _redact(text: str, credential: Credential) -> str:
    # Shorter texts are no keys, and taking them out would garble the message.
    return text.replace(credential.key, _HIDDEN) if len(credential.key) > 3 else text
