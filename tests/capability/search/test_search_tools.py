from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any, cast

import pytest
from search_harness import Desk, code, mount, text, value

from dsh.capability.search import tools
from dsh.capability.search.engine import Bounds, engine_for
from dsh.capability.search.service import LineQuery, Scope, SearchError
from dsh.capability.subprocess.service import SubprocessRuntime
from dsh.execution.prompt.service import AssembleContext, SystemPrompt
from dsh.execution.tools.events import TOOLS_EXECUTE, ToolDispatch
from dsh.execution.tools.service import ToolResult, ToolResultFacts, ToolRuntime
from dsh.kernel import Context, Next


def plant(root: Path, *paths: str, content: str = "needle\n") -> None:
    for age, path in enumerate(paths):
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        os.utime(file, ns=(0, (1_000 + age) * 10**9))


async def paths(desk: Desk, pattern: str, path: str | None = None) -> list[str]:
    arguments = {"pattern": pattern} | ({"path": path} if path else {})
    found: list[str] = value(await desk.call("glob", **arguments))["paths"]
    return found


async def matches(desk: Desk, pattern: str, **more: str) -> list[tuple[str, int, str]]:
    found = value(await desk.call("grep", pattern=pattern, **more))["matches"]
    return [(match["path"], match["lineNumber"], match["line"]) for match in found]


async def test_glob_orders_by_change_oldest_first(desk: Desk, workspace: Path) -> None:
    plant(workspace, "z/new.py", "a/old.py", "m.py", "a/b/last.py", "x.txt")
    assert await paths(desk, "*.py") == ["z/new.py", "a/old.py", "m.py", "a/b/last.py"]


async def test_glob_takes_hidden_and_ignored_but_no_version_control(
    desk: Desk, workspace: Path
) -> None:
    plant(workspace, ".git/f", ".hidden/f", "build/f", "sub/.hg/f", "sub/.svn/x/f", "f", ".f")
    plant(workspace, ".gitignore", content="build\n*.txt\n")
    assert await paths(desk, "f") == [".hidden/f", "build/f", "f"]
    assert await paths(desk, "f", ".git") == []
    assert await paths(desk, "f", f"{workspace}/.git") == []


async def test_glob_finds_files_only(desk: Desk, workspace: Path) -> None:
    plant(workspace, "folder/x")
    (workspace / "link").symlink_to("folder/x")
    assert await paths(desk, "*") == ["folder/x"]
    assert await paths(desk, "folder") == []


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("src/*.py", None, ["src/a.py"]),
        ("./src/*.py", None, ["src/a.py"]),
        ("**/*.py", None, ["src/a.py", "src/sub/b.py"]),
        ("src/**/*.py", "src", ["src/a.py", "src/sub/b.py"]),
        ("sub/*.py", "src", ["src/sub/b.py"]),
        ("sub/*.py", None, []),
        ("*.{py,md}", "src/sub", ["src/sub/b.py", "src/sub/c.md"]),
    ],
)
async def test_a_pattern_may_be_meant_from_either_folder(
    desk: Desk, workspace: Path, pattern: str, path: str | None, expected: list[str]
) -> None:
    plant(workspace, "src/a.py", "src/sub/b.py", "src/sub/c.md")
    assert await paths(desk, pattern, path) == expected


async def test_absolute_patterns_work_inside_the_workspace(desk: Desk, workspace: Path) -> None:
    plant(workspace, "src/a.py")
    assert await paths(desk, f"{workspace}/src/*.py") == ["src/a.py"]


async def test_results_outside_of_the_workspace_are_absolute(
    desk: Desk, workspace: Path, tmp_path: Path
) -> None:
    plant(tmp_path, "out/sub/f.py")
    assert await paths(desk, "sub/*.py", f"{tmp_path}/out") == [f"{tmp_path}/out/sub/f.py"]
    assert await matches(desk, "needle", path="../out") == [
        (f"{tmp_path}/out/sub/f.py", 1, "needle")
    ]
    assert await matches(desk, "needle", path="../out/sub/f.py") == [
        (f"{tmp_path}/out/sub/f.py", 1, "needle")
    ]


