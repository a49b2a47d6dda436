"""The adapter under settings and credentials that change while it serves."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dsh.kernel import Fiber
from dsh.model.llm import LlmRuntime, NormalRetry
from dsh.state.credentials import CredentialProvider
from dsh.state.credentials.local import LocalCredentials
from dsh.state.settings import SettingsProvider, SettingsRefused
from dsh.state.settings.file import FileSettings
from dsh.testing.provider import start_provider

if TYPE_CHECKING:
    from tests.model.conftest import Model

ROUTE = "deepseek-official"
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
async def home(model: Model, tmp_path: Path) -> Path:
    """Settings and credentials in files, under the adapter."""
    await model.root.plugin(FileSettings, {"path": str(tmp_path / "settings.yaml")})
    return tmp_path


async def credentials(model: Model, home: Path) -> Fiber:
    return await model.root.plugin(LocalCredentials, {"path": str(home / "keys.yaml")})


class NoVariables:
    """A launch whose layers set only the address."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def value(self, name: str) -> str | None:
        return self.values.get(name)

    def get_from(self, name: str, sources: object) -> None:
        return None


def settings(model: Model) -> SettingsProvider:
    return model.root.require(SettingsProvider)


async def test_settings_go_over_the_row_from_the_next_request(model: Model, home: Path) -> None:
    with start_provider({"replies": [{"text": "x", "repeat": 9}]}) as provider:
        await model.mount(NOWHERE, {"baseURL": NOWHERE, "maxTokens": 7})
        await settings(model).update("llm-deepseek", {"baseURL": provider.url})
        assert (await model.ask()).text == "x"
        call = await model.root.require(LlmRuntime).prepare_call({"provider": ROUTE, "model": "m"})
        assert call.config["maxTokens"] == 7
        await settings(model).update("llm-deepseek", {"maxTokens": 8})
        call = await model.root.require(LlmRuntime).prepare_call({"provider": ROUTE, "model": "m"})
        assert call.config["maxTokens"] == 8


async def test_a_stream_under_way_keeps_its_facts(model: Model, home: Path) -> None:
    with start_provider({"replies": [{"text": "a b c", "repeat": 9}]}) as provider:
        await model.mount(NOWHERE, {"baseURL": provider.url})
        runtime = model.root.require(LlmRuntime)
        call = await runtime.prepare_call({"provider": ROUTE, "model": "m"})
        texts: list[str] = []
        async for chunk in call.stream(model.options()):
            await settings(model).update("llm-deepseek", {"baseURL": NOWHERE})
            if chunk["type"] == "text-delta":
                texts.append(chunk["text"])
        assert "".join(texts) == "a b c"
        assert (await model.ask()).code == "TRANSPORT"


async def test_a_call_that_was_prepared_before_a_change_goes_where_it_was_to_go(
    model: Model, home: Path
) -> None:
    with start_provider({"replies": [{"text": "x", "repeat": 9}]}) as provider:
        await model.mount(NOWHERE, {"baseURL": provider.url})
        call = await model.root.require(LlmRuntime).prepare_call({"provider": ROUTE, "model": "m"})
        await settings(model).update("llm-deepseek", {"baseURL": NOWHERE})
        kinds = [chunk["type"] async for chunk in call.stream(model.options())]
        assert "text-delta" in kinds


@pytest.mark.parametrize(
    ("patch", "place"),
    [
        ({"baseURL": "nonsense"}, "baseURL"),
        ({"maxTokens": 0}, r"\$\.maxTokens"),
        ({"models": [{"id": "a"}, {"id": "a"}]}, "unique ids"),
        ({"apiKeyEnv": "sk-my-key"}, r"\$\.apiKeyEnv"),
    ],
)
async def test_settings_that_cannot_serve_are_refused_when_they_are_written(
    model: Model, home: Path, patch: dict[str, Any], place: str
) -> None:
    await model.mount(NOWHERE)
    with pytest.raises(SettingsRefused, match=place):
        await settings(model).update("llm-deepseek", patch)
    assert not (home / "settings.yaml").exists()


async def test_an_edit_that_cannot_serve_leaves_the_last_good_settings(
    model: Model, home: Path
) -> None:
    reports: list[str] = []
    model.root.set_reporter(lambda error, *_: reports.append(str(error)))
    with start_provider({"replies": [{"text": "x", "repeat": 9}]}) as provider:
        await model.mount(provider.url)
        (home / "settings.yaml").write_text("llm-deepseek: {baseURL: nonsense}\n")
        file: Any = settings(model)
        await file.reload()
        await file.reload()
        assert (await model.ask()).text == "x"
    assert len(reports) == 1
    assert "baseURL" in reports[0]


async def test_another_retry_policy_is_registered_in_place(model: Model, home: Path) -> None:
    await model.mount(NOWHERE)
    runtime = model.root.require(LlmRuntime)
    await settings(model).update(
        "llm-deepseek", {"retryPolicy": {"mode": "normal", "maxRetries": 1}}
    )
    async with asyncio.timeout(5):
        while runtime.provider_retry_policy(ROUTE) != NormalRetry(max_retries=1):  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert [info.id for info in runtime.providers()] == [ROUTE]


async def test_the_key_is_asked_for_at_each_request(model: Model, home: Path) -> None:
    with start_provider(
        {"api_key": "sk-right-0000", "replies": [{"text": "x", "repeat": 9}]}
    ) as provider:
        model.environment = NoVariables()  # type: ignore[assignment]
        await model.mount(provider.url)
        missing = await model.ask()
        assert missing.code == "MISSING_CREDENTIAL"
        assert "dsh credentials set DEEPSEEK_API_KEY" in missing.failure["message"]
        store = await credentials(model, home)
        assert (await model.ask()).code == "MISSING_CREDENTIAL"
        keys = model.root.require(CredentialProvider)
        await keys.set("DEEPSEEK_API_KEY", "sk-wrong-0000")
        assert (await model.ask()).code == "AUTH"
        await keys.set("DEEPSEEK_API_KEY", "sk-right-0000")
        assert (await model.ask()).text == "x"
        await settings(model).update("llm-deepseek", {"apiKeyEnv": "OTHER_KEY"})
        assert (await model.ask()).code == "MISSING_CREDENTIAL"
        await keys.set("OTHER_KEY", "sk-right-0000")
        assert (await model.ask()).text == "x"
        await store.dispose()
        assert (await model.ask()).code == "MISSING_CREDENTIAL"
