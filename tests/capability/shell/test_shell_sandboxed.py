from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dsh.base.signal import AbortController, AbortedError
from dsh.capability.sandbox.service import SandboxMode, SandboxPolicy, SandboxUnavailable
from dsh.capability.shell.service import ShellExecutor, ShellRequest, ShellRunResult
from dsh.capability.subprocess.service import SpawnFailed, SubprocessRuntime
from dsh.kernel import Context, Fiber

Mount = Callable[..., Awaitable[Fiber]]


class Caller:
    """Runs commands for the session of the test."""

    def __init__(self, shell: ShellExecutor, policy: SandboxPolicy, agent: Any) -> None:
        self.shell, self._policy, self._agent = shell, policy, agent

    def resolve(self, command: str, mode: SandboxMode | None = None, **request: Any) -> Any:
        policy = self._policy.resolve(self._agent.session, mode)
        return self.shell.resolve(ShellRequest(command=command, policy=policy, **request))

    async def run(
        self, command: str, mode: SandboxMode | None = None, **request: Any
    ) -> ShellRunResult:
        return await self.shell.run(self.resolve(command, mode, **request))


@pytest.fixture
def bash(shell: ShellExecutor, policy: SandboxPolicy, agent: Any) -> Caller:
    return Caller(shell, policy, agent)


async def test_a_command_runs_in_the_session_directory(bash: Caller, tmp_path: Path) -> None:
    result = await bash.run("pwd; echo err >&2; exit 3")
    assert result.stdout.text == f"{tmp_path}/workspace\n"
    assert result.stderr.text == "err\n"
    assert (result.exit_code, result.signal) == (3, None)
    assert (result.timed_out, result.aborted, result.stdout.truncated) == (False, False, False)


async def test_a_relative_directory_starts_at_the_session_directory(
    bash: Caller, tmp_path: Path
) -> None:
    (tmp_path / "workspace" / "sub").mkdir()
    assert (await bash.run("pwd", workdir="sub")).stdout.text.endswith("/workspace/sub\n")
    assert (await bash.run("pwd", workdir="/")).stdout.text == "/\n"


async def test_a_wrong_directory_is_an_ordinary_error(bash: Caller) -> None:
    with pytest.raises(SpawnFailed, match="/nowhere"):
        await bash.run("true", workdir="/nowhere")


async def test_the_environment_is_quiet_and_has_the_private_folder(
    bash: Caller, policy: SandboxPolicy, agent: Any
) -> None:
    result = await bash.run(
        "echo $NO_COLOR $TERM $PAGER $GIT_PAGER $DSH_X $MINE; echo $TMPDIR",
        env={"MINE": "mine", "NO_COLOR": None},
        dsh_env={"DSH_X": "x"},
    )
    assert result.stdout.text == f"dumb cat cat x mine\n{policy.temp_dir(agent.session.id)}\n"


async def test_input_reaches_the_command(bash: Caller) -> None:
    assert (await bash.run("cat", stdin="täxt")).stdout.text == "täxt"


async def test_timeouts_have_a_default_and_a_maximum(bash: Caller) -> None:
    assert bash.resolve("true").timeout_s == 120
    assert bash.resolve("true", timeout_s=5).timeout_s == 5
    assert bash.resolve("true", timeout_s=10_000).timeout_s == 600


async def test_a_timeout_ends_the_command(bash: Caller) -> None:
    result = await bash.run("echo before; sleep 1000", timeout_s=0.2)
    assert (result.timed_out, result.aborted) == (True, False)
    assert result.stdout.text == "before\n"


async def test_a_timeout_that_the_command_traps_is_still_one(bash: Caller) -> None:
    result = await bash.run("sleep 1000 & trap 'exit 0' TERM; wait", timeout_s=0.5)
    assert (result.timed_out, result.exit_code) == (True, 0)


async def test_a_tree_that_ignores_sigterm_is_gone_after_a_timeout(bash: Caller) -> None:
    marker = f"98{os.getpid()}"  # the same rule runs beside this one, with the other backend
    command = f"trap '' TERM; setsid bash -c \"trap '' TERM; exec sleep {marker}\" & wait"
    result = await bash.run(command, timeout_s=0.3)
    assert result.timed_out
    assert not any(line == f"sleep\0{marker}\0".encode() for line in command_lines())


