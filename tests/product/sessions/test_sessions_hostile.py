"""``dsh sessions`` among files, names and targets that mean no good."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from sessions_home import SessionsHome, conversation, entitle

from dsh.product.sessions.cli import main
from dsh.product.sessions.terminal import OutputFailed
from dsh.state.persistence.artifact.layout import Encoding, decode_segment, encode_segment


def _stored_as(here: SessionsHome, id: str, *events: dict[str, Any]) -> Path:
    """Store a log as another program may have written it."""
    folder = here.folder / "sessions" / "--w--" / id
    folder.mkdir(parents=True)
    header = {"type": "session", "version": 0, "id": id, "createdAt": 1, "cwd": "/w"}
    rows: list[dict[str, Any]] = [{**header, "delegationDepth": 0}]
    rows += [{"seq": seq, "time": 1, **event} for seq, event in enumerate(events)]
    path = folder / "session.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


@pytest.mark.parametrize("name", ["session.jsonl", "session.jsonl.zstd"])
def test_what_is_no_file_holds_nobody_up(here: SessionsHome, name: str) -> None:
    here.store(conversation("good"))
    project = here.folder / "sessions" / "--p--"
    for folder in ("pipe", "endless", "folder"):
        (project / folder).mkdir(parents=True)
    os.mkfifo(project / "pipe" / name)
    (project / "endless" / name).symlink_to("/dev/zero")
    (project / "folder" / name).mkdir()
    rows = here.rows("list")
    assert [row["id"] for row in rows if row["damage"] is None] == ["good"]
    assert sum("regular file" in (row["damage"] or "") for row in rows) == 2
    assert "regular file" in here.refused("show", "pipe")
    assert here.run("show", "good").startswith("good")


def test_a_name_cannot_forge_a_line_of_the_list(here: SessionsHome) -> None:
    name = "a\x1b[2J\nforged  \u202e\u2028 end"
    here.store(entitle(conversation(name, cwd="/x/\n\x07y"), "title\n\x1b]0;x\x07"))
    folder = here.folder / "sessions" / "--\x1b[31m\n--" / "x"
    folder.mkdir(parents=True)
    (folder / "session.jsonl").write_bytes(b"junk\n")
    for words in (["list"], ["repair", name], ["delete", name, "--yes"]):
        shown = here.run(*words)
        assert not {char for char in shown if ord(char) < 32} - {"\n"}
        assert not {"\u202e", "\u2028"} & set(shown)
        assert shown.count("\n") == (2 if words == ["list"] else 1)
    assert "\x1b" not in here.refused("show", "\x1b[31m")


def test_an_empty_word_names_no_session(here: SessionsHome) -> None:
    here.store(conversation("only"))
    assert "empty word" in here.refused("delete", "", "--yes")
    assert "empty word" in here.refused("show", "")
    assert [row["id"] for row in here.rows("list")] == ["only"]


@pytest.mark.parametrize("id", ["a b", "../up", "\ud800", "é~0041", ".", "x\0"])
def test_a_damaged_session_goes_by_its_own_id(here: SessionsHome, id: str) -> None:
    path = here.store(conversation(id), Encoding.PLAIN)
    path.write_bytes(b"junk\n" + path.read_bytes())
    assert "not JSON" in here.refused("show", id)
    here.run("delete", id, "--yes")
    assert here.rows("list") == []


def test_the_name_of_a_folder_leads_back_to_its_id() -> None:
    for each in ("a", "a b", ".", "..", "~0041", "\ud800", "\U0001f600"):
        assert decode_segment(encode_segment(each)) == each
    for name in ("~0041", "a b", "~XYZ", "~005"):
        assert decode_segment(name) == name


def test_a_misplaced_copy_does_not_stand_for_the_session(here: SessionsHome) -> None:
    path = here.store(conversation("one"), Encoding.PLAIN)
    copy = path.parent.with_name("zcopy")
    copy.mkdir()
    (copy / path.name).write_bytes(path.read_bytes())
    (row,) = here.rows("show", "one")
    assert row["path"] == str(path)
    here.run("delete", "zcopy", "--yes")
    assert [each["id"] for each in here.rows("list")] == ["one"]


def test_deleting_needs_no_readable_events(here: SessionsHome) -> None:
    path = here.store(conversation("one", 2), Encoding.PLAIN)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"junk\n", *lines[3:]]))
    (row,) = here.rows("delete", "one", "--yes")
    assert (row["id"], row["events"]) == ("one", None)
    assert "line 3" in row["damage"]
    assert here.rows("list") == []


@pytest.mark.parametrize(
    "event",
    [
        {"type": "turn/end", "data": {"turn": 1, "reason": {"kind": "error", "error": "x"}}},
        {"type": "turn/end", "data": {"turn": 1, "reason": {"kind": "aborted", "reason": "x"}}},
        {"type": "session/title", "data": {"title": 5}},
        {
            "type": "user/message",
            "surfaceOp": "append",
            "data": {
                "id": "u",
                "role": "user",
                "source": {"kind": "user"},
                "content": [
                    {"x": 1},
                    {"type": "text", "text": 7},
                    {"type": "image", "attachment": "x"},
                ],
            },
        },
    ],
)
def test_payloads_of_another_shape_are_still_shown(
    here: SessionsHome, event: dict[str, Any]
) -> None:
    _stored_as(here, "odd", event)
    assert here.rows("list")[0]["events"] == 1
    assert here.rows("show", "odd")[0]["title"] is None
    assert here.run("show", "odd").startswith("odd")
    here.run("export", "odd", "--format", "markdown", "-o", "odd.md")


def test_an_export_into_a_link_keeps_the_link(here: SessionsHome) -> None:
    here.store(conversation("one"))
    Path("file").write_text("old")
    Path("link").symlink_to("file")
    assert here.run("export", "one", "--format", "jsonl", "-o", "link") == "link\n"
    assert Path("link").is_symlink()
    assert Path("file").read_bytes().startswith(b'{"type":"session"')
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["file", "link"]


def test_an_export_into_a_pipe_or_a_device_leaves_it_there(here: SessionsHome) -> None:
    here.store(conversation("one"))
    os.mkfifo("pipe")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(Path("pipe").read_bytes()), daemon=True)
    reader.start()
    here.run("export", "one", "--format", "jsonl", "-o", "pipe")
    reader.join(10)
    assert read[0].startswith(b'{"type":"session"')
    assert stat.S_ISFIFO(Path("pipe").lstat().st_mode)
    Path("full").symlink_to("/dev/full")
    assert "cannot write 'full'" in here.refused("export", "one", "-o", "full")
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["full", "pipe"]


def test_an_export_below_a_file_is_told(here: SessionsHome) -> None:
    here.store(conversation("one"))
    Path("file").write_text("old")
    assert "cannot write 'file/x'" in here.refused("export", "one", "-o", "file/x")


def test_standard_output_takes_one_thing(here: SessionsHome) -> None:
    here.store(conversation("one"))
    assert "not both" in here.refused("export", "one", "-o", "-", "--json")


class _Full(io.BytesIO):
    def write(self, data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_output_that_nothing_takes_is_told_as_such(
    here: SessionsHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.store(conversation("one"))
    for words in (["list"], ["show", "one"], ["export", "one", "-o", "-"]):
        with monkeypatch.context() as patch:
            patch.setattr("sys.stdout", io.TextIOWrapper(_Full(), write_through=True))
            with pytest.raises(OutputFailed, match="cannot write the output: No space left"):
                main(words)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_terminal_takes_any_title(
    here: SessionsHome, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    title = "é 会话 \U0001f600 \x1b"
    here.store(entitle(conversation("one"), title))
    for words in (["list"], ["list", "--json"], ["show", "one"], ["show", "one", "--events"]):
        raw = io.BytesIO()
        with monkeypatch.context() as patch:
            patch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding=encoding))
            assert main(words) == 0
            if "--json" in words:
                assert json.loads(raw.getvalue().decode(encoding))[0]["title"] == title


def test_without_standard_output_nothing_breaks(
    here: SessionsHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.store(conversation("one"))
    monkeypatch.setattr("sys.stdout", None)
    assert main(["show", "one"]) == 0
