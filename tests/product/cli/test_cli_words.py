from __future__ import annotations

import pytest

from dsh.product.cli.words import WordsError, command_help, read_words


def test_words_are_read_as_the_table_says() -> None:
    words = read_words("profile", ["new", "mine", "--bundle=a", "--bundle", "b"])
    assert words is not None
    assert (words.verb, words.args, words.values("--bundle")) == ("new", ["mine"], ["a", "b"])
    assert not words.flag("--json")


def test_a_short_option_is_known_by_its_long_name() -> None:
    words = read_words("profile", ["delete", "x", "-y"])
    assert words is not None
    assert words.flag("--yes")


def test_words_after_the_separator_are_no_options() -> None:
    words = read_words("profile", ["new", "--", "--help"])
    assert words is not None
    assert words.args == ["--help"]


def test_help_wins_over_what_is_wrong() -> None:
    assert read_words("tree", ["--format", "svg", "-h"]) is None


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["--format", "json", "--format", "text"], "--format is given twice"),
        (["--effects=yes"], "--effects takes no value"),
        (["--profile", "--effects"], "needs a value"),
        (["--profile="], "not empty"),
        (["-x"], "unknown option '-x'"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(argv: list[str], problem: str) -> None:
    with pytest.raises(WordsError, match=problem):
        read_words("tree", argv)


@pytest.mark.parametrize("name", ["completion", "doctor", "profile", "tree"])
def test_a_help_fits_a_terminal(name: str) -> None:
    lines = command_help(name).splitlines()
    assert lines[0].startswith(f"usage: dsh {name} ")
    assert max(map(len, lines)) <= 100
