from __future__ import annotations

import pytest

from dsh.base.errors import DshError
from dsh.base.signal import AbortedError
from dsh.model.failures import (
    LlmError,
    create_llm_failure,
    is_context_overflow,
    is_quota_exhausted,
    normalize_llm_failure,
    unusable_key_problem,
)
from dsh.model.http_failures import code_of_error_event, code_of_status, parse_retry_after


def test_an_error_carries_frozen_facts() -> None:
    error = LlmError("no", code="RATE_LIMIT", status=429, retry_after_ms=1500, request_id="r1")
    assert error.failure == {
        "message": "no",
        "code": "RATE_LIMIT",
        "status": 429,
        "providerRetryAfterMs": 1500,
        "requestId": "r1",
    }
    with pytest.raises(TypeError):
        error.failure["code"] = "X"
    assert LlmError.of(error.failure).failure == error.failure


@pytest.mark.parametrize(
    "facts",
    [
        {"code": ""},
        {"status": 42},
        {"status": 600},
        {"status": True},
        {"retry_after_ms": 0},
        {"retry_after_ms": float("inf")},
        {"retry_after_ms": -5},
        {"request_id": ""},
    ],
)
def test_facts_out_of_range_are_refused(facts: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not a valid model failure"):
        create_llm_failure("m", **{"code": "X", **facts})  # type: ignore[arg-type]


def test_a_carried_failure_is_trusted_when_it_agrees_with_its_error() -> None:
    error = LlmError("slow", code="TIMEOUT", request_id="r")
    assert normalize_llm_failure(error) == error.failure


def test_a_carried_failure_that_disagrees_with_its_error_is_not_trusted() -> None:
    error = LlmError("slow", code="TIMEOUT")
    error.code = "AUTH"
    assert normalize_llm_failure(error) == {"message": "slow", "code": "AUTH"}


def test_codes_of_foreign_errors_are_not_trusted() -> None:
    class VendorError(Exception):
        code = "RATE_LIMIT"
        failure = {"message": "m", "code": "RATE_LIMIT", "extra": 1}  # noqa: RUF012

    assert normalize_llm_failure(VendorError("boo")) == {"message": "boo", "code": "UNKNOWN"}
    assert normalize_llm_failure(DshError("ours", code="MINE"))["code"] == "MINE"
    assert normalize_llm_failure(AbortedError())["code"] == "ABORTED"


def test_nothing_hostile_escapes_normalisation() -> None:
    class Hostile(Exception):
        @property
        def failure(self) -> object:
            raise RuntimeError("gotcha")

        def __str__(self) -> str:
            raise RuntimeError("gotcha")

    failure = normalize_llm_failure(Hostile())
    assert failure["code"] == "UNKNOWN"
    assert "Hostile" in failure["message"]


def test_an_error_without_words_gets_some() -> None:
    assert normalize_llm_failure(ValueError())["message"] == (
        "the model adapter failed without saying why (ValueError)"
    )


OVERFLOWS = [
    "This model's maximum context length is 65536 tokens. However, you requested 70000 tokens",
    "context_length_exceeded",
    "prompt is too long: 208310 tokens > 200000 maximum",
    "Your input exceeds the context window of this model",
    "Input is too long for requested model",
    "The input token count exceeds the maximum context length",
    "request too large for this model's context",
    "prompt too long for the model",
    "input is larger than the model's context",
    "Context window exceeded",
    "max supported context window is 8k",
    "the request exceeds the available context size",
]


@pytest.mark.parametrize("text", OVERFLOWS)
def test_words_of_vendors_for_a_full_window_are_known(text: str) -> None:
    assert is_context_overflow(text)
    assert code_of_status(400, text) == "CONTEXT_WINDOW_EXCEEDED"


@pytest.mark.parametrize(
    "text",
    [
        "invalid value for 'temperature': must be at most 2",
        "messages[3].content is too long? expected a string",
        "the context parameter is not allowed",
        "tool name exceeds 64 characters",
        "maximum number of tools is 128",
        "Invalid 'prompt': not a string",
    ],
)
def test_plain_validation_errors_are_not_taken_for_a_full_window(text: str) -> None:
    assert not is_context_overflow(text)
    assert code_of_status(400, text) == "INVALID_REQUEST"


@pytest.mark.parametrize(
    "text",
    [
        "Insufficient Balance",
        "insufficient_quota",
        "You exceeded your current quota, please check your plan",
        "usage limit reached",
        "your credits are exhausted",
        "account is out of credits",
        "quota exceeded for this key",
    ],
)
def test_words_for_an_empty_account_are_known(text: str) -> None:
    assert is_quota_exhausted(text)


def test_a_rate_limit_is_not_an_empty_account() -> None:
    assert not is_quota_exhausted("Rate limit reached for requests per minute")


@pytest.mark.parametrize(
    ("status", "words", "code"),
    [
        (401, "", "AUTH"),
        (403, "insufficient quota", "AUTH"),
        (413, "prompt too long for this model", "INVALID_REQUEST"),
        (402, "Insufficient Balance", "QUOTA"),
        (429, "You exceeded your current quota", "QUOTA"),
        (429, "slow down", "RATE_LIMIT"),
        (400, "bad", "INVALID_REQUEST"),
        (500, "", "SERVER"),
        (503, "", "SERVER"),
        (529, "overloaded", "SERVER"),
        (404, "", "HTTP_404"),
        (422, "", "HTTP_422"),
        (302, "", "HTTP_302"),
        (408, "", "TIMEOUT"),
    ],
)
def test_each_status_has_its_code(status: int, words: str, code: str) -> None:
    assert code_of_status(status, words) == code


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ({"code": 429, "message": "x"}, "RATE_LIMIT"),
        ({"code": "503"}, "SERVER"),
        ({"code": "rate_limit_exceeded"}, "RATE_LIMIT"),
        ({"message": "maximum context length is 5"}, "CONTEXT_WINDOW_EXCEEDED"),
        ({"message": "insufficient balance"}, "QUOTA"),
        ({"type": "invalid_request_error"}, "INVALID_REQUEST"),
        ({"type": "authentication_error"}, "AUTH"),
        ({"message": "oh no"}, "SERVER"),
    ],
)
def test_an_error_inside_a_stream_has_its_code(facts: dict[str, object], code: str) -> None:
    assert code_of_error_event(facts) == code


NOW = 1_700_000_000_000  # Tue, 14 Nov 2023 22:13:20 GMT


@pytest.mark.parametrize(
    ("value", "delay"),
    [
        (None, None),
        ("2", 2000),
        (" 30 ", 30_000),
        ("0", None),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("Tue, 14 Nov 2023 22:13:27 GMT", 7000),
        ("Tue, 14 Nov 2023 22:13:20 GMT", None),
        ("Tue, 14 Nov 2023 20:00:00 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date_in_the_future(value: str | None, delay: int) -> None:
    assert parse_retry_after(value, NOW) == delay


@pytest.mark.parametrize("key", ["", "a b", "clé", "tab\t", "x\n", "\x7f"])
def test_keys_that_cannot_be_sent_are_named_without_being_shown(key: str) -> None:
    problem = unusable_key_problem(key)
    assert problem is not None
    assert not key or key not in problem


def test_a_printable_key_is_usable() -> None:
    assert unusable_key_problem("sk-!~09") is None
