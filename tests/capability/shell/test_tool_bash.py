"""The ``bash`` tool through the real tool pipeline."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dsh.base.signal import AbortController
from dsh.capability.sandbox.service import SandboxPolicy
from dsh.capability.shell.service import ShellExecutor
from dsh.control.approval.events import APPROVAL_REQUEST
from dsh.execution.prompt.service import SystemPrompt
from dsh.execution.tools.service import ToolInput, ToolResult, ToolRuntime
from dsh.kernel import Context, Fiber
from dsh.model.messages import CallId

Mount = Callable[..., Awaitable[Fiber]]


class Bash:
    """Calls the tool as the loop does."""

    def __init__(self, tools: ToolRuntime, agent: Any) -> None:
        self.tools, self._agent = tools, agent
        self.controller = AbortController()

    async def result(self, command: str, **more: Any) -> ToolResult:
        arguments = {"command": command, "description": "a test", **more}
        return await self.tools.execute(
            ToolInput(CallId("c1"), "bash", arguments, self.controller.signal, self._agent)
        )

    async def __call__(self, command: str, **more: Any) -> str:
        return text(await self.result(command, **more))

    @property
    def parameters(self) -> dict[str, Any]:
        (schema,) = (each for each in self.tools.schemas() if each["name"] == "bash")
        return dict(schema["parameters"])


def text(result: ToolResult) -> str:
    (block,) = result.content
    assert block["type"] == "text"
    return block["text"]


@pytest.fixture
async def bash(root: Context, mount: Mount, shell: ShellExecutor, agent: Any) -> Bash:
    for module in (
        "dsh.execution.tools.runtime",
        "dsh.capability.shell.environment",
        "dsh.capability.shell.tool_bash",
    ):
        await mount(module)
    return Bash(root.require(ToolRuntime), agent)


async def test_a_command_is_run_and_its_markers_are_shown(bash: Bash) -> None:
    assert await bash("echo out; echo err >&2; exit 4") == "out\n[stderr]\nerr\n[exit code: 4]"
    assert await bash("true") == "(no output)"
    shown = await bash("sleep 1000 & trap 'exit 0' TERM; wait", timeoutMs=500)
    assert shown == "(no output)\n[timed out after 500ms]"


async def test_failure_of_the_command_is_no_failure_of_the_tool(bash: Bash) -> None:
    assert not (await bash.result("exit 1")).is_error


async def test_a_command_that_cannot_start_is_one(bash: Bash) -> None:
    result = await bash.result("true", workdir="/nowhere")
    assert result.is_error
    assert result.error.info is not None
    assert result.error.info.code == "SPAWN_FAILED"


async def test_no_state_is_left_between_calls(bash: Bash) -> None:
    await bash("x=1; cd /; sleep 1000 &")
    assert (await bash('echo "<$x>"; pwd')).startswith("<>\n/")
    assert "workspace" in await bash("pwd")


async def test_the_session_is_in_the_environment(bash: Bash) -> None:
    assert await bash("echo $DSH_SHELL $DSH_SESSION_ID") == "1 s1"


async def test_required_parameters_and_unknown_ones(bash: Bash) -> None:
    assert bash.parameters["required"] == ["command", "description"]
    assert list(bash.parameters["properties"]) == [
        "command",
        "description",
        "timeoutMs",
        "workdir",
        "sandbox_permissions",
        "justification",
    ]
    for wrong in ({"timeoutMs": 0}, {"run_in_background": True}, {"sandbox_permissions": "x"}):
        result = await bash.result("touch ran", **wrong)
        assert result.is_error
        assert result.error.info is not None
        assert result.error.info.code == "INVALID_ARGS"


async def test_a_denial_tells_how_to_ask_for_more(bash: Bash, tmp_path: Path) -> None:
    shown = (await bash("echo x > ../beside")).splitlines()
    assert shown[-3] == "[sandbox: file access denied under workspace-write mode]"
    assert "sandbox_permissions" in shown[-2]
    assert shown[-1] == "[exit code: 1]"
    assert not (tmp_path / "beside").exists()


async def test_a_grant_runs_this_call_wider_and_no_other(
    root: Context, bash: Bash, policy: SandboxPolicy, agent: Any, tmp_path: Path
) -> None:
    root.on(APPROVAL_REQUEST, lambda *_: "allowed-once")
    wider = {"sandbox_permissions": "danger-full-access", "justification": "needed"}

    assert await bash("echo x > ../beside && echo done", **wider) == "done"

    assert (tmp_path / "beside").read_text() == "x\n"
    assert "denied" in await bash("echo y > ../beside")
    assert (tmp_path / "beside").read_text() == "x\n"


async def test_a_refusal_runs_nothing(root: Context, bash: Bash, tmp_path: Path) -> None:
    root.on(APPROVAL_REQUEST, lambda *_: "rejected")
    result = await bash.result(
        "touch ran", sandbox_permissions="danger-full-access", justification="why"
    )
    assert result.is_error
    assert "rejected" in text(result)
    assert os.listdir(tmp_path / "workspace") == []


async def test_cancellation_after_the_grant_runs_nothing(
    root: Context, bash: Bash, tmp_path: Path
) -> None:
    def grant_and_cancel(*_: object) -> str:
        bash.controller.abort("stop")
        return "allowed-once"

    root.on(APPROVAL_REQUEST, grant_and_cancel)
    result = await bash.result(
        "touch ran", sandbox_permissions="danger-full-access", justification="why"
    )
    assert result.is_error
    assert os.listdir(tmp_path / "workspace") == []


async def test_a_cancelled_call_keeps_what_was_printed(bash: Bash, tmp_path: Path) -> None:
    fifo = tmp_path / "workspace" / "fifo"
    os.mkfifo(fifo)
    running = asyncio.create_task(bash.result("echo before; echo x > fifo; exec sleep 1000"))
    await asyncio.to_thread(fifo.read_text)

    bash.controller.abort("stop")
    result = await running

    assert result.is_error
    assert result.error.info is not None
    assert result.error.info.code == "TOOL_ABORTED"
    assert "before" in text(result)


async def test_unloading_removes_the_tool_and_its_section(
    root: Context, mount: Mount, shell: ShellExecutor
) -> None:
    await mount("dsh.execution.tools.runtime")
    await mount("dsh.capability.shell.environment")
    fiber = await mount("dsh.capability.shell.tool_bash")
    prompt = root.require(SystemPrompt)
    assert "tool:bash" in [part.name for part in (await prompt.assemble()).sections]

    await fiber.dispose()

    assert root.require(ToolRuntime).get("bash") is None
    assert "tool:bash" not in [part.name for part in (await prompt.assemble()).sections]


async def test_views_for_user_interfaces(bash: Bash) -> None:
    definition = bash.tools.get("bash")
    assert definition is not None
    assert definition.present_call is not None
    arguments = {"command": "make", "description": "Build it", "workdir": "sub"}
    assert definition.present_call(arguments) == {
        "card": "terminal",
        "title": "make",
        "description": "Build it",
        "cwd": "sub",
    }
    assert definition.present_call({"command": 1}) is None


async def test_a_cancelled_command_ends_before_its_call_is_given_up(
    root: Context, mount: Mount, policy: SandboxPolicy, sandbox: object, agent: Any
) -> None:
    for module in (
        "dsh.capability.shell.sandboxed",
        "dsh.execution.tools.runtime",
        "dsh.capability.shell.environment",
        "dsh.capability.shell.tool_bash",
    ):
        await mount(module)
    bash = Bash(root.require(ToolRuntime), agent)
    ready = policy.temp_dir(agent.session.id) / "ready"
    os.mkfifo(ready)
    script = "trap '' TERM INT HUP; echo > $TMPDIR/ready; while :; do sleep 1000; done"
    call = asyncio.create_task(bash.result(script))
    await asyncio.to_thread(ready.read_bytes)

    bash.controller.abort("cancelled")

    result = await call
    assert result.is_error
    assert result.error.info is not None
    assert result.error.info.code in ("ABORTED", "TOOL_ABORTED")
    assert bash.tools.strays() == ()
