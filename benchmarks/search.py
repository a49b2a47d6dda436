"""Full-text search over stored sessions: time to index, first page, lag of the loop meanwhile.

Run ``python benchmarks/search.py [SESSIONS]``. Searches are ratios against reading every text from
memory, which is what a search without an index would do if nothing were on disk.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from dsh.kernel import Context
from dsh.model.messages import create_assistant_message, create_user_message
from dsh.state.persistence.jsonl import JsonlPersistence
from dsh.state.persistence.service import SessionPersistence
from dsh.state.persistence.sqlite import SqlitePersistence
from dsh.state.query.service import SessionQuery, SessionSearch
from dsh.state.query.sqlite import SqliteSessionQuery
from dsh.state.query.text import folded, plain, searchable_text
from dsh.state.session.events import (
    ASSISTANT_MESSAGE,
    TURN_END,
    TURN_START,
    USER_MESSAGE,
    AssistantMessageData,
    TurnEndData,
    TurnStartData,
)
from dsh.state.session.service import SessionStore
from dsh.state.session.session import Session
from dsh.state.session.store import LocalSessionStore
from report import lag_of_the_loop, table

SESSIONS = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
TURNS = 20
ROUNDS = 15
WORDS = [f"word{number}" for number in range(3000)] + [
    "retry",
    "backoff",
    "the",
    "搜索引擎",
    "会话",
]
QUERIES = ("retry", "word17", "the word1", "retry backoff", "搜索", "索引", "or", "nowhere at all")


def conversation(id: str, dice: random.Random) -> Session:
    session = Session.create(id)
    for turn in range(1, TURNS + 1):
        session.append(TURN_START, TurnStartData(turn=turn))
        text = " ".join(dice.choices(WORDS, k=20))
        session.append(USER_MESSAGE, create_user_message(text), surface_op="append")
        blocks: Any = [{"type": "text", "text": " ".join(dice.choices(WORDS, k=120))}]
        message = create_assistant_message(blocks, "rehearsal", "m1")
        data = AssistantMessageData(turn=turn, step=1, message=message)
        session.append(ASSISTANT_MESSAGE, data, surface_op="append")
        session.append(TURN_END, TurnEndData(turn=turn, reason={"kind": "completed"}))
    return session


async def fill(persistence: SessionPersistence) -> list[str]:
    dice = random.Random(1)
    texts: list[str] = []
    for number in range(SESSIONS):
        session = conversation(f"s{number}", dice)
        await persistence.create(session.header)
        await persistence.append(session.id, session.events)
        found = map(searchable_text, session.events)
        texts += [folded(plain(text)) for text in found if text is not None]
    return texts


async def median_ms(work: Callable[[], Awaitable[object]]) -> float:
    samples = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        await work()
        samples.append((time.perf_counter() - start) * 1000)
    return statistics.median(samples)


async def measure(name: str, provider: Any, config: dict[str, Any]) -> None:
    root = Context()
    await root.plugin(LocalSessionStore)
    await root.plugin(provider, config)
    texts = await fill(root.require(SessionPersistence))
    lags: list[float] = []
    idle: list[float] = []
    async with lag_of_the_loop(idle):
        await asyncio.sleep(1)
    await root.plugin(SqliteSessionQuery, {"path": ":memory:", "openAt": "first-search"})
    query = root.require(SessionQuery)
    start = time.perf_counter()
    async with lag_of_the_loop(lags):
        await query.search_sessions(SessionSearch(query="retry"))
    took = time.perf_counter() - start
    size = sum(map(len, texts)) / 1e6
    print(
        f"\n{name}: {SESSIONS} sessions, {len(texts)} texts, {size:.1f} MB, indexed in {took:.2f} s"
    )
    lags.sort()
    idle.sort()
    print(
        f"lag of the loop while indexing: p50 {statistics.median(lags):.2f} ms, "
        f"p99 {lags[int(len(lags) * 0.99)]:.2f} ms, worst {lags[-1]:.2f} ms "
        f"(idle: p99 {idle[int(len(idle) * 0.99)]:.2f} ms)"
    )
    await searches(root, query, texts)
    await root.dispose()


async def searches(root: Context, query: SessionQuery, texts: list[str]) -> None:
    persistence = root.require(SessionPersistence)
    listing = await median_ms(persistence.list_snapshots)
    live = conversation("live", random.Random(2))
    session = root.require(SessionStore).create("live", seed=live.events)
    rows = [["first page of", "ms", "of it listing", "scan in memory", "ratio"]]

    async def scan(needle: str) -> int:
        return sum(needle in text for text in texts)

    for text in QUERIES:
        page = await median_ms(lambda text=text: query.search_sessions(SessionSearch(query=text)))
        naive = await median_ms(lambda text=text: scan(text))
        rows.append(
            [repr(text), f"{page:.1f}", f"{listing:.1f}", f"{naive:.1f}", f"{page / naive:.2f}"]
        )

    async def after_an_event() -> None:
        session.append(USER_MESSAGE, create_user_message("one more"), surface_op="append")
        await query.search_sessions(SessionSearch(query="one more"))

    grown = await median_ms(after_an_event)
    rows.append(["'one more', just said", f"{grown:.1f}", f"{listing:.1f}", "", ""])
    table(rows)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        await measure("files", JsonlPersistence, {"root": str(Path(folder) / "sessions")})
        await measure("SQLite", SqlitePersistence, {"path": str(Path(folder) / "sessions.db")})


if __name__ == "__main__":
    asyncio.run(main())
