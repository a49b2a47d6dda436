"""Failures of model calls: the error class, its facts, and how foreign errors become facts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, cast

from dsh.base.errors import DshError, message_of
from dsh.base.json import FrozenDict
from dsh.model.chunks import LlmFailure

__all__ = [
    "LlmError",
    "LlmFailure",
    "create_llm_failure",
    "is_context_overflow",
    "is_quota_exhausted",
    "is_valid_failure",
    "normalize_llm_failure",
    "unusable_key_problem",
]

_FALLBACK_MESSAGE = "the model adapter failed without saying why"
_FACTS = frozenset({"message", "code", "status", "providerRetryAfterMs", "requestId"})


class LlmError(DshError):
    """A model call, or the set-up of one, failed.

    Attributes:
        failure: The facts that are logged and that the retry policy reads.
    """

    code = "UNKNOWN"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        status: int | None = None,
        retry_after_ms: float | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message, code=code)
        self.failure = create_llm_failure(
            message,
            self.code,
            status=status,
            retry_after_ms=retry_after_ms,
            request_id=request_id,
        )

    @classmethod
    def of(cls, failure: LlmFailure) -> LlmError:
        """Return the error that stands for ``failure``, for example one read from a finish."""
        return cls(
            failure["message"],
            code=failure["code"],
            status=failure.get("status"),
            retry_after_ms=failure.get("providerRetryAfterMs"),
            request_id=failure.get("requestId"),
        )


def create_llm_failure(
    message: str,
    code: str,
    *,
    status: int | None = None,
    retry_after_ms: float | None = None,
    request_id: str | None = None,
) -> LlmFailure:
    """Make a frozen failure.

    Raises:
        ValueError: a fact is out of range: an empty code, a status that is not 100..599, a delay
            that is not finite and positive, or an empty request id.
    """
    facts: dict[str, Any] = {"message": message, "code": code}
    if status is not None:
        facts["status"] = status
    if retry_after_ms is not None:
        facts["providerRetryAfterMs"] = retry_after_ms
    if request_id is not None:
        facts["requestId"] = request_id
    if not is_valid_failure(facts):
        msg = f"not a valid model failure: {facts!r}"
        raise ValueError(msg)
    return cast("LlmFailure", FrozenDict(facts))


def is_valid_failure(value: object) -> bool:
    """Say whether ``value`` holds the facts of a failure, each in its range, and nothing else."""
    if not isinstance(value, Mapping) or not value.keys() <= _FACTS:
        return False
    message, code = value.get("message"), value.get("code")
    if not isinstance(message, str) or not isinstance(code, str) or not code:
        return False
    status = value.get("status", 100)
    if type(status) is not int or not 100 <= status <= 599:
        return False
    delay = value.get("providerRetryAfterMs", 1)
    if type(delay) not in (int, float) or not math.isfinite(delay) or delay <= 0:
        return False
    request_id = value.get("requestId", "-")
    return isinstance(request_id, str) and request_id != ""


def normalize_llm_failure(error: BaseException) -> LlmFailure:
    """Return the facts of any exception; never raises.

    The failure that an exception carries is trusted only when it is valid and agrees with the
    exception's own code. A code of an exception that is not ours is never trusted.
    """
    try:
        carried = _carried_failure(error)
    except Exception:  # a hostile exception object must not break the stream that reports it
        carried = None
    if carried is not None:
        return carried
    message = message_of(error)
    if message == type(error).__name__:
        message = f"{_FALLBACK_MESSAGE} ({message})"
    code = error.code if isinstance(error, DshError) and error.code else "UNKNOWN"
    return cast("LlmFailure", FrozenDict({"message": message, "code": code}))


def _carried_failure(error: BaseException) -> LlmFailure | None:
    failure = getattr(error, "failure", None)
    if failure is None or not is_valid_failure(failure):
        return None
    if failure["code"] != getattr(error, "code", None):
        return None
    return cast("LlmFailure", FrozenDict(failure))


_SUBJECT = r"(?:input|prompt|request|messages?|conversation)"
_OVERFLOW = re.compile(
    r"context_length_exceeded"
    r"|context[ _-]?(?:window|length)[ _-]?(?:overflow(?:ed)?|(?:limit[ _-]?)?exceeded)"
    r"|maximum (?:allowed |supported )?context (?:length|window)"
    r"|max (?:allowed |supported )?context (?:length|window)"
    rf"|{_SUBJECT}(?: is| are)? too (?:large|long) for (?:this|the)(?: model(?:'s)?)?(?: context)?"
    r"|(?:input|prompt)(?: is)? too (?:long|large)(?::|\b)(?=.*(?:token|context|model))"
    r"|(?:input|prompt|request|messages?)\b[^.\n]{0,80}?"
    r"(?:exceeds?|overflows?|(?:is |are )?larger than) (?:the )?(?:model(?:'s)? )?"
    r"(?:available |maximum )?context",
    re.IGNORECASE,
)
_QUOTA = re.compile(
    r"insufficient[ _-](?:quota|balance|credits?)"
    r"|(?:quota|usage[ _-]limit)(?: has been| is)?[ _-](?:exceeded|exhausted|reached)"
    r"|exceeded (?:your )?(?:current )?quota"
    r"|(?:balance|credits?)(?: is| are| has been| have been)? (?:exhausted|depleted)"
    r"|out of (?:credits?|budget)",
    re.IGNORECASE,
)


def is_context_overflow(text: str) -> bool:
    """Say whether a provider's words mean that the request does not fit the model's window."""
    return _OVERFLOW.search(text) is not None


def is_quota_exhausted(text: str) -> bool:
    """Say whether a provider's words mean that the account has nothing left to spend."""
    return _QUOTA.search(text) is not None


def unusable_key_problem(key: str) -> str | None:
    """Say why an API key cannot be sent; ``None`` when it can. Never quotes the key."""
    if not key:
        return "it is empty"
    if any(not "!" <= char <= "~" for char in key):
        return "it holds characters that no API key has (spaces, controls or non-ASCII letters)"
    return None
