from __future__ import annotations

import asyncio
import os
import resource
import socket
from pathlib import Path
from typing import Any, cast

import pytest
from fs_harness import Desk, body, code, mount, names, text, unload

from dsh.capability.fs import observation, tools
from dsh.capability.fs.events import FS_OBSERVED, Absent, FsObserved
from dsh.capability.fs.local import LocalFileSystem
from dsh.capability.fs.service import FsError
from dsh.execution.prompt.assembly import LayeredSystemPrompt
from dsh.execution.prompt.service import AssembleContext, SystemPrompt
from dsh.execution.tools.runtime import LayeredToolRuntime
from dsh.execution.tools.service import Resource, ToolDefinition, ToolResultFacts, ToolRuntime
from dsh.kernel import Context

LIMITS = {"readLimit": 4, "readMaxLineLength": 10, "readMaxBytes": 30, "readStreamMinSize": 500}


def tool(desk: Desk, name: str) -> ToolDefinition:
    found = desk.ctx.require(ToolRuntime).get(name)
    assert found is not None
    return found


def schema_of(desk: Desk, name: str) -> Any:
    return tool(desk, name).parameters


async def test_read_numbers_lines_and_counts_them(desk: Desk, workspace: Path) -> None:
    (workspace / "f.py").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    result = await desk.call("read", file_path="f.py")
    assert text(result) == (
        f"<path>{workspace}/f.py</path>\n<type>file</type>\n<content>\n"
        "1: one\n2: two\n\n(end of file; 2 lines in all)\n</content>"
    )
    assert not result.is_error
    assert result.value == {
        "path": f"{workspace}/f.py",
        "offset": 1,
        "lines": [{"number": 1, "text": "one"}, {"number": 2, "text": "two"}],
        "totalLines": 2,
    }
    assert result.meta == {**cast("Any", result.value), "lang": "python"}


@pytest.mark.parametrize("size", ["small", "streamed"])
async def test_read_has_three_footers(root: Context, workspace: Path, size: str) -> None:
    desk = await mount(root, workspace, **LIMITS)
    lines = [f"{n:03}" for n in range(1, 7 if size == "small" else 200)]
    (workspace / "f").write_text("\n".join(lines))
    total = len(lines)
    assert body(await desk.call("read", file_path="f")) == (
        f"1: 001\n2: 002\n3: 003\n4: 004\n\n(lines 1-4 of {total}; continue with offset 5)"
    )
    end = await desk.call("read", file_path="f", offset=total, limit=2)
    assert body(end) == f"{total}: {total:03}\n\n(end of file; {total} lines in all)"
    (workspace / "f").write_text("\n".join(["0123456789"] * 3 + ["x"] * (total - 3)))
    assert body(await desk.call("read", file_path="f")).endswith(
        "2: 0123456789\n\n(lines 1-2, cut at the size limit; continue with offset 3)"
    )


async def test_a_long_line_is_cut_with_a_note(root: Context, workspace: Path) -> None:
    desk = await mount(root, workspace, **{**LIMITS, "readMaxBytes": 100})
    (workspace / "f").write_text("0123456789abc")
    assert body(await desk.call("read", file_path="f")).startswith(
        "1: 0123456789... (line cut after 10 characters)\n"
    )


async def test_an_empty_file_is_readable_but_has_no_second_line(
    desk: Desk, workspace: Path
) -> None:
    (workspace / "f").touch()
    assert body(await desk.call("read", file_path="f")) == "(end of file; 0 lines in all)"
    result = await desk.call("read", file_path="f", offset=2)
    assert code(result) == "FS_NOT_FOUND"
    assert "0 lines" in text(result)


@pytest.mark.parametrize(
    "arguments",
    [{"offset": 0}, {"limit": 0}, {"limit": 2001}, {"offset": 1.5}, {"sandbox_permissions": "x"}],
)
async def test_read_arguments_have_bounds(desk: Desk, arguments: dict[str, Any]) -> None:
    assert code(await desk.call("read", file_path="f", **arguments)) == "INVALID_ARGS"


@pytest.mark.parametrize(("data", "expected"), [(b"a\0b", "FS_NOT_TEXT"), (b"\xff", "FS_NOT_TEXT")])
async def test_read_refuses_what_is_not_text(
    desk: Desk, workspace: Path, data: bytes, expected: str
) -> None:
    (workspace / "f").write_bytes(data)
    assert code(await desk.call("read", file_path="f")) == expected
    assert code(await desk.call("read", file_path=".")) == "FS_NOT_REGULAR_FILE"


