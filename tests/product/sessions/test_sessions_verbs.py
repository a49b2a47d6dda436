from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from sessions_home import CWD, SessionsHome, Terminal, ask, conversation, entitle

from dsh.state.persistence.artifact.layout import Encoding
from dsh.state.persistence.artifact.store import ArtifactStore
from dsh.state.session.events import USER_MESSAGE
from dsh.state.session.session import Session


def test_the_list_has_titles(here: SessionsHome) -> None:
    here.store(entitle(conversation("named"), "Repair the parser"))
    here.store(conversation("nameless"))
    assert {row["id"]: row["title"] for row in here.rows("list")} == {
        "named": "Repair the parser",
        "nameless": None,
    }
    assert "Repair the parser" in here.run("list")


def test_a_type_that_this_build_must_not_skip_is_damage_of_that_session_alone(
    here: SessionsHome,
) -> None:
    path = here.store(conversation("other"), Encoding.PLAIN)
    with path.open("ab") as file:
        file.write(b'{"type":"future/thing","seq":8,"time":1,"data":{}}\n')
    here.store(conversation("fine"))
    damage = {row["id"]: row["damage"] for row in here.rows("list")}
    assert damage["fine"] is None
    assert "future/thing" in damage["other"]


def test_a_transcript_is_what_a_person_saw(here: SessionsHome) -> None:
    here.store(conversation("one", 2))
    lines = here.run("show", "one").splitlines()
    assert lines[0].startswith("one  ")
    assert lines[0].endswith(CWD)
    assert lines[1:7] == [
        "",
        "> question 1",
        "",
        "answer 1",
        "",
        '  bash {"command":"ls"}',
    ]
    assert lines[7] == "    one.txt  (+1 lines)"
    assert "> question 2" in lines


def test_a_transcript_keeps_what_a_compaction_took_from_the_model(here: SessionsHome) -> None:
    session = conversation("one")
    first = session.surface.nodes[0]
    session.append(
        USER_MESSAGE,
        {
            "id": "x",
            "role": "user",
            "content": [{"type": "text", "text": "summary"}],
            "source": {"kind": "plugin", "plugin": "compact"},
        },
        surface_op={"op": "replace", "start": first, "end": first},
        source_event_seqs=[first],
    )
    here.store(session)
    shown = here.run("show", "one")
    assert "question 1" in shown
    assert "summary" not in shown


def test_a_transcript_cannot_steer_the_terminal(here: SessionsHome) -> None:
    session = Session.create("one")
    text = "safe \x1b[2J\x07\x9b31m \ud800 \u202e"
    session.append(
        USER_MESSAGE,
        {
            "id": "x",
            "role": "user",
            "content": [{"type": "text", "text": text}],
            "source": {"kind": "user"},
        },
        surface_op="append",
    )
    here.store(session)
    shown = here.run("show", "one")
    assert not {char for char in shown if ord(char) < 32 or 0x7F <= ord(char) < 0xA0} - {"\n"}
    assert "safe \u241b[2J" in shown


@pytest.mark.parametrize("no_color", ["", "1"])
def test_colours_are_for_terminals_only(
    here: SessionsHome, monkeypatch: pytest.MonkeyPatch, no_color: str
) -> None:
    here.store(conversation("one"))
    assert "\x1b" not in here.run("show", "one")
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", no_color)
    here.run("show", "one")
    assert ("\x1b[1m> question 1" in terminal.getvalue()) is not bool(no_color)


def test_raw_events_are_one_a_line(here: SessionsHome) -> None:
    session = conversation("one")
    here.store(session)
    events = [json.loads(line) for line in here.run("show", "one", "--events").splitlines()]
    assert events == list(session.events)


def test_a_transcript_is_data_for_programs(here: SessionsHome) -> None:
    here.store(entitle(conversation("one"), "Name"))
    (row,) = here.rows("show", "one")
    assert (row["id"], row["cwd"], row["title"], row["damage"]) == ("one", CWD, "Name", None)
    assert [entry["kind"] for entry in row["transcript"]] == ["user", "assistant", "call"]


