from __future__ import annotations

import subprocess
import sys
from typing import Any

import httpx
import pytest

from dsh.kernel import Context
from dsh.model.adapters import deepseek
from dsh.model.adapters.deepseek.adapter import DeepSeekAdapter
from dsh.model.adapters.deepseek.client import HttpPool
from dsh.model.adapters.deepseek.config import Config
from dsh.model.failures import LlmError
from dsh.model.llm import AlwaysRetry, Backoff, GenerateOptions, LlmRuntime, NormalRetry

ROUTE = "deepseek-official"


class Environment:
    def __init__(self, **values: str) -> None:
        self.values = values

    def value(self, name: str) -> str | None:
        return self.values.get(name)


def preflight(config: dict[str, Any], **environment: str) -> str | None:
    layers: Any = Environment(**environment)
    return deepseek.preflight(config, layers)


def test_preflight_names_all_ways_to_set_a_key() -> None:
    problem = preflight({})
    assert problem is not None
    assert "set DEEPSEEK_API_KEY in the environment" in problem
    assert "$DSH_HOME/.env" in problem
    assert preflight({}, DEEPSEEK_API_KEY="sk-1234") is None


def test_preflight_looks_at_the_configured_variable() -> None:
    problem = preflight({"apiKeyEnv": "MY_KEY"}, DEEPSEEK_API_KEY="sk-1234")
    assert problem is not None
    assert "MY_KEY" in problem


@pytest.mark.parametrize(
    ("config", "environment", "names"),
    [
        ({}, {"DEEPSEEK_BASE_URL": "gateway:80"}, "DEEPSEEK_BASE_URL"),
        ({"baseURL": "x"}, {"DEEPSEEK_BASE_URL": "http://good"}, "baseURL"),
        ({}, {"DEEPSEEK_API_KEY": "two words"}, "DEEPSEEK_API_KEY"),
    ],
)
def test_preflight_tells_what_is_unusable_and_never_shows_a_key(
    config: dict[str, Any], environment: dict[str, str], names: str
) -> None:
    problem = preflight(config, **{"DEEPSEEK_API_KEY": "sk-1234", **environment})
    assert problem is not None
    assert names in problem
    assert "two words" not in problem


def test_preflight_imports_neither_the_client_nor_the_models() -> None:
    code = """
import sys
import dsh.model.adapters.deepseek as plugin
class Layers:
    def value(self, name): return None
assert plugin.preflight({}, Layers())
heavy = {"httpx", "httpcore", "pydantic", "asyncio", "yaml", "rich"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_the_adapter_does_not_import_the_client() -> None:
    code = """
import sys
import dsh.model.adapters.deepseek.adapter
assert "httpx" not in sys.modules and "httpcore" not in sys.modules
from dsh.model.adapters.deepseek.client import import_httpx
import_httpx()
import httpx
assert "rich" not in sys.modules and "click" not in sys.modules
assert "httpx._main" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


async def mounted(root: Context, config: dict[str, Any], **environment: str) -> LlmRuntime:
    from dsh.model.llm.runtime import plugin

    root.provide("launch_environment", Environment(**environment))
    await root.plugin(plugin)
    await root.plugin(deepseek, config)
    return root.require(LlmRuntime)


async def test_the_route_and_the_catalogue_are_there_without_a_key(root: Context) -> None:
    llm = await mounted(root, {})
    assert [(info.id, info.name) for info in llm.providers()] == [(ROUTE, "DeepSeek")]
    assert "deepseek-v4-flash" in [entry.id for entry in await llm.list_models(ROUTE)]


async def test_the_vendor_gets_defaults_and_other_endpoints_only_what_is_set(
    root: Context,
) -> None:
    llm = await mounted(root, {})
    info = await llm.resolve_model_info(ROUTE, "deepseek-v4-flash")
    assert info.default_max_tokens == 256_000
    assert info.context_window == 1_000_000
    assert info.reasoning is not None
    assert info.reasoning.default_effort == "high"


async def test_another_endpoint_gets_no_defaults(root: Context) -> None:
    llm = await mounted(root, {}, DEEPSEEK_BASE_URL="http://gateway.test")
    info = await llm.resolve_model_info(ROUTE, "deepseek-v4-flash")
    assert info.default_max_tokens is None
    assert info.reasoning is not None
    assert info.reasoning.default_effort is None


async def test_another_endpoint_gets_what_the_configuration_sets(root: Context) -> None:
    config = {"baseURL": "http://gateway.test", "maxTokens": 77, "reasoningEffort": "low"}
    llm = await mounted(root, config)
    call = await llm.prepare_call({"provider": ROUTE, "model": "any"})
    assert call.config == {
        "provider": ROUTE,
        "model": "any",
        "maxTokens": 77,
        "reasoningEffort": "low",
    }


async def test_a_model_list_replaces_the_catalogue(root: Context) -> None:
    models = [{"id": "m", "contextWindow": 10, "maxTokens": 5, "name": "M"}]
    llm = await mounted(root, {"models": models})
    assert [entry.name for entry in await llm.list_models(ROUTE)] == ["M"]
    info = await llm.resolve_model_info(ROUTE, "m")
    assert (info.context_window, info.default_max_tokens) == (10, 5)
    unlisted = await llm.resolve_model_info(ROUTE, "other")
    assert unlisted.input_modalities == ("text",)


