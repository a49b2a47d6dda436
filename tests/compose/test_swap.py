"""The swap test: one long turn, while the plugins it runs on come, go and change at random."""

from __future__ import annotations

import asyncio
import gc
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dsh.execution.agent.service import Agent, AgentOptions, AgentRegistry, CreateAgent
from dsh.kernel import Context, Effect, Fiber, FiberState
from dsh.kernel._place import Place
from dsh.kernel._services import Binding
from dsh.loader.boot import Launch, boot
from dsh.loader.compose import Layer, compose_profile
from dsh.loader.environment import LaunchEnvironment
from dsh.loader.hmr.service import Hmr
from dsh.loader.host import AppExit, CommandLine
from dsh.loader.loader import Loader
from dsh.model.messages import SessionId, create_user_message
from dsh.state.session.service import SessionStore

STEPS = 200
MANY = 40
"""How many swaps a run has at least, on any machine."""
SLACK = 10
"""How many objects of a kind a long turn may leave; a leak leaves one for each step or swap."""
SEED = 20_26
ADAPTER, FILES, TOOLS, WORD, EAR = "llm-rehearsal", "fs-sandbox", "tool-fs", "swap-tool", "swap-ear"
OWN = (WORD, EAR)
COUNTED = (Fiber, Effect, Context, Place, Binding, asyncio.Task, asyncio.Future)

TOOL_SOURCE = """
from dsh.execution.tools.author import define_tool

VERSION = {version}
inject = ("tools",)


def apply(ctx):
    async def word() -> str:
        return f"version {{VERSION}}"

    ctx.tools.register(define_tool(word, name="word", description="says the version"))
"""
EAR_SOURCE = """
from dsh.execution.tools.events import TOOLS_RESULT

VERSION = {version}


def apply(ctx):
    heard = []
    ctx.on(TOOLS_RESULT, lambda event: heard.append(VERSION), everywhere=True)
"""


class House:
    """The composed tree, and the folder that it works in."""

    def __init__(self, root: Context, folder: Path) -> None:
        self.root = root
        self.workspace, self.home = folder / "workspace", folder / "home"
        self.plugins = folder / "plugins"
        for each in (self.workspace, self.home, self.plugins):
            each.mkdir()
        self.versions = {WORD: 0, EAR: 0}
        self.rows: list[dict[str, Any]] = []
        self.reported: list[BaseException] = []
        root.set_reporter(lambda error, owner, label: self.reported.append(error))

    def write(self, row: str) -> None:
        self.versions[row] += 1
        source = TOOL_SOURCE if row == WORD else EAR_SOURCE
        self.source(row).write_text(source.format(version=self.versions[row]))

    def source(self, row: str) -> Path:
        return self.plugins / f"{row.replace('-', '_')}.py"

    async def start(self) -> None:
        for row in OWN:
            self.write(row)
        script = self.home / "script.json"
        script.write_text(json.dumps(_script(self.workspace)))
        patches: list[dict[str, Any]] = [
            {"id": "headless-runner", "disabled": True},
            {"id": "headless-startup", "disabled": True},
            {"id": "llm-deepseek", "disabled": True},
            {"id": "hmr", "disabled": False, "config": {"root": [str(self.plugins)]}},
            {"id": "agent-default-model", "config": {"provider": "rehearsal", "model": "m"}},
            {"insert": [{"id": ADAPTER, "name": "dsh.model.adapters.rehearsal"}]},
            {"id": ADAPTER, "config": {"script": str(script)}},
            {"insert": [{"id": row, "name": str(self.source(row))} for row in OWN]},
        ]
        composition = compose_profile(
            "headless", self.home, user_layers=False, overlays=[Layer("swap", patches)]
        )
        self.rows = composition.rows
        launch = Launch(
            composition=composition,
            home=self.home,
            environment=LaunchEnvironment({"DSH_PERMISSION_MODE": "workspace-write"}),
            cmdline=CommandLine(),
            cwd=str(self.workspace),
            say=lambda line: None,
        )
        await boot(self.root, launch, AppExit(lambda _: None))

    @property
    def loader(self) -> Loader:
        return self.root.require(Loader)

    async def agent(self) -> Agent:
        options = AgentOptions(provider="rehearsal", model="m")
        meta = {"cwd": str(self.workspace)}
        asked = CreateAgent(session_id=SessionId("swap"), agent_options=options, meta=meta)
        return (await self.root.require(AgentRegistry).create(asked)).agent

    async def settle(self) -> None:
        """Wait until nothing changes any more: neither the tree nor what is watched."""
        hmr = self.root.get(Hmr)
        assert hmr is not None
        async with asyncio.timeout(10):
            before = None
            while before != (before := self.root.census()) or self._reloads():
                await hmr.quiesce()
                await self.loader.quiesce()
                await asyncio.sleep(0.15)  # edits are noticed late, and by the system

    def _reloads(self) -> bool:
        return any(task.get_name() == "hmr: reload" for task in self.root.fiber.kernel.tasks)


