from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from dsh.base.signal import AbortController, AbortedError
from dsh.capability.subprocess.local import LocalSubprocess
from dsh.capability.subprocess.service import (
    Collect,
    ExecutableNotFound,
    FileGrants,
    ProcessExit,
    ProcessHandle,
    SpawnFailed,
    SpawnSpec,
    Spill,
    SubprocessError,
    SubprocessRuntime,
)
from dsh.kernel import Context

CLEANER = (sys.executable, str(Path(__file__).parent / "cleaner.py"))
ALL = Collect(max_bytes=1 << 20)


def bash(command: str, **options: Any) -> SpawnSpec:
    defaults: dict[str, Any] = {"cwd": "/", "stdout": ALL, "stderr": ALL}
    return SpawnSpec(argv=("bash", "-c", command), **{**defaults, **options})


def out(process: ProcessHandle) -> str:
    assert process.collected_stdout is not None
    return process.collected_stdout.text()


def err(process: ProcessHandle) -> str:
    assert process.collected_stderr is not None
    return process.collected_stderr.text()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def exists(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


async def test_exit_code_and_both_streams_are_reported(runtime: SubprocessRuntime) -> None:
    process = runtime.spawn(bash("echo out; echo err >&2; exit 3"))

    assert await process.wait() == ProcessExit(3, None)
    assert (out(process), err(process)) == ("out\n", "err\n")


async def test_death_by_signal_is_told_from_an_exit_code(runtime: SubprocessRuntime) -> None:
    killed = runtime.spawn(bash("kill -9 $$"))
    pretender = runtime.spawn(bash("exit 137"))

    assert await killed.wait() == ProcessExit(None, "SIGKILL")
    assert await pretender.wait() == ProcessExit(137, None)


async def test_pid_is_published_once_the_program_runs(runtime: SubprocessRuntime) -> None:
    process = runtime.spawn(bash("echo $$"))
    assert process.pid == -1

    pid = await process.started()
    await process.wait()

    assert pid == process.pid == int(out(process))


async def test_a_missing_directory_fails_the_spawn(runtime: SubprocessRuntime) -> None:
    process = runtime.spawn(bash("true", cwd="/no/such/folder"))

    with pytest.raises(SpawnFailed, match="/no/such/folder") as caught:
        await process.wait()
    assert (caught.value.stage, caught.value.errno, process.pid) == ("cwd", 2, -1)


async def test_a_missing_program_fails_the_spawn(runtime: SubprocessRuntime) -> None:
    process = runtime.spawn(SpawnSpec(argv=["no-such-program"], cwd="/"))

    with pytest.raises(SpawnFailed, match="no-such-program"):
        await process.started()
    assert await process.wait_for_exit()


async def test_an_argument_that_cannot_be_passed_is_refused(runtime: SubprocessRuntime) -> None:
    with pytest.raises(SubprocessError, match="NUL"):
        runtime.spawn(bash("echo a\0b"))
    with pytest.raises(SubprocessError, match="argv is empty"):
        runtime.spawn(SpawnSpec(argv=[], cwd="/"))


async def test_arguments_and_output_need_not_be_utf8(runtime: SubprocessRuntime) -> None:
    process = runtime.spawn(
        SpawnSpec(argv=["printf", "%s", os.fsdecode(b"\xff\xfe")], cwd="/", stdout=ALL)
    )
    await process.wait()
    assert out(process) == "\ufffd\ufffd"


async def test_a_request_larger_than_the_socket_buffer_arrives(runtime: SubprocessRuntime) -> None:
    words = [f"{number:06d}" + "x" * 10_000 for number in range(100)]
    process = runtime.spawn(
        SpawnSpec(argv=["bash", "-c", "echo $# ${#100}", "bash", *words], cwd="/", stdout=ALL)
    )
    await process.wait()
    assert out(process) == "100 10006\n"


async def test_input_is_written_and_closed(runtime: SubprocessRuntime) -> None:
    data = b"line\n" * 100_000
    process = runtime.spawn(bash("wc -c", stdin=data))
    await process.wait()
    assert int(out(process)) == len(data)


async def test_input_that_nobody_reads_is_no_error(runtime: SubprocessRuntime) -> None:
    process = runtime.spawn(bash("exit 0", stdin=b"x" * 1_000_000))
    assert await process.wait() == ProcessExit(0, None)


async def test_ignored_input_is_at_its_end(runtime: SubprocessRuntime) -> None:
    process = runtime.spawn(bash("cat; echo done"))
    await process.wait()
    assert out(process) == "done\n"


async def test_pipes_are_handed_to_the_caller(runtime: SubprocessRuntime) -> None:
    process = runtime.spawn(
        bash('while read -r line; do echo "<$line>"; done', stdin="pipe", stdout="pipe")
    )
    await process.started()
    assert process.stdin is not None
    assert process.stdout is not None

    process.stdin.write(b"one\n")
    await process.stdin.drain()
    assert await process.stdout.readline() == b"<one>\n"
    process.stdin.close()

    assert await process.wait() == ProcessExit(0, None)
    assert await process.stdout.read() == b""


async def test_piped_output_can_be_read_after_the_exit(runtime: SubprocessRuntime) -> None:
    process = runtime.spawn(bash("head -c 200000 /dev/zero", stdout="pipe"))
    await process.started()
    assert process.stdout is not None
    first = await process.stdout.read(100_000)
    assert await process.wait() == ProcessExit(0, None)
    assert await process.wait_for_exit()
    assert len(first) + len(await process.stdout.read()) == 200_000


async def test_piped_output_that_nobody_reads_holds_up_no_unload(root: Context) -> None:
    before = descriptors()
    fiber = await root.plugin(LocalSubprocess)
    runtime = root.require(SubprocessRuntime)
    running = runtime.spawn(bash("yes", stdout="pipe"))
    ended = runtime.spawn(bash("head -c 150000 /dev/zero", stdout="pipe"))
    await asyncio.gather(running.started(), ended.started())

    await fiber.dispose()

    assert descriptors() == before


async def test_passed_descriptors_keep_their_numbers(
    runtime: SubprocessRuntime, tmp_path: Path
) -> None:
    (tmp_path / "a").write_text("first")
    (tmp_path / "b").write_text("second")
    numbers = [os.open(tmp_path / name, os.O_RDONLY) for name in "ab"]
    process = runtime.spawn(bash(f"cat <&{numbers[1]}; cat <&{numbers[0]}", pass_fds=numbers))
    await process.wait()
    for number in numbers:
        os.close(number)
    assert out(process) == "secondfirst"


async def test_a_program_inherits_no_other_descriptor(runtime: SubprocessRuntime) -> None:
    process = runtime.spawn(SpawnSpec(argv=["ls", "/proc/self/fd"], cwd="/", stdout=ALL))
    await process.wait()
    # The fourth is the folder that ls reads.
    assert out(process).split() == ["0", "1", "2", "3"]


async def test_signals_start_as_a_shell_expects_them(runtime: SubprocessRuntime) -> None:
    process = runtime.spawn(bash("grep -E 'Sig(Blk|Ign)' /proc/self/status | cut -f 2"))
    await process.wait()
    # Two numbers belong to the C library; what starts a process may leave them ignored.
    settable = sum(1 << (number - 1) for number in signal.valid_signals())
    assert [int(mask, 16) & settable for mask in out(process).split()] == [0, 0]


async def test_a_program_has_a_session_of_its_own(runtime: SubprocessRuntime) -> None:
    process = runtime.spawn(bash("ps -o sid= $$ 2>/dev/null || cut -d ' ' -f 6 /proc/$$/stat"))
    await process.wait()
    assert int(out(process)) == process.pid
    assert process.pid != os.getsid(0)


async def test_secrets_and_own_variables_do_not_reach_programs(
    runtime: SubprocessRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "hidden")
    monkeypatch.setenv("DSH_HOME", "hidden")
    monkeypatch.setenv("PLAIN", "shown")
    monkeypatch.setenv("UNWANTED", "x")
    process = runtime.spawn(bash("env", env={"MY_TOKEN": "given", "UNWANTED": None}))
    await process.wait()

    lines = out(process).splitlines()
    assert {"PLAIN=shown", "MY_TOKEN=given"} <= set(lines)
    assert not any("hidden" in line or line.startswith("UNWANTED") for line in lines)


async def test_an_aborted_signal_starts_nothing(runtime: SubprocessRuntime, tmp_path: Path) -> None:
    controller = AbortController()
    controller.abort("before")
    with pytest.raises(AbortedError):
        runtime.spawn(bash(f"touch {tmp_path}/ran", signal=controller.signal))
    assert not (tmp_path / "ran").exists()


async def test_an_abort_before_the_program_runs_starts_nothing(
    runtime: SubprocessRuntime, tmp_path: Path
) -> None:
    controller = AbortController()
    process = runtime.spawn(bash(f"touch {tmp_path}/ran", signal=controller.signal))
    controller.abort("at once")

    with pytest.raises(AbortedError):
        await process.wait()
    assert not (tmp_path / "ran").exists()


async def test_a_program_that_never_ran_leaves_no_descriptor(runtime: SubprocessRuntime) -> None:
    await runtime.spawn(bash("true")).wait_for_exit()
    before = descriptors()
    for stdin in ("ignore", b"x", "pipe"):
        for stdout in (ALL, "pipe"):
            process = runtime.spawn(bash("true", stdin=stdin, stdout=stdout))
            process.terminate()
            assert await process.wait_for_exit()
            with pytest.raises(AbortedError):
                await process.wait()
    await asyncio.sleep(0)
    assert descriptors() == before


async def test_an_abort_ends_a_running_program(runtime: SubprocessRuntime) -> None:
    controller = AbortController()
    process = runtime.spawn(bash("exec sleep 1000", signal=controller.signal))
    await process.started()

    controller.abort("enough")

    assert await process.wait() == ProcessExit(None, "SIGTERM")
    assert await process.wait_for_exit()


async def test_a_program_may_clean_up_when_asked_to_end(runtime: SubprocessRuntime) -> None:
    process = runtime.spawn(SpawnSpec(argv=CLEANER, cwd="/", grace_s=20.0))
    await process.started()
    assert process.stdout is not None
    await process.stdout.readline()

    process.terminate()

    assert await process.wait() == ProcessExit(5, None)
    assert await process.stdout.read() == b"cleaned\n"


async def test_cancelling_a_wait_leaves_the_program_alone(runtime: SubprocessRuntime) -> None:
    process = runtime.spawn(bash("read -r line; echo $line", stdin="pipe"))
    await process.started()
    waiting = asyncio.create_task(process.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])

    assert process.stdin is not None
    process.stdin.write(b"alive\n")
    process.stdin.close()

    assert await process.wait() == ProcessExit(0, None)
    assert out(process) == "alive\n"


