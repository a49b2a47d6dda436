"""What the log keeps of retries; the model never sees any of it."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from dsh.model.chunks import LlmFailure
from dsh.state.session.events import EventType

__all__ = ["LLM_RETRY", "LLM_RETRY_STARTED", "LlmRetry", "LlmRetryStarted"]


class LlmRetry(TypedDict):
    """A retry was decided; the wait of ``delayMs`` begins."""

    retryId: str
    turn: int
    step: int
    provider: str
    mode: Literal["normal", "always"]
    policyKey: str
    retry: int
    """Number of this retry within its step, from 1."""
    maxRetries: NotRequired[int]
    """Only in mode ``normal``."""
    delayMs: float
    failure: LlmFailure


class LlmRetryStarted(TypedDict):
    """The wait is over and the next attempt begins."""

    retryId: str
    turn: int
    step: int
    retry: int


LLM_RETRY = EventType("llm/retry", LlmRetry)
"""Before the wait."""
LLM_RETRY_STARTED = EventType("llm/retry-started", LlmRetryStarted)
"""After the wait, before the attempt."""
