from __future__ import annotations

import json
from typing import Any, cast

import pytest

from dsh.capability.search.listing import (
    GrepValue,
    matches_meta,
    page_of,
    paths_meta,
    render_matches,
    render_paths,
)
from dsh.capability.search.query import globs_for, path_problem, scope_for
from dsh.capability.search.service import Scope

PATHS = ["a/1", "a/2", "a/3", "b/1", "top", "b/2", "c/1"]


def grep_value(*counts: int, line: str = "x") -> GrepValue:
    return {
        "matches": [
            {"path": f"f{number}", "lineNumber": n + 1, "line": line}
            for number, count in enumerate(counts)
            for n in range(count)
        ]
    }


def test_a_plain_page_is_the_head() -> None:
    assert page_of(PATHS, 3, sample=False) == ["a/1", "a/2", "a/3"]


def test_a_sample_takes_top_level_entries_in_turn() -> None:
    assert page_of(PATHS, 5, sample=True) == ["a/1", "b/1", "top", "c/1", "a/2"]


def test_a_flat_result_is_no_sample() -> None:
    names = ["c", "b", "a"]
    assert page_of(names, 2, sample=True) == ["c", "b"]
    shown = render_paths({"root": "/", "paths": names}, 2, sample=True)
    assert "sample" not in shown
    assert shown.startswith("c\nb\n\n(2 of 3 files; ")


def test_a_sample_says_so() -> None:
    shown = render_paths({"root": "/", "paths": PATHS}, 5, sample=True)
    assert "(5 of 7 files, a sample across the top-level folders; " in shown


def test_a_complete_result_has_no_note() -> None:
    assert render_paths({"root": "/", "paths": PATHS}, 7, sample=True) == "\n".join(PATHS)
    assert render_matches(grep_value(1), 1, 100) == "Found 1 match\n\nf0\nLine 1: x"


def test_paths_of_the_card_are_bounded_but_never_none() -> None:
    value: Any = {"root": "/", "paths": ["x" * 50, "y" * 50]}
    meta = cast("Any", paths_meta(value, 10, 60, sample=False))
    assert (meta["paths"], meta["total"], meta["truncated"]) == (["x" * 50], 2, True)
    meta = cast("Any", paths_meta(value, 10, 1, sample=False))
    assert meta["paths"] == ["x" * 50]


def test_matches_of_the_card_are_trimmed_by_whole_files() -> None:
    value = grep_value(2, 2, 50)
    whole = cast("Any", matches_meta(value, 100, 100, 10_000))
    assert [len(file["matches"]) for file in whole["files"]] == [2, 2, 50]
    assert not whole["truncated"]
    small = cast("Any", matches_meta(value, 100, 100, 300))
    assert [file["path"] for file in small["files"]] == ["f0", "f1"]
    assert len(json.dumps(small["files"], separators=(",", ":"))) <= 300
    assert (small["total"], small["truncated"]) == (54, True)


def test_a_first_file_that_is_too_big_keeps_some_lines() -> None:
    meta = cast("Any", matches_meta(grep_value(50), 100, 100, 200))
    (file,) = meta["files"]
    assert 1 <= len(file["matches"]) < 50
    assert meta["truncated"]
    meta = cast("Any", matches_meta(grep_value(2, line="x" * 100), 100, 100, 10))
    assert [len(file["matches"]) for file in meta["files"]] == [1]


@pytest.mark.parametrize(
    ("target", "is_file", "expected"),
    [
        ("/w", False, Scope("/w", ".")),
        ("/w/a/b", False, Scope("/w", "a/b")),
        ("/w/f", True, Scope("/w", "f", True)),
        ("/other/d", False, Scope("/other/d", ".")),
        ("/other/f", True, Scope("/other", "f", True)),
        ("/ww", False, Scope("/ww", ".")),
    ],
)
def test_a_scope_is_relative_to_the_workspace_where_it_can_be(
    target: str, is_file: bool, expected: Scope
) -> None:
    assert scope_for("/w", target, is_file=is_file) == expected


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("*.py", "src", ("*.py",)),
        ("a/*.py", ".", ("a/*.py",)),
        ("a/*.py", "s[r]c", ("a/*.py", "s\\[r\\]c/a/*.py")),
        ("**/a", "src", ("**/a",)),
        ("/a/b", "src", ("/a/b",)),
        ("/w/a/*", "src", ("/a/*",)),
        ("!x", ".", ("\\!x",)),
        ("#x ", ".", ("\\#x[ ]",)),
    ],
)
def test_what_a_pattern_means(pattern: str, path: str, expected: tuple[str, ...]) -> None:
    assert globs_for(pattern, Scope("/w", path)) == expected


@pytest.mark.parametrize("glob", ["*.py", "*.{a,b}", "{a,b}/{c,d}", "a b"])
def test_one_positive_glob_is_fine(glob: str) -> None:
    assert path_problem(glob) is None


@pytest.mark.parametrize("glob", ["", " ", "!a", "a,b", "{a,b},c"])
def test_more_or_less_than_one_positive_glob_is_not(glob: str) -> None:
    assert path_problem(glob) is not None