def test_showing_changes_nothing_and_tells_of_a_damaged_end(
    here: SessionsHome, capsys: pytest.CaptureFixture[str]
) -> None:
    path = here.store(conversation("one"), Encoding.PLAIN)
    path.write_bytes(path.read_bytes() + b'{"type":"tur')
    before = path.read_bytes()
    from dsh.product.sessions.cli import main

    assert main(["show", "one"]) == 0
    assert "dsh sessions repair" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_a_session_is_named_by_a_beginning_that_is_its_own(here: SessionsHome) -> None:
    here.store(conversation("session-7c1e-a"))
    here.store(conversation("session-7c2f-b"))
    assert "session-7c1e-a" in here.run("show", "session-7c1")
    assert "session-7c2f-b" in here.run("show", "7c2")
    said = here.refused("show", "session-7c")
    assert "begins the ids of 2 sessions: session-7c1e-a, session-7c2f-b" in said


def test_an_id_that_begins_another_is_itself(here: SessionsHome) -> None:
    here.store(conversation("one"))
    here.store(conversation("one-more"))
    assert here.run("show", "one").startswith("one ")


def test_a_misspelled_id_is_answered_with_the_near_one(here: SessionsHome) -> None:
    here.store(conversation("session-parser"))
    assert "did you mean 'session-parser'" in here.refused("show", "sesion-parser")
    assert "dsh sessions list" in here.refused("delete", "zzz", "--yes")


def test_last_is_the_newest_of_this_folder(here: SessionsHome, tmp_path: Path) -> None:
    here.store(conversation("elsewhere", created=9_000))
    assert "no session of this folder" in here.refused("show", "last")
    here.store(conversation("mine", cwd=str(tmp_path / "work")))
    assert here.run("show", "last").startswith("mine ")


def test_a_fork_has_the_history_up_to_a_turn_and_prints_its_id(here: SessionsHome) -> None:
    session = conversation("one", 2, agentPreset="careful")
    here.store(session)
    child = here.run("fork", "one", "--at", "3").strip()
    assert child.startswith("session-")
    log = here.stored(child)
    assert log.events[:-1] == list(session.events[:8])
    assert log.events[-1]["type"] == "session/end-seed"
    assert log.header["parentSession"] == "one"
    assert log.header["seedLength"] == 8
    assert (log.header["cwd"], log.header["agentPreset"]) == (CWD, "careful")
    (row,) = here.rows("fork", child)
    assert (row["parentSession"], row["events"]) == (child, 9)


@pytest.mark.parametrize(
    ("at", "match"), [("x", "'x'"), ("-1", "needs"), ("1.5", "'1.5'"), ("9" * 5_000, "needs")]
)
def test_a_bad_fork_position_is_named(here: SessionsHome, at: str, match: str) -> None:
    here.store(conversation("one"))
    assert match in here.refused("fork", "one", "--at", at)
    assert len(here.rows("list")) == 1


def test_a_session_without_a_whole_turn_cannot_be_forked(here: SessionsHome) -> None:
    session = Session.create("one")
    session.append(
        USER_MESSAGE,
        {"id": "x", "role": "user", "content": [], "source": {"kind": "user"}},
        surface_op="append",
    )
    here.store(session)
    assert "no turn has ended" in here.refused("fork", "one")


def test_an_archive_holds_the_log_and_those_of_subagents(here: SessionsHome) -> None:
    here.store(conversation("one", 2))
    here.store(conversation("kid", created=2_000, origin="subagent", parentSession="one"))
    here.store(conversation("kid/2", created=3_000, origin="subagent", parentSession="kid"))
    here.store(conversation("fork", created=4_000, parentSession="one"))
    assert here.run("export", "one") == "dsh-session-one.zip\n"
    with zipfile.ZipFile("dsh-session-one.zip") as archive:
        assert archive.testzip() is None
        assert archive.namelist() == [
            "session.jsonl",
            "subagents/kid/session.jsonl",
            "subagents/kid_2/session.jsonl",
        ]
        lines = archive.read("session.jsonl").splitlines()
    assert json.loads(lines[0])["id"] == "one"
    assert len(lines) == 17
    assert here.run("export", "one") == "dsh-session-one-2.zip\n"


