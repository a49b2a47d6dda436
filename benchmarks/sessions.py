"""Many sessions in one process: what an append costs the loop, how late it gets, what it holds.

Run ``python benchmarks/sessions.py``. Everything runs in the profile ``headless`` with a pretended
model, each store in a process of its own. The lag is how late a task wakes that sleeps for a
millisecond; beside it stands that of the same process when nothing happens.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dsh.execution.agent.service import Agent, AgentOptions, AgentRegistry, CreateAgent
from dsh.kernel import Context
from dsh.loader.boot import Launch, boot
from dsh.loader.compose import Layer, compose_profile
from dsh.loader.environment import LaunchEnvironment
from dsh.loader.host import AppExit, CommandLine
from dsh.model.chunks import text_delta
from dsh.model.messages import SessionId, create_user_message
from dsh.state.session.events import ASSISTANT_CHUNK, AssistantChunkData
from dsh.state.session.service import SessionStore
from report import compiled, lag_of_the_loop, table

STREAMS = 50
IDLE = 1_000
CHUNKS = 200
PAUSE_MS = 10
APPENDS = 20_000
STORES: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("", {}),
    "jsonl": ("dsh.state.persistence.jsonl", {"root": "sessions"}),
    "sqlite": ("dsh.state.persistence.sqlite", {"path": "store/sessions.db"}),
}


async def house(folder: Path, store: str) -> Context:
    """Boot the profile with a store in a folder."""
    script = folder / "script.json"
    file = folder / "note.txt"
    file.write_text("a note\n" * 50)
    reply = {"text": ["word "] * CHUNKS, "delay_ms": PAUSE_MS}
    call = {"name": "read", "arguments": {"file_path": str(file)}}
    replies = [{**reply, "calls": [call]}, reply]
    script.write_text(json.dumps({"order": "history", "replies": replies}))
    patches: list[dict[str, Any]] = [
        {"id": "headless-runner", "disabled": True},
        {"id": "headless-startup", "disabled": True},
        {"id": "llm-deepseek", "disabled": True},
        {"id": "session-persistence-jsonl", "disabled": True},
        {"id": "agent-default-model", "config": {"provider": "rehearsal", "model": "m"}},
        {
            "insert": [
                {
                    "id": "llm-rehearsal",
                    "name": "dsh.model.adapters.rehearsal",
                    "config": {"script": str(script)},
                }
            ]
        },
    ]
    module, config = STORES[store]
    if module:
        places = {key: str(folder / value) for key, value in config.items()}
        patches.append({"insert": [{"id": "store", "name": module, "config": places}]})
    root = Context()
    composition = compose_profile(
        "headless", folder / "home", user_layers=False, overlays=[Layer("bench", patches)]
    )
    launch = Launch(
        composition=composition,
        home=folder / "home",
        environment=LaunchEnvironment({"DSH_SESSION_INVARIANTS": "0"}),
        cmdline=CommandLine(),
        cwd=str(folder),
        say=lambda line: None,
    )
    await boot(root, launch, AppExit(lambda _: None))
    return root


async def create(root: Context, name: str, cwd: Path) -> Agent:
    options = AgentOptions(provider="rehearsal", model="m")
    asked = CreateAgent(session_id=SessionId(name), agent_options=options, meta={"cwd": str(cwd)})
    return (await root.require(AgentRegistry).create(asked)).agent


async def turn(agent: Agent) -> None:
    agent.followup(create_user_message("go on"))
    await agent.when_idle()


def quantile(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def spread(values: Sequence[float]) -> list[float]:
    """Return the median, the 99th percentile and the worst."""
    return [quantile(values, 0.5), quantile(values, 0.99), max(values)]


async def streaming(folder: Path, store: str) -> dict[str, Any]:
    """Let sessions stream at once."""
    root = await house(folder, store)
    agents = [await create(root, f"s{number}", folder) for number in range(STREAMS)]
    idle: list[float] = []
    async with lag_of_the_loop(idle):
        await asyncio.sleep(1)
    lags: list[float] = []
    start, used = time.perf_counter(), time.process_time()
    async with lag_of_the_loop(lags):
        await asyncio.gather(*map(turn, agents))
    took, used = time.perf_counter() - start, time.process_time() - used
    events = sum(agent.session.seq for agent in agents)
    reasons = [agent.session.events[-1]["data"].get("reason") for agent in agents]
    assert reasons == [{"kind": "completed"}] * STREAMS, reasons[0]
    await root.dispose()
    return {
        "idle": spread(idle),
        "lags": spread(lags),
        "pace": events / took,
        "busy": used / took,
    }


async def appends(folder: Path, store: str) -> dict[str, Any]:
    """Append to one session, and let the loop run now and then."""
    root = await house(folder, store)
    session = root.require(SessionStore).create("one")
    times = []
    for number in range(APPENDS):
        data = AssistantChunkData(turn=1, step=1, chunk=text_delta(0, f"word {number} "))
        start = time.perf_counter()
        session.append(ASSISTANT_CHUNK, data)
        times.append((time.perf_counter() - start) * 1e6)
        if number % 100 == 0:
            await asyncio.sleep(0)
    await root.require(SessionStore).flush(session)
    await root.dispose()
    return {"appends": spread(times)}


async def idling(folder: Path, store: str) -> dict[str, Any]:
    """Hold many sessions that had a turn each."""
    root = await house(folder, store)
    await turn(await create(root, "warm", folder))
    gc.collect()
    before = held()
    for number in range(0, IDLE, STREAMS):
        some = [await create(root, f"s{number + each}", folder) for each in range(STREAMS)]
        await asyncio.gather(*map(turn, some))
    gc.collect()
    after = held()
    lags: list[float] = []
    used = time.process_time()
    async with lag_of_the_loop(lags):
        await asyncio.sleep(2)
    used = time.process_time() - used
    await root.dispose()
    return {"before": before, "after": after, "lags": spread(lags), "busy": used / 2}


def held() -> float:
    """Return the resident size of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / (1 << 20)


