"""Keys and settings that are stored in the home serve a profile from its start."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support import KEY, Home

from dsh.testing.provider import Provider

Provide = Callable[..., Provider]
REPLY = {"api_key": KEY, "replies": [{"text": "done", "repeat": 9}]}


@pytest.fixture
def provider(home: Home, provide: Provide) -> Provider:
    """A provider that takes one key, which the environment does not have."""
    started = provide(REPLY)
    del home.variables["DEEPSEEK_API_KEY"]
    return started


def test_a_stored_key_is_all_that_a_profile_needs(home: Home, provider: Provider) -> None:
    refused = home.headless("hi")
    assert refused.code == 1
    assert "dsh credentials set DEEPSEEK_API_KEY" in refused.err
    assert home.run("credentials", "set", "DEEPSEEK_API_KEY", input=f"{KEY}\n").code == 0
    ran = home.headless("hi")
    assert (ran.code, ran.out) == (0, "done\n")


def test_the_environment_outranks_a_stored_key(home: Home, provider: Provider) -> None:
    home.run("credentials", "set", "DEEPSEEK_API_KEY", input="sk-wrong-0000\n")
    assert home.headless("hi").code == 1
    assert home.headless("hi", env={"DEEPSEEK_API_KEY": KEY}).code == 0


def test_settings_choose_the_key_and_the_model(home: Home, provider: Provider) -> None:
    home.run("credentials", "set", "OTHER_KEY", input=f"{KEY}\n")
    (home.folder / "settings.yaml").write_text(
        "llm-deepseek: {apiKeyEnv: OTHER_KEY}\n"
        "agent-default-model: {provider: deepseek-official, model: chosen}\n"
    )
    ran = home.headless("hi")
    assert (ran.code, ran.out) == (0, "done\n")
    assert [request["body"]["model"] for request in provider.requests()] == ["chosen"]


@pytest.mark.parametrize(
    ("name", "text", "mode", "told"),
    [
        (
            ".credentials.yaml",
            f"version: 1\nrefs: {{DEEPSEEK_API_KEY: {KEY}}}\n",
            0o644,
            "chmod 600",
        ),
        (".credentials.yaml", f"version: 1\nrefs: {{A: '{KEY}\n", 0o600, "credentials document"),
        ("settings.yaml", f"a: '{KEY}\n", 0o600, "settings.yaml:2:1"),
        ("settings.yaml", "shell: {timeoutMs: 0}\n", 0o600, "settings 'shell': $.timeoutMs"),
        ("settings.yaml", "llm-deepseek: {baseURL: x}\n", 0o600, "baseURL"),
    ],
)
def test_a_document_that_cannot_be_used_ends_the_start_with_its_place(
    home: Home, provider: Provider, name: str, text: str, mode: int, told: str
) -> None:
    home.folder.mkdir()
    path = home.folder / name
    path.write_text(text)
    path.chmod(mode)
    env = {} if name.startswith(".") else {"DEEPSEEK_API_KEY": KEY}
    ran = home.headless("hi", env=env)
    assert (ran.code, ran.out) == (1, "")
    assert told in ran.err
    assert KEY not in ran.err
    assert len(ran.err.splitlines()) == 1
