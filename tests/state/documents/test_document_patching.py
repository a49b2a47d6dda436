"""A patched text means what it should, and says everything else as before."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh.base.json import equal, thaw
from dsh.state.documents import DocumentError
from dsh.state.documents.parsing import parse_yaml
from dsh.state.documents.patching import patch_yaml

HERE = Path("document.yaml")


def read(text: str) -> Any:
    return parse_yaml(text, HERE, "document")


def patched(text: str, change: Any) -> str:
    """Patch a text by a function on its data, or by the data it shall have."""
    old = read(text)
    new = thaw(old)
    if callable(change):
        change(new)
    else:
        new = change
    result = patch_yaml(text, old, new, read)
    assert result is not None
    assert equal(read(result), new)
    return result


DOCUMENT = """\
# The house.

# How long commands run.
shell:   # limits
    timeoutMs: 1000   # a second
    # what is kept
    maxOutputBytes: 5
    tags:
    - one
    - two # last

# What comes after.
model: {provider: p, model: m}   # inline
notes: |
  first
   second

# The end.
empty:
"""


def test_a_changed_leaf_changes_no_other_byte() -> None:
    result = patched(DOCUMENT, lambda new: new["shell"].update(timeoutMs=2000))
    assert result == DOCUMENT.replace("1000   #", "2000   #")


def test_a_new_leaf_stands_at_the_end_of_its_section_in_its_indentation() -> None:
    result = patched(DOCUMENT, lambda new: new["shell"].update(cwd="/tmp"))
    assert result == DOCUMENT.replace("two # last\n", "two # last\n    cwd: /tmp\n")


def test_a_removed_leaf_takes_its_comment_along_and_no_other() -> None:
    result = patched(DOCUMENT, lambda new: new["shell"].pop("maxOutputBytes"))
    assert result == DOCUMENT.replace("    # what is kept\n    maxOutputBytes: 5\n", "")


def test_a_removed_section_takes_its_comment_along_and_no_other() -> None:
    result = patched(DOCUMENT, lambda new: new.pop("shell"))
    assert result.startswith("# The house.\n\n\n# What comes after.\nmodel:")


def test_the_comment_that_opens_a_file_stays() -> None:
    assert patched("# mine\na: 1\nb: 2\n", lambda new: new.pop("a")) == "# mine\nb: 2\n"


def test_a_new_section_stands_at_the_end() -> None:
    result = patched(DOCUMENT, lambda new: new.update(web={"uses": 1}))
    assert result == DOCUMENT + "web:\n  uses: 1\n"


def test_an_emptied_section_keeps_the_comment_of_its_line() -> None:
    assert "shell: {}   # limits\n\n# What" in patched(DOCUMENT, lambda new: new.update(shell={}))


def test_a_block_of_text_is_replaced_as_a_whole() -> None:
    result = patched(DOCUMENT, lambda new: new.update(notes="short"))
    assert "notes: short\n\n# The end.\n" in result


def test_an_inline_mapping_is_written_anew_and_keeps_its_comment() -> None:
    result = patched(DOCUMENT, lambda new: new["model"].update(model="o"))
    assert "model:   # inline\n  provider: p\n  model: o\nnotes:" in result


def test_a_null_gets_a_value() -> None:
    assert patched(DOCUMENT, lambda new: new.update(empty=[1])).endswith("empty:\n  - 1\n")


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "\n\n", "---\n"])
def test_a_document_without_content_is_begun(text: str) -> None:
    assert patched(text, {"a": {"b": "x"}}) == text + "a:\n  b: x\n"


def test_line_breaks_of_another_system_stay() -> None:
    result = patched("a: 1\r\nb:\r\n  c: 2\r\n", {"a": 1, "b": {"c": 2, "d": 3}})
    assert result == "a: 1\r\nb:\r\n  c: 2\r\n  d: 3\r\n"


def test_a_file_without_a_last_line_break_is_continued_on_a_new_line() -> None:
    assert patched("a:\n  b: 1", {"a": {"b": 1, "c": 2}}) == "a:\n  b: 1\n  c: 2"


def test_what_stands_elsewhere_by_an_alias_does_not_change_with_its_copy() -> None:
    text = "a: &x {p: 1}\nb: *x\nc: 1\n"
    assert patched(text, lambda new: new["b"].update(p=2)) == "a: &x {p: 1}\nb:\n  p: 2\nc: 1\n"


def test_a_change_that_would_change_something_else_is_given_up() -> None:
    text = "a: &x {p: 1}\nb: *x\n"
    assert patch_yaml(text, read(text), {"a": {"p": 5}, "b": {"p": 1}}, read) is None


@pytest.mark.parametrize(
    "value",
    [
        *("yes", "null", "1", "1.5", "0x10", "", " a", "a: b", "#", "a #b", "é", "\U0001f600", "'"),
        *('"', "a\nb", "\x85", "\u2028", "~", "2024-01-01", "-", "*a", "&a", "!a", "[", "{", "<<"),
    ],
)
def test_a_text_reads_as_the_text_it_is(value: str) -> None:
    patched("a: 1\n", {"a": value, value or "empty": [value, {"k": value}]})


TEXTS = st.text(string.ascii_letters + string.digits + " #:-'\"\n{}[],&*!|>%@`é~", max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.floats(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
SECTIONS = st.dictionaries(st.sampled_from("abcde"), VALUES, max_size=4)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["one", "two", "three"]), SECTIONS), SECTIONS, SECTIONS)
def test_any_change_of_one_section_keeps_the_comments_of_the_others(
    others: dict[str, Any], before: dict[str, Any], after: dict[str, Any]
) -> None:
    old = {**others, "mine": before, "last": {"k": 1}}
    text = ""
    for name, section in old.items():
        body = patch_yaml("", {}, {name: section}, read)
        text += f"# above {name}\n{body}"
    assert equal(read(text), old)
    result = patch_yaml(text, old, {**old, "mine": after}, read)
    assert result is not None
    assert equal(read(result), {**old, "mine": after})
    assert all(f"# above {name}\n" in result for name in old)


@settings(deadline=None)
@given(st.text("ab:#-[]{}&*!|>'\" \n%@`", max_size=60), st.dictionaries(TEXTS, VALUES, max_size=3))
def test_whatever_a_text_is_it_is_patched_rightly_or_not_at_all(
    text: str, new: dict[str, Any]
) -> None:
    try:
        old = read(text)
    except DocumentError:
        return
    result = patch_yaml(text, old, new, read)
    assert result is None or equal(read(result), new)
