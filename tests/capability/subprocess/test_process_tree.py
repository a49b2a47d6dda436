"""R14: nothing that a command starts outlives the command, its cancellation, or the host."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from dsh.base.signal import AbortController, deadline
from dsh.capability.subprocess.forkserver import ForkServer
from dsh.capability.subprocess.service import (
    Collect,
    ProcessExit,
    SpawnFailed,
    SpawnSpec,
    SubprocessError,
    SubprocessRuntime,
)
from dsh.capability.subprocess.supervisor import tree
from dsh.kernel import Context

HERE = Path(__file__).parent
TREE = ("bash", str(HERE / "tree.sh"), "command")
ROLES = ["command", "grandchild", "worker"]
Gone = Callable[[int], Awaitable[None]]


async def roles(reader: asyncio.StreamReader | None) -> dict[str, int]:
    """Read the pid of each process of ``tree.sh``."""
    assert reader is not None
    found: dict[str, int] = {}
    while len(found) < len(ROLES):
        role, pid = (await reader.readline()).split()
        found[role.decode()] = int(pid)
    assert sorted(found) == ROLES
    return found


def exists(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def left(pids: dict[str, int]) -> list[str]:
    return [role for role, pid in pids.items() if exists(pid)]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])


@pytest.mark.parametrize("runner", [False, True])
async def test_cancel_ends_a_tree_that_ignores_sigterm(
    runtime: SubprocessRuntime, runner: bool
) -> None:
    controller = AbortController()
    process = runtime.spawn(
        SpawnSpec(argv=TREE, cwd="/", grace_s=0.1, signal=controller.signal, runner=runner)
    )
    await process.started()
    pids = await roles(process.stdout)

    controller.abort("cancelled")

    assert await process.wait_for_exit()
    assert await process.wait() == ProcessExit(None, "SIGKILL")
    assert left(pids) == []


async def test_timeout_ends_a_tree_that_ignores_sigterm(runtime: SubprocessRuntime) -> None:
    with deadline(None, 0.3) as limit:
        process = runtime.spawn(SpawnSpec(argv=TREE, cwd="/", grace_s=0.1, signal=limit.signal))
        await process.started()
        pids = await roles(process.stdout)
        assert await process.wait_for_exit()
    assert limit.expired
    assert left(pids) == []


@pytest.mark.parametrize("cause", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_a_host_that_dies_takes_the_tree_with_it(gone: Gone, cause: signal.Signals) -> None:
    host = await asyncio.create_subprocess_exec(
        sys.executable, str(HERE / "host.py"), "0.2", *TREE, stdout=PIPE, stderr=DEVNULL
    )
    pids = await roles(host.stdout)

    host.send_signal(cause)
    await host.communicate()

    await asyncio.gather(*map(gone, pids.values()))


async def test_a_killed_host_takes_a_tree_with_it_that_hears_sigterm(gone: Gone) -> None:
    cleaner = [sys.executable, str(HERE / "cleaner.py")]
    argv = [sys.executable, str(HERE / "host.py"), "20", *cleaner]
    host = await asyncio.create_subprocess_exec(*argv, stdout=PIPE)
    assert host.stdout is not None
    pid = int(await host.stdout.readline())

    host.kill()
    await host.wait()

    assert await host.stdout.read() == b"cleaned\n"
    await gone(pid)


async def test_processes_left_behind_are_ended_with_the_command(
    runtime: SubprocessRuntime,
) -> None:
    collect = Collect(max_bytes=1000)
    process = runtime.spawn(
        SpawnSpec(argv=("bash", "-c", "setsid sleep 1000 & echo $!"), cwd="/", stdout=collect)
    )
    assert await process.wait() == ProcessExit(0, None)
    assert await process.wait_for_exit()
    assert process.collected_stdout is not None
    assert not exists(int(process.collected_stdout.text()))


async def test_a_process_that_still_flushes_gets_its_time(runtime: SubprocessRuntime) -> None:
    collect = Collect(max_bytes=100_000)
    process = runtime.spawn(
        SpawnSpec(argv=("bash", "-c", "seq 10000 > >(cat)"), cwd="/", stdout=collect)
    )
    await process.wait()
    assert process.collected_stdout is not None
    assert process.collected_stdout.text().endswith("10000\n")


async def test_descendants_may_be_kept_until_the_handle_is_terminated(
    runtime: SubprocessRuntime,
) -> None:
    process = runtime.spawn(
        SpawnSpec(
            argv=("bash", "-c", "setsid sleep 1000 > /dev/null & echo $!"),
            cwd="/",
            stdout=Collect(max_bytes=1000),
            keep_descendants=True,
        )
    )
    assert await process.wait() == ProcessExit(0, None)
    assert process.collected_stdout is not None
    kept = int(process.collected_stdout.text())
    assert exists(kept)

    process.terminate()

    assert await process.wait_for_exit()
    assert not exists(kept)


async def test_a_held_pipe_cannot_hang_the_result(runtime: SubprocessRuntime) -> None:
    process = runtime.spawn(
        SpawnSpec(
            argv=("bash", "-c", "echo out; sleep 1000 &"),
            cwd="/",
            grace_s=0.1,
            stdout=Collect(max_bytes=1000),
            keep_descendants=True,
        )
    )
    assert await process.wait() == ProcessExit(0, None)
    assert process.collected_stdout is not None
    assert process.collected_stdout.text() == "out\n"


async def test_a_killed_supervisor_is_reported_and_its_tree_swept(
    runtime: SubprocessRuntime, gone: Gone
) -> None:
    process = runtime.spawn(SpawnSpec(argv=TREE, cwd="/"))
    await process.started()
    pids = await roles(process.stdout)

    os.kill(parent_of(process.pid), signal.SIGKILL)

    with pytest.raises(SubprocessError, match="supervisor"):
        await process.wait()
    assert not await process.wait_for_exit()
    await asyncio.gather(*map(gone, pids.values()))


async def test_a_supervisor_that_is_asked_to_end_ends_its_tree(
    runtime: SubprocessRuntime,
) -> None:
    process = runtime.spawn(SpawnSpec(argv=TREE, cwd="/", grace_s=0.1))
    await process.started()
    pids = await roles(process.stdout)

    os.kill(parent_of(process.pid), signal.SIGTERM)

    assert await process.wait() == ProcessExit(None, "SIGKILL")
    assert await process.wait_for_exit()
    assert left(pids) == []


async def test_a_killed_fork_server_is_replaced_and_its_commands_go_on(
    runtime: SubprocessRuntime, gone: Gone
) -> None:
    process = runtime.spawn(
        SpawnSpec(argv=("bash", "-c", "read -r line; echo $line"), cwd="/", stdin="pipe")
    )
    await process.started()
    supervisor = parent_of(process.pid)
    server = parent_of(supervisor)

    os.kill(server, signal.SIGKILL)
    await gone(server)
    second = runtime.spawn(SpawnSpec(argv=("true",), cwd="/"))

    assert await second.wait() == ProcessExit(0, None)
    assert process.stdin is not None
    process.stdin.write(b"alive\n")
    process.stdin.close()
    assert await process.wait() == ProcessExit(0, None)


async def test_a_fork_server_killed_before_it_forked_fails_the_spawn(
    runtime: SubprocessRuntime, gone: Gone
) -> None:
    first = runtime.spawn(SpawnSpec(argv=("cat",), cwd="/", stdin="pipe"))
    await first.started()
    server = parent_of(parent_of(first.pid))
    os.kill(server, signal.SIGSTOP)
    second = runtime.spawn(SpawnSpec(argv=("true",), cwd="/"))
    waiting = asyncio.create_task(second.wait())
    await asyncio.sleep(0)

    os.kill(server, signal.SIGKILL)
    await gone(server)

    with pytest.raises(SpawnFailed, match="supervisor"):
        await waiting
    third = runtime.spawn(SpawnSpec(argv=("true",), cwd="/"))
    assert await third.wait() == ProcessExit(0, None)


async def test_a_link_that_broke_before_the_request_is_replaced(
    root: Context, runtime: SubprocessRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_link, links = ForkServer.open_link, []

    async def first_broken(self: ForkServer) -> socket.socket:
        ours, theirs = socket.socketpair()
        links.append(ours if not links else await open_link(self))
        theirs.close()
        if len(links) > 1:
            ours.close()
        return links[-1]

    monkeypatch.setattr(ForkServer, "open_link", first_broken)
    assert await runtime.spawn(SpawnSpec(argv=("true",), cwd="/")).wait() == ProcessExit(0, None)
    assert len(links) == 2


@pytest.mark.parametrize("by_number", [False, True])
async def test_a_reused_pid_is_never_signalled(
    runtime: SubprocessRuntime, monkeypatch: pytest.MonkeyPatch, by_number: bool
) -> None:
    process = runtime.spawn(SpawnSpec(argv=("cat",), cwd="/", stdin="pipe"))
    pid = await process.started()
    (seen,) = [each for each in tree.descendants(parent_of(pid)) if each.pid == pid]
    if by_number:
        monkeypatch.delattr(os, "pidfd_open")

    tree.send(seen._replace(start_time=b"1"), signal.SIGKILL)
    assert process.stdin is not None
    process.stdin.close()
    assert await process.wait() == ProcessExit(0, None)

    second = runtime.spawn(SpawnSpec(argv=("cat",), cwd="/", stdin="pipe"))
    pid = await second.started()
    (seen,) = [each for each in tree.descendants(parent_of(pid)) if each.pid == pid]
    tree.send(seen, signal.SIGKILL)
    assert await second.wait() == ProcessExit(None, "SIGKILL")


async def test_a_fork_storm_is_ended(runtime: SubprocessRuntime) -> None:
    each = "(trap '' TERM; sleep 1000 & setsid sleep 1000 & wait)"
    storm = f"trap '' TERM; for i in $(seq 50); do {each} & done; echo up; wait"
    process = runtime.spawn(SpawnSpec(argv=("bash", "-c", storm), cwd="/", grace_s=0.1))
    await process.started()
    assert process.stdout is not None
    await process.stdout.readline()

    process.terminate()

    assert await process.wait_for_exit()
