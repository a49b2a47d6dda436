"""What ``dsh plugin`` refuses: one line, an exit code, and a profile that is as it was."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from plugin_support import PATIENCE_S, User, bundle_wheel, refused, wheel

NEW_API = 'dsh-api = ">=2"\n'


UNUSABLE: dict[str, tuple[dict[str, Any], str]] = {
    "an API that this dsh has not": (
        {"api": NEW_API},
        'package "acme_bad" was made for dsh API >=2, and this dsh has 1.0',
    ),
    "a malformed declaration": ({"api": "a = 1\ndsh-api\n"}, "dsh.toml:2:8: "),
    "a malformed bundle": ({"rows": "- {"}, "failed to parse bundle"),
    "a bundle outside of its package": (
        {"value": "acme_bad:../../profile.json"},
        "its file '../../profile.json' leads out of its package",
    ),
    "a bundle of another's name": (
        {"points": {"dsh.bundle": {"acme-good": "acme_bad:bundle.yml"}}},
        "bundle 'acme-good' is declared by acme-bad and acme-good",
    ),
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_a_package_that_cannot_be_used_changes_nothing(settled: User, kind: str) -> None:
    options, problem = UNUSABLE[kind]
    bundle_wheel(settled.wheels, "acme-bad", **options)
    before = settled.picture()
    done = settled.plugin("add", "acme-bad")
    assert done.returncode == 1
    assert problem in done.stderr.splitlines()[-1]
    assert "nothing was changed" in done.stderr
    assert settled.picture() == before
    assert len(list(settled.profile.glob(".sites/*"))) == 1


def test_a_package_that_brings_dsh_itself_is_refused(settled: User) -> None:
    other = wheel(settled.cwd, "dsh", "99.0")
    wheel(settled.wheels, "acme-bad", requires=[f"dsh @ {other.as_uri()}"])
    before = settled.picture()
    done = settled.plugin("add", "acme-bad")
    assert done.returncode == 1
    assert "(constraint) dsh==" in done.stderr
    assert settled.picture() == before


def test_a_package_that_no_longer_fits_stays_and_is_told_of(settled: User) -> None:
    (settled.site / "acme_good" / "dsh.toml").write_text(NEW_API)
    listed = settled.plugin("list")
    assert '  not usable: package "acme_good" was made for dsh API >=2' in listed.stdout
    booted = settled.run("--profile", "p")
    assert "was made for dsh API >=2, and this dsh has 1.0" in refused(booted)
    assert settled.plugin("remove", "acme-good").returncode == 0


def test_a_version_that_dsh_itself_decides_is_told(settled: User) -> None:
    wheel(settled.wheels, "acme-old", requires=["pydantic<2"])
    before = settled.picture()
    done = settled.plugin("add", "acme-old")
    assert done.returncode == 1
    assert "acme-old 1.0 depends on pydantic<2" in done.stderr
    assert "(constraint) pydantic==" in done.stderr
    *_, last = done.stderr.splitlines()
    assert last.startswith(
        "dsh: pip failed in profile directory $DSH_HOME/profiles/p (exit code 1)"
    )
    assert settled.picture() == before


@pytest.mark.parametrize("name", ["pydantic", "dsh"])
def test_what_dsh_has_already_is_not_installed_again(user: User, name: str) -> None:
    user.made()
    assert "is part of the installation of dsh already" in refused(user.plugin("add", name))
    assert user.installed() == []


def source_tree(folder: Path, mark: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "setup.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    return folder


@pytest.mark.parametrize("spec", [".", "./tree", "file:tree", "link:./tree", "tree.tar.gz"])
def test_source_is_not_built_unless_that_is_allowed(settled: User, spec: str) -> None:
    mark = settled.home / "built"
    source_tree(settled.cwd / "tree", mark)
    (settled.cwd / "setup.py").write_text("")
    (settled.cwd / "tree.tar.gz").write_bytes(b"")
    before = settled.picture()
    line = refused(settled.plugin("add", spec))
    assert f"{spec!r}: is a " in line
    assert "--allow-build" in line
    assert not mark.exists()
    assert settled.picture() == before


@pytest.mark.parametrize("spec", ["git+https://127.0.0.1/x.git", "https://127.0.0.1/x.tar.gz"])
def test_no_address_of_source_is_asked(settled: User, spec: str) -> None:
    assert "--allow-build" in refused(settled.plugin("add", spec))


def test_source_that_a_wheel_requires_is_not_built_either(settled: User) -> None:
    mark = settled.home / "built"
    tree = source_tree(settled.cwd / "tree", mark)
    wheel(settled.wheels, "acme-sly", requires=[f"tree @ {tree.as_uri()}"])
    before = settled.picture()
    done = settled.plugin("add", "acme-sly", "--no-build-isolation")
    assert done.returncode == 1
    assert "building one runs its code; allow it with --allow-build" in done.stderr
    assert not mark.exists()
    assert settled.picture() == before


def test_a_source_archive_in_an_index_is_not_taken(settled: User) -> None:
    (settled.wheels / "acme_src-1.0.tar.gz").write_bytes(b"")
    done = settled.plugin("add", "acme-src", PIP_NO_BINARY=":all:")
    assert done.returncode == 1
    assert "No matching distribution found for acme-src" in done.stderr


def test_a_missing_package_is_pips_failure_and_changes_nothing(settled: User) -> None:
    before = settled.picture()
    done = settled.plugin("add", "acme-none")
    assert (done.returncode, done.stdout) == (1, "")
    assert "No matching distribution found for acme-none" in done.stderr
    assert settled.picture() == before


def test_pips_own_exit_code_is_passed_on(settled: User) -> None:
    done = settled.plugin("add", "acme-good", "--no-such-option")
    assert done.returncode == 2
    assert "no such option: --no-such-option" in done.stderr
    assert "(exit code 2)" in done.stderr


LATE = ("add", "acme-late", "--find-links")


@contextmanager
def silent_index() -> Iterator[tuple[str, socket.socket]]:
    """A server that takes a connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_S)
        yield f"http://127.0.0.1:{server.getsockname()[1]}/", server