def command_lines() -> list[bytes]:
    found = []
    for name in os.listdir("/proc"):
        try:
            found.append(Path(f"/proc/{name}/cmdline").read_bytes())
        except OSError:
            continue
    return found


async def test_an_abort_ends_the_command(bash: Caller, tmp_path: Path) -> None:
    controller = AbortController()
    fifo = tmp_path / "workspace" / "fifo"
    os.mkfifo(fifo)
    running = asyncio.create_task(bash.run("echo x > fifo; sleep 1000", signal=controller.signal))
    await asyncio.to_thread(fifo.read_text)

    controller.abort("stop")

    result = await running
    assert (result.aborted, result.timed_out) == (True, False)


async def test_an_aborted_signal_runs_nothing(bash: Caller, tmp_path: Path) -> None:
    controller = AbortController()
    controller.abort("before")
    with pytest.raises(AbortedError):
        await bash.run("touch ran", signal=controller.signal)
    assert os.listdir(tmp_path / "workspace") == []


async def test_cancelling_the_caller_ends_the_command_first(bash: Caller, tmp_path: Path) -> None:
    fifo = tmp_path / "workspace" / "fifo"
    os.mkfifo(fifo)
    marker = f"97{os.getpid()}"
    running = asyncio.create_task(bash.run(f"echo x > fifo; exec sleep {marker}"))
    await asyncio.to_thread(fifo.read_text)

    running.cancel()
    await asyncio.wait([running])

    assert running.cancelled()
    assert not any(line == f"sleep\0{marker}\0".encode() for line in command_lines())


async def test_long_output_keeps_head_and_tail_and_a_file_with_all(
    bash: Caller, policy: SandboxPolicy, agent: Any
) -> None:
    result = await bash.run("seq 50000; echo short >&2")
    stdout = result.stdout
    whole = "".join(f"{n}\n" for n in range(1, 50001))
    assert stdout.truncated
    assert stdout.text.startswith("1\n2\n")
    assert stdout.text.endswith("49999\n50000\n")
    assert f"{len(whole) - 64000} bytes left out" in stdout.text
    assert stdout.spill_path is not None
    assert stdout.spill_path.parent == policy.temp_dir(agent.session.id)
    assert stdout.spill_path.read_text() == whole
    assert (result.stderr.text, result.stderr.truncated) == ("short\n", False)
    again = await bash.run(f"tail -n 1 {stdout.spill_path}")
    assert again.stdout.text == "50000\n"


async def test_output_that_is_not_text_is_still_a_result(bash: Caller) -> None:
    result = await bash.run(r"printf 'a\xff\x00b\xed\xa0\x80'")
    assert result.stdout.text.startswith("a\ufffd\x00b")
    result.stdout.text.encode("utf-8")


@pytest.mark.parametrize("mode", ["read-only", "workspace-write"])
async def test_a_refused_write_is_a_denial(bash: Caller, mode: SandboxMode, tmp_path: Path) -> None:
    result = await bash.run("echo x > ../beside", mode)
    assert result.sandbox is not None
    assert (result.sandbox.mode, result.sandbox.denied) == (mode, True)
    assert not (tmp_path / "beside").exists()


async def test_what_read_only_refuses_a_wider_policy_lands(bash: Caller, tmp_path: Path) -> None:
    target = tmp_path / "workspace" / "file"
    refused = await bash.run("echo exact > file", "read-only")
    assert refused.sandbox is not None
    assert refused.sandbox.denied
    assert not target.exists()

    granted = await bash.run("echo exact > file", "workspace-write")

    assert granted.sandbox is not None
    assert not granted.sandbox.denied
    assert target.read_text() == "exact\n"


async def test_success_and_death_by_signal_are_no_denials(bash: Caller) -> None:
    words = "echo 'Permission denied, Read-only file system' >&2"
    clean = await bash.run(f"{words}; exit 0")
    assert clean.sandbox is not None
    assert not clean.sandbox.denied
    killed = await bash.run(f"{words}; kill -9 $$", "danger-full-access")
    assert killed.signal == "SIGKILL"
    assert killed.sandbox is not None
    assert not killed.sandbox.denied


