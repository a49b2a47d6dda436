"""One bad file among many: the others are listed, and the bad one with its reason."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from state_logs import open_turn, whole_turn

from dsh.base.json import dumps
from dsh.state.persistence.artifact.catalog import CatalogEntry, survey, survey_cwd
from dsh.state.persistence.artifact.layout import Encoding
from dsh.state.persistence.artifact.store import ArtifactStore
from dsh.state.session.session import Session


def store_some(root: Path, count: int, cwd: str = "/w") -> list[Path]:
    paths = []
    for number in range(count):
        header = {"version": 0, "id": f"s{number:02}", "createdAt": number, "cwd": cwd}
        session = Session.create(f"s{number:02}", header=header)
        whole_turn(session)
        encoding = list(Encoding)[number % 2]
        paths.append(ArtifactStore(root, encoding).create(session.header, session.events).path)
    return paths


@pytest.fixture(scope="module")
def fifty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("fifty")
    store_some(root, 50)
    return root


def damaged(root: Path) -> dict[Path, CatalogEntry]:
    entries = list(survey(root, count=True))
    return {entry.path: entry for entry in entries if entry.damage is not None}


def corrupt_frame(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")


def newer(path: Path) -> None:
    path.write_bytes(dumps({"type": "session", "version": 9, "id": "x"}) + b"\n")


def garbage(path: Path) -> None:
    path.write_bytes(os.urandom(2000) + b"\n" + bytes(100))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def oversized(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(40 * 1024 * 1024)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "nowhere")


def misplaced(path: Path) -> None:
    path.write_bytes(path.read_bytes())
    moved = path.parent.parent / "other"
    path.parent.rename(moved)


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


@pytest.mark.parametrize(
    "harm", [corrupt_frame, newer, garbage, empty, oversized, folder, dangling, misplaced, torn]
)
@pytest.mark.parametrize("index", [0, 1])
def test_one_bad_session_among_fifty_hides_no_other(
    tmp_path: Path, fifty: Path, harm: Callable[[Path], None], index: int
) -> None:
    root = tmp_path / "sessions"
    shutil.copytree(fifty, root)
    harm(next(root.glob(f"*/s{index:02}/session.*")))
    entries = list(survey(root, count=True))
    good = [entry for entry in entries if entry.damage is None]
    assert len(entries) == 50
    assert len(good) == 49
    assert all(entry.events == 10 for entry in good)
    (bad,) = damaged(root).values()
    assert bad.damage


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@contextmanager
def somebody_else(folder: Path) -> Iterator[None]:
    """Look as the owner of the folder who is not root: root may read everything."""
    if os.geteuid() != 0:
        yield
        return
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, 65534, -1)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_an_unreadable_session_is_listed_with_the_reason(open_folder: Path) -> None:
    paths = store_some(open_folder, 4)
    assert damaged(open_folder) == {}
    paths[0].chmod(0)
    paths[1].parent.chmod(0)
    with somebody_else(open_folder):
        seen = [entry.damage for entry in survey(open_folder, count=True)]
    paths[1].parent.chmod(0o700)
    assert seen == ["Permission denied", "Permission denied", None, None]


def test_a_session_in_two_encodings_is_damaged_once(tmp_path: Path) -> None:
    (path,) = store_some(tmp_path, 1)
    other = next(encoding for encoding in Encoding if encoding.value != path.name)
    (path.parent / other.value).touch()
    assert len(damaged(tmp_path)) == 1


def test_foreign_files_and_leftovers_are_skipped(tmp_path: Path) -> None:
    (path,) = store_some(tmp_path, 1)
    (path.parent / f"{path.name}.0123456789ab.tmp").write_bytes(b"half")
    foreign = tmp_path / "--w--" / "other"
    foreign.mkdir()
    (foreign / "session.v4.jsonl.zstd").write_bytes(b"foreign")
    (tmp_path / "note.txt").touch()
    assert [entry.path for entry in survey(tmp_path, count=True)] == [path]


def test_only_the_sessions_of_a_working_directory(tmp_path: Path) -> None:
    store_some(tmp_path, 2, cwd="/a/b")
    header = {"version": 0, "id": "lossy", "createdAt": 1, "cwd": "/a-b"}
    session = Session.create("lossy", header=header)
    open_turn(session)
    ArtifactStore(tmp_path).create(session.header, session.events)
    headers = [entry.header for entry in survey_cwd(tmp_path, "/a-b")]
    assert [header["id"] for header in headers if header] == ["lossy"]
    assert list(survey_cwd(tmp_path, "/none")) == []


def test_a_root_that_does_not_exist_is_empty(tmp_path: Path) -> None:
    assert list(survey(tmp_path / "missing")) == []
