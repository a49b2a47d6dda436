"""Real disks: one that is full, and folders in which nothing may be made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from crash_media import DatabaseCrash, FileCrash, Media

HERE = Path(__file__).parent
_TESTS = HERE.parents[1]
_PLACES = (HERE, _TESTS / "state", _TESTS / "execution" / "loop")
_MOUNT = 'mount -t tmpfs -o size="$1",mode=700 tmpfs "$0" && shift && exec "$@"'
_IN_NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]
_SIZE = "4m"  # the journal of a database is copied into it every 4 MB


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """An empty folder; a child may mount something there that nobody else sees."""
    folder = tmp_path / "disk"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture(params=["zstd", "none", "wal", "truncate"])
def store(request: pytest.FixtureRequest, disk: Path) -> Media:
    if request.param in ("zstd", "none"):
        return FileCrash(disk / "sessions", request.param)
    return DatabaseCrash(disk / "store" / "sessions.db", request.param)


def run(scenario: str, store: Media, disk: Path, wrapper: list[str]) -> None:
    """Run a scenario in a child.

    Args:
        scenario: Its name.
        store: What the child mounts.
        disk: What the scenario plays with.
        wrapper: The beginning of the command.
    """
    medium = store.medium
    words = [scenario, medium.plugin, json.dumps(dict(medium.config)), str(disk)]
    done = subprocess.run(
        [*wrapper, sys.executable, str(HERE / "disk_child.py"), *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, _PLACES))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "done\n", done.stderr


def small_disk(folder: Path) -> list[str]:
    """Return the words of a command that run another with a small disk mounted in a folder."""
    return possible([*_IN_NAMESPACE, "sh", "-c", _MOUNT, str(folder), _SIZE], "mount a disk")


def without_privileges() -> list[str]:
    """Return the words of a command that run another for which permissions count."""
    if os.geteuid() != 0:
        return []
    words = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--"]
    return possible(words, "drop what lets root write everywhere")


def possible(wrapper: list[str], what: str) -> list[str]:
    """Skip the test where such a command may not be run."""
    try:
        subprocess.run([*wrapper, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"nobody may {what} here: {error}")
    return wrapper


@pytest.mark.slow
@pytest.mark.timeout(90)
def test_on_a_full_disk_turns_fail_and_go_on_when_there_is_space(store: Media, disk: Path) -> None:
    run("full", store, disk, small_disk(disk))


@pytest.mark.slow
@pytest.mark.timeout(90)
def test_in_a_read_only_root_sessions_go_on_and_none_begins(store: Media, disk: Path) -> None:
    run("read_only", store, disk, without_privileges())


@pytest.mark.slow
@pytest.mark.timeout(90)
def test_a_store_that_cannot_be_made_yet_is_made_later(store: Media, disk: Path) -> None:
    run("nowhere", store, disk, without_privileges())