async def test_a_missing_file_is_observed_as_absent(desk: Desk) -> None:
    seen: list[FsObserved] = []
    desk.ctx.on(FS_OBSERVED, seen.append)
    assert code(await desk.call("read", file_path="f")) == "FS_NOT_FOUND"
    assert [event.observation for event in seen] == [Absent()]


async def test_write_creates_with_folders_and_updates(desk: Desk, workspace: Path) -> None:
    created = await desk.call("write", file_path="a/b/f", content="x\n")
    assert body(created) == "Created file"
    assert created.meta == {
        "diffs": [{"path": f"{workspace}/a/b/f", "oldText": None, "newText": "x\n"}]
    }
    updated = await desk.call("write", file_path="a/b/f", content="")
    assert body(updated) == "Updated file"
    assert not updated.is_error
    assert updated.value == {
        "path": f"{workspace}/a/b/f",
        "operation": "update",
        "before": "x\n",
        "after": "",
    }
    assert cast("Any", updated.meta)["diffs"][0]["newText"] == ""


async def test_an_update_without_a_basis_has_no_diffs(desk: Desk, workspace: Path) -> None:
    (workspace / "f").write_bytes(b"\xff")
    await unload(desk.ctx.root, observation)
    result = await desk.call("write", file_path="f", content="x")
    assert result.meta == {"diffs": []}


async def test_edit_changes_only_what_it_names(desk: Desk, workspace: Path) -> None:
    (workspace / "f").write_bytes(b"\xef\xbb\xbfa\r\nb\nc\rd")
    await desk.call("read", file_path="f")
    result = await desk.call("edit", file_path="f", old_string="b\nc", new_string="B\nC")
    assert body(result) == "Updated file"
    assert (workspace / "f").read_bytes() == b"\xef\xbb\xbfa\r\nB\nC\rd"
    (diff,) = cast("Any", result.meta)["diffs"]
    assert diff["oldText"] == "a\nb\nc\nd"


async def test_a_file_with_cr_alone_can_be_edited_as_it_was_read(
    desk: Desk, workspace: Path
) -> None:
    (workspace / "f").write_bytes(b"one\rtwo\rthree\r")
    assert body(await desk.call("read", file_path="f")).startswith("1: one\n2: two\n3: three\n")
    await desk.call("edit", file_path="f", old_string="one\ntwo", new_string="1\n2\n2b")
    assert (workspace / "f").read_bytes() == b"1\r2\r2b\rthree\r"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("", "x", "must not be empty"),
        ("a", "a", "nothing would"),
        ("a\r\n", "a\n", "nothing would"),
    ],
)
async def test_edit_refuses_a_no_op_before_it_runs(
    desk: Desk, old: str, new: str, problem: str
) -> None:
    result = await desk.call("edit", file_path="f", old_string=old, new_string=new)
    assert code(result) == "INVALID_ARGS"
    assert problem in text(result)


async def test_edit_failures_have_their_codes(desk: Desk, workspace: Path) -> None:
    (workspace / "f").write_text("a a")
    await desk.call("read", file_path="f")
    ambiguous = await desk.call("edit", file_path="f", old_string="a", new_string="b")
    missing = await desk.call("edit", file_path="f", old_string="c", new_string="b")
    assert (code(ambiguous), code(missing)) == ("FS_AMBIGUOUS_EDIT", "FS_EDIT_NOT_FOUND")
    result = await desk.call(
        "edit", file_path="f", old_string="a", new_string="b", replace_all=True
    )
    assert body(result)
    assert (workspace / "f").read_text() == "b b"


@pytest.mark.parametrize("name", ["write", "edit"])
async def test_a_blank_path_is_refused(desk: Desk, name: str) -> None:
    rest = {"content": ""} if name == "write" else {"old_string": "a", "new_string": "b"}
    assert code(await desk.call(name, file_path=" ", **rest)) == "INVALID_ARGS"


async def test_a_lone_surrogate_does_no_harm(desk: Desk, workspace: Path) -> None:
    assert code(await desk.call("write", file_path="f", content="a\ud800b")) == "FS_NOT_TEXT"
    assert code(await desk.call("read", file_path="a\ud800b")) == "FS_NOT_FOUND"
    assert names(workspace) == []


async def test_calls_overlap_and_name_the_file_they_touch(desk: Desk) -> None:
    rest = {"read": {}, "write": {"content": ""}, "edit": {"old_string": "a", "new_string": "b"}}
    for name, others in rest.items():
        made, arguments = tool(desk, name), {"file_path": "f", **others}
        assert made.is_concurrency_safe is not None
        assert made.resources is not None
        assert made.is_concurrency_safe(arguments)
        assert list(made.resources(arguments)) == [Resource("file:f", shared=name == "read")]


