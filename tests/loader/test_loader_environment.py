from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh.loader.environment import (
    EnvValue,
    LaunchEnvironment,
    fenced,
    load_environment,
    parse_env,
    publish_user_values,
)
from dsh.loader.home import display_home, resolve_dsh_home


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    home, cwd = tmp_path / "home", tmp_path / "cwd"
    home.mkdir()
    cwd.mkdir()
    return home, cwd


def test_the_most_trusted_layer_wins(folders: tuple[Path, Path]) -> None:
    home, cwd = folders
    (cwd / ".env").write_text("A=project\nB=project\n")
    (home / ".env").write_text("A=user\nB=user\nC=user\n")
    env = load_environment(home, cwd, {"A": "process"})
    assert env.get("A") == EnvValue("process", "process", None)
    assert env.get("B") == EnvValue("project", "project-env", cwd / ".env")
    assert env.get("C") == EnvValue("user", "user-env", home / ".env")
    assert env.get("D") is None
    assert env.value("B") == "project"


def test_layers_left_out_are_not_searched(folders: tuple[Path, Path]) -> None:
    home, cwd = folders
    (cwd / ".env").write_text("A=project\n")
    (home / ".env").write_text("A=user\n")
    env = load_environment(home, cwd, {})
    found = env.get_from("A", ["user-env", "process"])
    assert found is not None
    assert found.source == "user-env"
    assert env.get_from("A", ["process"]) is None


def test_a_project_may_not_set_fenced_names(folders: tuple[Path, Path]) -> None:
    home, cwd = folders
    (cwd / ".env").write_text("PATH=/x\nhttps_proxy=p\nDSH_PERMISSION_MODE=x\nBROWSER=b\nOK=1\n")
    told: list[str] = []
    env = load_environment(home, cwd, {}, told.append)
    assert dict(env.layer("project-env")) == {"OK": "1"}
    assert len(told) == 1
    for name in ("PATH", "https_proxy", "DSH_PERMISSION_MODE", "BROWSER", str(cwd / ".env")):
        assert name in told[0]
    assert "export them" in told[0]


def test_the_home_file_may_set_any_name(folders: tuple[Path, Path]) -> None:
    home, cwd = folders
    (home / ".env").write_text("DEEPSEEK_BASE_URL=http://gateway\nHTTPS_PROXY=p\n")
    told: list[str] = []
    env = load_environment(home, cwd, {}, told.append)
    assert env.value("DEEPSEEK_BASE_URL") == "http://gateway"
    assert told == []


def test_in_the_home_folder_the_file_is_read_once(folders: tuple[Path, Path]) -> None:
    home, _ = folders
    (home / ".env").write_text("A=1\nDEEPSEEK_BASE_URL=u\n")
    told: list[str] = []
    env = load_environment(home, home, {}, told.append)
    assert env.get("A") == EnvValue("1", "project-env", home / ".env")
    assert env.value("DEEPSEEK_BASE_URL") == "u"
    assert env.layer("user-env") == {}
    assert told == []


def test_parents_are_not_searched_and_absence_is_silent(folders: tuple[Path, Path]) -> None:
    home, cwd = folders
    (cwd / ".env").write_text("A=1\n")
    (cwd / "deep").mkdir()
    told: list[str] = []
    assert load_environment(home, cwd / "deep", {}, told.append).get("A") is None
    assert told == []


@pytest.mark.parametrize("content", ["folder", "pipe", b"A=\xff", b"A=x\0y"])
def test_an_unreadable_file_is_told_and_passed_over(
    folders: tuple[Path, Path], content: bytes | str
) -> None:
    home, cwd = folders
    if content == "folder":
        (cwd / ".env").mkdir()
    elif content == "pipe":
        os.mkfifo(cwd / ".env")
    else:
        assert isinstance(content, bytes)
        (cwd / ".env").write_bytes(content)
    told: list[str] = []
    env = load_environment(home, cwd, {"A": "1"}, told.append)
    assert env.value("A") == "1"
    assert [text.startswith("failed to load .env: ") for text in told] == [True]


def test_only_user_values_reach_the_process(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, cwd = folders
    for name in ("DSH_TEST_P", "DSH_TEST_U", "TEST_P"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("DSH_TEST_I", "inherited")
    (cwd / ".env").write_text("TEST_P=project\n")
    (home / ".env").write_text("DSH_TEST_U=user\nDSH_TEST_I=user\n")
    publish_user_values(load_environment(home, cwd))
    assert "TEST_P" not in os.environ
    assert os.environ["DSH_TEST_U"] == "user"
    assert os.environ["DSH_TEST_I"] == "inherited"


def test_values_do_not_show_in_a_repr() -> None:
    assert "sk-secret" not in repr(LaunchEnvironment({"KEY": "sk-secret"}))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("A=1", {"A": "1"}),
        ("export A = two words # c", {"A": "two words"}),
        ("A='s # \"x\"' # c", {"A": 's # "x"'}),
        ('A="one\ntwo\\n\\"q\\" \\\\"', {"A": 'one\ntwo\n"q" \\'}),
        ("A='raw\\n'", {"A": "raw\\n"}),
        ("A=`tick 'x'`", {"A": "tick 'x'"}),
        ("A=", {"A": ""}),
        ("A=#x", {"A": ""}),
        ("A=a#b", {"A": "a#b"}),
        ("A=a\u00a0b", {"A": "a\u00a0b"}),
        ("A=1\r\nB=2\r\n", {"A": "1", "B": "2"}),
        ("\ufeffA=1", {"A": "1"}),
        ("A=1\nA=2", {"A": "2"}),
        ("# A=1\n\nnonsense\n=x\n1A=x", {}),
        ("A=$B ${C}", {"A": "$B ${C}"}),
        ("URL=http://u:p@h/?q=1&r=2", {"URL": "http://u:p@h/?q=1&r=2"}),
    ],
)
def test_the_file_format(text: str, values: dict[str, str]) -> None:
    assert parse_env(text) == values


@given(st.text(max_size=300))
def test_any_text_parses(text: str) -> None:
    assert all(name.strip() for name in parse_env(text))


@pytest.mark.parametrize("line", ["A=" + " " * 200_000 + "x", " " * 200_000, "A='" * 50_000])
def test_hostile_lines_take_no_time(line: str) -> None:
    parse_env(line)


@pytest.mark.parametrize("name", ["PATH", "path", "DSH_X", "dsh_home", "XDG_Y", "LD_PRELOAD"])
def test_bootstrap_names_are_fenced_in_any_case(name: str) -> None:
    assert fenced(name)
    assert not fenced(f"MY{name}")


def test_home_is_configured_or_inherited_or_the_default(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "DSH_HOME": str(tmp_path / "own")}
    assert resolve_dsh_home("/conf", env) == Path("/conf")
    assert resolve_dsh_home(None, env) == tmp_path / "own"
    assert resolve_dsh_home("  ", env) == tmp_path / "own"
    assert resolve_dsh_home(None, {**env, "DSH_HOME": " "}) == tmp_path / ".dsh"
    assert resolve_dsh_home(None, {**env, "DSH_HOME": "~/x"}) == tmp_path / "x"
    assert resolve_dsh_home(None, {**env, "DSH_HOME": "~"}) == tmp_path
    assert resolve_dsh_home(None, {**env, "DSH_HOME": "~you"}) == Path.cwd() / "~you"


def test_the_shown_home_is_no_path_of_this_machine(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path)}
    assert display_home(tmp_path / ".dsh", env) == "~/.dsh"
    assert display_home(tmp_path / "other", env) == "$DSH_HOME"