def measure(what: str, store: str) -> dict[str, Any]:
    """Measure in a process of its own."""
    command = [sys.executable, __file__, "--child", what, store]
    done = subprocess.run(command, stdout=subprocess.PIPE, env=compiled(), check=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def child(what: str, store: str) -> None:
    if what == "idling":
        global CHUNKS, PAUSE_MS
        CHUNKS, PAUSE_MS = 10, 0
    work = {"streaming": streaming, "appends": appends, "idling": idling}[what]
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asyncio.run(work(Path(folder).resolve(), store))))


def show() -> None:
    rows = [["append on the loop, us", "p50 (aim: < 20)", "p99", "worst"]]
    for store in STORES:
        figures = measure("appends", store)
        rows.append([store, *(f"{value:.1f}" for value in figures["appends"])])
    table(rows)
    head = f"lag of the loop, {STREAMS} sessions streaming, ms"
    rows = [[head, "p50", "p99 (aim: < 20)", "worst", "idle p99", "events/s", "CPU"]]
    for store in STORES:
        figures = measure("streaming", store)
        cells = [f"{value:.2f}" for value in (*figures["lags"], figures["idle"][1])]
        rows.append([store, *cells, f"{figures['pace']:,.0f}", f"{figures['busy']:.0%}"])
    table(rows)
    head = f"{IDLE:,} idle sessions of a turn"
    rows = [[head, "MB before", "MB (aim: < 200)", "KB a session", "lag p99, ms", "CPU"]]
    for store in STORES:
        figures = measure("idling", store)
        before, after = figures["before"], figures["after"]
        cells = [f"{before:.0f}", f"{after:.0f}", f"{(after - before) * 1024 / IDLE:.0f}"]
        rows.append([store, *cells, f"{figures['lags'][1]:.2f}", f"{figures['busy']:.0%}"])
    table(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=2, metavar=("WHAT", "STORE"))
    options = parser.parse_args()
    if options.child is None:
        show()
    else:
        child(*options.child)


if __name__ == "__main__":
    main()