class Swapper:
    """Takes a row out or exchanges it, and puts it back, in one of several ways."""

    def __init__(self, house: House, seed: int) -> None:
        self._house = house
        self._random = random.Random(seed)
        self.done: Counter[str] = Counter()

    async def swap_some(self, stop: Callable[[], bool]) -> None:
        while not stop():
            await self.swap(self._random.choice((ADAPTER, FILES, TOOLS, WORD, EAR)))
            await asyncio.sleep(self._random.random() * 0.03)

    async def swap_each(self) -> None:
        for row in (ADAPTER, FILES, TOOLS, WORD, EAR):
            for way in self._ways(row):
                await self._do(way, row)

    async def swap(self, row: str) -> None:
        await self._do(self._random.choice(self._ways(row)), row)

    async def _do(self, way: Callable[[str], Awaitable[None]], row: str) -> None:
        await way(row)
        self.done[f"{way.__name__} {row}"] += 1

    def _ways(self, row: str) -> list[Callable[[str], Awaitable[None]]]:
        ways = [self.disable, self.recreate, self.patch, self.exchange]
        return [*ways, self.edit] if row in OWN else ways

    async def _moment(self) -> None:
        await asyncio.sleep(self._random.random() * 0.02)

    async def disable(self, row: str) -> None:
        loader = self._house.loader
        await loader.update(row, {"disabled": True})
        await self._moment()
        await loader.update(row, {"disabled": None})

    async def recreate(self, row: str) -> None:
        loader = self._house.loader
        entry = loader.resolve(row)
        options = dict(entry.options)
        position = list(loader.group.entries).index(entry)
        await loader.remove(row)
        await self._moment()
        await loader.create(options, position=position)

    async def patch(self, row: str) -> None:
        loader, rows = self._house.loader, self._house.rows
        await loader.mount([each for each in rows if each["id"] != row])
        await self._moment()
        await loader.mount(rows)

    async def exchange(self, row: str) -> None:
        loader = self._house.loader
        entry = loader.resolve(row)
        await loader.replace({entry: loader.import_(entry.name, None)})

    async def edit(self, row: str) -> None:
        house, hmr = self._house, self._house.root.get(Hmr)
        assert hmr is not None
        house.write(row)
        await hmr.scan()
        await hmr.quiesce()


def _script(workspace: Path) -> dict[str, Any]:
    file = str(workspace / "note.txt")

    def calls(step: int) -> list[dict[str, Any]]:
        return [
            {"name": "write", "arguments": {"file_path": file, "content": f"note {step}"}},
            {"name": "read", "arguments": {"file_path": file}},
            {"name": "word", "arguments": {}},
        ]

    # The adapter counts its calls from when it is mounted; these ids outlive it.
    replies: list[dict[str, Any]] = [
        {
            "text": "I go on.",
            "calls": [{**call, "id": f"{step}-{call['name']}"} for call in calls(step)],
            "delay_ms": 1,
        }
        for step in range(1, STEPS)
    ]
    return {"order": "history", "replies": [*replies, {"text": "Done."}]}


