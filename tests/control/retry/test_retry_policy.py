from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from dsh.base.signal import AbortController, AbortSignal
from dsh.control.retry import policy as retry_plugin
from dsh.control.retry.policy import Retrier, backoff_ms, policy_key
from dsh.execution.agent.events import AGENT_REQUEST_ERROR, AgentRequestError, Retry
from dsh.kernel import Context
from dsh.model.failures import LlmFailure, create_llm_failure
from dsh.model.llm import AlwaysRetry, Backoff, NormalRetry, RetryPolicy
from dsh.state.session.events import STEP_START, StepData
from dsh.state.session.session import Session
from dsh.state.session.store import LocalSessionStore

FAST = Backoff(initial_s=0.5, max_s=10.0, jitter_ratio=0.0)


@dataclass
class FakeAgent:
    """An agent, as far as the policy looks at it; its session is real."""

    session: Session


class Bench:
    """Mounts the policy with a clock that a test drives."""

    def __init__(self, root: Context) -> None:
        self.root = root
        self.slept: list[float] = []
        self.hold: asyncio.Event | None = None
        self.sleeping = asyncio.Event()

    async def prepare(self) -> None:
        """Mount what the policy needs: a store and, in name only, the agents."""
        await self.root.plugin(LocalSessionStore)
        self.root.provide("agents", object())
        self.agent = FakeAgent(self.root.require(LocalSessionStore).create())

    def events(self) -> list[Any]:
        return list(self.agent.session.events)

    def kinds(self) -> list[str]:
        return [event["type"] for event in self.events()]

    async def mount(self, draw: float = 0.5) -> Any:
        await self.prepare()

        def body(ctx: Context) -> None:
            Retrier(ctx, sleep=self._sleep, draw=lambda: draw).attach()

        return await self.root.inject(retry_plugin.inject, body)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.sleeping.set()
        if self.hold is not None:
            await self.hold.wait()

    async def fail(
        self,
        code: str = "SERVER",
        *,
        policy: RetryPolicy | None = None,
        retry_after_ms: float | None = None,
        signal: AbortSignal | None = None,
        step: int = 1,
        inner: Any = None,
    ) -> Retry | None:
        failure = create_llm_failure("it broke", code, retry_after_ms=retry_after_ms)
        policy = policy or NormalRetry(backoff=FAST)
        return await self.dispatch(failure, policy, signal, step, inner)

    async def dispatch(
        self,
        failure: LlmFailure,
        policy: RetryPolicy | None,
        signal: AbortSignal | None = None,
        step: int = 1,
        inner: Any = None,
    ) -> Retry | None:
        event = AgentRequestError(
            agent=self.agent,  # type: ignore[arg-type]
            turn=1,
            step=step,
            provider="p",
            failure=failure,
            retry_policy=policy,
            signal=signal or AbortController().signal,
        )
        return await self.root.waterfall(AGENT_REQUEST_ERROR, event, inner or (lambda: None))


@pytest.fixture
def bench(root: Context) -> Bench:
    return Bench(root)


async def test_a_failure_that_may_go_away_is_retried_and_logged(bench: Bench) -> None:
    await bench.mount()

    assert await bench.fail() == Retry()

    decided, started = bench.events()
    assert decided["type"] == "llm/retry"
    assert {**decided["data"], "retryId": "", "policyKey": ""} == {
        "retryId": "",
        "turn": 1,
        "step": 1,
        "provider": "p",
        "mode": "normal",
        "policyKey": "",
        "retry": 1,
        "maxRetries": 5,
        "delayMs": 500,
        "failure": {"message": "it broke", "code": "SERVER"},
    }
    assert started["type"] == "llm/retry-started"
    assert started["data"] == {
        "retryId": decided["data"]["retryId"],
        "turn": 1,
        "step": 1,
        "retry": 1,
    }
    assert bench.slept == [0.5]
    declared = bench.root.require(LocalSessionStore).declared()
    assert {"llm/retry", "llm/retry-started"} <= declared.keys()


async def test_delays_double_up_to_their_limit_and_the_retries_end(bench: Bench) -> None:
    await bench.mount()
    policy = NormalRetry(max_retries=6, backoff=Backoff(1.0, 8.0, 0.0))
    answers = [await bench.fail(policy=policy) for _ in range(7)]
    assert answers == [Retry()] * 6 + [None]
    assert bench.slept == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


