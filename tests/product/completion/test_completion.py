from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dsh.product.cli.args import SUBCOMMANDS
from dsh.product.cli.help import launcher_help
from dsh.product.cli.table import APPS, COMMANDS, LAUNCHER
from dsh.product.cli.words import options_of
from dsh.product.completion.candidates import FILES, FOLDERS, candidates

BUILT = [name for name, (module, _) in SUBCOMMANDS.items() if module]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name in ("mine", "my-other"):
        folder = tmp_path / "home" / "profiles" / name
        folder.mkdir(parents=True)
        (folder / "profile.json").write_text("{}")
    for session in ("session-one", "session~002Ftwo"):
        (tmp_path / "home" / "sessions" / "--a--" / session).mkdir(parents=True)
    return tmp_path / "home"


def words(home: Path, line: str) -> list[str]:
    return [word for word, _ in candidates(line.split(" "), home)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("pro", ["profile"]),
        ("tree --profile m", ["mine", "my-other"]),
        ("tree --profile=m", ["--profile=mine", "--profile=my-other"]),
        ("tree --profile = mi", ["--profile=mine"]),
        (
            "tree --profile =",
            [f"--profile={name}" for name in ("headless", "mine", "my-other", "web")],
        ),
        ("--profile mi", ["mine"]),
        ("tree --eff", ["--effects"]),
        ("tree --format ", ["text", "mermaid", "json"]),
        ("tree --patch ", [FILES]),
        ("tree --patch x", [FILES]),
        ("profile ", ["list", "new", "delete"]),
        ("profile delete my", ["my-other"]),
        ("profile new x --bundle b", ["base"]),
        ("profile list --", ["--help", "--json"]),
        ("doctor --js", ["--json"]),
        ("completion f", ["fish"]),
        ("--profile headless --resume s", ["session-one"]),
        ("--profile headless --resume ", ["last", "session-one"]),
        ("--profile headless --cwd ", [FOLDERS]),
        ("--profile headless --output-format j", ["json"]),
        ("--profile headless fix --mod", ["--model"]),
        ("--profile headless fix --pat", []),
        ("--profile headless --pat", ["--patch"]),
        ("--profile headless -- --mod", [FILES]),
        ("web --dump-c", ["--dump-config"]),
        ("nonsense ", []),
    ],
)
def test_what_may_stand_there_is_offered(home: Path, line: str, expected: list[str]) -> None:
    assert words(home, line) == expected


