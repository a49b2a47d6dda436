from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsh.base.signal import AbortSignal
from dsh.capability.shell.environment import RegisteredShellEnv
from dsh.capability.shell.service import ShellEnv, ShellEnvContributor
from dsh.execution.tools.service import ExecutionToken, ToolExecution
from dsh.kernel import Context
from dsh.loader.environment import LaunchEnvironment
from dsh.model.messages import CallId


def call(agent: Any = None) -> ToolExecution:
    id_ = CallId("c1")
    return ToolExecution(id_, "bash", {}, AbortSignal(), agent, id_, None, ExecutionToken())


def contributor(name: str = "mine", **values: Any) -> ShellEnvContributor:
    return ShellEnvContributor(name, dict.fromkeys(values, "a value"), lambda _: values)


@pytest.fixture
async def env(root: Context) -> ShellEnv:
    await root.plugin(RegisteredShellEnv)
    return root.require(ShellEnv)


async def test_built_in_variables(
    root: Context, env: ShellEnv, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DSH_HOME", raising=False)
    assert env.collect(call()) == {"DSH_HOME": str(Path.home() / ".dsh"), "DSH_SHELL": "1"}
    assert env.collect(call(agent))["DSH_SESSION_ID"] == "s1"
    root.provide(LaunchEnvironment, LaunchEnvironment({"DSH_HOME": "/launch/home"}))
    assert env.collect(call())["DSH_HOME"] == "/launch/home"


async def test_a_contributor_goes_with_its_plugin(root: Context, env: ShellEnv) -> None:
    author = await root.inject(
        [ShellEnv], lambda ctx: ctx.require(ShellEnv).register(contributor(DSH_X="1"))
    )
    assert env.collect(call())["DSH_X"] == "1"
    assert env.all()[-1].name == "DSH_X"

    await author.dispose()

    assert "DSH_X" not in env.collect(call())
    assert [variable.contributor for variable in env.all()] == ["built-in"] * 3


@pytest.mark.parametrize("name", ["X", "dsh_x", "DSH_x", "DSH_", "DSH_1", "DSH_X=", "MY_DSH_X"])
async def test_a_malformed_name_is_refused(env: ShellEnv, name: str) -> None:
    with pytest.raises(ValueError, match="DSH_NAME"):
        env.register(contributor(**{name: "1"}))


async def test_names_have_one_owner(env: ShellEnv) -> None:
    env.register(contributor(DSH_X="1"))
    for taken in (contributor("other", DSH_X="2"), contributor("other", DSH_HOME="2")):
        with pytest.raises(ValueError, match="belongs to"):
            env.register(taken)
    for name in ("mine", "built-in"):
        with pytest.raises(ValueError, match="taken"):
            env.register(contributor(name, DSH_Y="1"))


async def test_a_declared_variable_may_be_left_out(env: ShellEnv) -> None:
    env.register(ShellEnvContributor("mine", {"DSH_X": "sometimes"}, lambda _: {}))
    assert "DSH_X" not in env.collect(call())


@pytest.mark.parametrize("values", [{"DSH_OTHER": "1"}, {"DSH_X": 1}])
async def test_undeclared_and_non_text_values_are_errors(
    env: ShellEnv, values: dict[str, Any]
) -> None:
    env.register(ShellEnvContributor("mine", {"DSH_X": "a value"}, lambda _: values))
    with pytest.raises(ValueError, match="'mine'"):
        env.collect(call())
