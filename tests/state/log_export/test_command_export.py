"""The command ``/export``."""

from __future__ import annotations

from typing import Any

import pytest

from dsh.control.commands import CommandFailure, CommandRuntime, CommandSuccess
from dsh.control.commands.runtime import LayeredCommands
from dsh.kernel import Context, create_scope
from dsh.state.log_export import command
from dsh.state.session.service import SessionStore
from dsh.state.session.store import LocalSessionStore


class FakeAgent:
    def __init__(self, ctx: Context) -> None:
        self.session = ctx.require(SessionStore).create()
        self.ctx = create_scope(ctx, self).ctx


@pytest.fixture
async def agent(root: Context) -> Any:
    await root.plugin(LocalSessionStore)
    await root.plugin(command)
    await root.plugin(LayeredCommands)
    await root.inject([CommandRuntime], lambda _: None)
    return FakeAgent(root)


async def enter(root: Context, agent: Any, line: str) -> Any:
    execution = await root.require(CommandRuntime).execute(agent, line)
    assert execution is not None
    return execution.result


@pytest.mark.parametrize("line", ["/export", "/export \n"])
async def test_it_says_which_session_is_exported(root: Context, agent: Any, line: str) -> None:
    result = await enter(root, agent, line)
    assert isinstance(result, CommandSuccess)
    assert agent.session.id in (result.text or "")


async def test_it_takes_no_arguments(root: Context, agent: Any) -> None:
    result = await enter(root, agent, "/export log.zip")
    assert isinstance(result, CommandFailure)
    assert "takes no arguments" in result.text
