from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from dsh.product.profiles.cli import main


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DSH_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def listed(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    capsys.readouterr()
    assert main(["list", "--json"]) == 0
    return {row["name"]: row for row in json.loads(capsys.readouterr().out)}


def test_templates_are_listed_before_they_are_made(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert listed(capsys)["headless"] == {
        "name": "headless",
        "bundles": ["base", "headless"],
        "template": True,
        "made": False,
        "problem": None,
    }
    assert not home.exists()


def test_a_new_profile_lists_its_bundles_in_their_order(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", "mine", "--bundle", "headless", "--bundle", "base"]) == 0
    assert "mine" in capsys.readouterr().out
    row = listed(capsys)["mine"]
    assert (row["bundles"], row["template"], row["made"]) == (["headless", "base"], False, True)


def test_a_new_profile_has_the_base_bundle_when_none_is_named(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", "mine"]) == 0
    assert listed(capsys)["mine"]["bundles"] == ["base"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["new", "mine", "--bundle", "bse"], "did you mean 'base'?"),
        (["new", "a/b"], 'invalid profile name "a/b"'),
        (["new"], "needs the name of a profile"),
        (["new", "a", "b"], "unexpected 'b' after new"),
        (["delete", "nobody", "--yes"], "nobody"),
        (["delte", "mine"], "did you mean 'delete'?"),
        (["list", "--jsno"], "did you mean '--json'?"),
        ([], "say what to do"),
    ],
)
def test_unusable_words_change_nothing(
    home: Path, capsys: pytest.CaptureFixture[str], words: list[str], problem: str
) -> None:
    assert main(words) == 1
    said = capsys.readouterr()
    assert said.err.startswith("dsh profile: ")
    assert problem in said.err
    assert said.out == ""
    assert not (home / "profiles").exists()


def test_a_profile_is_made_only_once(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "mine"]) == 0
    before = (home / "profiles" / "mine" / "profile.json").read_bytes()
    assert main(["new", "mine", "--bundle", "headless"]) == 1
    assert (home / "profiles" / "mine" / "profile.json").read_bytes() == before


def test_deleting_needs_yes_where_nobody_can_be_asked(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(["new", "mine"]) == 0
    assert main(["delete", "mine"]) == 1
    assert "--yes" in capsys.readouterr().err
    assert main(["delete", "mine", "--yes"]) == 0
    assert "mine" not in listed(capsys)


@pytest.mark.parametrize(("answer", "kept"), [("y\n", False), ("\n", True), ("no\n", True)])
def test_a_terminal_is_asked(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    kept: bool,
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    assert main(["new", "mine"]) == 0
    assert main(["delete", "mine"]) == int(kept)
    assert ("mine" in listed(capsys)) is kept


def test_what_a_terminal_would_act_on_is_shown_escaped(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = home / "profiles" / "odd"
    folder.mkdir(parents=True)
    manifest = {"dsh": {"profile": {"bundles": ["a\x1b[2J"]}}}
    (folder / "profile.json").write_text(json.dumps(manifest))
    assert main(["list"]) == 0
    assert main(["new", "b\x1b[2J"]) == 1
    said = capsys.readouterr()
    assert "a\\x1b[2J" in said.out
    assert 'invalid profile name "b\\x1b[2J"' in said.err
    assert "\x1b" not in said.out + said.err


def test_a_broken_profile_is_listed_with_what_is_wrong_and_without_the_homes_path(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = home / "profiles" / "bad"
    folder.mkdir(parents=True)
    (folder / "profile.json").write_text("{nonsense")
    row = listed(capsys)["bad"]
    assert "$DSH_HOME/profiles/bad/profile.json:1:2" in str(row["problem"])
    assert str(home) not in str(row["problem"])
    assert main(["list"]) == 0
    assert "cannot be used" in capsys.readouterr().out


def test_a_home_that_is_a_file_is_one_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.write_text("")
    assert main(["list"]) == 0
    capsys.readouterr()
    assert main(["new", "mine"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
