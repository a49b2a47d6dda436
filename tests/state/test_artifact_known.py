"""A listing reads no file twice that is as it was, and no change of a file escapes it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from state_logs import whole_turn

from dsh.state.persistence.artifact.catalog import CatalogEntry, survey, survey_cwd
from dsh.state.persistence.artifact.known import Known
from dsh.state.persistence.artifact.layout import Encoding
from dsh.state.persistence.artifact.store import ArtifactStore
from dsh.state.session.session import Session


def stored(root: Path, id: str, created: int = 1, cwd: str = "/w") -> Path:
    header = {"version": 0, "id": id, "createdAt": created, "cwd": cwd}
    session = Session.create(id, header=header)
    whole_turn(session)
    return ArtifactStore(root).create(session.header, session.events).path


@pytest.fixture
def known() -> Known:
    """What trusts files that changed just now, which the tests here have made."""
    return Known(settled_s=-60)


def listed(root: Path, known: Known) -> dict[str, CatalogEntry]:
    return {entry.path.parent.name: entry for entry in survey(root, known=known)}


def size(known: Known, root: Path) -> int:
    return sum(len(known.listed(str(project))) for project in root.iterdir() if project.is_dir())


def test_a_file_that_is_as_it_was_is_not_read_again(tmp_path: Path, known: Known) -> None:
    stored(tmp_path, "s")
    first = listed(tmp_path, known)["s"]
    assert listed(tmp_path, known)["s"] is first
    assert next(iter(survey_cwd(tmp_path, "/w", known=known))) is first


def test_a_file_that_changed_a_moment_ago_is_read_again(tmp_path: Path) -> None:
    known = Known(settled_s=60)
    stored(tmp_path, "s")
    assert listed(tmp_path, known)["s"] is not listed(tmp_path, known)["s"]


def test_a_file_that_grew_has_another_revision_and_the_same_header(
    tmp_path: Path, known: Known
) -> None:
    path = stored(tmp_path, "s")
    before = listed(tmp_path, known)["s"]
    with path.open("ab") as file:
        file.write(b"more")
    after = listed(tmp_path, known)["s"]
    assert before.position
    assert after.position
    assert after.position.revision != before.position.revision
    assert after.header == before.header


def other_in_place(path: Path) -> None:
    elsewhere = stored(path.parents[2] / "elsewhere", "t")
    os.replace(elsewhere, path)
    shutil.rmtree(path.parents[2] / "elsewhere")


def other_written_over(path: Path) -> None:
    elsewhere = stored(path.parents[2] / "elsewhere", "t")
    times = path.stat()
    path.write_bytes(elsewhere.read_bytes())
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    shutil.rmtree(path.parents[2] / "elsewhere")


def spoiled(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"\xff")


def unlinked(path: Path) -> None:
    target = path.with_name("target")
    path.rename(target)
    path.symlink_to(target.name)
    target.unlink()


def stored_twice(path: Path) -> None:
    path.with_name(Encoding.PLAIN.value).touch()


@pytest.mark.parametrize(
    "harm", [other_in_place, other_written_over, spoiled, unlinked, stored_twice]
)
def test_what_happens_to_a_known_file_is_seen(
    tmp_path: Path, known: Known, harm: Callable[[Path], None]
) -> None:
    path = stored(tmp_path, "s")
    assert listed(tmp_path, known)["s"].damage is None
    harm(path)
    assert [entry.damage is None for entry in survey(tmp_path, known=known)].count(False) == 1


def test_a_session_that_is_made_again_has_its_new_header(tmp_path: Path, known: Known) -> None:
    path = stored(tmp_path, "s", created=1)
    listed(tmp_path, known)
    shutil.rmtree(path.parent)
    stored(tmp_path, "s", created=2)
    header = listed(tmp_path, known)["s"].header
    assert header
    assert header["createdAt"] == 2


def test_what_a_link_leads_to_may_change(tmp_path: Path, known: Known) -> None:
    path = stored(tmp_path, "s", created=1)
    target = tmp_path / "target"
    path.rename(target)
    path.symlink_to(target)
    listed(tmp_path, known)
    os.replace(stored(tmp_path, "t", created=2), path.with_name("other"))
    os.replace(path.with_name("other"), target)
    assert listed(tmp_path, known)["s"].damage is not None


def test_what_is_gone_is_forgotten(tmp_path: Path, known: Known) -> None:
    first, second = stored(tmp_path, "s"), stored(tmp_path, "t")
    project = stored(tmp_path, "u", cwd="/other").parents[1]
    assert len(listed(tmp_path, known)) == size(known, tmp_path) == 3
    shutil.rmtree(first.parent)
    shutil.rmtree(project)
    assert list(listed(tmp_path, known)) == [second.parent.name]
    assert size(known, tmp_path) == 1
    assert len(known.listed(str(project))) == 0


def test_no_more_is_remembered_than_the_limit_and_all_is_listed(tmp_path: Path) -> None:
    known = Known(limit=3, settled_s=-60)
    for number in range(4):
        stored(tmp_path, f"s{number}", cwd="/a")
        stored(tmp_path, f"t{number}", cwd="/b")
    for _ in range(2):
        assert len(listed(tmp_path, known)) == 8
        assert size(known, tmp_path) == 3


def test_a_file_that_became_sound_is_listed_so(tmp_path: Path, known: Known) -> None:
    path = stored(tmp_path, "s")
    content = path.read_bytes()
    path.write_bytes(b"")
    assert listed(tmp_path, known)["s"].incomplete
    path.write_bytes(content)
    assert listed(tmp_path, known)["s"].damage is None
