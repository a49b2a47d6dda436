"""What a line must look like to be a command."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh.control.commands import ParsedCommand, parse_command

NAMES = st.from_regex(r"[a-z][a-z0-9_-]*", fullmatch=True)


@pytest.mark.parametrize(
    "line",
    ["", "/", "goal", " /goal", "\n/goal", "//goal", "/Goal", "/goal/path", "/goal🔥", "/1up",
     "/goal\u00a0x", "/goal\x0bx", "/gOal", "/-x", "/goal."],
)  # fmt: skip
def test_a_line_without_the_form_is_no_command(line: str) -> None:
    assert parse_command(line) is None


@pytest.mark.parametrize(
    ("line", "name", "raw_input"),
    [
        ("/goal", "goal", ""),
        ("/goal ", "goal", " "),
        ("/goal\tx", "goal", "\tx"),
        ("/goal\nx\ny ", "goal", "\nx\ny "),
        ("/goal\r\n", "goal", "\r\n"),
        ("/a-b_c2  /x", "a-b_c2", "  /x"),
    ],
)
def test_the_input_is_verbatim_and_includes_the_separator(
    line: str, name: str, raw_input: str
) -> None:
    assert parse_command(line) == ParsedCommand(name, raw_input)


@given(st.text())
def test_whatever_is_parsed_adds_up_to_the_line(text: str) -> None:
    for line in (text, "/" + text):
        parsed = parse_command(line)
        if parsed is not None:
            assert f"/{parsed.name}{parsed.raw_input}" == line
            assert parsed.raw_input[:1] in ("", "\t", "\n", "\r", " ")


@given(NAMES, st.sampled_from("\t\n\r "), st.text())
def test_every_name_with_every_input_is_parsed(name: str, separator: str, rest: str) -> None:
    assert parse_command(f"/{name}") == ParsedCommand(name, "")
    assert parse_command(f"/{name}{separator}{rest}") == ParsedCommand(name, separator + rest)


@given(NAMES, st.characters(exclude_characters="\t\n\r abcdefghijklmnopqrstuvwxyz0123456789_-"))
def test_nothing_but_white_space_ends_a_name(name: str, after: str) -> None:
    assert parse_command(f"/{name}{after}") is None
