"""``dsh credentials`` as a user runs it."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dsh.product.credentials.early import EarlyStores

DSH = str(Path(sys.executable).parent / "dsh")
SECRET = "sk-hidden-0123"


class User:
    """Someone with an empty home."""

    def __init__(self, folder: Path) -> None:
        self.home, self.cwd = folder / "home", folder / "work"
        self.cwd.mkdir()
        self.env = {"PATH": os.environ["PATH"], "HOME": str(folder), "DSH_HOME": str(self.home)}

    @property
    def store(self) -> Path:
        return self.home / ".credentials.yaml"

    def run(self, *words: str, input: str = "", **env: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [DSH, "credentials", *words],
            input=input,
            env=self.env | env,
            cwd=self.cwd,
            capture_output=True,
            text=True,
            check=False,
        )
        assert SECRET not in done.stdout + done.stderr
        return done.returncode, done.stdout, done.stderr

    def listed(self, **env: str) -> list[dict[str, Any]]:
        code, out, err = self.run("list", "--json", **env)
        assert (code, err) == (0, "")
        found: list[dict[str, Any]] = json.loads(out)
        return found


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


def test_set_stores_the_line_of_standard_input_for_the_owner_alone(user: User) -> None:
    code, out, err = user.run("set", "MY_API_KEY", input=f"  {SECRET}\n")
    assert (code, out, err) == (0, "stored MY_API_KEY in $DSH_HOME/.credentials.yaml\n", "")
    assert user.store.read_text() == f"version: 1\nrefs:\n  MY_API_KEY: {SECRET}\n"
    assert (user.store.stat().st_mode & 0o777, user.home.stat().st_mode & 0o777) == (0o600, 0o700)
    assert user.run("set", "MY_API_KEY", input="other")[1].startswith("replaced MY_API_KEY")


def test_set_asks_on_a_terminal_and_does_not_show_what_is_typed(user: User) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(user.cwd)
        os.execve(DSH, [DSH, "credentials", "set", "MY_API_KEY"], user.env)
    shown = read_until(terminal, "not shown): ")
    os.write(terminal, f"{SECRET}\n".encode())
    shown += read_until(terminal, "\x04")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0
    assert "value of MY_API_KEY (not shown): " in shown
    assert "stored MY_API_KEY" in shown
    assert SECRET not in shown
    assert SECRET in user.store.read_text()


def read_until(terminal: int, text: str, within_s: float = 20.0) -> str:
    """Read what a terminal shows until a text comes, or its other side is closed."""
    shown, end = "", time.monotonic() + within_s
    while text not in shown:
        if not select.select([terminal], [], [], max(0, end - time.monotonic()))[0]:
            pytest.fail(f"{text!r} was not shown: {shown!r}")
        try:
            data = os.read(terminal, 4096)
        except OSError:
            break
        if not data:
            break
        shown += data.decode()
    return shown


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("set",), "set needs a name"),
        (("set", "MY_API_KEY", SECRET), "takes no value on the command line"),
        (("set", f"MY_API_KEY={SECRET}"), "takes no value on the command line"),
        (("set", SECRET), "named like an environment variable"),
        (("unset", "A", "B"), "takes one name"),
        (("unset", "not a name"), "named like an environment variable"),
        (("list", "--jsn"), "did you mean '--json'"),
        (("lst",), "did you mean 'list'"),
        ((), "say what to do"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_hint(
    user: User, words: tuple[str, ...], problem: str
) -> None:
    code, out, err = user.run(*words, input="x\n")
    assert (code, out) == (1, "")
    assert err.startswith("dsh credentials: ")
    assert problem in err
    assert not user.home.exists()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        (f"{SECRET}\n{SECRET}\n", "one line"),
        ("a\tb", "print"),
    ],
)
def test_values_that_are_no_line_of_text_are_refused(user: User, text: str, problem: str) -> None:
    code, out, err = user.run("set", "MY_API_KEY", input=text)
    assert (code, out) == (1, "")
    assert problem in err
    assert not user.store.exists()


def test_help_says_all_and_succeeds(user: User) -> None:
    for words in (("--help",), ("set", "-h")):
        code, out, err = user.run(*words)
        assert (code, err) == (0, "")
        assert "dsh credentials set NAME" in out


def test_a_name_of_the_environment_is_not_stored(user: User) -> None:
    code, _, err = user.run("set", "MY_API_KEY", input=SECRET, MY_API_KEY="x")
    assert code == 1
    assert "MY_API_KEY is set in the environment, which outranks the store" in err


def test_list_shows_names_and_sources_and_what_they_outrank(user: User) -> None:
    assert user.run("list")[1].startswith("no credentials yet; store one by: dsh credentials set")
    user.run("set", "MY_API_KEY", input=SECRET)
    user.run("set", "TOKEN", input=SECRET)
    (user.cwd / ".env").write_text(f"MY_API_KEY={SECRET}\nPROJECT_API_KEY={SECRET}\nOTHER=1\n")
    (user.home / ".env").write_text(f"HOME_API_KEY={SECRET}\n")
    assert user.listed(ENV_API_KEY=SECRET) == [
        {"name": "ENV_API_KEY", "source": "env", "shadowed": []},
        {"name": "HOME_API_KEY", "source": "user-env", "shadowed": []},
        {"name": "MY_API_KEY", "source": "file", "shadowed": ["project-env"]},
        {"name": "PROJECT_API_KEY", "source": "project-env", "shadowed": []},
        {"name": "TOKEN", "source": "file", "shadowed": []},
    ]
    assert user.run("list")[1] == (
        "HOME_API_KEY     .env of the home\n"
        "MY_API_KEY       store (outranks: .env of the project)\n"
        "PROJECT_API_KEY  .env of the project\n"
        "TOKEN            store\n"
    )


def test_list_shows_records_by_their_kind(user: User) -> None:
    user.home.mkdir()
    user.store.write_text(f"version: 1\nrecords: {{mcp/one: {{kind: grant, payload: {SECRET}}}}}\n")
    user.store.chmod(0o600)
    assert user.run("list")[1] == "mcp/one  store (grant)\n"


def test_list_writes_nothing(user: User) -> None:
    user.home.mkdir()
    user.store.write_text(f"OLD_KEY: {SECRET}\n")
    user.store.chmod(0o600)
    assert user.listed() == [{"name": "OLD_KEY", "source": "file", "shadowed": []}]
    assert user.store.read_text() == f"OLD_KEY: {SECRET}\n"


def test_unset_takes_a_name_out_and_says_when_it_is_not_there(user: User) -> None:
    user.run("set", "MY_API_KEY", input=SECRET)
    code, _, err = user.run("unset", "MY_API_KY")
    assert (code, err) == (
        1,
        "dsh credentials: MY_API_KY is not stored; did you mean 'MY_API_KEY'?\n",
    )
    assert user.run("unset", "MY_API_KEY")[0] == 0
    assert user.listed() == []
    _, _, err = user.run("unset", "MY_API_KEY", MY_API_KEY="x")
    assert err == "dsh credentials: MY_API_KEY is not stored; it comes from the environment\n"


@pytest.mark.parametrize("words", [("list",), ("set", "A"), ("unset", "A")])
def test_a_store_that_others_may_open_is_refused_with_the_remedy(
    user: User, words: tuple[str, ...]
) -> None:
    user.home.mkdir()
    user.store.write_text(f"version: 1\nrefs: {{A: {SECRET}}}\n")
    user.store.chmod(0o644)
    code, out, err = user.run(*words, input="x")
    assert (code, out) == (1, "")
    assert f"chmod 600 {user.store}" in err


def test_the_command_imports_no_agent_stack(user: User) -> None:
    code = """