def test_a_log_is_exported_as_it_is_stored(here: SessionsHome) -> None:
    path = here.store(conversation("one"), Encoding.PLAIN)
    (row,) = here.rows("export", "one", "--format", "jsonl", "-o", "log.jsonl")
    assert row["file"] == "log.jsonl"
    assert Path("log.jsonl").read_bytes() == path.read_bytes()


def test_a_document_is_exported_to_standard_output(
    here: SessionsHome, capsys: pytest.CaptureFixture[str]
) -> None:
    from dsh.product.sessions.cli import main

    here.store(entitle(conversation("one"), "Repair"))
    assert main(["export", "one", "--format=markdown", "-o", "-"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# Repair\n")
    assert "## User\n\nquestion 1\n" in text
    assert "Tool `bash`" in text


def test_a_folder_as_target_gets_a_file_of_its_own(here: SessionsHome, tmp_path: Path) -> None:
    here.store(conversation("one"))
    (tmp_path / "out").mkdir()
    assert here.run("export", "one", "-o", str(tmp_path / "out")).strip() == str(
        tmp_path / "out" / "dsh-session-one.zip"
    )


def test_an_export_that_fails_leaves_nothing(here: SessionsHome) -> None:
    here.store(conversation("one"))
    said = here.refused("export", "one", "-o", "nowhere/file.zip")
    assert "cannot write 'nowhere/file.zip': No such file or directory" in said
    assert "zip" in here.refused("export", "one", "--format", "pdf")
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize("encoding", list(Encoding))
def test_repair_tells_what_was_lost_and_keeps_it_and_does_it_once(
    here: SessionsHome, encoding: Encoding
) -> None:
    session = conversation("one")
    path = here.store(session, encoding)
    ask(session, 2)
    here.go_on(session, 8, 11)
    here.go_on(session, 11, session.seq)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    (row,) = here.rows("repair", "one")
    assert "bytes at its end" in row["lost"]
    (kept,) = row["kept"]
    assert whole[:-20].endswith(Path(kept).read_bytes())
    after = path.read_bytes()
    assert here.stored("one").events[-1]["data"]["reason"] == {"kind": "interrupted"}
    assert here.run("repair", "one") == "one: is whole\n"
    assert here.run("repair") == "all sessions are whole\n"
    assert path.read_bytes() == after
    assert len(list(path.parent.glob("*.lost-*"))) == 1


def test_repair_closes_an_interrupted_turn(here: SessionsHome) -> None:
    session = conversation("one")
    ask(session, 2)
    here.store(session)
    assert here.run("repair", "one") == "one: an interrupted turn was closed\n"
    assert here.run("repair", "one") == "one: is whole\n"


def test_repair_of_all_goes_on_after_one_that_cannot_be_repaired(here: SessionsHome) -> None:
    broken = here.store(conversation("broken", 2), Encoding.PLAIN)
    lines = broken.read_bytes().splitlines(keepends=True)
    broken.write_bytes(b"".join([*lines[:2], b"junk\n", *lines[3:]]))
    torn = here.store(conversation("torn"), Encoding.PLAIN)
    torn.write_bytes(torn.read_bytes() + b"{")
    before = broken.read_bytes()
    rows = {row["id"]: row for row in here.rows("repair", code=1)}
    assert rows["torn"]["lost"] is not None
    assert "line 3 is damaged" in rows["broken"]["damage"]
    assert broken.read_bytes() == before


def test_repair_removes_what_a_killed_writer_never_published(here: SessionsHome) -> None:
    import os

    path = here.store(conversation("one"))
    folder = path.parent.parent / "ghost"
    folder.mkdir()
    (folder / f"{path.name}.0123456789ab.tmp").write_bytes(b"half")
    here.run("repair")
    assert folder.exists(), "it may be about to be published"
    os.utime(folder, (1, 1))
    assert "ghost" in here.run("repair")
    assert not folder.exists()
    assert here.stored("one") is not None


def test_deleting_needs_a_yes_where_nobody_can_be_asked(here: SessionsHome) -> None:
    here.store(conversation("one"))
    assert "say --yes" in here.refused("delete", "one")
    assert here.run("delete", "one", "--yes") == "deleted one\n"
    assert here.rows("list") == []


@pytest.mark.parametrize(("answer", "left"), [("y\n", 0), ("\n", 1), ("no\n", 1)])
def test_deleting_asks_on_a_terminal(
    here: SessionsHome, monkeypatch: pytest.MonkeyPatch, answer: str, left: int
) -> None:
    here.store(conversation("one"))
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    here.run("delete", "one", code=left)
    assert len(here.rows("list")) == left


def test_deleting_leaves_nothing_of_a_repaired_session(here: SessionsHome) -> None:
    path = here.store(conversation("one"), Encoding.PLAIN)
    path.write_bytes(path.read_bytes() + b"{")
    here.run("repair")
    (row,) = here.rows("delete", "one", "--yes")
    assert (row["id"], row["events"]) == ("one", 8)
    assert not path.parent.exists()


def test_a_session_whose_header_is_gone_can_be_deleted(here: SessionsHome) -> None:
    path = here.store(conversation("one"))
    path.write_bytes(b"junk")
    here.run("delete", "one", "--yes")
    assert not path.exists()


def test_a_session_that_a_running_process_has_is_not_touched(here: SessionsHome) -> None:
    path = here.store(conversation("one"), Encoding.PLAIN)
    path.write_bytes(path.read_bytes() + b"{")
    before = path.read_bytes()
    other = ArtifactStore(here.folder / "sessions")
    lease = other.hold("one")
    assert lease is not None
    try:
        assert "process" in here.refused("delete", "one", "--yes")
        assert here.run("repair") == "all sessions are whole\n"
        said = here.run("repair", "one", code=1)
        assert "cannot be repaired" in said
        assert "answer 1" in here.run("show", "one")
        assert here.run("fork", "one").startswith("session-")
    finally:
        other.let_go(lease)
        other.close()
    assert path.read_bytes() == before


@pytest.mark.parametrize("verb", ["show", "fork", "export", "delete"])
def test_a_verb_without_a_session_says_what_it_needs(here: SessionsHome, verb: str) -> None:
    assert f"{verb} needs the id of a session" in here.refused(verb)


def test_an_archive_holds_the_images(here: SessionsHome) -> None:
    import asyncio

    from dsh.capability.attachments.local import LocalAttachments
    from dsh.capability.attachments.service import ImageInput
    from dsh.kernel import Context

    image = pytest.importorskip("PIL.Image")
    data = io.BytesIO()
    image.new("RGB", (3, 2), "red").save(data, "PNG")

    async def keep() -> Any:
        context = Context()
        await context.plugin(LocalAttachments, {"dshHome": str(here.folder)})
        store = context.require(LocalAttachments)
        ref = await store.save_image(ImageInput(data.getvalue(), "image/png", "red.png"))
        await context.dispose()
        return ref

    ref = asyncio.run(keep())
    session = Session.create("one")
    content: Any = [{"type": "image", "attachment": ref}]
    session.append(
        USER_MESSAGE,
        {"id": "x", "role": "user", "content": content, "source": {"kind": "user"}},
        surface_op="append",
    )
    here.store(session)
    here.run("export", "one")
    with zipfile.ZipFile("dsh-session-one.zip") as archive:
        _, name = archive.namelist()
        assert name.startswith("media/")
        assert archive.read(name).startswith(b"\x89PNG")
    assert "[image red.png]" in here.run("show", "one")
