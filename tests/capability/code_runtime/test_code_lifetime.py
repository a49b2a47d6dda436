"""Aborts and unloads: nothing of a run is left, and nothing is started in vain."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from code_world import Held, World, interpreters

from dsh.base.signal import AbortController
from dsh.capability.code_runtime.confinement import _remove
from dsh.capability.code_runtime.service import CodeError, CodeRuntimeClosed
from dsh.capability.subprocess.process import LocalProcess
from dsh.capability.subprocess.service import SubprocessRuntime
from dsh.kernel import Context


def exists(path: str) -> bool:
    return os.path.exists(path)


async def test_a_signal_that_is_aborted_already_starts_nothing(
    world: World, runtime: SubprocessRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(type(runtime), "spawn", lambda *_: started.append(_))
    controller = AbortController()
    controller.abort("too late")

    result = await world.run("return 1", controller.signal)

    assert result.error == CodeError("abort", "the program was aborted: too late")
    assert started == []


async def test_an_abort_ends_the_program_and_its_calls(world: World) -> None:
    held, controller = Held(), AbortController()
    running = asyncio.create_task(
        world.run("print('a')\nawait tools.held()", controller.signal, held=held)
    )
    await held.reached.wait()

    controller.abort("stop")
    result = await running

    assert result.error == CodeError("abort", "the program was aborted: stop")
    assert result.logs == ("a",)
    assert held.ended.is_set()
    assert interpreters() == []


async def test_an_abort_ends_what_ignores_every_signal(world: World) -> None:
    held, controller = Held(), AbortController()
    program = """
        import signal
        for number in range(1, 32):
            try:
                signal.signal(number, signal.SIG_IGN)
            except OSError:
                pass
        await tools.held()
    """
    running = asyncio.create_task(world.run(program, controller.signal, held=held))
    await held.reached.wait()
    controller.abort()
    assert (await running).error == CodeError("abort", "the program was aborted")
    assert interpreters() == []


@pytest.mark.parametrize("way", ["setsid", "fork", "thread"])
async def test_what_a_program_leaves_behind_is_ended_with_it(world: World, way: str) -> None:
    program = {
        "setsid": "p = subprocess.Popen(['setsid', 'sleep', '1000'])\nreturn p.pid",
        "fork": (
            "pid = os.fork()\nif pid == 0:\n    os.setsid()\n    time.sleep(1000)\nreturn pid"
        ),
        "thread": ("threading.Thread(target=time.sleep, args=(1000,)).start()\nreturn os.getpid()"),
    }[way]
    pid = await world.value("import os, subprocess, threading, time\n" + program)
    assert not exists(f"/proc/{pid}")


async def test_cancelling_the_task_ends_the_program(world: World) -> None:
    held = Held()
    running = asyncio.create_task(world.run("await tools.held()", held=held))
    await held.reached.wait()

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert held.ended.is_set()
    assert interpreters() == []


async def test_a_call_that_is_still_under_way_is_cancelled_when_the_program_is_done(
    world: World,
) -> None:
    held = Held()
    program = """
        import asyncio
        asyncio.create_task(tools.held())
        await tools.echo()
        return 1
    """
    assert await world.value(program, held=held) == 1
    assert held.ended.is_set() or not held.reached.is_set()


async def test_unloading_aborts_runs_and_waits_for_their_end(world: World) -> None:
    held = Held()
    running = asyncio.create_task(world.run("await tools.held()", held=held))
    await held.reached.wait()

    await world.fiber.dispose()

    assert running.done()
    assert (await running).error == CodeError(
        "abort", "the program was aborted: the code runtime was unloaded"
    )
    assert interpreters() == []


async def test_unloading_while_the_interpreter_starts_is_an_abort(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    unloading: list[asyncio.Future[None]] = []
    started = LocalProcess.started

    async def unload_meanwhile(process: LocalProcess) -> int:
        unloading.append(asyncio.ensure_future(world.fiber.dispose()))
        return await started(process)

    monkeypatch.setattr(LocalProcess, "started", unload_meanwhile)
    error = await world.error("return 1")
    await unloading[0]
    assert error.kind == "abort"
    assert interpreters() == []


async def test_a_run_after_the_unload_is_a_mistake_of_the_caller(world: World) -> None:
    await world.fiber.dispose()
    with pytest.raises(CodeRuntimeClosed):
        await world.run("return 1")


async def test_a_finished_run_leaves_nothing_with_the_runtime(world: World, root: Context) -> None:
    await world.value("return 1")
    before = len(world.fiber.effects())
    await world.value("open('file', 'w').write('x')\nreturn 1")
    assert len(world.fiber.effects()) == before


async def test_the_private_folder_goes_away(world: World) -> None:
    program = "import os\nos.makedirs('a/b')\nopen('a/b/c', 'w').write('x')\nreturn os.getcwd()"
    folder = await world.value(program)
    assert not exists(folder)


async def test_a_folder_goes_away_whatever_a_program_makes_of_it(
    world: World, tmp_path: Path
) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("x")
    program = f"""
        import os
        top = os.getcwd()
        os.symlink({str(tmp_path / "kept")!r}, "link")
        os.mkfifo("fifo")
        os.makedirs("closed/inner")
        os.symlink({str(tmp_path / "kept")!r}, "closed/link")
        os.chmod("closed/inner", 0)
        os.chmod("closed", 0)
        for _ in range(1200):
            os.mkdir("deep")
            os.chdir("deep")
            open("file", "w").close()
        return top
    """
    folder = await world.value(program)
    assert not exists(folder)
    assert (tmp_path / "kept" / "file").read_text() == "x"


def test_a_folder_that_its_owner_may_not_read_goes_away() -> None:
    if (pid := os.fork()) == 0:
        try:
            if os.geteuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            folder = Path(tempfile.mkdtemp(prefix="dsh-test-"))
            (folder / "closed" / "inner").mkdir(parents=True)
            (folder / "closed" / "file").touch()
            (folder / "closed" / "inner").chmod(0)
            (folder / "closed").chmod(0)
            _remove(str(folder), os.open(folder, os.O_RDONLY))
            os._exit(1 if folder.exists() else 0)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


async def test_many_runs_at_once_do_not_mix(world: World) -> None:
    programs = [f"print({n})\nreturn await tools.echo(n={n})" for n in range(8)]
    results = await asyncio.gather(*map(world.run, programs))
    assert [(each.value, each.logs) for each in results] == [
        ({"n": n}, (str(n),)) for n in range(8)
    ]


async def test_the_loop_is_free_while_a_program_floods_it(world: World) -> None:
    beats: list[float] = []
    done = asyncio.Event()

    async def beat() -> None:
        while not done.is_set():
            beats.append(time.monotonic())
            await asyncio.sleep(0)

    heart = asyncio.create_task(beat())
    program = (
        "import os\nline = b'{}\\n' * 1000\nfor _ in range(300):\n    os.write(3, line)\nreturn 1"
    )
    await world.run(program)
    done.set()
    await heart
    gaps = [later - earlier for earlier, later in pairwise(beats)]
    assert max(gaps) < 1.0