async def test_programs_run_side_by_side(runtime: SubprocessRuntime) -> None:
    processes = [runtime.spawn(bash(f"echo {number}")) for number in range(40)]
    await asyncio.gather(*(process.wait() for process in processes))
    assert [int(out(process)) for process in processes] == list(range(40))


async def test_a_plugin_takes_its_programs_with_it(
    root: Context, runtime: SubprocessRuntime
) -> None:
    started: list[ProcessHandle] = []
    author = await root.inject(
        [SubprocessRuntime],
        lambda ctx: started.append(ctx.require(SubprocessRuntime).spawn(bash("exec sleep 1000"))),
    )
    await started[0].started()

    await author.dispose()

    assert await started[0].wait() == ProcessExit(None, "SIGTERM")
    assert not exists(started[0].pid)


async def test_unloading_ends_every_program_and_leaves_no_descriptor(root: Context) -> None:
    before = descriptors()
    fiber = await root.plugin(LocalSubprocess)
    runtime = root.require(SubprocessRuntime)
    processes = [runtime.spawn(bash("exec sleep 1000")) for _ in range(3)]
    processes.append(runtime.spawn(bash("cat", stdin="pipe", stdout="pipe")))
    await asyncio.gather(*(process.started() for process in processes))

    await fiber.dispose()

    assert not any(exists(process.pid) for process in processes)
    assert descriptors() == before
    with pytest.raises(SubprocessError, match="unloaded"):
        runtime.spawn(bash("true"))


