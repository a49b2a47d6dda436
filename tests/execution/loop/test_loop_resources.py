from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from loop_harness import (
    Loop,
    ScriptedModel,
    add_tool,
    assert_balanced,
    calls,
    events_of,
    mount,
    results,
    ticks,
    until,
    user,
)

from dsh.capability.fs import observation
from dsh.capability.fs import tools as fs_tools
from dsh.capability.fs.local import LocalFileSystem
from dsh.execution.agent.service import USER_CANCEL
from dsh.execution.tools.events import TOOLS_POST_EXECUTE, TOOLS_PRE_EXECUTE
from dsh.execution.tools.service import Resource
from dsh.kernel import Context


@dataclass
class Bench:
    """A tool that uses what its arguments say, and a record of when it ran."""

    loop: Loop
    clock: int = 0
    running: set[str] = field(default_factory=set)
    most: int = 0
    spans: dict[str, list[int]] = field(default_factory=dict)
    gates: dict[str, asyncio.Event] = field(default_factory=dict)

    def __post_init__(self) -> None:
        async def work(key: str, uses: list[str], turns: int = 0) -> str:
            self.spans[key] = [self.tick()]
            self.running.add(key)
            self.most = max(self.most, len(self.running))
            try:
                await ticks(turns)
                if key in self.gates:
                    await self.gates[key].wait()
            finally:
                self.running.discard(key)
                self.spans[key].append(self.tick())
            return key

        def used(args: Any) -> list[Resource]:
            return [Resource(key.lstrip("~"), key.startswith("~")) for key in args.uses]

        add_tool(self.loop.root, work, name="use", parallel=True, resources=used)
        add_tool(self.loop.root, work, name="alone")

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def hold(self, *keys: str) -> None:
        self.gates |= {key: asyncio.Event() for key in keys}


def asks(*plan: tuple[str, list[str]], name: str = "use") -> Any:
    return calls(
        *((key, name, json.dumps({"key": key, "uses": uses})) for key, uses in plan),
    )


async def test_calls_on_one_resource_keep_their_order_and_others_overlap(loop: Loop) -> None:
    bench = Bench(loop)
    bench.hold("a", "b", "c")
    agent = await loop.agent()
    loop.model.will(asks(("a", ["t:1"]), ("b", ["t:1"]), ("c", ["t:2"])), "done")
    agent.followup(user("go"))
    await until(lambda: bench.running == {"a", "c"})
    await ticks(5)
    assert "b" not in bench.spans

    bench.gates["c"].set()
    bench.gates["a"].set()
    await until(lambda: bench.running == {"b"})
    bench.gates["b"].set()
    await agent.when_idle()

    assert [text for _, _, text, _ in results(agent)] == ["a", "b", "c"]


async def test_readers_share_and_a_writer_waits_for_all_of_them(loop: Loop) -> None:
    bench = Bench(loop)
    bench.hold("r1", "r2", "w", "r3")
    agent = await loop.agent()
    loop.model.will(
        asks(
            ("r1", ["~file:/a/f"]), ("r2", ["~file:/a"]), ("w", ["file:/a/f"]), ("r3", ["~file:/a"])
        ),
        "done",
    )
    agent.followup(user("go"))
    await until(lambda: bench.running == {"r1", "r2"})
    bench.gates["r2"].set()
    await until(lambda: bench.running == {"r1"})
    await ticks(5)
    assert bench.running == {"r1"}
    bench.gates["r1"].set()
    await until(lambda: bench.running == {"w"})
    bench.gates["w"].set()
    await until(lambda: bench.running == {"r3"})
    bench.gates["r3"].set()
    await agent.when_idle()
    assert len(results(agent)) == 4


async def test_a_waiting_call_was_prepared_in_order_and_takes_no_place_in_the_pool(
    root: Context, model: ScriptedModel
) -> None:
    loop = await mount(root, model, maxParallelToolCalls=2)
    bench = Bench(loop)
    bench.hold("a", "b", "c")
    prepared: list[str] = []

    async def pre(execution: Any, next: Any) -> Any:
        prepared.append(execution.call_id)
        return await next()

    loop.root.on(TOOLS_PRE_EXECUTE, pre)
    agent = await loop.agent()
    loop.model.will(asks(("a", ["t:1"]), ("b", ["t:1"]), ("c", ["t:2"])), "done")
    agent.followup(user("go"))
    await until(lambda: bench.running == {"a", "c"})
    assert prepared == ["a", "b", "c"]
    for gate in bench.gates.values():
        gate.set()
    await agent.when_idle()
    assert bench.most == 2


async def test_calls_that_become_free_together_start_as_the_pool_has_room(
    root: Context, model: ScriptedModel
) -> None:
    loop = await mount(root, model, maxParallelToolCalls=2)
    bench = Bench(loop)
    bench.hold("w", "r1", "r2", "r3")
    agent = await loop.agent()
    loop.model.will(asks(("w", ["t:1"]), *((f"r{n}", ["~t:1"]) for n in (1, 2, 3))), "done")
    agent.followup(user("go"))
    await until(lambda: bench.running == {"w"} and len(events_of(agent, "tool/call")) == 4)
    bench.gates["w"].set()
    await until(lambda: bench.running == {"r1", "r2"})
    await ticks(5)
    assert "r3" not in bench.spans
    for gate in bench.gates.values():
        gate.set()
    await agent.when_idle()
    assert bench.most == 2


