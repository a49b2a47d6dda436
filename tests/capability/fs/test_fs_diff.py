from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsh.capability.fs.diff import MAX_TEXT_CHARS, file_diffs


def test_a_no_op_has_no_hunks() -> None:
    assert file_diffs("f", "a\nb\n", "a\nb\n") == []


def test_a_creation_has_no_old_text() -> None:
    assert file_diffs("f", None, "a\n") == [{"path": "f", "oldText": None, "newText": "a\n"}]


def test_an_insertion_into_an_empty_file_has_no_old_text() -> None:
    (diff,) = file_diffs("f", "", "a\n")
    assert (diff["oldText"], diff["newText"]) == (None, "a\n")


def test_a_deletion_of_everything_has_an_empty_new_text() -> None:
    (diff,) = file_diffs("f", "a\n", "")
    assert (diff["oldText"], diff["newText"]) == ("a\n", "")


def test_a_hunk_has_three_lines_of_context() -> None:
    before = "".join(f"{n}\n" for n in range(1, 11))
    (diff,) = file_diffs("f", before, before.replace("6\n", "six\n"))
    assert diff["oldText"] == "3\n4\n5\n6\n7\n8\n9\n"
    assert diff["newText"] == "3\n4\n5\nsix\n7\n8\n9\n"
    assert (diff["oldStart"], diff["newStart"]) == (3, 3)


def test_scattered_changes_are_one_diff_each() -> None:
    before = "".join(f"{'x' if n % 20 == 0 else n}\n" for n in range(60))
    diffs = file_diffs("f", before, before.replace("x\n", "y\n"))
    assert len(diffs) == 3


def test_other_line_separators_are_text() -> None:
    (diff,) = file_diffs("f", "a\u2028b\x0cc\n", "a\u2028b\x0cd\n")
    assert diff["oldText"] == "a\u2028b\x0cc\n"


def test_big_rewrites_are_bounded() -> None:
    before = "".join(f"{n}\n" for n in range(100_000))
    after = "".join(f"{-n}\n" for n in range(100_000))
    (diff,) = file_diffs("f", before, after)
    assert diff["truncated"]
    assert len(diff["newText"]) == MAX_TEXT_CHARS


@given(st.lists(st.sampled_from("abc"), max_size=30), st.lists(st.sampled_from("abc"), max_size=30))
def test_hunks_turn_one_text_into_the_other(old: list[str], new: list[str]) -> None:
    before, after = ("".join(f"{line}\n" for line in lines) for lines in (old, new))
    result, done = [], 0
    lines = before.splitlines(keepends=True)
    for diff in file_diffs("f", before, after):
        start = diff["oldStart"] - 1
        result += [*lines[done:start], diff["newText"]]
        done = start + len((diff["oldText"] or "").splitlines())
    assert "".join([*result, *lines[done:]]) == after


def test_line_numbers_count_from_the_start_of_the_file() -> None:
    before = "".join(f"{n}\n" for n in range(1, 100_001))
    (diff,) = file_diffs("f", before, before.replace("\n99990\n", "\nnew\n"))
    assert (diff["oldStart"], diff["newStart"]) == (99_987, 99_987)
    assert diff["newText"] == "99987\n99988\n99989\nnew\n99991\n99992\n99993\n"