async def test_ended_programs_leave_no_effect_and_no_descriptor(
    root: Context, runtime: SubprocessRuntime
) -> None:
    async def one(number: int) -> None:
        process = runtime.spawn(bash(f"exit {number % 3}", stdin=b"x"))
        await process.wait()
        await process.wait_for_exit()
        await asyncio.sleep(0)

    await one(0)
    before = len(root.fiber.effects()), descriptors()
    for number in range(20):
        await one(number)

    assert (len(root.fiber.effects()), descriptors()) == before


async def test_a_failed_confinement_runs_nothing(
    runtime: SubprocessRuntime, tmp_path: Path
) -> None:
    if runtime.grants_enforcement() is None:
        pytest.skip("Landlock is missing")
    grants = FileGrants(read=("/", "/no/such/path"), write=(str(tmp_path),))
    process = runtime.spawn(bash(f"touch {tmp_path}/ran", grants=grants))

    with pytest.raises(SpawnFailed) as caught:
        await process.wait()
    assert caught.value.stage == "confine"
    assert not (tmp_path / "ran").exists()


async def test_executables_are_looked_up_on_the_scrubbed_path(
    runtime: SubprocessRuntime, tmp_path: Path
) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\n")
    path = {"PATH": str(tmp_path)}
    with pytest.raises(ExecutableNotFound, match="PATH"):
        await runtime.resolve_executable("tool", env=path)

    tool.chmod(0o755)

    assert await runtime.resolve_executable("tool", env=path) == str(tool)
    assert await runtime.resolve_executable(str(tool)) == str(tool)
    for refused in ("./tool", "sub/tool", "", str(tmp_path / "absent"), str(tmp_path)):
        with pytest.raises(ExecutableNotFound):
            await runtime.resolve_executable(refused, env=path)


