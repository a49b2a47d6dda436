"""Plugin ``llm-retry``: asks the model again after failures that may go away.

It carries out the policy that the provider had when the request was prepared. It has no
configuration of its own.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsh.base.json import dumps_str
from dsh.base.signal import AbortedError, AbortSignal
from dsh.control.retry.events import LLM_RETRY, LLM_RETRY_STARTED, LlmRetry, LlmRetryStarted
from dsh.execution.agent.events import AGENT_REQUEST_ERROR, AgentRequestError, Retry
from dsh.model.llm.service import Backoff, NormalRetry, RetryPolicy

if TYPE_CHECKING:
    from dsh.kernel import Context

__all__ = ["Config", "Retrier", "apply", "backoff_ms", "inject", "name", "policy_key"]

name = "llm-retry"
inject = ("agents", "sessions")

Next = Callable[[], Awaitable[Retry | None]]


@dataclass(frozen=True)
class Config:
    """Nothing: what to retry is part of each provider's configuration (``retryPolicy``)."""


def apply(ctx: Context, config: Config) -> None:
    """Serve ``agent/request-error`` until the plugin unloads."""
    Retrier(ctx).attach()


class Retrier:
    """Decides on retries and waits for them.

    Args:
        ctx: The plugin's context; its end ends all waits.
        sleep: Waits some seconds; cancellable.
        draw: Returns a number from 0 to below 1, for the jitter.
    """

    def __init__(
        self,
        ctx: Context,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._ctx = ctx
        self._stop = ctx.stop
        self._sleep = sleep
        self._draw = draw
        self._waits: set[asyncio.Future[None]] = set()

    def attach(self) -> None:
        """Declare the log entries and begin to listen."""
        self._ctx.sessions.declare(LLM_RETRY)
        self._ctx.sessions.declare(LLM_RETRY_STARTED)
        self._ctx.defer(self._drain, "llm-retry.waits")
        self._ctx.on(AGENT_REQUEST_ERROR, self.on_request_error)

    async def on_request_error(self, event: AgentRequestError, next: Next) -> Retry | None:
        """Own the recovery when the policy of the request says so."""
        policy = event.retry_policy
        if policy is None or self._stop.aborted:
            return await next()
        if not isinstance(policy, NormalRetry):
            return await self._always(event, policy, next)
        if event.failure["code"] not in policy.retryable_codes:
            return await next()
        key = policy_key(policy)
        retry = _earlier_retries(event, key) + 1
        delay_ms = _provider_delay_ms(event, policy.backoff)
        if retry > policy.max_retries or delay_ms is None:
            return await next()
        return await self._retry(event, policy, key, retry, delay_ms)

    async def _always(
        self, event: AgentRequestError, policy: RetryPolicy, next: Next
    ) -> Retry | None:
        try:
            answer = await next()
        except Exception as error:
            self._ctx.report(error, label="recovery of a failed model request")
            answer = None
        if event.signal.aborted:
            return None
        if answer is not None:
            return answer
        key = policy_key(policy)
        retry = _earlier_retries(event, key) + 1
        return await self._retry(
            event, policy, key, retry, _provider_delay_ms(event, policy.backoff)
        )

    async def _retry(
        self,
        event: AgentRequestError,
        policy: RetryPolicy,
        key: str,
        retry: int,
        provider_delay_ms: float | None,
    ) -> Retry | None:
        """Log the retry, wait, log its start. An abort, or the end of the plugin, gives up."""
        delay_ms = provider_delay_ms or backoff_ms(policy.backoff, retry, self._draw())
        entry = LlmRetry(
            retryId=str(uuid.uuid4()),
            turn=event.turn,
            step=event.step,
            provider=event.provider,
            mode="normal" if isinstance(policy, NormalRetry) else "always",
            policyKey=key,
            retry=retry,
            delayMs=_plain(delay_ms),
            failure=event.failure,
        )
        if isinstance(policy, NormalRetry):
            entry["maxRetries"] = policy.max_retries
        if event.signal.aborted or self._stop.aborted:
            return None
        session = event.agent.session
        session.append(LLM_RETRY, entry)
        if not await self._wait(event.signal, delay_ms / 1000):
            return None
        started = LlmRetryStarted(
            retryId=entry["retryId"], turn=event.turn, step=event.step, retry=retry
        )
        session.append(LLM_RETRY_STARTED, started)
        return Retry()

    async def _wait(self, signal: AbortSignal, seconds: float) -> bool:
        """Wait, and say whether the whole time went by."""
        done = asyncio.get_running_loop().create_future()
        self._waits.add(done)
        fused, unlink = AbortSignal.any_of(signal, self._stop)
        try:
            await fused.run(self._sleep(seconds))
        except AbortedError:
            return False
        except Exception:
            if fused.aborted:  # the reason of an abort may be an exception of any class
                return False
            raise
        finally:
            unlink()
            self._waits.discard(done)
            if not done.done():
                done.set_result(None)
        return not fused.aborted

    async def _drain(self) -> None:
        if self._waits:
            await asyncio.wait(set(self._waits))


def backoff_ms(backoff: Backoff, retry: int, draw: float) -> float:
    """Return the delay before retry number ``retry``, from 1.

    Args:
        backoff: Doubling delays with a limit and jitter.
        retry: Number of the retry.
        draw: Place within the jitter, 0 to 1; 0.5 is the middle.
    """
    longest = backoff.max_s * 1000
    # 2.0 ** 1024 overflows; by then any delay is at its limit.
    plain = min(backoff.initial_s * 1000 * 2.0 ** min(retry - 1, 64), longest)
    spread = 1 - backoff.jitter_ratio + 2 * backoff.jitter_ratio * draw
    return min(plain * spread, longest)


def policy_key(policy: RetryPolicy) -> str:
    """Return a text that is equal for policies that behave alike, and only for them."""
    backoff: list[Any] = [
        _plain(policy.backoff.initial_s * 1000),
        _plain(policy.backoff.max_s * 1000),
        _plain(policy.backoff.jitter_ratio),
    ]
    if isinstance(policy, NormalRetry):
        return dumps_str(["normal", policy.max_retries, sorted(policy.retryable_codes), *backoff])
    return dumps_str(["always", *backoff])


def _provider_delay_ms(event: AgentRequestError, backoff: Backoff) -> float | None:
    """Return the delay the provider asked for; 0 when it asked for none, ``None`` for too long."""
    asked = event.failure.get("providerRetryAfterMs")
    if asked is None:
        return 0
    return asked if asked <= backoff.max_s * 1000 else None


def _earlier_retries(event: AgentRequestError, key: str) -> int:
    """Count the retries of this step under this policy, from the log."""
    count = 0
    for entry in reversed(event.agent.session.events):
        kind, data = entry["type"], entry["data"]
        if kind == "step/start" or kind == "turn/start":
            break
        if kind == LLM_RETRY.name and (
            data["turn"],
            data["step"],
            data["provider"],
            data["policyKey"],
        ) == (event.turn, event.step, event.provider, key):
            count += 1
    return count


def _plain(number: float) -> float:
    """Return a whole number as an integer, as the log writes it."""
    return int(number) if float(number).is_integer() else number