async def test_full_access_is_not_confined(bash: Caller, tmp_path: Path) -> None:
    result = await bash.run("echo x > ../beside", "danger-full-access")
    assert result.sandbox is not None
    assert (result.sandbox.denied, result.sandbox.enforcement) == (False, None)
    assert (tmp_path / "beside").exists()


async def test_a_background_command_is_read_in_deltas_and_killed(
    bash: Caller, tmp_path: Path
) -> None:
    fifo = tmp_path / "workspace" / "fifo"
    os.mkfifo(fifo)
    command = "echo one; echo err >&2; echo x > fifo; sleep 1000 & wait"
    process = await bash.shell.launch(bash.resolve(command))
    await asyncio.to_thread(fifo.read_text)
    assert process.status == "running"

    process.kill()
    await process.wait()

    assert process.status == "killed"
    assert process.read_output().delta == "one\n[stderr]\nerr\n"
    assert process.read_output().delta == ""


async def test_a_background_command_killed_at_once_never_runs(bash: Caller, tmp_path: Path) -> None:
    process = await bash.shell.launch(bash.resolve("touch ran"))
    process.kill()
    await process.wait()
    assert process.status == "killed"
    assert os.listdir(tmp_path / "workspace") == []


async def test_a_background_command_that_ends_reports_how(bash: Caller) -> None:
    process = await bash.shell.launch(bash.resolve("echo out; echo x > ../beside"))
    await process.wait()
    delta = process.read_output()
    assert delta.delta.startswith("out\n[stderr]\n")
    assert (process.status, process.exit_code) == ("completed", 1)
    assert process.sandbox is not None
    assert process.sandbox.denied


async def test_a_background_command_that_cannot_start_says_so_once(bash: Caller) -> None:
    process = await bash.shell.launch(bash.resolve("true", workdir="/nowhere"))
    await process.wait()
    assert process.status == "killed"
    assert "/nowhere" in process.read_output().delta
    assert process.read_output().delta == ""


async def runner_shell(
    root: Context, mount: Mount, script: str, tmp_path: Path, policy: SandboxPolicy, agent: Any
) -> Caller:
    """A shell whose sandbox is a script of the operator."""
    runner = tmp_path / "box"
    if script:
        runner.write_text(f"#!/bin/sh\n{script}\n")
        runner.chmod(0o755)
    await mount(
        "dsh.capability.sandbox.local",
        {"runnerCommand": [str(runner)], "runnerFailureSignatures": ["box: "]},
    )
    await mount("dsh.capability.shell.sandboxed", {"graceMs": 100})
    return Caller(root.require(ShellExecutor), policy, agent)


@pytest.mark.parametrize(
    "script",
    ["echo 'box: cannot mount: permission denied' >&2; exit 1", ""],
    ids=["fails", "is-missing"],
)
async def test_a_broken_runner_is_not_taken_for_a_denial(
    root: Context,
    runtime: SubprocessRuntime,
    mount: Mount,
    policy: SandboxPolicy,
    agent: Any,
    tmp_path: Path,
    script: str,
) -> None:
    bash = await runner_shell(root, mount, script, tmp_path, policy, agent)
    with pytest.raises(SandboxUnavailable, match="box"):
        await bash.run("true")
    background = await bash.shell.launch(bash.resolve("true"))
    await background.wait()
    assert background.sandbox is not None
    assert background.sandbox.runner_failed


async def test_no_backend_means_no_command(
    root: Context,
    runtime: SubprocessRuntime,
    mount: Mount,
    policy: SandboxPolicy,
    agent: Any,
    tmp_path: Path,
) -> None:
    await mount("dsh.capability.sandbox.local", {"backends": []})
    await mount("dsh.capability.shell.sandboxed")
    bash = Caller(root.require(ShellExecutor), policy, agent)
    with pytest.raises(SandboxUnavailable, match="DSH_PERMISSION_MODE"):
        await bash.run("touch ran")
    assert os.listdir(tmp_path / "workspace") == []
    assert (await bash.run("echo free", "danger-full-access")).stdout.text == "free\n"