@pytest.mark.parametrize("code", ["AUTH", "QUOTA", "INVALID_REQUEST", "HTTP_404", "ABORTED"])
async def test_a_failure_that_stays_is_not_retried(bench: Bench, code: str) -> None:
    await bench.mount()
    assert await bench.fail(code) is None
    assert bench.events() == []


@pytest.mark.parametrize("code", ["EMPTY_RESPONSE", "RATE_LIMIT", "SERVER", "TIMEOUT", "TRANSPORT"])
async def test_these_failures_are_retried_by_default(bench: Bench, code: str) -> None:
    await bench.mount()
    assert await bench.fail(code, policy=NormalRetry()) == Retry()


async def test_without_a_policy_others_decide(bench: Bench) -> None:
    await bench.mount()
    failure = create_llm_failure("it broke", "SERVER")
    assert await bench.dispatch(failure, None) is None
    assert await bench.dispatch(failure, None, inner=Retry) == Retry()
    assert bench.events() == []


async def test_the_delay_that_the_provider_asks_for_is_used_as_it_is(bench: Bench) -> None:
    await bench.mount(draw=0.99)
    policy = NormalRetry(backoff=Backoff(0.5, 10.0, 1.0))
    assert await bench.fail("RATE_LIMIT", policy=policy, retry_after_ms=7000) == Retry()
    assert bench.slept == [7.0]


async def test_a_provider_that_asks_for_too_long_is_not_waited_for(bench: Bench) -> None:
    await bench.mount()
    assert await bench.fail("RATE_LIMIT", retry_after_ms=10_001) is None
    assert await bench.fail("RATE_LIMIT", retry_after_ms=10_001, inner=Retry) == Retry()
    assert bench.events() == []


async def test_each_step_has_retries_of_its_own(bench: Bench) -> None:
    await bench.mount()
    policy = NormalRetry(max_retries=1, backoff=FAST)
    assert await bench.fail(policy=policy) == Retry()
    assert await bench.fail(policy=policy) is None
    bench.agent.session.append(STEP_START, StepData(turn=1, step=2))
    assert await bench.fail(policy=policy, step=2) == Retry()


async def test_retries_under_another_policy_do_not_count(bench: Bench) -> None:
    await bench.mount()
    one, other = NormalRetry(max_retries=1, backoff=FAST), NormalRetry(max_retries=2, backoff=FAST)
    assert await bench.fail(policy=one) == Retry()
    assert await bench.fail(policy=other) == Retry()
    assert await bench.fail(policy=one) is None


async def test_always_retries_anything_and_has_no_limit(bench: Bench) -> None:
    await bench.mount()
    policy = AlwaysRetry(backoff=Backoff(1.0, 4.0, 0.0))
    answers = [await bench.fail("AUTH", policy=policy) for _ in range(5)]
    assert answers == [Retry()] * 5
    assert bench.slept == [1.0, 2.0, 4.0, 4.0, 4.0]
    entry = bench.events()[0]["data"]
    assert entry["mode"] == "always"
    assert "maxRetries" not in entry


async def test_always_uses_its_own_delay_when_the_provider_asks_for_too_long(bench: Bench) -> None:
    await bench.mount()
    policy = AlwaysRetry(backoff=Backoff(1.0, 4.0, 0.0))
    await bench.fail("RATE_LIMIT", policy=policy, retry_after_ms=3000)
    await bench.fail("RATE_LIMIT", policy=policy, retry_after_ms=60_000)
    assert bench.slept == [3.0, 2.0]


async def test_always_lets_others_recover_first(bench: Bench) -> None:
    await bench.mount()
    assert await bench.fail("AUTH", policy=AlwaysRetry(), inner=Retry) == Retry()
    assert bench.events() == []


async def test_always_survives_a_recovery_that_fails(bench: Bench, root: Context) -> None:
    reports: list[str] = []
    root.set_reporter(lambda error, *rest: reports.append(str(error)))
    await bench.mount()

    def broken() -> None:
        raise RuntimeError("recovery broke")

    assert await bench.fail("AUTH", policy=AlwaysRetry(backoff=FAST), inner=broken) == Retry()
    assert reports == ["recovery broke"]