import sys
from dsh.product.credentials.cli import main
assert main(["list"]) == 0
heavy = {"pydantic", "click", "rich", "httpx"} & set(sys.modules)
assert not heavy, heavy
"""
    env = user.env
    subprocess.run([sys.executable, "-c", code], env=env, check=True, stdout=subprocess.DEVNULL)


def test_what_is_known_early_follows_the_rows(user: User, tmp_path: Path) -> None:
    from dsh.loader.environment import LaunchEnvironment

    user.run("set", "A", input=SECRET)
    (user.home / "settings.yaml").write_text("shell: {timeoutMs: 5}\nodd: 3\n")
    environment = LaunchEnvironment({"B": "env"}, project={"A": "project", "C": "project"})
    local, file = "dsh.state.credentials.local", "dsh.state.settings.file"

    def early(configs: dict[str, dict[str, str]]) -> EarlyStores:
        return EarlyStores(environment, configs, lambda name: str(user.home / name))

    both = early({local: {}, file: {}})
    assert [both.credential(name) for name in "ABCD"] == [SECRET, "env", "project", None]
    assert (both.section("shell"), both.section("odd"), both.section("none")) == (
        {"timeoutMs": 5},
        {},
        {},
    )
    assert both.value("A") == "project"
    assert early({}).credential("A") == "project"
    assert early({}).section("shell") == {}
    elsewhere = {"path": str(tmp_path / "none.yaml")}
    assert early({local: elsewhere}).credential("A") == "project"
    assert early({local: {"dshHome": str(user.home)}}).credential("A") == SECRET
