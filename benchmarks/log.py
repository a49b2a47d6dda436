"""The session log: appends, durable throughput, size on disk, resume.

Run ``python benchmarks/log.py``. Medians of several rounds; ratios are against the plainest way to
do the same in this process: appending to a list, and ``json.loads`` of every line.
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from dsh.base.json import dumps
from dsh.kernel import Context
from dsh.model.chunks import text_delta
from dsh.model.messages import create_assistant_message, create_user_message
from dsh.state.persistence.artifact.layout import Encoding
from dsh.state.persistence.artifact.store import ArtifactStore
from dsh.state.persistence.jsonl import JsonlPersistence
from dsh.state.persistence.sqlite import SqlitePersistence
from dsh.state.session.events import (
    ASSISTANT_CHUNK,
    ASSISTANT_MESSAGE,
    SESSION_EVENT,
    STEP_END,
    STEP_START,
    TURN_END,
    TURN_START,
    USER_MESSAGE,
    AssistantChunkData,
    AssistantMessageData,
    SessionEventAppended,
    StepData,
    TurnEndData,
    TurnStartData,
)
from dsh.state.session.session import Session
from dsh.state.session.store import LocalSessionStore

CHUNKS = 20_000
TURNS = 400
CHUNKS_A_TURN = 100
ROUNDS = 5
WORDS = [f"word {number} " for number in range(1000)]


def timed(work: Callable[[], object]) -> float:
    gc.collect()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def median(work: Callable[[], Callable[[], object]], rounds: int = ROUNDS) -> float:
    """Time what ``work`` prepares, several times."""
    return statistics.median(timed(work()) for _ in range(rounds))


def stream(session: Session, count: int) -> None:
    for number in range(count):
        chunk = text_delta(0, WORDS[number % 1000])
        session.append(ASSISTANT_CHUNK, AssistantChunkData(turn=1, step=1, chunk=chunk))


def conversation(turns: int = TURNS, chunks: int = CHUNKS_A_TURN) -> Session:
    session = Session.create("bench")
    for turn in range(1, turns + 1):
        session.append(TURN_START, TurnStartData(turn=turn))
        session.append(STEP_START, StepData(turn=turn, step=1))
        session.append(USER_MESSAGE, create_user_message(f"question {turn}"), surface_op="append")
        first = session.seq
        stream(session, chunks)
        blocks: Any = [{"type": "text", "text": "".join(WORDS[:chunks])}]
        session.append(
            ASSISTANT_MESSAGE,
            AssistantMessageData(
                turn=turn, step=1, message=create_assistant_message(blocks, "p", "m")
            ),
            surface_op="append",
            source_event_seqs=range(first, first + chunks),
        )
        session.append(STEP_END, StepData(turn=turn, step=1))
        session.append(TURN_END, TurnEndData(turn=turn, reason={"kind": "completed"}))
    return session


def show(label: str, figure: str, note: str = "") -> None:
    print(f"{label:<44} {figure:>14}  {note}")


def plain_list() -> Callable[[], object]:
    log: list[Any] = []

    def work() -> None:
        for number in range(CHUNKS):
            chunk = {"type": "text-delta", "index": 0, "text": WORDS[number % 1000]}
            log.append({"seq": len(log), "data": {"turn": 1, "step": 1, "chunk": chunk}})

    return work


async def appends(folder: Path) -> None:
    baseline = median(plain_list)
    show("list of dicts, one append", f"{baseline / CHUNKS * 1e6:.2f} us", "baseline")

    detached = median(lambda: lambda: stream(Session.create("s"), CHUNKS))
    show("append, detached", f"{detached / CHUNKS * 1e6:.2f} us", f"{detached / baseline:.1f}x")

    root = Context()
    await root.plugin(LocalSessionStore)
    store = root.require(LocalSessionStore)
    heard: list[SessionEventAppended] = []
    root.on(SESSION_EVENT, heard.append)
    root.on(SESSION_EVENT, lambda event: event.event["seq"])
    two, _ = await streamed(store, heard)
    show("append, two listeners", f"{two / CHUNKS * 1e6:.2f} us", f"{two / baseline:.1f}x")

    await root.plugin(JsonlPersistence, {"root": str(folder)})
    cost, flush = await streamed(store, heard)
    show(
        "append, two listeners and persistence",
        f"{cost / CHUNKS * 1e6:.2f} us",
        f"{cost / baseline:.1f}x",
    )
    show(f"flush of {CHUNKS:,} chunks", f"{flush * 1e3:.1f} ms")
    show("durable throughput", f"{CHUNKS / (cost + flush):,.0f} /s", "append and one flush")
    await steps(root, store)
    await root.fiber.dispose()


async def streamed(
    store: LocalSessionStore, heard: list[SessionEventAppended]
) -> tuple[float, float]:
    """Stream into live sessions, one after the other; return the medians of append and flush."""
    appends, flushes = [], []
    for _ in range(ROUNDS):
        session = store.prepare()
        detach = store.enter(session)
        store.announce(session)
        appends.append(timed(partial(stream, session, CHUNKS)))
        start = time.perf_counter()
        await store.flush(session)
        flushes.append(time.perf_counter() - start)
        detach()
        heard.clear()
    return statistics.median(appends), statistics.median(flushes)


async def durable(folder: Path) -> None:
    """Streams that are made durable all the time, beside the raw write of the same lines."""
    events = conversation(40).events
    lines = [dumps(event) + b"\n" for event in events]

    def raw() -> None:
        with (folder / "raw").open("wb") as file:
            for line in lines:
                file.write(line)

    speed = len(lines) / median(lambda: raw)
    show("raw buffered write of the lines", f"{speed:,.0f} /s", "baseline, nothing is durable")
    stores: list[tuple[str, Any, dict[str, Any]]] = [
        ("jsonl", JsonlPersistence, {"root": str(folder / "files")}),
        ("sqlite", SqlitePersistence, {"path": str(folder / "database" / "sessions.db")}),
    ]
    for name, plugin, config in stores:
        for sessions, batch in ((1, 500), (20, 50)):
            pace = await durable_pace(plugin, config, sessions, batch)
            label = f"durable, {name}, {sessions} x {batch} events a flush"
            show(label, f"{pace:,.0f} /s", f"1/{speed / pace:.0f} of raw")


async def durable_pace(plugin: Any, config: dict[str, Any], sessions: int, batch: int) -> float:
    """Return how many events a second are acknowledged as durable."""
    root = Context()
    await root.plugin(LocalSessionStore)
    await root.plugin(plugin, config)
    store = root.require(LocalSessionStore)
    rounds = 40_000 // (sessions * batch)

    async def work(number: int) -> None:
        session = store.prepare(f"{sessions}-{number}")
        detach = store.enter(session)
        store.announce(session)
        for _ in range(rounds):
            stream(session, batch // 2)
            for _ in range(batch // 4):
                session.append(TURN_START, TurnStartData(turn=1))
                session.append(TURN_END, TurnEndData(turn=1, reason={"kind": "completed"}))
            await store.flush(session)
        detach()

    start = time.perf_counter()
    await asyncio.gather(*map(work, range(sessions)))
    took = time.perf_counter() - start
    await root.fiber.dispose()
    return rounds * sessions * (batch // 2 + batch // 4 * 2) / took


async def steps(root: Context, store: LocalSessionStore) -> None:
    """The checkpoint in front of a tool: two events, then a flush."""
    session = store.create()
    gaps = []
    for turn in range(1, 201):
        session.append(TURN_START, TurnStartData(turn=turn))
        session.append(TURN_END, TurnEndData(turn=turn, reason={"kind": "completed"}))
        start = time.perf_counter()
        await store.flush(session)
        gaps.append(time.perf_counter() - start)
    late = statistics.median(gaps[-50:]) / statistics.median(gaps[:50])
    show("flush of two events", f"{statistics.median(gaps) * 1e6:.0f} us", f"last/first {late:.2f}")


def resumes(folder: Path) -> None:
    session = conversation()
    lines = [json.dumps(event) for event in session.events]
    baseline = median(lambda: lambda: [json.loads(line) for line in lines])
    size = sum(map(len, lines)) + len(lines)
    show(
        f"json.loads of {session.seq:,} lines",
        f"{baseline * 1e3:.1f} ms",
        f"baseline, {size / 1e6:.2f} MB",
    )
    for encoding in Encoding:
        for pack in (True, False):
            root = folder / f"{encoding.name}-{pack}"
            store = ArtifactStore(root, encoding, pack=pack)
            position = store.create(session.header, session.events)

            def resume(store: ArtifactStore = store) -> None:
                stored = store.load("bench")
                assert stored is not None
                Session.from_restore("bench", stored.events, stored.header).derive_messages()

            cost = median(lambda resume=resume: resume)
            label = f"resume, {encoding.name.lower()}{', packed' if pack else ''}"
            note = f"{cost / baseline:.1f}x, {position.size / 1e6:.2f} MB on disk"
            show(label, f"{cost * 1e3:.1f} ms", note)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(appends(Path(folder) / "sessions"))
        asyncio.run(durable(Path(folder)))
        resumes(Path(folder))


if __name__ == "__main__":
    main()