@pytest.mark.parametrize("name", ["-rf", "--files", "!f", "#f", "sp ", "a$(x)", "\\f", "漢 字"])
async def test_hostile_patterns_stay_inert(desk: Desk, workspace: Path, name: str) -> None:
    plant(workspace, name, "other", content=f"{name}\n")
    escaped = name.replace("\\", "\\\\")
    assert await paths(desk, escaped) == [name]
    regex = escaped.replace("$", "\\$").replace("(", "\\(").replace(")", "\\)")
    assert await matches(desk, regex) == [(path, 1, name) for path in sorted([name, "other"])]
    assert await matches(desk, regex, path=name) == [(name, 1, name)]


async def test_nothing_found_is_no_error(desk: Desk) -> None:
    assert text(await desk.call("glob", pattern="*.py")) == "No files found"
    assert text(await desk.call("grep", pattern="x")) == "No matches found"


@pytest.mark.parametrize("name", ["glob", "grep"])
async def test_a_missing_target_fails(desk: Desk, name: str) -> None:
    result = await desk.call(name, pattern="x", path="missing")
    assert code(result) == "SEARCH_FAILED"
    assert "missing" in text(result)


@pytest.mark.parametrize("pattern", ["[", "{a", "a[z-a]"])
async def test_malformed_globs_are_invalid(desk: Desk, pattern: str) -> None:
    assert code(await desk.call("glob", pattern=pattern)) == "SEARCH_INVALID_PATTERN"
    result = await desk.call("grep", pattern="x", include=pattern)
    assert code(result) == "SEARCH_INVALID_PATTERN"


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        "a{",
        "[z-a]",
        "*a",
        r"a\nb",
        "a\nb",
        "(?=a)",
        "(?<!a)b",
        r"(a)\1",
        r"\Z",
        "a{2,1}",
        "[a",
    ],
)
async def test_malformed_patterns_are_invalid(desk: Desk, pattern: str) -> None:
    result = await desk.call("grep", pattern=pattern)
    assert code(result) == "SEARCH_INVALID_PATTERN"


@pytest.mark.parametrize("pattern", ["a\0b", "a\ud800"])
async def test_patterns_that_no_process_can_take_are_invalid(desk: Desk, pattern: str) -> None:
    assert code(await desk.call("grep", pattern=pattern)) == "SEARCH_INVALID_PATTERN"
    assert code(await desk.call("glob", pattern=pattern)) == "SEARCH_INVALID_PATTERN"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("glob", {"pattern": " "}),
        ("glob", {"pattern": "x", "path": ""}),
        ("grep", {"pattern": ""}),
        ("grep", {"pattern": "x", "include": "!*.py"}),
        ("grep", {"pattern": "x", "include": "*.py,*.md"}),
        ("grep", {"pattern": "x", "include": ""}),
        ("grep", {"pattern": "x", "context": 3}),
    ],
)
async def test_arguments_are_checked(desk: Desk, name: str, arguments: dict[str, Any]) -> None:
    assert code(await desk.call(name, **arguments)) == "INVALID_ARGS"


async def test_grep_groups_by_file(desk: Desk, workspace: Path) -> None:
    plant(workspace, "b.txt", content="x\nneedle one\r\nneedle two")
    plant(workspace, "a.txt")
    assert text(await desk.call("grep", pattern="needle")) == (
        "Found 3 matches\n\na.txt\nLine 1: needle\n\nb.txt\nLine 2: needle one\nLine 3: needle two"
    )
    assert text(await desk.call("grep", pattern="two")).startswith("Found 1 match\n")