def test_asking_makes_nothing_and_imports_little(home: Path) -> None:
    code = (
        "import sys\nfrom dsh.product.cli.main import main\n"
        "main(['completion', '--words', 'tree', '--profile', ''])\n"
        "heavy = {'asyncio', 'click', 'pydantic', 'yaml', 'rich', 'importlib.metadata'}\n"
        "sys.stderr.write(str(heavy & set(sys.modules)))\n"
    )
    env = {**os.environ, "DSH_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert done.stderr == "set()"
    assert "mine\t" in done.stdout
    assert sorted(os.listdir(home / "profiles")) == ["mine", "my-other"]


def test_a_home_without_anything_completes_commands(tmp_path: Path) -> None:
    assert words(tmp_path / "none", "--profile ") == ["headless", "web"]
    assert words(tmp_path / "none", "--profile headless --resume ") == ["last"]


# the table is the command line


def test_the_table_has_every_command_with_the_help_of_the_launcher() -> None:
    assert set(COMMANDS) == {*SUBCOMMANDS, "plugin", "web"}
    for name, (_, text) in SUBCOMMANDS.items():
        assert COMMANDS[name].text == text
        assert f"  {name:<21} {text}" in launcher_help()
    assert COMMANDS["plugin"].text in launcher_help()


def test_the_help_of_the_launcher_is_one_screen_and_names_every_option() -> None:
    text = launcher_help()
    assert len(text.splitlines()) <= 40
    assert max(map(len, text.splitlines())) <= 100
    assert [name for each in LAUNCHER for name in each.names if name not in text] == []


def long_options(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) - {"--help"}


def help_of(words: list[str], home: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "dsh", *words, "--help"],
        env={**os.environ, "DSH_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    # Examples of options that are handed on are none of ours.
    return done.stdout.partition("\n\nWords after the first option that is pip's")[0]


@pytest.mark.parametrize("command", [*SUBCOMMANDS, "plugin"])
def test_the_help_of_each_command_has_just_the_options_of_the_table(
    command: str, tmp_path: Path
) -> None:
    texts = [help_of([command], tmp_path)]
    if command == "plugin":
        verbs = COMMANDS[command].verbs
        texts += [help_of([command, "--profile", "headless", verb], tmp_path) for verb in verbs]
    shown = set().union(*map(long_options, texts))
    named = [name for each in options_of(COMMANDS[command]) for name in each.names]
    assert shown == long_options(" ".join(named))


def test_the_help_of_each_app_has_just_the_options_of_the_table(tmp_path: Path) -> None:
    for profile, app in APPS.items():
        shown = long_options(help_of(["--profile", profile], tmp_path)) - {"--profile"}
        assert shown == long_options(" ".join(name for each in app.options for name in each.names))


# the scripts, in the shells themselves


def shell(name: str) -> str:
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"{name} is not installed")
    return program


def complete(name: str, script: str, line: str, home: Path, tmp_path: Path) -> list[str]:
    """Let a shell complete a line by the script that dsh prints; returns the words it offers."""
    program = shell(name)
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    (folder / "dsh").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dsh "$@"\n')
    (folder / "dsh").chmod(0o755)
    env = {
        **os.environ,
        "DSH_HOME": str(home),
        "HOME": str(tmp_path),
        "PATH": f"{folder}:{os.environ['PATH']}",
        "LINE": line,
    }
    printed = subprocess.run(
        [str(folder / "dsh"), "completion", name], env=env, capture_output=True, check=True
    ).stdout
    (tmp_path / "script").write_bytes(printed)
    done = subprocess.run(
        [program, *(["-f"] if name == "zsh" else []), "-c", script],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split("\n")[:-1]


BASH = """
source ./script
IFS=' ' read -r -a COMP_WORDS <<< "$LINE"
[[ "$LINE" == *' ' ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_dsh 2>/dev/null
(( ${#COMPREPLY[@]} == 0 )) || printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH = """
compdef() { }
_describe() { local name=${@[-1]}; print -rl -- "${(@P)name%%:*}" }
_files() { print -r -- "files$*" }
source ./script
words=("${(@s: :)LINE}"); CURRENT=${#words}
_dsh
"""
FISH = """
source ./script
complete -C "$LINE" | string replace -r '\\t.*' ''
true
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("dsh pro", ["profile"]),
        ("dsh tree --profile m", ["mine", "my-other"]),
        ("dsh profile ", ["delete", "list", "new"]),
        ("dsh --profile headless --res", ["--resume"]),
    ],
)
def test_a_shell_completes(
    name: str, line: str, expected: list[str], home: Path, tmp_path: Path
) -> None:
    assert sorted(complete(name, SCRIPTS[name], line, home, tmp_path)) == expected


@pytest.mark.parametrize(
    ("name", "shown"), [("bash", "ours.yml"), ("fish", "ours.yml"), ("zsh", "files")]
)
def test_a_shell_offers_files_for_a_patch(
    name: str, shown: str, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "ours.yml").touch()
    assert complete(name, SCRIPTS[name], "dsh tree --patch ou", home, tmp_path) == [shown]


def test_bash_completes_a_value_after_the_sign(home: Path, tmp_path: Path) -> None:
    assert complete("bash", BASH, "dsh tree --profile = mi", home, tmp_path) == ["mine"]


def test_every_shell_is_here_in_ci() -> None:
    if os.environ.get("CI") != "true":
        pytest.skip("outside of CI, tests of missing shells skip")
    assert [name for name in SCRIPTS if shutil.which(name) is None] == []


@pytest.mark.parametrize("words", [(), ("tcsh",), ("bash", "zsh"), ("--shell",)])
def test_an_unknown_shell_is_refused(words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dsh", "completion", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("dsh completion: ")