@pytest.fixture
async def house(root: Context, tmp_path: Path) -> House:
    house = House(root, tmp_path)
    await house.start()
    return house


async def _alive() -> Counter[str]:
    await _forget_timers()
    while gc.collect():  # what one pass ends may have been all that held something else
        pass
    found = (type(each) for each in gc.get_objects())
    return Counter(kind.__name__ for kind in found if kind in COUNTED)


async def _forget_timers() -> None:
    """Let the event loop drop cancelled timers, which it does when they are the most.

    Until they are due, each keeps the context that it was made in.
    """
    loop = asyncio.get_running_loop()
    for timer in [loop.call_later(60, int) for _ in range(2_000)]:
        timer.cancel()
    await asyncio.sleep(0)


def _check_log(agent: Agent) -> None:
    """Exactly the steps that were asked for, each closed, each call answered once and in order."""
    events = [(event["type"], event["data"]) for event in agent.session.events]
    started = [data["step"] for kind, data in events if kind == "step/start"]
    ended = [data["step"] for kind, data in events if kind == "step/end"]
    assert started == ended == list(range(1, STEPS + 1))
    asked: list[str] = []
    for kind, data in events:
        if kind == "assistant/message":
            assert asked == []
            blocks = data["message"]["content"]
            asked = [block["id"] for block in blocks if block["type"] == "tool-call"]
        elif kind == "tool/result":
            assert data["message"]["source"]["callId"] == asked.pop(0)
    assert asked == []
    called = [data["callId"] for kind, data in events if kind == "tool/call"]
    assert len(called) == len(set(called)) == 3 * (STEPS - 1)
    replies = [data for kind, data in events if kind == "assistant/message"]
    assert len(replies) == STEPS
    assert [data["reason"] for kind, data in events if kind == "turn/end"] == [
        {"kind": "completed"}
    ]


def _results(agent: Agent) -> Counter[str]:
    found: Counter[str] = Counter()
    for event in agent.session.events:
        if event["type"] == "tool/result":
            data: Any = event["data"]
            found[data.get("error", {}).get("code", "ok")] += 1
    return found


def _versions(agent: Agent) -> list[int]:
    """What the edited tool said, in order."""
    found = []
    for event in agent.session.events:
        if event["type"] == "tool/result":
            data: Any = event["data"]
            text = data["message"]["content"][0]["content"][0]["text"]
            if text.startswith("version "):
                found.append(int(text.removeprefix("version ")))
    return found


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_a_turn_of_many_steps_outlives_every_swap(house: House) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, found: complaints.append(found))
    agent = await house.agent()
    swapper = Swapper(house, SEED)
    await swapper.swap_each()
    await house.settle()
    start, alive = house.root.census(), await _alive()
    listeners = house.root.listener_count()
    swapper.done.clear()

    agent.followup(create_user_message("go on until you are done"))
    idle = asyncio.ensure_future(agent.when_idle())
    await swapper.swap_some(idle.done)
    await idle
    await house.root.require(SessionStore).flush(agent.session)
    await house.settle()

    _check_log(agent)
    assert {row for _, row in map(str.split, swapper.done)} == {ADAPTER, FILES, TOOLS, WORD, EAR}
    assert sum(swapper.done.values()) > MANY
    results = _results(agent)
    assert results.keys() <= {"ok", "TOOL_UNLOADED", "UNKNOWN_TOOL"}
    assert results["ok"] > 0.9 * results.total()
    assert (versions := _versions(agent)) == sorted(versions)
    assert len(set(versions)) > 1
    running = [entry.fiber for entry in house.loader.entries() if entry.fiber is not None]
    assert all(fiber.state is FiberState.ACTIVE for fiber in running)
    assert house.root.census() == start
    assert house.root.listener_count() == listeners
    grown = await _alive() - alive
    assert not {kind: count for kind, count in grown.items() if count > SLACK}
    assert not house.reported
    assert not complaints