async def test_parameters_are_as_specified(desk: Desk) -> None:
    read, write, edit = (schema_of(desk, name) for name in ("read", "write", "edit"))
    assert list(read["properties"]) == ["file_path", "offset", "limit"]
    assert read["required"] == ["file_path"]
    assert read["properties"]["limit"]["maximum"] == 2000
    extra = ["sandbox_permissions", "justification"]
    assert list(write["properties"]) == ["file_path", "content", *extra]
    assert write["required"] == ["file_path", "content"]
    assert list(edit["properties"]) == [
        "file_path",
        "old_string",
        "new_string",
        "replace_all",
        *extra,
    ]
    assert edit["required"] == ["file_path", "old_string", "new_string"]


async def test_without_a_fence_there_is_nothing_to_escalate(root: Context, workspace: Path) -> None:
    for part in (LayeredSystemPrompt, LayeredToolRuntime, LocalFileSystem):
        await root.plugin(part)
    await root.plugin(tools)
    held: list[Context] = []
    await root.inject([ToolRuntime], held.append)
    write = held[0].require(ToolRuntime).get("write")
    assert write is not None
    assert list(cast("Any", write.parameters)["properties"]) == ["file_path", "content"]
    assert write.parse_arguments is not None
    with pytest.raises(Exception, match="unknown parameter"):
        write.parse_arguments(
            {"file_path": "f", "content": "", "sandbox_permissions": "workspace-write"}
        )


async def test_the_prompt_has_a_section_for_each_tool(desk: Desk) -> None:
    assembly = await desk.ctx.root.require(SystemPrompt).assemble(AssembleContext())
    names = [part.name for part in assembly.sections]
    assert [name for name in names if name.startswith("tool:")] == [
        "tool:read",
        "tool:write",
        "tool:edit",
    ]


async def test_unloading_takes_tools_and_sections_along(desk: Desk, root: Context) -> None:
    await unload(root, tools)
    assert desk.ctx.require(ToolRuntime).schemas() == []
    assembly = await root.require(SystemPrompt).assemble(AssembleContext())
    assert not [part for part in assembly.sections if part.name.startswith("tool:")]


@pytest.mark.parametrize("field", ["readLimit", "readMaxBytes"])
async def test_a_senseless_limit_fails_at_load(root: Context, workspace: Path, field: str) -> None:
    with pytest.raises(Exception, match=field):
        await mount(root, workspace, **{field: 0})


@pytest.mark.parametrize(
    ("arguments", "title", "line"),
    [
        ({}, "Read f", 1),
        ({"offset": 5}, "Read f (from line 5)", 5),
        ({"offset": 5, "limit": 3}, "Read f (5 - 7)", 5),
    ],
)
async def test_a_read_call_is_shown_with_its_range(
    desk: Desk, arguments: dict[str, Any], title: str, line: int
) -> None:
    present = tool(desk, "read").present_call
    assert present is not None
    assert present({"file_path": "f", **arguments}) == {
        "card": "generic",
        "title": title,
        "kind": "read",
        "locations": [{"path": "f", "line": line}],
    }


async def test_a_read_card_is_rebuilt_from_the_log(desk: Desk, workspace: Path) -> None:
    (workspace / "f.py").write_text("a: b\n")
    result = await desk.call("read", file_path="f.py")
    present = tool(desk, "read").present_result
    assert present is not None
    full = ToolResultFacts(result.content, False, result.meta)
    expected = {
        "card": "read",
        "path": f"{workspace}/f.py",
        "offset": 1,
        "lines": [{"number": 1, "text": "a: b"}],
        "totalLines": 1,
        "lang": "python",
        "content": "1: a: b\n\n(end of file; 1 line in all)",
    }
    assert present({"file_path": "f.py"}, full) == expected
    meta = {key: value for key, value in cast("Any", result.meta).items() if key != "lines"}
    assert present({"file_path": "f.py"}, ToolResultFacts(result.content, False, meta)) == expected


@pytest.mark.parametrize("meta", [None, {}, {"path": "f"}, [1], {"diffs": "x"}, {"diffs": []}])
@pytest.mark.parametrize("name", ["read", "write", "edit"])
async def test_unusable_facts_give_the_generic_card(desk: Desk, name: str, meta: Any) -> None:
    present = tool(desk, name).present_result
    assert present is not None
    arguments = {
        "read": {"file_path": "f"},
        "write": {"file_path": "f", "content": ""},
        "edit": {"file_path": "f", "old_string": "a", "new_string": "b"},
    }[name]
    assert present(arguments, ToolResultFacts((), False, meta)) is None
    assert present(arguments, ToolResultFacts((), True, {"diffs": [{}]})) is None


