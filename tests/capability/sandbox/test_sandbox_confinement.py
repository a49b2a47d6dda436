"""What each backend really refuses and really allows."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from dsh.capability.sandbox.local import LocalSandbox
from dsh.capability.sandbox.service import (
    ResolvedPolicy,
    SandboxMode,
    SandboxProvider,
    SandboxUnavailable,
)
from dsh.capability.subprocess.service import (
    Collect,
    ProcessExit,
    SpawnFailed,
    SpawnSpec,
    SubprocessRuntime,
)
from dsh.capability.subprocess.supervisor import landlock
from dsh.kernel import Context

ALL = Collect(max_bytes=1 << 20)


def exists(path: Path | str) -> bool:
    return os.path.lexists(path)


class Box:
    """Runs scripts in a workspace under a policy."""

    def __init__(self, runtime: SubprocessRuntime, sandbox: SandboxProvider, folder: Path) -> None:
        folder = folder.resolve()
        self.root, self.temp, self.beside = folder / "ws", folder / "temp", folder / "beside"
        for path in (self.root, self.temp, self.beside):
            path.mkdir()
        self._runtime, self._sandbox = runtime, sandbox

    async def run(self, mode: SandboxMode, script: str) -> tuple[ProcessExit, str]:
        policy = ResolvedPolicy(mode, self.root, None, self.temp)
        confined = await self._sandbox.confine(("bash", "-c", script), policy)
        process = self._runtime.spawn(
            SpawnSpec(
                argv=confined.argv,
                cwd=self.root,
                env={"TMPDIR": str(self.temp), **confined.runner_env},
                stdout=ALL,
                stderr=ALL,
                grants=confined.grants,
                runner=confined.runner is not None,
            )
        )
        ended = await process.wait()
        await process.wait_for_exit()
        assert process.collected_stdout is not None
        assert process.collected_stderr is not None
        words = process.collected_stderr.text()
        if ended.exit_code:
            assert any(word in words.lower() for word in confined.denial_signatures), words
        return ended, process.collected_stdout.text()


@pytest.fixture
def box(runtime: SubprocessRuntime, sandbox: SandboxProvider, tmp_path: Path) -> Box:
    return Box(runtime, sandbox, tmp_path)


async def test_read_only_refuses_the_workspace_and_its_folder_for_temporary_files(
    box: Box,
) -> None:
    for target in (box.root / "new", box.temp / "new", box.beside / "new"):
        ended, _ = await box.run("read-only", f"echo x > {target}")
        assert ended.exit_code
        assert not exists(target)


async def test_read_only_leaves_the_tree_readable_and_executable(box: Box) -> None:
    (box.beside / "tool").write_text("#!/bin/sh\ncat data\n")
    (box.beside / "tool").chmod(0o755)
    (box.root / "data").write_text("content")
    assert await box.run("read-only", "../beside/tool") == (ProcessExit(0, None), "content")


@pytest.mark.parametrize("mode", ["read-only", "workspace-write"])
async def test_devices_that_keep_nothing_are_writable(box: Box, mode: SandboxMode) -> None:
    script = "echo x > /dev/null && echo out > /dev/stdout && head -c 3 /dev/urandom > /dev/null"
    assert await box.run(mode, script) == (ProcessExit(0, None), "out\n")


async def test_the_memory_file_system_of_the_host_is_untouched(box: Box) -> None:
    target = f"/dev/shm/dsh-test-{os.getpid()}"
    await box.run("read-only", f"echo x > {target} || echo 'permission denied' >&2")
    assert not exists(target)


async def test_workspace_write_opens_the_workspace_and_tmpdir(box: Box) -> None:
    script = (
        "echo a > a && mkdir -p d/e && echo b > d/e/b && mv d/e/b c && f=$(mktemp) && echo t > $f"
    )
    ended, _ = await box.run("workspace-write", script)
    assert ended == ProcessExit(0, None)
    assert (box.root / "a").read_text() == "a\n"
    assert (box.root / "c").read_text() == "b\n"
    assert len(os.listdir(box.temp)) == 1


@pytest.mark.parametrize(
    "script",
    [
        "echo x > ../beside/new",
        "echo x > ../new",
        "mkdir ../beside/new",
        "echo x >> ../beside/old",
        ": > ../beside/old",
        "rm ../beside/old",
        "mv ../beside/old here",
        "ln ../beside/old ../beside/new",
        "cp /dev/null ../beside/new",
        "ln -s ../beside link; echo x > link/new",
        "ln -s ../beside/new link; echo x > link",
        "ln -s ../beside/old link; echo x > link",
        "cd ../beside; echo x > new",
        "cd -P .; exec 3> ../beside/new",
        "python3 -c \"open('../beside/new', 'w')\"",
        "python3 -c \"import os; os.truncate('../beside/old', 0)\"",
        "(setsid bash -c 'echo x > ../beside/new')",
        "mount -o remount,rw / 2>/dev/null; echo x > ../beside/new",
        "unshare -m bash -c 'mount -o remount,rw /' 2>/dev/null; echo x > ../beside/new",
        "unshare -rm bash -c 'mount -o remount,rw /' 2>/dev/null; echo x > ../beside/new",
    ],
)
async def test_workspace_write_refuses_everything_beside(box: Box, script: str) -> None:
    (box.beside / "old").write_text("kept")

    ended, _ = await box.run("workspace-write", script)

    assert ended.exit_code
    assert (box.beside / "old").read_text() == "kept"
    assert os.listdir(box.beside) == ["old"]
    assert sorted(os.listdir(box.root.parent)) == ["beside", "temp", "ws"]


async def test_a_link_inside_the_workspace_may_point_inside(box: Box) -> None:
    ended, _ = await box.run("workspace-write", "mkdir d; ln -s d link; echo x > link/new")
    assert ended == ProcessExit(0, None)
    assert (box.root / "d" / "new").read_text() == "x\n"


async def test_a_workspace_of_root_opens_everything(
    box: Box, runtime: SubprocessRuntime, sandbox: SandboxProvider
) -> None:
    box.root = Path("/")
    ended, _ = await box.run("workspace-write", f"echo x > {box.beside}/new")
    assert ended == ProcessExit(0, None)
    assert (box.beside / "new").exists()


async def test_a_confined_command_cannot_end_its_supervisor(box: Box, backend: str) -> None:
    if backend == "landlock" and landlock.abi_version() < 6:
        pytest.skip("this kernel does not scope signals")
    script = "kill -9 $PPID 2> /dev/null; kill -9 1 2> /dev/null; echo alive"
    ended, out = await box.run("read-only", script)
    assert out in ("alive\n", "")
    assert ended in (ProcessExit(0, None), ProcessExit(137, None))


async def test_the_memory_of_other_processes_is_out_of_reach(box: Box) -> None:
    ended, _ = await box.run(
        "workspace-write",
        f"exec 3<> /proc/{os.getpid()}/mem || {{ echo 'permission denied read-only file system'"
        " >&2; exit 1; }",
    )
    assert ended.exit_code


@pytest.mark.skipif(os.geteuid() != 0, reason="only root could do this unconfined")
async def test_root_gets_no_device_by_which_it_could_pass_the_policy_by(box: Box) -> None:
    refusal = "{ echo 'permission denied, read-only file system' >&2; exit 1; }"
    ended, _ = await box.run("workspace-write", f"mknod disk b 8 0 2> /dev/null || {refusal}")
    assert ended.exit_code == 1
    assert os.listdir(box.root) == []


ESCAPES = {
    "through the root of another process": "echo x > /proc/{dsh}/root{beside}/new",
    "through the root of a process inside": "echo x > /proc/self/root{beside}/new",
    "through the folder of another process": "echo x > /proc/{dsh}/cwd/new",
    "by tracing dsh": "python3 -c 'import ctypes; raise SystemExit(0 if ctypes.CDLL(None)"
    ".ptrace(16, {dsh}, 0, 0) == 0 else 1)'",
    "by a signal to dsh": "kill -0 {dsh}",
    "by the environment of dsh": "cat /proc/{dsh}/environ",
    "by the memory of dsh": "cat /proc/{dsh}/maps",
    "by a hard link to a file outside": "ln {beside}/old here",
    "by mounting": "mount --bind {beside} {root}",
    "by another root": "chroot / touch {beside}/new",
    "by a device": "mknod disk b 8 0",
    # Opened, not written: what is at stake here is the machine's own.
    "by a kernel setting": "exec 3>> /proc/sys/kernel/domainname",
    "by a setting of a device": "exec 3>> /sys/power/state",
    "by removing the workspace itself": "rm -rf {root}",
    "by renaming the workspace": "mv {root} {root}2",
    "into the folder of another session": "echo x > {other}/new",
}


@pytest.mark.parametrize("way", ESCAPES)
async def test_no_way_leads_out_of_the_workspace(
    runtime: SubprocessRuntime,
    sandbox: SandboxProvider,
    tmp_path: Path,
    way: str,
) -> None:
    box = Box(runtime, sandbox, tmp_path)
    other = box.root.parent / "other session"
    other.mkdir()
    (box.beside / "old").write_text("kept")
    facts = {"dsh": os.getpid(), "beside": box.beside, "root": box.root, "other": f"'{other}'"}
    refusal = "{ echo 'permission denied, read-only file system' >&2; exit 1; }"

    ended, _ = await box.run("workspace-write", f"{ESCAPES[way].format(**facts)} || {refusal}")

    assert ended == ProcessExit(1, None)
    assert (box.beside / "old").read_text() == "kept"
    assert os.listdir(box.beside) == ["old"]
    assert os.listdir(other) == []
    assert box.root.is_dir()
    assert not exists("new")


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A library that leaves a file beside the workspace when it is loaded into a program."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no compiler")
    source, built = tmp_path / "planted.c", tmp_path / "planted.so"
    source.write_text(
        "#include <fcntl.h>\n__attribute__((constructor)) static void run(void) {"
        f' open("{tmp_path}/ran", O_CREAT | O_WRONLY, 0600); }}'
    )
    subprocess.run([compiler, "-shared", "-o", built, source], check=True)
    return built


@pytest.mark.parametrize("backend", ["bwrap", "landlock"])
async def test_code_that_the_workspace_has_loaded_runs_inside_only(
    root: Context,
    runtime: SubprocessRuntime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    library: Path,
    backend: str,
) -> None:
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("BASH_ENV", str(tmp_path / "rc"))
    (tmp_path / "rc").write_text(f"echo x > {tmp_path}/ran\n")
    await root.plugin(LocalSandbox, {"backends": [backend]})
    folder = tmp_path / "folder"
    folder.mkdir()
    box = Box(runtime, root.require(SandboxProvider), folder)
    try:
        ended, out = await box.run("workspace-write", "echo $LD_PRELOAD")
    except SandboxUnavailable as error:
        pytest.skip(error.message)
    assert (ended, out) == (ProcessExit(0, None), f"{library}\n")
    assert not (tmp_path / "ran").exists()


async def test_a_granted_folder_that_became_a_link_is_refused(
    runtime: SubprocessRuntime, sandbox: SandboxProvider, tmp_path: Path, backend: str
) -> None:
    if backend != "landlock":
        pytest.skip("only Landlock opens the granted folder itself")
    box = Box(runtime, sandbox, tmp_path)
    for swapped in (box.temp, box.root.parent):
        os.rename(swapped, f"{swapped}-moved")
        os.symlink(f"{swapped}-moved", swapped)
        with pytest.raises(SpawnFailed) as caught:
            await box.run("workspace-write", "true")
        assert caught.value.stage == "confine"
        os.unlink(swapped)
        os.rename(f"{swapped}-moved", swapped)
