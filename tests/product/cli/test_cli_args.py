from __future__ import annotations

import pytest

from dsh.product.cli.args import Invocation, UsageError, parse_args


def parse(line: str) -> Invocation:
    return parse_args(line.split())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "--profile tui --patch a.yml --resume b --patch late.yml",
            Invocation(
                "profile", "tui", patches=["a.yml"], args=["--resume", "b", "--patch", "late.yml"]
            ),
        ),
        (
            "--profile headless run the tests",
            Invocation("profile", "headless", args=["run", "the", "tests"]),
        ),
        ("--profile=x --patch=a --patch b", Invocation("profile", "x", patches=["a", "b"])),
        ("--patch a --profile x", Invocation("profile", "x", patches=["a"])),
        ("--profile x -h", Invocation("profile", "x", args=["-h"])),
        (
            "--profile x --help --patch a",
            Invocation("profile", "x", args=["--help", "--patch", "a"]),
        ),
        ("--profile x -- --patch a", Invocation("profile", "x", args=["--patch", "a"])),
        ("--profile x -- -- y", Invocation("profile", "x", args=["--", "y"])),
        ("--profile x y -- z", Invocation("profile", "x", args=["y", "--", "z"])),
        ("--profile x -- web", Invocation("profile", "x", args=["web"])),
        ("--profile x sessions list", Invocation("profile", "x", args=["sessions", "list"])),
        ("--profile x --strict y", Invocation("profile", "x", args=["y"], strict=True)),
        ("--profile x --no-save y", Invocation("profile", "x", args=["--no-save", "y"])),
        ("web", Invocation("profile", "web")),
        (
            "web --patch a --port 1",
            Invocation("profile", "web", patches=["a"], args=["--port", "1"]),
        ),
        ("web --profile x", Invocation("profile", "web", args=["--profile", "x"])),
        ("web -h", Invocation("profile", "web", args=["-h"])),
        ("web web", Invocation("profile", "web", args=["web"])),
        ("web --dump-config", Invocation("dump-config", "web")),
        ("--profile x --dump-config --patch a", Invocation("dump-config", "x", patches=["a"])),
        (
            "--dump-default-config --profile x",
            Invocation("dump-config", "x", default_only=True),
        ),
        (
            "plugin --profile x add --save-dev y",
            Invocation("plugin", "x", args=["add", "--save-dev", "y"]),
        ),
        ("plugin --profile=x -- add", Invocation("plugin", "x", args=["add"])),
        ("plugin --profile x --help", Invocation("plugin", "x", args=["--help"])),
        ("plugin --help", Invocation("plugin-help")),
        ("plugin new x --dir y", Invocation("plugin", args=["new", "x", "--dir", "y"])),
        ("plugin --profile p new x", Invocation("plugin", "p", args=["new", "x"])),
        ("sessions list --json", Invocation("subcommand", "sessions", args=["list", "--json"])),
        ("demo --help", Invocation("subcommand", "demo", args=["--help"])),
        ("-h", Invocation("help")),
        ("--help", Invocation("help")),
        ("--patch a --help", Invocation("help")),
        ("-V", Invocation("version")),
        ("--version --bogus", Invocation("version")),
        ("--profile x -V", Invocation("version")),
        ("web -V", Invocation("version")),
        ("web --patch a --version --port 1", Invocation("version")),
        ("web --port 1 -V", Invocation("profile", "web", args=["--port", "1", "-V"])),
    ],
)
def test_words_are_split_between_launcher_and_app(line: str, expected: Invocation) -> None:
    assert parse(line) == expected


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("", "--profile <name> is required"),
        ("tui", "unknown command 'tui'"),
        ("run task", "unknown command 'run'"),
        ("demmo", "did you mean 'dsh demo'?"),
        ("sesions list", "did you mean 'dsh sessions'?"),
        ("wep", "did you mean 'dsh web'?"),
        ("headless fix it", "did you mean 'dsh --profile headless'?"),
        ("--config x", "unknown option '--config'"),
        ("-p task", "unknown option '-p'"),
        ("--bogus", "unknown option '--bogus'"),
        ("--profle x", "did you mean '--profile'?"),
        ("--profile", "--profile <name> needs a value"),
        ("--profile=", "that is not empty"),
        ("--profile --dump-config", "--profile <name> needs a value"),
        ("--patch=", "--patch <path> needs a value that is not empty"),
        ("--profile x --patch", "--patch <path> needs a value"),
        ("--dump-config", "--profile <name> is required"),
        ("--dump-default-config", "--profile <name> is required"),
        ("--", "--profile <name> is required"),
        ("-- x", "--profile <name> is required"),
        ("--profile x --dump-config --dump-default-config", "exclude each other"),
        ("--profile x --dump-default-config --patch a", "takes no --patch"),
        ("--profile x --dump-config -h", "a dump takes no app arguments, got '-h'"),
        ("web --dump-config --port 8080", "a dump takes no app arguments, got '--port'"),
        ("--profile x web", "options stand after the subcommand"),
        ("--profile x plugin add y", "options stand after the subcommand"),
        ("--patch a web", "options stand after the subcommand"),
        ("plugin add x", "plugin: --profile <name> is required"),
        ("plugin", "plugin: --profile <name> is required"),
        ("plugin --profile=", "that is not empty"),
        ("plugin --profile x", "plugin: nothing to do"),
        ("plugin --profile x --", "plugin: nothing to do"),
    ],
)
def test_words_that_make_no_sense_are_refused(line: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(line)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_blank_values_are_refused() -> None:
    for argv in (["--profile", ""], ["--profile", " "], ["plugin", "--profile", "", "add"]):
        with pytest.raises(UsageError, match="not empty"):
            parse_args(argv)
