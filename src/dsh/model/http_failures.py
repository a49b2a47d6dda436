"""What the status, headers and words of an HTTP error mean, for every adapter over HTTP."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

from dsh.model.failures import is_context_overflow, is_quota_exhausted

__all__ = ["code_of_error_event", "code_of_status", "parse_retry_after"]

_WHOLE_SECONDS = re.compile(r"\d{1,9}")


def code_of_status(status: int, words: str) -> str:
    """Return the failure code of an HTTP answer.

    Args:
        status: Its status, not 2xx.
        words: Whatever the provider said: its error code, type and message.
    """
    if status in (401, 403):
        return "AUTH"
    if status == 413:
        return "INVALID_REQUEST"
    if status == 402 or is_quota_exhausted(words):
        return "QUOTA"
    if status == 429:
        return "RATE_LIMIT"
    if status in (400, 422) and is_context_overflow(words):
        return "CONTEXT_WINDOW_EXCEEDED"
    if status == 400:
        return "INVALID_REQUEST"
    if status == 408:
        return "TIMEOUT"
    return "SERVER" if status >= 500 else f"HTTP_{status}"


def code_of_error_event(facts: Mapping[str, Any]) -> str:
    """Return the failure code of an error object that came where a reply was expected."""
    words = " ".join(str(facts.get(key) or "") for key in ("code", "type", "message"))
    status = facts.get("code", facts.get("status"))
    if isinstance(status, str) and status.isdecimal():
        status = int(status)
    if type(status) is int and 400 <= status <= 599:
        return code_of_status(status, words)
    if is_context_overflow(words):
        return "CONTEXT_WINDOW_EXCEEDED"
    if is_quota_exhausted(words):
        return "QUOTA"
    lowered = words.lower()
    if "rate_limit" in lowered or "rate limit" in lowered:
        return "RATE_LIMIT"
    if "invalid_request" in lowered:
        return "INVALID_REQUEST"
    if "authentication" in lowered or "invalid_api_key" in lowered:
        return "AUTH"
    return "SERVER"


def parse_retry_after(value: str | None, now_ms: int) -> int | None:
    """Return the milliseconds that a ``Retry-After`` header asks to wait.

    Accepts whole seconds and HTTP dates. Zero, the past and anything else give ``None``.
    """
    if value is None:
        return None
    value = value.strip()
    if _WHOLE_SECONDS.fullmatch(value):
        return int(value) * 1000 or None
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    delay = int(moment.timestamp() * 1000) - now_ms
    return delay if delay > 0 else None
