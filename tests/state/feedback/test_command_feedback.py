"""The command ``/feedback``: what it keeps, and what it tells."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dsh.base.signal import AbortController, AbortedError
from dsh.control.commands import CommandFailure, CommandRuntime, CommandSuccess
from dsh.control.commands.runtime import LayeredCommands
from dsh.kernel import Context, create_scope
from dsh.loader.anonymous import FILE_NAME
from dsh.state.feedback import command
from dsh.state.session.service import SessionStore
from dsh.state.session.store import LocalSessionStore
from dsh.state.telemetry.service import SessionTelemetryBackend


class FakeAgent:
    def __init__(self, ctx: Context) -> None:
        self.session = ctx.require(SessionStore).create()
        self.ctx = create_scope(ctx, self).ctx


class Desk:
    """Somebody who enters commands in one session."""

    def __init__(self, root: Context) -> None:
        self.root = root
        self.agent: Any = FakeAgent(root)
        self.session = self.agent.session

    async def enter(self, line: str) -> Any:
        execution = await self.root.require(CommandRuntime).execute(self.agent, line)
        return None if execution is None else execution.result

    def logged(self, type: str) -> list[Mapping[str, Any]]:
        return [event["data"] for event in self.session.events if event["type"] == type]


@pytest.fixture
async def desk(root: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setenv("DSH_HOME", str(tmp_path))
    await root.plugin(LocalSessionStore)
    await root.plugin(command)
    await root.plugin(LayeredCommands)
    await root.inject([CommandRuntime], lambda _: None)
    return Desk(root)


class Telemetry(SessionTelemetryBackend):
    """Says how much it shares; what it is given matters not here."""

    sharing = "disabled"

    def emit(self, record: object) -> None: ...

    async def shutdown(self) -> None: ...


async def test_a_remark_is_kept_once_and_without_space_around_it(desk: Desk) -> None:
    result = await desk.enter("/feedback  it is slow\n")
    assert isinstance(result, CommandSuccess)
    assert desk.logged("feedback/record") == [{"text": "it is slow"}]
    assert "args" not in desk.logged("command/run")[0]
    assert result.source_event_seq is not None
    assert desk.session.events[result.source_event_seq]["type"] == "feedback/record"


@pytest.mark.parametrize("line", ["/feedback", "/feedback  \n\t"])
async def test_a_blank_remark_is_answered_with_the_usage(desk: Desk, line: str) -> None:
    result = await desk.enter(line)
    assert isinstance(result, CommandFailure)
    assert "/feedback <text>" in result.text
    assert desk.logged("feedback/record") == []


async def test_the_answer_names_session_and_anonymous_user(desk: Desk, tmp_path: Path) -> None:
    result = await desk.enter("/feedback x")
    assert desk.session.id in result.text
    assert (tmp_path / FILE_NAME).read_text().strip() in result.text


async def test_a_remark_that_is_taken_back_in_time_is_not_kept(desk: Desk) -> None:
    """The only thread that could read who the user is stays busy until after the abort."""
    go, controller = threading.Event(), AbortController()
    with ThreadPoolExecutor(1) as threads:
        asyncio.get_running_loop().set_default_executor(threads)
        threads.submit(go.wait)
        commands = desk.root.require(CommandRuntime)
        entering = commands.execute(desk.agent, "/feedback x", (), controller.signal)
        running = asyncio.create_task(entering)
        for _ in range(10):
            await asyncio.sleep(0)
        controller.abort()
        [outcome] = await asyncio.gather(running, return_exceptions=True)
        go.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert isinstance(outcome, AbortedError)
    assert desk.logged("feedback/record") == []


@pytest.mark.parametrize(
    ("sharing", "sentence"),
    [
        (None, "Telemetry is not configured, so the feedback stays on this machine."),
        ("disabled", "Telemetry is disabled, so the feedback stays on this machine."),
        ("feedback-only", "Telemetry shares this session up to the feedback."),
        ("full", "Telemetry shares this session, and the feedback with it."),
    ],
)
async def test_the_answer_says_what_leaves_the_machine(
    desk: Desk, sharing: Any, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sharing is not None:
        monkeypatch.setattr(Telemetry, "sharing", sharing)
        await desk.root.plugin(Telemetry)
    assert (await desk.enter("/feedback x")).text.endswith(sentence)


async def test_the_command_is_there_while_commands_are(root: Context) -> None:
    await root.plugin(LocalSessionStore)
    row = root.plugin(command)
    await row
    for _ in range(2):
        commands = root.plugin(LayeredCommands)
        await commands
        await root.inject([CommandRuntime], lambda _: None)
        agent: Any = FakeAgent(root)
        assert [found.name for found in root.require(CommandRuntime).all(agent)] == ["feedback"]
        await commands.dispose()
    await row.dispose()
    await root.plugin(LayeredCommands)
    await root.inject([CommandRuntime], lambda _: None)
    assert root.require(CommandRuntime).all(agent) == ()
