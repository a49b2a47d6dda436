from __future__ import annotations

import pytest

from dsh.capability.subprocess.environment import Scrubber


@pytest.mark.parametrize(
    "name",
    [
        "API_KEY",
        "DbPassword",
        "MY_SECRET",
        "github_token",
        "GPG_PASSPHRASE",
        "PGPASSWD",
        "AWS_CREDENTIALS",
        "NPM_AUTH",
        "DSH_HOME",
    ],
)
def test_names_of_secrets_are_removed(name: str) -> None:
    assert Scrubber().environment({name: "x", "PATH": "p"}) == {"PATH": "p"}


@pytest.mark.parametrize("name", ["SSH_AUTH_SOCK", "GIT_AUTHOR_NAME", "XAUTHORITY", "LANG"])
def test_names_that_only_look_alike_stay(name: str) -> None:
    assert Scrubber().environment({name: "x"}) == {name: "x"}


def test_a_password_inside_a_url_is_removed() -> None:
    ambient = {"A": "postgres://me:pw@host/db", "B": "https://host/a:b@c", "C": "ssh://me@host"}
    assert set(Scrubber().environment(ambient)) == {"B", "C"}


def test_the_list_can_be_longer_and_have_exceptions() -> None:
    scrubber = Scrubber(extra=["^INTERNAL_"], keep=["CI_TOKEN"])
    ambient = {"INTERNAL_X": "1", "CI_TOKEN": "2", "OTHER_TOKEN": "3"}
    assert scrubber.environment(ambient) == {"CI_TOKEN": "2"}


def test_explicit_values_win_and_none_removes() -> None:
    env = Scrubber().environment({"A": "1", "B": "2"}, {"A": None, "MY_KEY": "given", "Z": None})
    assert env == {"B": "2", "MY_KEY": "given"}


def test_a_secret_is_left_out_under_every_name() -> None:
    ambient = {
        "DEEPSEEK_API_KEY": "sk-0123456789abcdef",
        "COPY": "sk-0123456789abcdef",
        "OPTIONS": "--header=sk-0123456789abcdef --quiet",
        "PATH": "/usr/bin",
    }
    assert Scrubber().environment(ambient) == {"PATH": "/usr/bin"}


@pytest.mark.parametrize("value", ["us", "", "/usr/local/share/keys"])
def test_a_short_word_or_a_path_is_no_secret_elsewhere(value: str) -> None:
    ambient = {"SOME_KEY": value, "OTHER": f"{value}/x"}
    assert Scrubber().environment(ambient) == {"OTHER": f"{value}/x"}
