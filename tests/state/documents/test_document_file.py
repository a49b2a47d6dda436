from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from dsh.base.files import LockTimeout
from dsh.state.documents import DocumentError, DocumentFile, OpenToOthers


def document(path: Path, **options: bool) -> DocumentFile:
    return DocumentFile(path, what="document", lock_s=0.05, **options)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_an_absent_file_is_an_empty_document(tmp_path: Path) -> None:
    assert document(tmp_path / "a.yaml").read() == {}


@pytest.mark.parametrize("text", ["", "\n# only words\n", "\ufeff", "~"])
def test_a_file_without_content_is_an_empty_document(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    assert document(tmp_path / "a.yaml").read() == {}


def test_what_is_written_is_the_owners_alone_as_are_new_folders(tmp_path: Path) -> None:
    file = document(tmp_path / "x" / "y" / "a.yaml")
    with file.draft() as draft:
        draft.write({"a": 1})
    assert file.read() == {"a": 1}
    assert [mode(tmp_path / "x" / "y" / "a.yaml"), mode(tmp_path / "x" / "y")] == [0o600, 0o700]
    assert mode(tmp_path / "x") == 0o700


def test_a_file_that_was_open_is_closed_by_a_write(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a: 1\n")
    path.chmod(0o644)
    with document(path).draft() as draft:
        draft.write({"a": 2})
    assert mode(path) == 0o600


def test_a_planted_link_at_the_temporary_path_is_never_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    path = tmp_path / "a.yaml"
    monkeypatch.setattr("secrets.token_hex", lambda _: "0" * 12)
    planted = tmp_path / ".a.yaml.000000000000.tmp"
    with document(path).draft() as draft:
        planted.symlink_to(victim)
        with pytest.raises(DocumentError, match="cannot be written"):
            draft.write({"a": 1})
    assert victim.read_text() == "mine"
    assert not path.exists()


def test_what_a_killed_writer_left_goes_with_the_next_write_and_nothing_else_does(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.yaml"
    left = tmp_path / ".a.yaml.0123456789ab.tmp"
    others = [tmp_path / name for name in (".a.yaml.tmp", ".b.yaml.0123456789ab.tmp", "a.yaml.tmp")]
    for each in (left, *others):
        each.write_text("secret")
    with document(path).draft() as draft:
        draft.write({"a": 1})
    assert not left.exists()
    assert all(each.exists() for each in others)


def test_a_document_that_is_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    target = tmp_path / "real" / "b.yaml"
    target.write_text("a: 1 # kept\n")
    path = tmp_path / "a.yaml"
    path.symlink_to(target)
    with document(path).draft() as draft:
        draft.write({"a": 2})
    assert path.is_symlink()
    assert target.read_text() == "a: 2 # kept\n"


def test_a_write_that_changes_nothing_touches_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a:   1\n")
    before = document(path).stamp()
    with document(path).draft() as draft:
        draft.write({"a": 1})
    assert document(path).stamp() == before


def test_a_second_writer_waits_and_gives_up_in_time(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    with document(path).draft(), pytest.raises(LockTimeout), document(path).draft():
        pytest.fail("both hold the lock")


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("a: 1\nb: 'sk-secret-1\n", 3, 1),
        ("a: *sk-secret-1\n", 1, 4),
        ("a: !sk-secret-1 x\n", 1, 4),
        ('a: "\\q sk-secret-1"\n', 1, 4),
        ("sk-secret-1: 1\nsk-secret-1: 2\n", 2, 1),
        ("a: sk-secret-1\n b: x: y\n", 2, 3),
        ("a: %sk-secret-1", 1, 4),
        ("a: [sk-secret-1\nb", 3, 1),
        ("? [sk-secret-1]\n: 2\n", 1, 3),
    ],
)
def test_a_broken_document_is_told_by_its_place_and_never_quoted(
    tmp_path: Path, text: str, line: int, column: int
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(DocumentError) as caught:
        document(path).read()
    error: BaseException | None = caught.value
    assert f"{path}:{line}:" in str(error)
    assert (caught.value.line, caught.value.column is not None) == (line, True)
    while error is not None:
        assert "secret" not in str(error) + repr(error)
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.yaml", b"- 1\n", "must be a mapping"),
        ("a.yaml", b"a: .inf\n", r"value at \$\.a is no JSON value"),
        ("a.yaml", b"a: !!js 1\n", r"value at \$\.a is no JSON value"),
        ("a.yaml", b"a: \xff\n", "byte 3 is not UTF-8"),
        ("a.json", b'{"a": sk-secret}', "expecting value|Expecting value"),
        ("a.json", b'{"a": 1, "a": 2}', "duplicate key"),
        ("a.json", b'{"a": NaN}', "not finite"),
        ("a.json", b"[1]", "must be a mapping"),
    ],
)
def test_other_content_is_refused(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DocumentError, match=problem) as caught:
        document(tmp_path / name).read()
    assert "secret" not in str(caught.value)


def test_a_folder_a_pipe_and_a_link_to_nothing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "link.yaml").symlink_to(tmp_path / "nothing")
    for name, problem in (
        ("folder", "is a directory|is a folder"),
        ("pipe", "no regular file"),
        ("link", "leads to no file"),
    ):
        with pytest.raises(DocumentError, match=problem):
            document(tmp_path / f"{name}.yaml").read()


def test_a_draft_of_a_broken_document_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a: [\n")
    with pytest.raises(DocumentError), document(path).draft():
        pytest.fail("it was entered")
    assert path.read_text() == "a: [\n"


def test_json_documents_are_written_as_json(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": {"b": 1}}')
    with document(path).draft() as draft:
        draft.write({"a": {"b": 2}, "c": "é"})
    assert path.read_text() == '{\n  "a": {\n    "b": 2\n  },\n  "c": "é"\n}\n'


def test_secrets_that_others_could_read_are_not_even_parsed(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a: [broken sk-secret\n")
    path.chmod(0o640)
    with pytest.raises(OpenToOthers, match=f"chmod 600 {path}"):
        document(path, secret=True).read()