async def test_a_resource_is_free_only_after_the_policies_judged_the_result(loop: Loop) -> None:
    bench = Bench(loop)
    judging, go = asyncio.Event(), asyncio.Event()

    async def formatter(event: Any, next: Any) -> Any:
        if event.execution.call_id == "a":
            judging.set()
            await go.wait()
        return await next()

    loop.root.on(TOOLS_POST_EXECUTE, formatter)
    agent = await loop.agent()
    loop.model.will(asks(("a", ["t:1"]), ("b", ["t:1"])), "done")
    agent.followup(user("go"))
    await judging.wait()
    await ticks(5)
    assert "b" not in bench.spans
    go.set()
    await agent.when_idle()
    assert "b" in bench.spans


async def test_an_abort_never_starts_a_call_that_waits_and_answers_it(loop: Loop) -> None:
    bench = Bench(loop)
    bench.hold("a")
    agent = await loop.agent()
    loop.model.will(asks(("a", ["t:1"]), ("b", ["t:1"]), ("c", ["t:1"])))
    agent.followup(user("go"))
    await until(lambda: len(events_of(agent, "tool/call")) == 3 and "a" in bench.spans)

    agent.cancel(USER_CANCEL)
    await agent.when_idle()

    assert list(bench.spans) == ["a"]
    assert [code for *_, code in results(agent)] == [
        "ABORTED",
        "ABORTED_BEFORE_DISPATCH",
        "ABORTED_BEFORE_DISPATCH",
    ]


@pytest.mark.parametrize("cap", [1, 2, 3, 10])
@pytest.mark.parametrize("abort", [False, True])
async def test_random_schedules_keep_every_rule(
    root: Context, model: ScriptedModel, cap: int, abort: bool
) -> None:
    loop = await mount(root, model, maxParallelToolCalls=cap, tools={"graceMs": 1000})
    bench = Bench(loop)
    for seed in range(25):
        rng = random.Random(f"{cap} {abort} {seed}")
        plan = [planned(rng, f"{seed}.{at}") for at in range(rng.randint(1, 9))]
        asked = calls(*((key, name, json.dumps(arguments)) for key, name, arguments in plan))
        agent = await loop.agent(f"s{seed}")
        model.replies = []
        model.will(asked, "done")
        bench.spans.clear()
        bench.most = 0
        agent.followup(user("go"))
        if abort:
            await ticks(rng.randint(1, 120))
            agent.cancel(USER_CANCEL)
        await agent.when_idle()

        assert not bench.running
        assert bench.most <= cap
        assert_balanced(agent.session)
        if not abort:
            assert {key for key, *_ in plan} == set(bench.spans)
            assert [call for call, *_ in results(agent)] == [key for key, *_ in plan]
        for call, _, _, code in results(agent):
            assert (call in bench.spans) is (code != "ABORTED_BEFORE_DISPATCH")
        ran = [each for each in plan if each[0] in bench.spans]
        for at, later in enumerate(ran):
            for earlier in ran[:at]:
                if conflicts(earlier, later):
                    assert bench.spans[earlier[0]][1] < bench.spans[later[0]][0]


Planned = tuple[str, str, dict[str, Any]]


def planned(rng: random.Random, key: str) -> Planned:
    name = "alone" if rng.random() < 0.15 else "use"
    keys = ["t:1", "t:2", "file:/a", "file:/a/b", "file:/a/c"]
    uses = [rng.choice(["", "~"]) + each for each in rng.sample(keys, rng.randint(0, 2))]
    return key, name, {"key": key, "uses": uses, "turns": rng.randint(0, 12)}


def conflicts(one: Planned, other: Planned) -> bool:
    if "alone" in (one[1], other[1]):
        return True
    return any(
        not (a[0] == b[0] == "~") and below(a.lstrip("~"), b.lstrip("~"))
        for a in one[2]["uses"]
        for b in other[2]["uses"]
    )


def below(a: str, b: str) -> bool:
    return a == b or a.startswith(f"{b}/") or b.startswith(f"{a}/")


@pytest.mark.parametrize("seed", range(4))
async def test_edits_of_one_file_in_one_step_never_race(
    root: Context, model: ScriptedModel, tmp_path: Path, seed: int
) -> None:
    loop = await mount(root, model)
    await root.plugin(LocalFileSystem)
    await root.plugin(observation)
    await root.plugin(fs_tools)
    rng = random.Random(seed)
    (tmp_path / "deep").mkdir()
    (tmp_path / "link").symlink_to("deep")
    names = {"a": "a.txt", "b": "deep/b.txt"}
    aliases = {
        "a": ["a.txt", "./a.txt", "deep/../a.txt", str(tmp_path / "a.txt")],
        "b": ["deep/b.txt", "link/b.txt", str(tmp_path / "link" / "b.txt")],
    }
    for path in names.values():
        (tmp_path / path).write_text("0\n")
    counts = {"a": 0, "b": 0}
    reads = [(f"r{key}", "read", json.dumps({"file_path": path})) for key, path in names.items()]
    edits = []
    for at in range(16):
        key = rng.choice("ab")
        old, counts[key] = counts[key], counts[key] + 1
        arguments = {
            "file_path": rng.choice(aliases[key]),
            "old_string": f"{old}\n",
            "new_string": f"{old + 1}\n",
        }
        edits.append((f"e{at}", "edit", json.dumps(arguments)))
    agent = await loop.agent(meta={"cwd": str(tmp_path)})
    model.will(calls(*reads, *edits), "done")

    agent.followup(user("count"))
    await agent.when_idle()

    assert [(call, text) for call, failed, text, _ in results(agent) if failed] == []
    for key, path in names.items():
        assert (tmp_path / path).read_text() == f"{counts[key]}\n"