async def test_an_abort_beats_both(bench: Bench) -> None:
    await bench.mount()
    controller = AbortController()

    def aborting() -> Retry:
        controller.abort()
        return Retry()

    signal = controller.signal
    assert (await bench.fail("AUTH", policy=AlwaysRetry(), signal=signal, inner=aborting)) is None
    assert await bench.fail(signal=signal) is None
    assert bench.events() == []


@pytest.mark.parametrize("reason", [None, "stop", RuntimeError("stop")])
async def test_an_abort_ends_the_wait(bench: Bench, reason: object) -> None:
    await bench.mount()
    bench.hold = asyncio.Event()
    controller = AbortController()
    task = asyncio.create_task(bench.fail(signal=controller.signal))
    await bench.sleeping.wait()

    controller.abort(reason)

    assert await task is None
    assert bench.kinds() == ["llm/retry"]


async def test_unloading_the_plugin_ends_its_waits_before_it_is_gone(bench: Bench) -> None:
    fiber = await bench.mount()
    bench.hold = asyncio.Event()
    task = asyncio.create_task(bench.fail())
    await bench.sleeping.wait()

    await fiber.dispose()

    assert task.done() or await asyncio.wait_for(task, 1) is None
    assert task.result() is None
    assert bench.kinds() == ["llm/retry"]


async def test_unloading_the_plugin_while_others_recover_ends_the_retry(bench: Bench) -> None:
    fiber = await bench.mount()
    recovering, recovered = asyncio.Event(), asyncio.Event()

    async def recover() -> None:
        recovering.set()
        await recovered.wait()

    task = asyncio.create_task(bench.fail(policy=AlwaysRetry(FAST), inner=recover))
    await recovering.wait()
    await fiber.dispose()
    recovered.set()

    assert await task is None
    assert bench.events() == []


async def test_the_longest_delay_that_is_allowed_may_be_asked_for(bench: Bench) -> None:
    await bench.mount()
    assert await bench.fail(retry_after_ms=10_000) == Retry()
    assert bench.slept == [10.0]


async def test_after_unloading_nothing_is_retried(bench: Bench) -> None:
    captured: list[Retrier] = []
    await bench.prepare()

    def body(ctx: Context) -> None:
        retrier = Retrier(ctx, sleep=bench._sleep)
        retrier.attach()
        captured.append(retrier)

    fiber = await bench.root.inject(retry_plugin.inject, body)
    await fiber.dispose()
    event = AgentRequestError(
        agent=bench.agent,  # type: ignore[arg-type]
        turn=1,
        step=1,
        provider="p",
        failure=create_llm_failure("it broke", "SERVER"),
        retry_policy=NormalRetry(),
        signal=AbortController().signal,
    )

    async def nobody() -> None:
        return None

    assert await bench.fail() is None
    assert await captured[0].on_request_error(event, nobody) is None
    assert bench.events() == []


def test_jitter_varies_the_delay_to_both_sides_within_the_limit() -> None:
    backoff = Backoff(1.0, 10.0, 0.2)
    assert backoff_ms(backoff, 1, 0.0) == pytest.approx(800)
    assert backoff_ms(backoff, 1, 0.5) == pytest.approx(1000)
    assert backoff_ms(backoff, 1, 1.0) == pytest.approx(1200)
    assert backoff_ms(backoff, 9, 1.0) == 10_000
    assert backoff_ms(backoff, 5000, 0.5) == 10_000


def test_policies_that_behave_alike_have_one_key() -> None:
    one = NormalRetry(retryable_codes=("A", "B"))
    assert policy_key(one) == policy_key(NormalRetry(retryable_codes=("B", "A")))
    assert policy_key(one) == '["normal",5,["A","B"],500,10000,0.1]'
    assert policy_key(AlwaysRetry()) == '["always",500,10000,0.1]'
    assert policy_key(one) != policy_key(NormalRetry(max_retries=4, retryable_codes=("A", "B")))


async def test_the_plugin_takes_no_configuration(root: Context) -> None:
    await root.plugin(LocalSessionStore)
    root.provide("agents", object())
    with pytest.raises(Exception, match="retryPolicy"):
        await root.plugin(retry_plugin, {"retryPolicy": {"maxRetries": 1}})


async def test_the_plugin_leaves_nothing_behind(root: Context) -> None:
    await root.plugin(LocalSessionStore)
    root.provide("agents", object())
    before = root.listener_count()
    fiber = await root.plugin(retry_plugin)
    assert root.listener_count() == before + 1
    await fiber.dispose()
    assert root.listener_count() == before
