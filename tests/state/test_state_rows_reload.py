"""Rows of the state floor come and go without leaving anything behind."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dsh.capability.attachments import local as attachments
from dsh.kernel import Context
from dsh.kernel.timer import Timer
from dsh.model.messages import create_user_message
from dsh.state.feedback import stored as feedback
from dsh.state.persistence.jsonl import JsonlPersistence
from dsh.state.projections import cache, registry, stats
from dsh.state.session.events import TURN_END, TURN_START, USER_MESSAGE
from dsh.state.session.service import SessionStore
from dsh.state.session.session import Session
from dsh.state.session.store import LocalSessionStore
from dsh.state.storage import hub, json_files, sqlite
from dsh.state.storage.domain import facility
from dsh.state.telemetry import otel
from dsh.state.titles import keeper

TIMES = 50
ROWS = (
    "session-projection",
    "session-stats",
    "session-title",
    "storage",
    "storage-json",
    "storage-sqlite",
    "storage-domain",
    "session-projection-cache",
    "message-feedback",
    "session-telemetry-otel",
    "attachment-local",
)


def plugins(folder: Path) -> dict[str, tuple[Any, Any]]:
    titles = {"fallbackMaxWords": 5, "fallbackMaxBytes": 40, "maxTitleBytes": 80}
    routes = {"backend": "json", "routes": {"message_feedback": "sqlite"}}
    configs: dict[str, tuple[Any, Any]] = {
        "session-projection": (registry.plugin, None),
        "session-stats": (stats, None),
        "session-title": (keeper.plugin, titles),
        "storage": (hub.plugin, None),
        "storage-json": (json_files, {"root": str(folder / "storages")}),
        "storage-sqlite": (sqlite, {"path": str(folder / "records.db")}),
        "storage-domain": (facility, routes),
        "session-projection-cache": (
            cache.plugin,
            {"writeEveryEvents": 2, "writeIntervalMs": 5},
        ),
        "message-feedback": (feedback.plugin, {"maxNoteBytes": 100}),
        "session-telemetry-otel": (otel.plugin, None),
        "attachment-local": (attachments.plugin, {"dshHome": str(folder)}),
    }
    return configs


def turn(session: Session, number: int) -> None:
    session.append(TURN_START, {"turn": number})
    session.append(USER_MESSAGE, create_user_message("hello"), surface_op="append")
    session.append(TURN_END, {"turn": number, "reason": {"kind": "completed"}})


async def quiet() -> None:
    """Let background work come to its end, and drop the timers that were cancelled.

    The loop keeps those, and all that they could have reached, until they would have been due.
    """
    loop = asyncio.get_running_loop()
    with pytest.MonkeyPatch.context() as patched:
        now = loop.time
        patched.setattr(loop, "time", lambda: now() + 3600)
        for _ in range(20):
            await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0.001)


def census() -> Counter[str]:
    """Count what belongs to us: objects, threads, open files. The log itself grows."""
    gc.collect()
    gc.collect()
    modules = ((str(type(each).__module__), type(each).__name__) for each in gc.get_objects())
    found = Counter(f"{m}.{n}" for m, n in modules if m.startswith("dsh.") and "Frozen" not in n)
    found["open files"] = len(os.listdir("/proc/self/fd"))
    ours = [each.name for each in threading.enumerate() if not each.name.startswith("asyncio")]
    found["threads"] = len(ours)
    return found


@pytest.mark.parametrize("row", ROWS)
async def test_a_row_that_comes_and_goes_leaves_nothing(
    row: str, root: Context, tmp_path: Path
) -> None:
    await root.plugin(LocalSessionStore)
    await root.plugin(JsonlPersistence, {"root": str(tmp_path / "sessions")})
    if root.get(Timer) is None:
        await root.plugin(Timer)
    rows = plugins(tmp_path)
    mounted = {name: await root.plugin(plugin, config) for name, (plugin, config) in rows.items()}
    session = root.require(SessionStore).create("s1")
    numbers = iter(range(1, 1000))

    async def replace(times: int) -> None:
        for _ in range(times):
            await mounted[row].dispose()
            plugin, config = rows[row]
            mounted[row] = await root.plugin(plugin, config)
            turn(session, next(numbers))
            await asyncio.sleep(0.001)
        await quiet()

    await replace(3)
    before = census()
    await replace(TIMES)
    grown = {name: count - before[name] for name, count in census().items()}
    assert {name: more for name, more in grown.items() if more > 5} == {}