async def test_grep_leaves_out_hidden_ignored_and_binary_files(desk: Desk, workspace: Path) -> None:
    plant(workspace, ".git/f", ".hidden", "build/f", "kept.log", "dropped.log", "f", "sub/own.txt")
    plant(workspace, ".gitignore", content="build/\n*.log\n!kept.log\n")
    plant(workspace, "sub/.ignore", content="own.txt\n")
    (workspace / "binary").write_bytes(b"needle\n\0")
    assert await matches(desk, "needle") == [("f", 1, "needle"), ("kept.log", 1, "needle")]
    assert await matches(desk, "needle", path="dropped.log") == [("dropped.log", 1, "needle")]
    assert await matches(desk, "needle", path="binary") == [("binary", 1, "needle")]


async def test_include_narrows_and_reaches_hidden_files(desk: Desk, workspace: Path) -> None:
    plant(workspace, "a.py", "a.md", ".b.py", "sub/c.py")
    found = await matches(desk, "needle", include="*.py")
    assert [path for path, _, _ in found] == [".b.py", "a.py", "sub/c.py"]
    found = await matches(desk, "needle", include="*.{md,rst}")
    assert [path for path, _, _ in found] == ["a.md"]


async def test_lines_that_are_not_text_have_a_placeholder(desk: Desk, workspace: Path) -> None:
    (workspace / "f").write_bytes("needle grün\n".encode("latin-1") + b"needle\n")
    assert await matches(desk, "needle") == [
        ("f", 1, "(this line is not valid UTF-8)"),
        ("f", 2, "needle"),
    ]


async def test_other_encodings_with_a_mark_are_read(desk: Desk, workspace: Path) -> None:
    (workspace / "le").write_bytes("needle ä\n".encode("utf-16"))
    (workspace / "be").write_bytes(b"\xfe\xff" + "needle ä\n".encode("utf-16-be"))
    (workspace / "bom").write_bytes(b"\xef\xbb\xbfneedle\n")
    assert await matches(desk, "^needle") == [
        ("be", 1, "needle ä"),
        ("bom", 1, "needle"),
        ("le", 1, "needle ä"),
    ]


async def test_undecodable_names_do_no_harm(desk: Desk, workspace: Path) -> None:
    try:
        plant(workspace, os.fsdecode(b"caf\xe9"))
    except OSError:
        pytest.skip("this file system takes only valid names")
    assert await paths(desk, "caf*") == ["caf\ufffd"]
    assert await matches(desk, "needle") == [("caf\ufffd", 1, "needle")]


async def test_over_the_cap_a_page_and_a_note_are_shown(
    root: Context, workspace: Path, engine: str
) -> None:
    desk = await mount(root, workspace, engine=engine, globMaxResults=2, grepMaxMatches=2)
    plant(workspace, "a", "b", "c", "d")
    glob = await desk.call("glob", pattern="*")
    assert text(glob) == (
        "a\nb\n\n(2 of 4 files; the complete list could not be saved; narrow the search to see "
        "the rest)"
    )
    assert value(glob) == {"root": str(workspace), "paths": ["a", "b", "c", "d"]}
    assert glob.meta == {"shape": "paths", "paths": ["a", "b"], "total": 4, "truncated": True}
    grep = await desk.call("grep", pattern="needle")
    assert text(grep).startswith("Found 2 of 4 matches\n\na\nLine 1: needle\n\nb\n")
    assert text(grep).endswith(
        "\n\n(the complete list could not be saved; narrow the search to see the rest)"
    )
    assert len(value(grep)["matches"]) == 4


async def test_too_much_output_is_refused(root: Context, workspace: Path, engine: str) -> None:
    desk = await mount(root, workspace, engine=engine, rawOutputMaxBytes=1000)
    plant(workspace, *(f"{n:040}" for n in range(40)))
    for name, pattern in (("glob", "*"), ("grep", "needle")):
        result = await desk.call(name, pattern=pattern)
        assert code(result) == "SEARCH_RAW_OUTPUT_OVERFLOW"


