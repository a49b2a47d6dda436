"""Which backend is taken, and what is said when there is none."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from dsh.capability.sandbox import backends
from dsh.capability.sandbox.local import LocalSandbox, SandboxConfig
from dsh.capability.sandbox.service import (
    ResolvedPolicy,
    SandboxMode,
    SandboxProvider,
    SandboxUnavailable,
)
from dsh.capability.subprocess.local import LocalSubprocess
from dsh.capability.subprocess.service import SubprocessRuntime
from dsh.kernel import Context


def policy(folder: Path, mode: SandboxMode = "read-only") -> ResolvedPolicy:
    return ResolvedPolicy(mode, folder, None, folder)


async def provider(root: Context, **config: object) -> SandboxProvider:
    await root.plugin(LocalSandbox, config)
    return root.require(SandboxProvider)


def fake_bwrap(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a program of ours be the bwrap of the system."""
    program = folder / "bwrap"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(backends, "SYSTEM_FOLDERS", (str(folder),))


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo 'bwrap: no permission' >&2; exit 1", "bwrap: no permission"),
        ('while [ "$1" != -- ]; do shift; done; shift; exec "$@"', "must not write"),
        ("exec sleep 1000", "in time"),
    ],
)
async def test_a_backend_must_be_seen_to_work(
    root: Context,
    runtime: SubprocessRuntime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    problem: str,
) -> None:
    fake_bwrap(tmp_path, script, monkeypatch)
    sandbox = await provider(root, backends=["bwrap"], probeTimeoutMs=400)

    with pytest.raises(SandboxUnavailable, match=problem) as caught:
        await sandbox.confine(["true"], policy(tmp_path))
    for way_out in ("bubblewrap", "Landlock", "DSH_PERMISSION_MODE=danger-full-access"):
        assert way_out in caught.value.message
    assert caught.value.code == "SANDBOX_UNAVAILABLE"


async def test_the_next_backend_is_taken_when_one_fails(
    root: Context,
    runtime: SubprocessRuntime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if runtime.grants_enforcement() is None:
        pytest.skip("Landlock is missing")
    fake_bwrap(tmp_path, "exit 1", monkeypatch)
    sandbox = await provider(root)
    assert (await sandbox.confine(["true"], policy(tmp_path))).backend == "landlock"


async def test_the_verdict_is_kept(
    root: Context,
    runtime: SubprocessRuntime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_bwrap(tmp_path, f"echo run >> {tmp_path}/log; exit 1", monkeypatch)
    sandbox = await provider(root, backends=["bwrap"])
    for _ in range(3):
        with pytest.raises(SandboxUnavailable):
            await sandbox.confine(["true"], policy(tmp_path))
    assert (tmp_path / "log").read_text() == "run\n"


async def test_an_unsupported_platform_runs_nothing(
    root: Context,
    runtime: SubprocessRuntime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    sandbox = await provider(root)
    with pytest.raises(SandboxUnavailable, match="darwin"):
        await sandbox.confine(["true"], policy(tmp_path))


async def test_full_access_is_nothing_to_confine(
    root: Context, runtime: SubprocessRuntime, tmp_path: Path
) -> None:
    sandbox = await provider(root)
    with pytest.raises(ValueError, match="danger-full-access"):
        await sandbox.confine(["true"], policy(tmp_path, "danger-full-access"))


async def test_a_runner_of_the_operator_replaces_the_backends(
    root: Context, runtime: SubprocessRuntime, tmp_path: Path
) -> None:
    sandbox = await provider(
        root, runnerCommand=["/opt/box", "run"], runnerFailureSignatures=["box: "]
    )
    confined = await sandbox.confine(["echo", "x"], policy(tmp_path, "workspace-write"))
    assert confined.argv[:2] == ("/opt/box", "run")
    assert confined.argv[-3:] == ("--", "echo", "x")
    assert str(tmp_path) in confined.argv
    assert confined.runner == "/opt/box"
    assert {"permission denied", "read-only file system"} == set(confined.denial_signatures)
    assert confined.runner_failure_rules[0].fatal_signatures == ("box: ",)


@pytest.mark.parametrize(
    "config",
    [
        {"probeTimeoutMs": 0},
        {"runnerCommand": ["box"]},
        {"runnerCommand": ["box"], "runnerFailureSignatures": ["  "]},
        {"runnerFailureSignatures": ["box: "]},
        {"backends": ["chroot"]},
        {"unknown": 1},
    ],
)
def test_a_wrong_config_is_refused(config: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        SandboxConfig.model_validate(config)


async def test_unloading_the_runtime_unloads_the_sandbox_first(root: Context) -> None:
    fiber = await root.plugin(LocalSubprocess)
    await root.plugin(LocalSandbox)
    await fiber.dispose()
    assert root.get(SandboxProvider) is None


async def test_a_runner_on_path_is_not_taken(
    root: Context,
    runtime: SubprocessRuntime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_bwrap(tmp_path, f"touch {tmp_path}/ran", monkeypatch)
    monkeypatch.setattr(backends, "SYSTEM_FOLDERS", ("/no/such/folder",))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    sandbox = await provider(root, backends=["bwrap"])
    with pytest.raises(SandboxUnavailable, match="system's folders"):
        await sandbox.confine(["true"], policy(tmp_path))
    assert not (tmp_path / "ran").exists()
