"""Programs of Code Mode in the shipped rows: guards, budgets, approvals, rows that are swapped."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from loop_harness import ScriptedModel, assert_balanced, calls, events_of, reasons, results, until

from dsh.control.approval.events import APPROVAL_REQUEST
from dsh.execution.agent.service import Agent, AgentOptions, AgentRegistry, CreateAgent
from dsh.execution.tools.author import define_tool
from dsh.execution.tools.events import TOOLS_PRE_EXECUTE, Ask
from dsh.execution.tools.service import ToolRuntime
from dsh.kernel import Context
from dsh.loader.boot import Launch, boot
from dsh.loader.compose import Layer, compose_profile
from dsh.loader.environment import LaunchEnvironment
from dsh.loader.host import AppExit, CommandLine
from dsh.loader.loader import Loader
from dsh.model.llm.service import LlmRuntime
from dsh.model.messages import SessionId, create_user_message

ROUNDS = 9
"""More than the stuck guard allows."""


class House:
    """The headless rows without the runner, over a scripted model."""

    def __init__(self, root: Context, folder: Path) -> None:
        self.root, self.folder = root, folder
        self.model = ScriptedModel()
        self.asked: list[asyncio.Future[Any]] = []
        self.reported: list[BaseException] = []
        root.set_reporter(lambda error, owner, label: self.reported.append(error))

    async def start(self, *patches: dict[str, Any]) -> House:
        quiet = [{"id": row, "disabled": True} for row in ("headless-runner", "headless-startup")]
        composition = compose_profile(
            "headless", self.folder, user_layers=False, overlays=[Layer("test", [*quiet, *patches])]
        )
        launch = Launch(
            composition=composition,
            home=self.folder,
            environment=LaunchEnvironment(
                {"DSH_SESSION_INVARIANTS": "1", "DSH_TOOLS_MODE": "code"}
            ),
            cmdline=CommandLine(),
            cwd=str(self.folder),
            say=lambda line: None,
        )
        await boot(self.root, launch, AppExit(lambda _: None))
        self.root.inject(
            [LlmRuntime],
            lambda ctx: _drop(ctx.require(LlmRuntime).register_adapter(["scripted"], self.model)),
        )
        self.root.on(APPROVAL_REQUEST, self._answer)
        self.root.on(
            TOOLS_PRE_EXECUTE,
            lambda call, then: Ask("it is a deed") if call.name == "deed" else then(),
        )
        return self

    async def _answer(self, request: object, next: object) -> Any:
        self.asked.append(asyncio.get_running_loop().create_future())
        async with asyncio.timeout(5):
            return await self.asked[-1]

    @property
    def loader(self) -> Loader:
        return self.root.require(Loader)

    def add(self, body: Callable[..., Any], **options: Any) -> None:
        made = define_tool(body, name=body.__name__, description="does it", **options)
        self.root.inject([ToolRuntime], lambda ctx: _drop(ctx.require(ToolRuntime).register(made)))

    async def agent(self) -> Agent:
        options = AgentOptions(provider="scripted", model="m")
        meta = {"cwd": str(self.folder)}
        asked = CreateAgent(session_id=SessionId("s1"), agent_options=options, meta=meta)
        return (await self.root.require(AgentRegistry).create(asked)).agent

    async def exchange(self, row: str) -> None:
        entry = self.loader.resolve(row)
        await self.loader.replace({entry: self.loader.import_(entry.name, None)})


def _drop(_: object) -> None:
    """What an ``inject`` body returns would be taken for its cleanup."""


async def look() -> str:
    return "nothing yet"


async def deed() -> str:
    return "done"


def program(code: str, id: str = "c1") -> tuple[str, str, str]:
    return id, "run_code", json.dumps({"code": code, "description": "does it"})


async def turn(agent: Agent) -> None:
    agent.followup(create_user_message("go"))
    async with asyncio.timeout(10):
        await agent.when_idle()
    assert_balanced(agent.session)


def notices(agent: Agent, plugin: str) -> list[str]:
    sources = [data["source"] for data in events_of(agent, "user/message")]
    return [source["summary"] for source in sources if source.get("plugin") == plugin]


@pytest.fixture
async def house(root: Context, tmp_path: Path) -> House:
    return await House(root, tmp_path).start()


async def test_what_a_program_repeats_is_no_repetition_of_the_model(house: House) -> None:
    house.add(look)
    agent = await house.agent()
    house.model.will(calls(program("for _ in range(20):\n    await tools.look()")), "done")
    await turn(agent)
    assert notices(agent, "repeat-tool-reminder") == []
    assert reasons(agent) == [{"kind": "completed"}]


async def test_a_program_that_is_repeated_is_told_and_stopped_whatever_it_calls(
    house: House,
) -> None:
    house.add(look)
    agent = await house.agent()
    same = [calls(program("return await tools.look()", f"c{n}")) for n in range(ROUNDS)]
    house.model.will(*same, "done")
    await turn(agent)
    assert notices(agent, "repeat-tool-reminder") == ["run_code × 3", "run_code × 5"]  # noqa: RUF001
    assert reasons(agent)[0]["reason"]["code"] == "STUCK_REPEAT"


async def test_a_program_that_polls_is_not_stuck(house: House) -> None:
    house.add(look, polls=True)
    agent = await house.agent()
    same = [calls(program("return await tools.look()", f"c{n}")) for n in range(ROUNDS)]
    house.model.will(*same, "done")
    await turn(agent)
    assert reasons(agent) == [{"kind": "completed"}]


async def test_a_program_that_polls_and_fails_is_stuck(house: House) -> None:
    house.add(look, polls=True)
    agent = await house.agent()
    code = "await tools.look()\nraise ValueError"
    house.model.will(*[calls(program(code, f"c{n}")) for n in range(ROUNDS)], "done")
    await turn(agent)
    assert reasons(agent)[0]["reason"]["code"] == "STUCK_ERROR"


async def test_a_cancelled_program_is_told_without_the_record_of_the_cause(house: House) -> None:
    house.add(deed)
    agent = await house.agent()
    house.model.will(calls(program("return await tools.deed()")))
    agent.followup(create_user_message("go"))
    await until(lambda: bool(house.asked))
    agent.cancel({"kind": "user"})
    await agent.when_idle()
    [(_, failed, text, code)] = results(agent)
    assert (failed, code) == (True, "CODE_RUN_FAILED")
    assert text.endswith("the program was aborted")


async def test_the_wall_time_goes_on_when_its_row_is_exchanged_under_a_call(
    root: Context, tmp_path: Path
) -> None:
    limited = {"id": "budgets", "config": {"session": {"wallMs": 600}}}
    house = await House(root, tmp_path).start(limited)
    house.add(deed)
    agent = await house.agent()
    house.model.will(calls(program("return await tools.deed()")))
    agent.followup(create_user_message("go"))
    await until(lambda: bool(house.asked))
    await house.exchange("budgets")
    async with asyncio.timeout(5):
        await agent.when_idle()
    assert reasons(agent)[0]["reason"]["code"] == "BUDGET_WALL"
    assert_balanced(agent.session)


async def test_invariants_that_are_mounted_under_a_call_do_not_complain_of_it(house: House) -> None:
    house.add(deed)
    agent = await house.agent()
    house.model.will(calls(program("return await tools.deed()")), "done")
    agent.followup(create_user_message("go"))
    await until(lambda: bool(house.asked))
    for row in ("tool", "session", "agent", "approval", "permission", "command"):
        await house.exchange(f"{row}-invariants")
    house.asked[0].set_result("allowed-once")
    await agent.when_idle()
    assert results(agent) == [("c1", False, "done", None)]
    assert_balanced(agent.session)


async def test_a_step_waits_for_a_code_runtime_that_is_being_swapped(house: House) -> None:
    agent = await house.agent()
    await house.loader.update("code-runtime", {"disabled": True})
    house.model.will("done")
    agent.followup(create_user_message("go"))
    assert agent.status == "running"
    await asyncio.sleep(0)
    await house.loader.update("code-runtime", {"disabled": None})
    await agent.when_idle()
    assert reasons(agent) == [{"kind": "completed"}]


@pytest.mark.parametrize(
    "row",
    [
        "approval", "permission", "budgets", "stuck-guard", "repeat-tool-reminder", "commands",
        "user-questions", "code-runtime", "agent-execution", "timeout-policy",
    ],
)  # fmt: skip
async def test_a_turn_outlives_the_exchange_of_a_row_under_a_nested_question(
    house: House, row: str
) -> None:
    house.add(deed)
    agent = await house.agent()
    house.model.will(calls(program("return await tools.deed()")), "done")
    agent.followup(create_user_message("go"))
    await until(lambda: bool(house.asked))
    await house.exchange(row)
    if not house.asked[0].done():
        house.asked[0].set_result("allowed-once")
    async with asyncio.timeout(10):
        await agent.when_idle()
    await house.loader.quiesce()
    assert reasons(agent) == [{"kind": "completed"}]
    assert len(events_of(agent, "approval/asked")) == len(events_of(agent, "approval/decided"))
    assert_balanced(agent.session)
    assert house.reported == []