async def test_a_long_line_is_cut_between_characters(
    root: Context, workspace: Path, engine: str
) -> None:
    desk = await mount(root, workspace, engine=engine, grepMaxLineBytes=7)
    plant(workspace, "f", content="漢漢漢\n")
    assert "Line 1: 漢漢 (line truncated)" in text(await desk.call("grep", pattern="漢"))


@pytest.mark.skipif(os.getuid() == 0, reason="root may read every folder")
async def test_unreadable_folders_are_told_and_left_out(desk: Desk, workspace: Path) -> None:
    plant(workspace, "f", "closed/f")
    (workspace / "closed").chmod(0)
    try:
        result = await desk.call("glob", pattern="f")
        assert value(result)["paths"] == ["f"]
        assert "1 paths could not be read" in text(result)
    finally:
        (workspace / "closed").chmod(0o755)


@pytest.mark.parametrize("name", ["glob", "grep"])
async def test_a_workspace_that_is_gone_fails(desk: Desk, workspace: Path, name: str) -> None:
    os.rmdir(workspace)
    assert code(await desk.call(name, pattern="x")) == "SEARCH_FAILED"


async def test_a_deadline_ends_a_search(root: Context, workspace: Path) -> None:
    desk = await mount(root, workspace, engine="python", timeoutMs=300, graceMs=100)
    plant(workspace, "f", content="a" * 64 + "!\n")
    result = await desk.call("grep", pattern="^(a+)+$")
    assert code(result) == "TOOL_TIMEOUT"


async def test_an_aborted_search_leaves_no_process(desk: Desk, workspace: Path) -> None:
    plant(workspace, "f", content=("a" * 64 + "!\n") * 1000)

    async def abort_soon(_: ToolDispatch, next: Next[ToolResult]) -> ToolResult:
        asyncio.get_running_loop().call_later(0.02, desk.controller.abort)
        return await next()

    desk.ctx.on(TOOLS_EXECUTE, abort_soon)
    result = await desk.call("grep", pattern="^(a+)+$")
    assert code(result) in ("ABORTED", "SEARCH_ABORTED")


async def test_tools_run_beside_each_other_and_have_deadlines(desk: Desk) -> None:
    for name in ("glob", "grep"):
        tool = desk.ctx.require(ToolRuntime).get(name)
        assert tool is not None
        assert tool.is_concurrency_safe is not None
        assert tool.is_concurrency_safe({"pattern": "x"})
        assert tool.timeout_s == 30


async def test_parameters_are_as_specified(desk: Desk) -> None:
    tool_runtime = desk.ctx.require(ToolRuntime)
    shapes = {}
    for name in ("glob", "grep"):
        tool = tool_runtime.get(name)
        assert tool is not None
        schema = cast("Any", tool.parameters)
        shapes[name] = (list(schema["properties"]), schema["required"])
    assert shapes == {
        "glob": (["pattern", "path"], ["pattern"]),
        "grep": (["pattern", "path", "include"], ["pattern"]),
    }


async def test_cards_are_rebuilt_from_the_log(desk: Desk, workspace: Path) -> None:
    plant(workspace, "f")
    for name in ("glob", "grep"):
        tool = desk.ctx.require(ToolRuntime).get(name)
        assert tool is not None
        assert tool.present_result is not None
        assert tool.present_call is not None
        result = await desk.call(name, pattern="f|needle" if name == "grep" else "f")
        facts = ToolResultFacts(result.content, False, result.meta)
        assert tool.present_result({"pattern": "f"}, facts) == {
            "card": "search",
            **cast("Any", result.meta),
        }
        for meta in (None, {}, {"shape": "paths"}, {"shape": "x", "paths": []}, [1]):
            broken = ToolResultFacts((), False, cast("Any", meta))
            assert tool.present_result({"pattern": "f"}, broken) is None
        shown = tool.present_call({"pattern": "f", "path": "sub"})
        assert shown is not None
        assert shown["kind"] == "search"


