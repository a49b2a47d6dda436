"""Retrying failed model requests: the log entries. The policy is `dsh.control.retry.policy`."""

from __future__ import annotations

from dsh.control.retry.events import LLM_RETRY, LLM_RETRY_STARTED, LlmRetry, LlmRetryStarted

__all__ = ["LLM_RETRY", "LLM_RETRY_STARTED", "LlmRetry", "LlmRetryStarted"]
