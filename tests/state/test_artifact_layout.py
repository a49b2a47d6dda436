from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh.state.persistence.artifact.layout import (
    Encoding,
    artifact_path,
    encode_segment,
    find_artifact,
    project_key,
)
from dsh.state.persistence.errors import SessionPersistenceCorruptionError

anything = st.text(st.characters(codec=None, exclude_categories=()), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("id", "segment"),
    [
        ("session-7c1e", "session-7c1e"),
        ("A.b_c-9", "A.b_c-9"),
        (".", "~002E"),
        ("..", "~002E~002E"),
        ("../x", "..~002Fx"),
        ("/abs", "~002Fabs"),
        ("a~b", "a~007Eb"),
        ("nul\0", "nul~0000"),
        ("é", "~00E9"),
        ("😀", "~D83D~DE00"),
        ("\ud83d", "~D83D"),
    ],
)
def test_ids_become_safe_folder_names(id: str, segment: str) -> None:
    assert encode_segment(id) == segment


def test_an_empty_id_has_no_folder() -> None:
    with pytest.raises(ValueError, match="empty"):
        encode_segment("")


@given(anything, anything)
def test_different_ids_never_share_a_folder(one: str, two: str) -> None:
    # Python can spell one astral character also as two surrogates; on disk both are the same units.
    units = [text.encode("utf-16-be", "surrogatepass") for text in (one, two)]
    assert (encode_segment(one) == encode_segment(two)) is (units[0] == units[1])


@given(anything)
def test_a_folder_name_stays_inside_its_root(id: str) -> None:
    path = artifact_path(Path("/root"), {"id": id, "cwd": f"/{id}"}, Encoding.PLAIN)
    assert path.resolve().is_relative_to("/root")
    assert len(path.relative_to("/root").parts) == 3


@pytest.mark.parametrize(
    ("cwd", "key"),
    [
        (None, "_no-cwd"),
        ("/home/ada/app", "--home-ada-app--"),
        ("C:\\work\\app", "--C-work-app--"),
        ("/", "--root--"),
        ("/a b/ü", "--a~0020b-~00FC--"),
        ("/" + "x" * 300, "--" + "x" * 251 + "--"),
    ],
)
def test_working_directories_become_project_folders(cwd: str | None, key: str) -> None:
    assert project_key(cwd) == key


def test_a_session_stored_twice_is_not_guessed(tmp_path: Path) -> None:
    for project in ("--a--", "--b--"):
        folder = tmp_path / project / "s"
        folder.mkdir(parents=True)
        (folder / Encoding.PLAIN.value).touch()
    with pytest.raises(SessionPersistenceCorruptionError, match="more than once"):
        find_artifact(tmp_path, "s")


def test_files_of_another_format_are_not_ours(tmp_path: Path) -> None:
    folder = tmp_path / "--a--" / "s"
    folder.mkdir(parents=True)
    (folder / "session.v4.jsonl.zstd").write_bytes(b"foreign")
    (folder / "session.lock").touch()
    assert find_artifact(tmp_path, "s") is None
    assert find_artifact(tmp_path / "missing", "s") is None
