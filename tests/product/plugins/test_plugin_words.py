"""The words of ``dsh plugin``."""

from __future__ import annotations

import subprocess
import sys

import pytest
from plugin_support import User, refused

from dsh.product.plugins.errors import WordsError
from dsh.product.plugins.help import verb_help
from dsh.product.plugins.words import VERBS, Words, read_words


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("add a b", Words("add", ("a", "b"))),
        ("add --allow-build .", Words("add", (".",), allow_build=True)),
        ("add . --allow-build", Words("add", (".",), allow_build=True)),
        ("add a --index-url x --pre", Words("add", ("a",), ("--index-url", "x", "--pre"))),
        (
            "add a --no-index --find-links d --allow-build",
            Words("add", ("a",), ("--no-index", "--find-links", "d"), allow_build=True),
        ),
        ("add --pre a", Words("add", ("a",), ("--pre",))),
        ("add -q --no-index a -f d", Words("add", ("a",), ("-q", "--no-index", "-f", "d"))),
        ("add a --odd-flag b", Words("add", ("a",), ("--odd-flag", "b"))),
        ("add -- a", Words("add", ("a",))),
        ("remove a", Words("remove", ("a",))),
        ("update", Words("update")),
        ("update a --pre", Words("update", ("a",), ("--pre",))),
        ("install --no-index", Words("install", (), ("--no-index",))),
        ("list --json", Words("list", json=True)),
        ("new x --dir y", Words("new", ("x",), folder="y")),
        ("new --dir=y x", Words("new", ("x",), folder="y")),
        ("--help", Words("", help=True)),
        ("add --help", Words("add", help=True)),
        ("add a -h", Words("add", help=True)),
    ],
)
def test_words_are_sorted_into_packages_and_options(line: str, read: Words) -> None:
    assert read_words(line.split()) == read


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("ad x", "unknown verb 'ad' (did you mean 'add'?)"),
        ("zzz", "unknown verb 'zzz'; possible are: add, install, list, new, remove, update"),
        ("add", "add: name at least one package"),
        ("add --index-url x y", "add: name at least one package, before pip's options"),
        ("remove", "remove: name at least one package"),
        ("list x", "list takes no names, got 'x'"),
        ("install x", "install takes no names, got 'x'; to install it: add x"),
        ("list --jsn", "list: unknown option '--jsn' (did you mean '--json'?)"),
        ("list --all", "list: unknown option '--all'; possible are: --json, --help"),
        ("new", "new: name the package to write"),
        ("new a b", "new: name the package to write"),
        ("new a --dir", "--dir needs a folder"),
        ("new a --dir=", "--dir needs a folder"),
        ("add a --target x", "--target is not passed on to pip: the profile decides"),
        ("add a --no-binary=:all:", "--no-binary is not passed on to pip: wheels only"),
        ("add -e .", "-e is not passed on to pip: a profile holds copies"),
        ("add a --index-url x --user", "--user is not passed on to pip"),
        ("add -r x", "-r is not passed on to pip: the profile's manifest"),
        ("add a --force-reinstall", "--force-reinstall is not passed on to pip: every change"),
    ],
)
def test_words_that_make_no_sense_are_refused(line: str, problem: str) -> None:
    with pytest.raises(WordsError) as caught:
        read_words(line.split())
    assert problem in str(caught.value)


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_each_verb_has_a_help(verb: str) -> None:
    text = verb_help(verb)
    assert text.startswith("usage: dsh plugin ")
    assert all(len(line) <= 100 for line in text.splitlines())
    assert verb in text


def test_help_and_usage_errors_by_the_command(user: User) -> None:
    for words in (["plugin", "--help"], ["plugin", "--profile", "p", "--help"]):
        done = user.run(*words)
        assert (done.returncode, done.stdout, done.stderr) == (0, verb_help(""), "")
    done = user.plugin("add", "--help")
    assert (done.returncode, done.stdout) == (0, verb_help("add"))
    assert refused(user.plugin("lst")) == "dsh plugin: unknown verb 'lst' (did you mean 'list'?)"
    assert "--profile <name> is required" in refused(user.run("plugin", "list"))
    assert not user.home.exists()


def test_help_and_list_import_nothing_heavy(user: User) -> None:
    user.made()
    code = (
        "import sys; from dsh.product.cli.main import main; main(sys.argv[1:]); "
        "print([n for n in ('asyncio', 'click', 'pydantic', 'httpx', 'pip') if n in sys.modules])"
    )
    for words in (["--help"], ["--profile", "p", "list"]):
        command = [sys.executable, "-c", code, "plugin", *words]
        done = subprocess.run(command, env=user.env, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]"