async def test_output_beyond_memory_goes_to_a_private_file(
    runtime: SubprocessRuntime, tmp_path: Path
) -> None:
    collect = Collect(max_bytes=1000, spill=Spill(max_bytes=1 << 20, folder=tmp_path))
    process = runtime.spawn(bash("seq 20000", stdout=collect))
    await process.wait()

    collected = process.collected_stdout
    assert collected is not None
    assert collected.spill_path is not None
    assert collected.spill_path.read_text() == "".join(f"{n}\n" for n in range(1, 20001))
    assert collected.spill_path.stat().st_mode & 0o777 == 0o600
    assert collected.text().endswith("20000\n")


async def test_the_handler_of_a_stopped_program_runs(runtime: SubprocessRuntime) -> None:
    process = runtime.spawn(SpawnSpec(argv=CLEANER, cwd="/", grace_s=20.0))
    pid = await process.started()
    assert process.stdout is not None
    await process.stdout.readline()
    os.kill(pid, signal.SIGSTOP)

    process.terminate()

    assert await process.wait() == ProcessExit(5, None)


@pytest.mark.parametrize("folder", [".", "", "bin"])
async def test_relative_folders_of_path_are_not_searched(
    runtime: SubprocessRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    for place in (tmp_path, tmp_path / "bin"):
        place.mkdir(exist_ok=True)
        (place / "planted").write_text("#!/bin/sh\n")
        (place / "planted").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ExecutableNotFound):
        await runtime.resolve_executable("planted", env={"PATH": f"{folder}:/usr/bin"})


async def test_a_command_has_its_three_descriptors_and_no_other(
    runtime: SubprocessRuntime,
) -> None:
    script = "import os; print(*sorted(int(n) for n in os.listdir('/proc/self/fd')))"
    listing = runtime.spawn(
        SpawnSpec(argv=(sys.executable, "-S", "-c", script), cwd="/", stdout=Collect(max_bytes=100))
    )
    await listing.wait()
    assert listing.collected_stdout is not None
    assert listing.collected_stdout.text() == "0 1 2 3\n"  # 3 is the listing itself


def shown(pid: int, name: str) -> bytes:
    return Path(f"/proc/{pid}/{name}").read_bytes()


async def test_no_supervisor_shows_the_environment_of_dsh(
    runtime: SubprocessRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPSEEK_API_KEY", "sk-0123456789abcdef")
    process = runtime.spawn(SpawnSpec(argv=("cat",), cwd="/", stdin="pipe"))
    pid = await process.started()
    for _ in range(3):
        assert b"sk-0123456789abcdef" not in shown(pid, "environ")
        pid = int(shown(pid, "stat").rpartition(b")")[2].split()[1])
        if pid == os.getpid():
            break
    assert pid == os.getpid()
    process.terminate()
    await process.wait_for_exit()