async def test_changes_are_shown_as_diffs(desk: Desk) -> None:
    write, edit = tool(desk, "write"), tool(desk, "edit")
    assert write.present_call
    assert edit.present_call
    assert write.present_result
    shown = write.present_call({"file_path": "f", "content": "x"})
    assert shown is not None
    assert shown["card"] == "diff"
    shown = edit.present_call({"file_path": "f", "old_string": "a", "new_string": "b"})
    assert shown is not None
    assert shown["diffs"] == [{"path": "f", "oldText": "a", "newText": "b"}]
    meta: Any = {"diffs": [{"path": "f", "oldText": None, "newText": "x"}]}
    facts = ToolResultFacts((), False, meta)
    assert write.present_result({"file_path": "f", "content": "x"}, facts) == {
        "card": "diff",
        **meta,
    }


def test_errors_keep_their_code() -> None:
    assert FsError("x", code="FS_TOO_LARGE").code == "FS_TOO_LARGE"


@pytest.mark.parametrize(
    "path",
    [
        "/proc/self/environ",
        "/proc/{pid}/environ",
        "/proc/{pid}/mem",
        "/proc/{pid}/task/{pid}/environ",
        "/proc/../proc/self/environ",
        "link",
    ],
)
async def test_the_memory_of_processes_is_no_file(desk: Desk, workspace: Path, path: str) -> None:
    os.symlink(f"/proc/{os.getpid()}/environ", workspace / "link")
    for call in (
        desk.call("read", file_path=path.format(pid=os.getpid())),
        desk.call("write", file_path=path.format(pid=os.getpid()), content="x"),
    ):
        assert code(await call) == "FS_PERMISSION_DENIED"


@pytest.mark.parametrize("name", ["-rf", "new\nline", " lead ", "*", "x" * 255, "漢字"])
async def test_odd_names_are_names(desk: Desk, workspace: Path, name: str) -> None:
    assert not (await desk.call("write", file_path=name, content="a\n")).is_error
    assert not (await desk.call("edit", file_path=name, old_string="a", new_string="b")).is_error
    assert "1: b" in body(await desk.call("read", file_path=name))
    assert (workspace / name).read_text() == "b\n"


@pytest.mark.parametrize("tool", ["read", "write"])
@pytest.mark.parametrize("kind", ["pipe", "socket", "folder", "device", "loop"])
async def test_what_is_no_file_is_refused_at_once(
    desk: Desk, workspace: Path, kind: str, tool: str
) -> None:
    target = workspace / "odd"
    listener = socket.socket(socket.AF_UNIX)
    with listener:
        match kind:
            case "pipe":
                os.mkfifo(target)
            case "socket":
                listener.bind(str(target))
            case "folder":
                target.mkdir()
            case "device":
                os.symlink("/dev/zero", target)
            case "loop":
                os.symlink("odd", target)
        extra = {"content": "x"} if tool == "write" else {}
        result = await desk.call(tool, file_path="odd", **extra)
    expected = {"FS_NOT_REGULAR_FILE", "FS_IO_ERROR", "FS_SANDBOX_DENIED"}
    assert code(result) in expected


async def test_a_full_disk_leaves_the_old_content_and_nothing_else(
    desk: Desk, workspace: Path
) -> None:
    (workspace / "f").write_text("old")
    await desk.call("read", file_path="f")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        result = await desk.call("write", file_path="f", content="x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code(result) == "FS_IO_ERROR"
    assert names(workspace) == ["f"]
    assert (workspace / "f").read_text() == "old"


async def test_of_edits_at_once_each_sees_the_one_before(desk: Desk, workspace: Path) -> None:
    (workspace / "f").write_text("0 1 2 3\n")
    await desk.call("read", file_path="f")
    results = await asyncio.gather(
        *(desk.call("edit", file_path="f", old_string=str(n), new_string="x") for n in range(4))
    )
    done = [result for result in results if not result.is_error]
    assert (workspace / "f").read_text().count("x") == len(done) >= 1
    assert {code(result) for result in results if result.is_error} <= {"FS_STALE_VERSION"}


async def test_a_long_line_and_a_long_file_are_read_in_bounded_text(
    desk: Desk, workspace: Path
) -> None:
    (workspace / "line").write_bytes(b"x" * (50 << 20))
    (workspace / "file").write_bytes(b"some words\n" * (9 << 20))
    assert len(text(await desk.call("read", file_path="line"))) < 3000
    shown = body(await desk.call("read", file_path="file", offset=9 << 20))
    assert f"{9 << 20}: some words" in shown