async def test_unloading_takes_tools_and_sections_along(desk: Desk, root: Context) -> None:
    sections = await root.require(SystemPrompt).assemble(AssembleContext())
    told = [part.name for part in sections.sections if part.name.startswith("tool:")]
    assert told == ["tool:glob", "tool:grep"]
    runtime = root.registry.get(tools)
    assert runtime is not None
    for fiber in list(runtime.fibers):
        await fiber.dispose()
    assert desk.ctx.require(ToolRuntime).schemas() == []


async def test_sampling_has_to_be_decided(root: Context, workspace: Path) -> None:
    with pytest.raises(Exception, match="sampleOverCapGlobResults"):
        await mount(root, workspace, sampleOverCapGlobResults=None)


@pytest.mark.parametrize("field", ["timeoutMs", "graceMs"])
async def test_timers_have_an_upper_bound(root: Context, workspace: Path, field: str) -> None:
    with pytest.raises(Exception, match=field):
        await mount(root, workspace, **{field: 2**31})


async def test_without_ripgrep_the_stand_in_searches(
    root: Context, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(workspace))
    desk = await mount(root, workspace)
    plant(workspace, "f")
    assert await matches(desk, "needle") == [("f", 1, "needle")]


async def test_a_demanded_ripgrep_that_is_missing_fails_at_the_call(
    root: Context, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(workspace))
    desk = await mount(root, workspace, engine="ripgrep")
    for _ in range(2):
        result = await desk.call("glob", pattern="*")
        assert code(result) == "SEARCH_FAILED"
        assert "'rg'" in text(result)


async def test_the_environment_of_dsh_cannot_be_searched(desk: Desk, workspace: Path) -> None:
    os.symlink(f"/proc/{os.getpid()}/environ", workspace / "link")
    for path in (f"/proc/{os.getpid()}/environ", "/proc/../proc/self/environ", "link"):
        result = await desk.call("grep", pattern="PATH=", path=path)
        assert code(result) == "SEARCH_FAILED"
        assert "PATH=" not in text(result)
    assert code(await desk.call("grep", pattern="x", path="/proc/self")) == "SEARCH_FAILED"


async def test_pipes_and_devices_are_not_waited_for(desk: Desk, workspace: Path) -> None:
    os.mkfifo(workspace / "pipe")
    for path in ("pipe", "/dev/zero"):
        assert code(await desk.call("grep", pattern="x", path=path)) == "SEARCH_FAILED"


async def test_a_program_planted_as_ripgrep_changes_nothing(
    root: Context, runtime: SubprocessRuntime, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if runtime.grants_enforcement() is None:
        pytest.skip("this kernel does not offer Landlock")
    planted = workspace / "rg"
    planted.write_text(f"#!/bin/sh\necho x > {workspace}/ran\n")
    planted.chmod(0o755)
    monkeypatch.setenv("PATH", f"{workspace}:{os.environ['PATH']}")
    engine = engine_for("ripgrep", runtime, Bounds(1000, 1000, 1.0))
    with contextlib.suppress(SearchError):
        await engine.lines(LineQuery(Scope(str(workspace), "."), "x", ()), None)
    assert not (workspace / "ran").exists()


async def test_a_huge_binary_file_without_lines_is_skipped_in_little_memory(
    root: Context, workspace: Path
) -> None:
    (workspace / "image").write_bytes(b"x" * (1 << 25))
    os.truncate(workspace / "image", 1 << 36)
    plant(workspace, "f")
    desk = await mount(root, workspace, engine="python", timeoutMs=10_000)
    assert await matches(desk, "needle") == [("f", 1, "needle")]


async def test_a_cycle_of_links_is_not_followed(desk: Desk, workspace: Path) -> None:
    plant(workspace, "a/f")
    os.symlink("..", workspace / "a" / "up")
    assert await matches(desk, "needle") == [("a/f", 1, "needle")]
    assert await paths(desk, "**/f") == ["a/f"]
