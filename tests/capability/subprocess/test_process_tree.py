"""R14: nothing that a command starts outlives the command, its cancellation, or the host."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import socket
import subprocess
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
    ProcessHandle,
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
    for _ in range(20):  # until the request is with the server that stands still
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


RUNAWAY = """
#include <time.h>
#include <unistd.h>
int main(int count, char **words) {
    time_t end = time(0) + 20;
    while (time(0) < end) {
        if (fork()) _exit(0);
        if (count > 1) setsid();
    }
}
"""


@pytest.fixture
def runaway(tmp_path: Path) -> Path:
    """A program that lives on in its child all the time, faster than an interpreter could."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no compiler")
    program = tmp_path / "runaway"
    (tmp_path / "runaway.c").write_text(RUNAWAY)
    subprocess.run([compiler, "-O2", "-o", program, tmp_path / "runaway.c"], check=True)
    return program


@pytest.mark.parametrize("how", [(), ("new session",)])
async def test_a_process_that_forks_and_exits_all_the_time_is_caught(
    runtime: SubprocessRuntime, runaway: Path, how: tuple[str, ...]
) -> None:
    process = runtime.spawn(SpawnSpec(argv=(str(runaway), *how), cwd="/", grace_s=0.1))
    await process.started()
    assert await process.wait() == ProcessExit(0, None)

    process.terminate()

    assert await process.wait_for_exit()


async def test_a_forking_tree_ends_within_the_ladder(runtime: SubprocessRuntime) -> None:
    script = (
        "trap '' TERM; f() { if [ $1 -gt 0 ]; then f $(($1-1)) & f $(($1-1)) & wait;"
        " else echo leaf; sleep 1000; fi; }; f 5"
    )
    process = runtime.spawn(SpawnSpec(argv=("bash", "-c", script), cwd="/", grace_s=0.1))
    await process.started()
    assert process.stdout is not None
    await process.stdout.readexactly(len("leaf\n") * 32)

    process.terminate()

    assert await process.wait_for_exit()


@pytest.mark.parametrize(
    "script",
    ["kill -STOP $$", "exec 0<&- 1>&- 2>&-; trap '' TERM HUP INT; while :; do sleep 1000; done"],
)
async def test_a_command_that_stops_or_hides_ends_within_the_ladder(
    runtime: SubprocessRuntime, script: str
) -> None:
    process = runtime.spawn(SpawnSpec(argv=("bash", "-c", script), cwd="/", grace_s=0.1))
    await process.started()
    process.terminate()
    assert await process.wait_for_exit()


@pytest.mark.parametrize("steps", [0, 1, 3, 8, 21])
async def test_a_caller_cancelled_at_any_step_leaves_no_descriptor_and_no_process(
    runtime: SubprocessRuntime, steps: int
) -> None:
    first = runtime.spawn(SpawnSpec(argv=("true",), cwd="/", stdout="ignore", stderr="ignore"))
    await first.wait_for_exit()
    await first.wait()
    before = sorted(os.listdir("/proc/self/fd"))

    async def use() -> None:
        process = runtime.spawn(
            SpawnSpec(
                argv=TREE,
                cwd="/",
                grace_s=0.1,
                stdin=b"x" * 200_000,
                stdout=Collect(max_bytes=100),
                stderr="ignore",
            )
        )
        try:
            await process.wait()
        finally:
            process.terminate()
            assert await process.wait_for_exit()

    user = asyncio.create_task(use())
    for _ in range(steps):
        await asyncio.sleep(0)
    user.cancel()
    with pytest.raises(asyncio.CancelledError):
        await user
    await asyncio.sleep(0)
    assert sorted(os.listdir("/proc/self/fd")) == before


async def test_too_few_descriptors_fail_some_spawns_and_nothing_else(
    runtime: SubprocessRuntime,
) -> None:
    def spawn() -> ProcessHandle:
        quiet = Collect(max_bytes=10)
        return runtime.spawn(SpawnSpec(argv=("sleep", "0.1"), cwd="/", stdout=quiet, stderr=quiet))

    assert await spawn().wait() == ProcessExit(0, None)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 12, limits[1]))
    try:
        waits = [spawn().wait() for _ in range(12)]
        results = await asyncio.gather(*waits, return_exceptions=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert {type(result) for result in results} == {SpawnFailed, ProcessExit}
    assert await spawn().wait() == ProcessExit(0, None)


async def test_fifty_commands_at_once_all_end_with_their_output(
    runtime: SubprocessRuntime,
) -> None:
    script = "head -c 200000 /dev/zero | tr '\\0' x; echo err >&2; exit 3"
    collect = Collect(max_bytes=1000)
    processes = [
        runtime.spawn(
            SpawnSpec(argv=("bash", "-c", script), cwd="/", stdout=collect, stderr=collect)
        )
        for _ in range(50)
    ]
    for process in processes:
        assert await process.wait() == ProcessExit(3, None)
        assert process.collected_stdout is not None
        assert process.collected_stdout.total_bytes == 200_000


KILLER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from supervisor import tree
readable, writable = os.pipe()
child = os.fork()
if child == 0:
    os.setsid()
    os.fork()  # of the group that the child leads, but nobody's child that could be listed
    os.write(writable, b"+")
    os.read(0, 1)
os.close(writable)
os.read(readable, 1), os.read(readable, 1)
spared = tree.kill_children(frozenset([child]))
killed = tree.kill_children()
status = os.waitpid(child, 0)[1]
print(len(spared), killed == {child}, os.waitstatus_to_exitcode(status), os.read(readable, 1))
"""


async def test_children_are_killed_with_the_groups_they_lead(runtime: SubprocessRuntime) -> None:
    folder = str(Path(tree.__file__).parent.parent)
    process = runtime.spawn(
        SpawnSpec(
            argv=(sys.executable, "-I", "-S", "-c", KILLER, folder),
            cwd="/",
            stdin="pipe",
            stdout=Collect(max_bytes=1000),
            stderr="inherit",
        )
    )
    assert await process.wait() == ProcessExit(0, None)
    assert process.collected_stdout is not None
    assert process.collected_stdout.text() == "0 True -9 b''\n"