async def test_with_thinking_disabled_only_off_is_offered(root: Context) -> None:
    llm = await mounted(root, {"thinking": "disabled"})
    info = await llm.resolve_model_info(ROUTE, "m")
    assert info.reasoning is not None
    assert [level.id for level in info.reasoning.efforts] == ["off"]


async def test_the_retry_policy_of_the_row_is_registered(root: Context) -> None:
    policy = {"mode": "normal", "maxRetries": 2, "backoff": {"initialDelayMs": 100}}
    llm = await mounted(root, {"retryPolicy": policy})
    assert llm.provider_retry_policy(ROUTE) == NormalRetry(
        max_retries=2, backoff=Backoff(initial_s=0.1)
    )


def test_the_always_mode_ignores_what_is_left_of_the_normal_one() -> None:
    policy = {"mode": "always", "maxRetries": 3, "retryableCodes": ["X"]}
    assert Config.model_validate({"retryPolicy": policy}).retry_policy.resolve() == AlwaysRetry()


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"models": [{"id": "a"}, {"id": "a"}]}, "unique ids"),
        ({"models": [{"id": ""}]}, "at least 1 character"),
        ({"models": [{"id": "a", "imageDetail": "low"}]}, "image limits"),
        ({"thinking": "disabled", "reasoningEffort": "high"}, "can only be 'off'"),
        ({"streamIdleTimeoutMs": 0}, "greater than 0"),
        ({"streamIdleTimeoutMs": 2**31}, "less than or equal"),
        ({"imageOffloadCountQuantum": 601}, "imageOffloadCountQuantum"),
        ({"fileRefreshMarginSeconds": 604_800}, "fileRefreshMarginSeconds"),
        ({"apiKeyEnv": "not a name"}, "pattern"),
        ({"maxToken": 5}, "Extra inputs"),
        ({"retryPolicy": {"mode": "sometimes"}}, "normal"),
        ({"retryPolicy": {"retryableCodes": []}}, "at least 1 item"),
        ({"retryPolicy": {"retryableCodes": ["A", "A"]}}, "unique"),
        ({"retryPolicy": {"backoff": {"jitterRatio": 2}}}, "less than or equal to 1"),
        (
            {"retryPolicy": {"backoff": {"initialDelayMs": 20, "maxDelayMs": 10}}},
            "must not exceed",
        ),
        ({"retryPolicy": {"mode": "always", "retries": 1}}, "Extra inputs"),
    ],
)
def test_a_wrong_value_is_refused(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Config.model_validate(config)


def test_fields_may_be_written_in_either_case() -> None:
    wire = Config.model_validate({"baseURL": "http://x", "apiKeyEnv": "K", "maxTokens": 1})
    python = Config.model_validate({"base_url": "http://x", "api_key_env": "K", "max_tokens": 1})
    assert wire == python


@pytest.mark.parametrize(
    ("environment", "warms"),
    [
        ({"DEEPSEEK_API_KEY": "sk-1234"}, True),
        ({}, False),
        ({"DEEPSEEK_API_KEY": "sk-1234", "DEEPSEEK_BASE_URL": "http://x.test"}, False),
        ({"DEEPSEEK_API_KEY": "sk-1234", "DEEPSEEK_BASE_URL": "nonsense"}, False),
    ],
)
async def test_certificates_are_loaded_early_only_for_a_route_that_can_be_used(
    environment: dict[str, str], warms: bool
) -> None:
    adapter = DeepSeekAdapter(Config(), Environment(**environment).value, HttpPool())
    assert await adapter.will_need_tls() is warms


class Recorded(HttpPool):
    """Answers every request itself, and keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[httpx.Request] = []

    async def client(self, *, secure: bool) -> httpx.AsyncClient:
        def answer(request: httpx.Request) -> httpx.Response:
            self.requests.append(request)
            return httpx.Response(500)

        return httpx.AsyncClient(transport=httpx.MockTransport(answer))


@pytest.mark.parametrize(
    ("session", "sent"),
    [("s-1", "s-1"), ("a\r\nb: c", "a%0D%0Ab%3A%20c"), ("ü\ud800", "%C3%BC%3F"), (None, None)],
)
async def test_the_vendor_is_told_the_session_and_the_purpose(
    session: str | None, sent: str | None
) -> None:
    pool = Recorded()
    adapter = DeepSeekAdapter(Config(), {"DEEPSEEK_API_KEY": "sk-12345678"}.get, pool)
    options = GenerateOptions(ROUTE, "m", (), session_id=session, purpose="compaction")
    with pytest.raises(LlmError, match="HTTP 500"):
        await anext(aiter(adapter.stream(options)))
    (request,) = pool.requests
    assert str(request.url) == "https://api.deepseek.com/chat/completions"
    assert request.headers.get("x-deepseek-harness-session-id") == sent
    assert request.headers["x-deepseek-harness-compact"] == "1"
    assert request.headers["authorization"] == "Bearer sk-12345678"
