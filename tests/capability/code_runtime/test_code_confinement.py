"""A program may do to files what a command in the shell may, and never more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from code_world import World

from dsh.capability.code_runtime.process import ProcessCodeRuntime
from dsh.capability.code_runtime.service import CodeRun, CodeRuntime
from dsh.capability.sandbox.service import SandboxMode, SandboxPolicy, SandboxProvider
from dsh.capability.subprocess.service import SubprocessRuntime
from dsh.kernel import Context

WRITES = """
def writable(path):
    try:
        open(path, "w").close()
        return True
    except OSError:
        return False
return [writable(path) for path in {paths!r}]
"""


@pytest.fixture
async def confined(root: Context, policy: SandboxPolicy, sandbox: SandboxProvider) -> CodeRuntime:
    """A code runtime beside a policy and each sandbox backend."""
    await root.plugin(ProcessCodeRuntime)
    return root.require(CodeRuntime)


@pytest.mark.parametrize(
    ("mode", "allowed"),
    [
        ("read-only", [False, False, False]),
        ("workspace-write", [True, False, True]),
        ("danger-full-access", [True, True, True]),
    ],
)
async def test_a_program_is_held_to_the_policy_of_its_session(
    confined: CodeRuntime,
    policy: SandboxPolicy,
    agent: Any,
    tmp_path: Path,
    mode: SandboxMode,
    allowed: list[bool],
) -> None:
    policy.set_mode(agent.session, mode)
    paths = [str(tmp_path / "workspace" / "in"), str(tmp_path / "beside"), "own"]

    result = await confined.run(CodeRun(WRITES.format(paths=paths), session=agent.session))

    assert result.error is None
    assert result.value == allowed


async def test_a_hot_loop_in_a_sandbox_is_told_as_a_timeout(
    root: Context, policy: SandboxPolicy, sandbox: SandboxProvider
) -> None:
    await root.plugin(ProcessCodeRuntime, {"computeMs": 200})
    result = await root.require(CodeRuntime).run(CodeRun("while True: pass"))
    assert result.error is not None
    assert result.error.kind == "timeout"


async def test_the_environment_is_empty_in_a_sandbox(confined: CodeRuntime) -> None:
    result = await confined.run(CodeRun("import os\nreturn dict(os.environ)"))
    assert result.value == {}


async def test_without_a_policy_only_the_private_folder_is_open(
    world: World, tmp_path: Path
) -> None:
    program = WRITES.format(paths=[str(tmp_path / "a"), "own", "/dev/null"])
    assert await world.value(program) == [False, True, True]


async def test_what_cannot_be_confined_is_not_run(
    world: World, runtime: SubprocessRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(runtime), "grants_enforcement", lambda _: None)
    error = await world.error("return 1")
    assert error.kind == "worker-exit"
    assert "programs cannot be confined here" in error.message


async def test_a_sandbox_that_does_not_work_is_a_worker_exit(
    root: Context, runtime: SubprocessRuntime, policy: SandboxPolicy, mount: Any
) -> None:
    await mount("dsh.capability.sandbox.local", {
        "runnerCommand": ["/nonexistent/runner"], "runnerFailureSignatures": ["runner:"],
    })  # fmt: skip
    await root.plugin(ProcessCodeRuntime)
    result = await root.require(CodeRuntime).run(CodeRun("return 1"))
    assert result.error is not None
    assert result.error.kind == "worker-exit"
    assert "was not run" in result.error.message
