"""The stand-in against ripgrep itself: the same options give the same results."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from search_patterns import CORPUS, PARTS, PATTERNS, PIECES

from dsh.capability.search.pygrep import grep
from dsh.capability.search.pygrep.__main__ import main
from dsh.capability.search.pygrep.grep import matching_lines
from dsh.capability.search.pygrep.pattern import BadPattern, compile_pattern
from dsh.capability.search.records import parse_lines, parse_paths

RIPGREP = shutil.which("rg")
EXCLUDED = [f"--glob=!**/{name}{rest}" for name in (".git", ".hg") for rest in ("", "/**")]
QUIET = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

pytestmark = pytest.mark.skipif(
    RIPGREP is None and os.environ.get("CI") != "true", reason="ripgrep is missing"
)


def ripgrep(options: list[str], cwd: Path, home: Path) -> tuple[int, bytes]:
    assert RIPGREP is not None
    done = subprocess.run(
        [RIPGREP, "--no-config", *options],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={"HOME": str(home)},
        check=False,
    )
    return done.returncode, done.stdout


def stand_in(options: list[str], cwd: Path, home: Path) -> tuple[int, bytes]:
    """Run the stand-in here, as its program would: that it also runs there is tested elsewhere."""
    output, errors = io.BytesIO(), io.StringIO()
    with (
        chdir(cwd),
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(io.TextIOWrapper(output, write_through=True)) as held,
        redirect_stderr(errors),
    ):
        patch.setenv("HOME", str(home))
        patch.delenv("XDG_CONFIG_HOME", raising=False)
        code = main(["--no-config", *options])
    held.detach()
    return code, output.getvalue()


def listed(globs: list[str], cwd: Path, home: Path, path: str = ".") -> list[str]:
    options = ["--files", "--null", *(f"--glob={glob}" for glob in globs), *EXCLUDED]
    options += ["--no-ignore", "--hidden", "--", path]
    theirs, ours = ripgrep(options, cwd, home), stand_in(options, cwd, home)
    assert theirs[0] == ours[0], (globs, theirs, ours)
    found = sorted(parse_paths(theirs[1]))
    assert sorted(parse_paths(ours[1])) == found, globs
    return found


def searched(pattern: str, options: list[str], cwd: Path, home: Path) -> list[tuple[str, int]]:
    options = ["--json", f"--regexp={pattern}", *options, "--", "."]
    theirs, ours = ripgrep(options, cwd, home), stand_in(options, cwd, home)
    assert theirs[0] == ours[0], (pattern, options, theirs, ours)
    found = parse_lines(theirs[1])
    assert parse_lines(ours[1]) == found, (pattern, options)
    return [(match.path, match.number) for match in found]


def plant(root: Path, path: str, content: bytes = b"needle\n") -> None:
    try:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    except (IsADirectoryError, NotADirectoryError, FileExistsError):
        pass  # a drawn path goes through another drawn file


@contextmanager
def tree(paths: list[str], ignores: dict[str, list[str]], git: bool) -> Iterator[tuple[Path, Path]]:
    with tempfile.TemporaryDirectory() as folder:
        home, root = Path(folder) / "home", Path(folder) / "up" / "root"
        home.mkdir()
        root.mkdir(parents=True)
        if git:
            (root / ".git").mkdir()
        for path in paths:
            plant(root, path)
        for path, rules in ignores.items():
            plant(root, path, "\n".join(rules).encode())
        yield root, home


NAMES = st.sampled_from(
    [
        "a",
        "b",
        "ab",
        "A",
        ".h",
        "a.py",
        "b.md",
        "x y",
        "#n",
        "é",
        "-d",
        "[z]",
        "{q}",
        "src",
        "tests",
    ]
)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
GLOB_PARTS = st.sampled_from(PARTS.split())
GLOBS = st.tuples(
    st.sampled_from(["", "/", "**/"]),
    st.lists(GLOB_PARTS, min_size=1, max_size=3).map("/".join),
    st.sampled_from(["", "", "/**", "/*"]),
).map("".join)
RULES = st.tuples(
    st.sampled_from(["", "", "!"]), GLOBS, st.sampled_from(["", "", "/", "  ", "\\ "])
).map("".join)
IGNORES = st.dictionaries(
    st.tuples(
        st.sampled_from(["", "a/", "src/", "tests/", "src/a/"]),
        st.sampled_from([".gitignore", ".ignore", ".rgignore"]),
    ).map("".join),
    st.lists(RULES | st.sampled_from(["", "# note", "\\#n"]), max_size=4),
    max_size=3,
)


@QUIET
@given(st.lists(PATHS, max_size=12), st.lists(GLOBS, min_size=1, max_size=2))
@example(["src/a.py", "a.py"], ["src/**", "**/src/**/*"])
@example([".git/x", "a/.git/y", "a/.hg", "b/.hg/z"], ["**"])
def test_globs_select_the_same_files(paths: list[str], globs: list[str]) -> None:
    with tree(paths, {}, git=False) as (root, home):
        listed(globs, root, home)


@QUIET
@given(st.lists(PATHS, max_size=12), IGNORES, st.booleans(), st.lists(GLOBS, max_size=1))
def test_ignore_files_hide_the_same_files(
    paths: list[str], ignores: dict[str, list[str]], git: bool, globs: list[str]
) -> None:
    with tree(paths, ignores, git) as (root, home):
        searched("needle", [f"--glob={glob}" for glob in globs], root, home)


def test_rules_of_the_folders_above_and_of_the_user_count(tmp_path: Path) -> None:
    home, root = tmp_path / "home", tmp_path / "repo/sub"
    for path in ("a.log", "b.tmp", "c.txt", "d.txt", "e.txt"):
        plant(root, path)
    (tmp_path / "repo/.git/info").mkdir(parents=True)
    plant(tmp_path, "repo/.gitignore", b"*.log\n/c.txt\n")
    plant(tmp_path, "repo/.git/info/exclude", b"d.txt\n")
    plant(tmp_path, ".gitignore", b"*.txt\n")
    plant(tmp_path, ".ignore", b"e.txt\n")
    plant(home, ".gitconfig", b"[core]\n  excludesFile = ~/mine\n")
    plant(home, "mine", b"*.tmp\n")
    assert searched("needle", [], root, home) == [("c.txt", 1)]


def test_links_and_special_files_are_not_searched(tmp_path: Path) -> None:
    plant(tmp_path, "root/real/f")
    root = tmp_path / "root"
    (root / "file").symlink_to("real/f")
    (root / "folder").symlink_to("real")
    (root / "dangling").symlink_to("nowhere")
    os.mkfifo(root / "pipe")
    assert listed(["*"], root, tmp_path) == ["real/f"]
    assert listed(["*"], root, tmp_path, "folder") == ["folder/f"]
    assert searched("needle", [], root, tmp_path) == [("real/f", 1)]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_match_the_same_lines(tmp_path: Path, pattern: str) -> None:
    plant(tmp_path, "root/f", CORPUS)
    searched(pattern, [], tmp_path / "root", tmp_path)


ATOMS = st.sampled_from([*PIECES.split(), " "])
QUANTIFIERS = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{1,2}", "*?", "??"])
SIMPLE = st.lists(st.tuples(ATOMS, QUANTIFIERS).map("".join), max_size=4).map("".join)
REGEXES = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("|".join),
        st.tuples(inner, QUANTIFIERS).map(lambda pair: f"({pair[0]}){pair[1]}"),
        st.tuples(inner, inner).map("".join),
        inner.map(lambda text: f"(?i){text}"),
    ),
    max_leaves=4,
)
TEXT_LINES = st.lists(st.text("abX_1 .-漢é\t\r", max_size=8), max_size=8)


@QUIET
@given(REGEXES, TEXT_LINES)
def test_drawn_patterns_match_the_same_lines(pattern: str, lines: list[str]) -> None:
    with tree([], {}, git=False) as (root, home):
        plant(root, "f", "\n".join(lines).encode())
        searched(pattern, [], root, home)


@QUIET
@given(st.text("ab()[]{}|*+?\\.^$-,1:=!<P&~dwsx", max_size=7))
def test_what_one_engine_takes_the_other_takes(pattern: str) -> None:
    """The stand-in may take more (other versions of ripgrep do), but never less."""
    with tree(["f"], {}, git=False) as (root, home):
        theirs, _ = ripgrep(["--json", f"--regexp={pattern}", "--", "."], root, home)
    if theirs != 2:
        compile_pattern(pattern)


def test_a_match_at_the_end_of_the_text_is_no_extra_line() -> None:
    assert list(matching_lines("a\n", compile_pattern("x*"))) == [(1, "a\n")]
    assert list(matching_lines("", compile_pattern("x*"))) == []
    assert list(matching_lines("\n\n", compile_pattern("^$"))) == [(1, "\n"), (2, "\n")]


@pytest.mark.parametrize("size", [3, 4, 7, 100])
def test_a_file_in_pieces_is_searched_like_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(grep, "_PIECE", size)
    plant(tmp_path, "root/f", b"a needle\n\nneedle\r\nn\nneedle")
    plant(tmp_path, "root/late", b"needle\n" * 30 + b"\0")
    plant(tmp_path, "root/wide", "needle\nä needle\n".encode("utf-16"))
    found = searched("needle", [], tmp_path / "root", tmp_path)
    assert [number for path, number in found if path == "f"] == [1, 3, 5]


@pytest.mark.parametrize("pattern", ["(?R)a", "(?-u)a", r"\p{Greek}"])
def test_what_only_ripgrep_can_is_refused_plainly(pattern: str) -> None:
    with pytest.raises(BadPattern):
        compile_pattern(pattern)
