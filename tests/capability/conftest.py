"""What tests of the outside world share: the real runtime, and packages that may be missing."""

from __future__ import annotations

import asyncio
import importlib
import os
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from dsh.capability.sandbox.service import (
    ResolvedPolicy,
    SandboxPolicy,
    SandboxProvider,
    SandboxUnavailable,
)
from dsh.capability.shell.service import ShellExecutor
from dsh.capability.subprocess.local import LocalSubprocess
from dsh.capability.subprocess.service import SubprocessRuntime
from dsh.kernel import Context, Fiber
from dsh.state.session.events import TURN_START, TurnStartData
from dsh.state.session.service import SessionStore
from dsh.state.session.session import Session


def require_binary(name: str) -> str:
    """Return the path of a program; without it, skip the test, or with ``CI=true`` fail it."""
    if (found := shutil.which(name)) is not None:
        return found
    if os.environ.get("CI") == "true":
        pytest.fail(f"{name} is not installed, and CI=true asks for it")
    pytest.skip(f"{name} is not installed")


@pytest.fixture(name="require_binary")
def _require_binary() -> Callable[[str], str]:
    return require_binary


@pytest.fixture(params=["bwrap", "landlock"])
async def backend(request: pytest.FixtureRequest, runtime: SubprocessRuntime) -> str:
    """Each sandbox backend that this machine can have."""
    if request.param == "bwrap":
        require_binary("bwrap")
    elif runtime.grants_enforcement() is None:
        pytest.skip("this kernel does not offer Landlock")
    return str(request.param)


@pytest.fixture
async def runtime(root: Context) -> SubprocessRuntime:
    """The real subprocess runtime, mounted on the root."""
    await root.plugin(LocalSubprocess)
    return root.require(SubprocessRuntime)


async def gone(pid: int, within_s: float = 15.0) -> None:
    """Wait until a process has ended, by its descriptor; fails when it does not."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(handle, ended.set)
    try:
        async with asyncio.timeout(within_s):
            await ended.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)


@pytest.fixture(name="gone")
def _gone() -> Callable[[int], Awaitable[None]]:
    return gone


Mount = Callable[..., Awaitable[Fiber]]


@pytest.fixture
def mount(root: Context) -> Mount:
    """Mounts the plugin of a row by its module."""

    async def mount_row(module: str, config: object = None) -> Fiber:
        loaded = importlib.import_module(module)
        return await root.plugin(getattr(loaded, "plugin", loaded), config)

    return mount_row


@dataclass(eq=False)
class StandInAgent:
    """As much of an agent as tools and approval look at."""

    session: Session


@pytest.fixture
async def agent(root: Context, mount: Mount, tmp_path: Path) -> StandInAgent:
    """An agent with an open turn, whose session works in ``tmp_path/workspace``."""
    await mount("dsh.state.session.store")
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    session = root.require(SessionStore).create("s1", meta={"cwd": str(workspace)})
    session.append(TURN_START, TurnStartData(turn=1))
    return StandInAgent(session)


@pytest.fixture
async def policy(root: Context, mount: Mount, agent: StandInAgent) -> SandboxPolicy:
    """The policy service with ``workspace-write`` as its default; approval is mounted, too."""
    await mount("dsh.execution.prompt.assembly")
    await mount("dsh.control.approval.policy")
    await mount("dsh.capability.sandbox.policy", {"mode": "workspace-write"})
    return root.require(SandboxPolicy)


@pytest.fixture
async def sandbox(root: Context, mount: Mount, backend: str) -> SandboxProvider:
    """A provider that has only one backend to choose from."""
    await mount("dsh.capability.sandbox.local", {"backends": [backend]})
    provider, folder = root.require(SandboxProvider), Path("/")
    try:
        await provider.confine(["true"], ResolvedPolicy("read-only", folder, None, folder))
    except SandboxUnavailable as error:
        # Containers may forbid what the backend needs; no package would help.
        pytest.skip(error.message)
    return provider


@pytest.fixture
async def shell(
    root: Context, mount: Mount, policy: SandboxPolicy, sandbox: SandboxProvider
) -> ShellExecutor:
    """The confined shell, with a short grace period."""
    await mount("dsh.capability.shell.sandboxed", {"graceMs": 300})
    return root.require(ShellExecutor)