def children_of(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(sys.platform != "linux", reason="finds the child in /proc")
def test_a_killed_pip_leaves_the_old_site_serving(settled: User) -> None:
    before = settled.picture()
    with silent_index() as (address, server), settled.started(*LATE, address) as process:
        connection, _ = server.accept()
        (child,) = children_of(process.pid)
        os.kill(child, signal.SIGKILL)
        _, told = process.communicate(timeout=PATIENCE_S)
        connection.close()
    assert process.returncode == 137
    assert "(exit code 137)" in told
    assert settled.picture() == before
    assert settled.run("--profile", "p").stdout == "up\n"


@pytest.mark.skipif(sys.platform != "linux", reason="finds the child in /proc")
def test_a_killed_dsh_leaves_the_old_site_and_the_next_command_sweeps(settled: User) -> None:
    with silent_index() as (address, server), settled.started(*LATE, address) as process:
        connection, _ = server.accept()
        (child,) = children_of(process.pid)
        process.kill()
        process.wait(PATIENCE_S)
        os.kill(child, signal.SIGKILL)
        connection.close()
    assert settled.run("--profile", "p").stdout == "up\n"
    assert len(list(settled.profile.glob(".sites/*"))) == 2
    settled.done("install")
    assert settled.installed() == ["acme_good-1.0"]
    assert len(list(settled.profile.glob(".sites/*"))) == 1


def test_an_interrupt_leaves_the_old_site_and_nothing_else(settled: User) -> None:
    before = settled.picture()
    with silent_index() as (address, server), settled.started(*LATE, address) as process:
        connection, _ = server.accept()
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
        connection.close()
    assert process.returncode == 130
    assert settled.picture() == before


def test_two_commands_at_once_take_turns(user: User) -> None:
    user.made()
    bundle_wheel(user.wheels, "acme-a")
    bundle_wheel(user.wheels, "acme-b")
    with user.started("add", "acme-a") as first, user.started("add", "acme-b") as second:
        ends = [each.communicate(timeout=PATIENCE_S) for each in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), ends
    assert user.installed() == ["acme_a-1.0", "acme_b-1.0"]
    assert sorted(user.bundles()) == ["acme-a", "acme-b"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "failed to parse profile manifest"),
        ("[]", "must be a JSON object"),
        ('{"dependencies": []}', "dependencies must be an object"),
        ('{"dependencies": {"acme-a": 1}}', "dependencies: 'acme-a' must be a text"),
        ('{"dependencies": {"acme-a": "^1"}}', "'acme-a: ^1': is no version range that pip knows"),
        ('{"dependencies": {"@acme/a": "1"}}', "is no name of a Python package"),
        ('{"dependencies": {"acme-a": "file:../gone"}}', "there is no file or folder"),
        ('{"dsh": {"profile": {"bundles": "base"}}}', "dsh.profile.bundles must be a list"),
        ('{"dsh": {"profile": []}}', "dsh.profile must be an object"),
    ],
)
def test_a_malformed_manifest_is_named_and_left_alone(user: User, text: str, problem: str) -> None:
    user.made()
    (user.profile / "profile.json").write_text(text)
    line = refused(user.plugin("install"))
    assert problem in line
    assert (user.profile / "profile.json").read_text() == text
    assert not os.path.lexists(user.site)


def test_a_name_that_is_not_a_dependency_is_refused(settled: User) -> None:
    line = refused(settled.plugin("remove", "acme-god"))
    assert "remove: no dependency 'acme-god' (did you mean 'acme-good'?)" in line
    assert "no dependency" in refused(settled.plugin("update", "x"))


def test_a_home_that_cannot_be_written_is_told_in_one_line(user: User) -> None:
    user.home.parent.mkdir(exist_ok=True)
    user.home.write_text("")
    bundle_wheel(user.wheels, "acme-a")
    line = refused(user.plugin("add", "acme-a"))
    assert "not a directory; nothing was changed" in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_profile_that_cannot_be_written_is_told_in_one_line(settled: User) -> None:
    settled.profile.chmod(0o500)
    (settled.profile / "site.lock").unlink(missing_ok=True)
    try:
        line = refused(settled.plugin("remove", "acme-good"))
    finally:
        settled.profile.chmod(0o700)
    assert "permission denied; nothing was changed" in line


def test_an_invalid_profile_name_is_refused(user: User) -> None:
    assert 'invalid profile name "../x"' in refused(user.run("plugin", "--profile", "../x", "list"))
