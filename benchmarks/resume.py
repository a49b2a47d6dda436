"""Opening a large session: time against ``json.loads`` of its lines, memory against its events.

Run ``python benchmarks/resume.py``. The log has 100,000 events, most of them chunks. Memory is that
of a fresh process that reads a log of the size given by ``--mb`` (128).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsh.kernel import Context
from dsh.model.messages import create_user_message
from dsh.state.persistence.artifact.layout import Encoding
from dsh.state.persistence.artifact.store import ArtifactStore
from dsh.state.persistence.jsonl import JsonlPersistence
from dsh.state.session.events import USER_MESSAGE
from dsh.state.session.session import Session
from dsh.state.session.store import LocalSessionStore
from log import conversation, show

EVENTS = 100_000
ROUNDS = 3


def timed(work: Callable[[], object]) -> float:
    """Return the median of some rounds, in seconds."""
    figures = []
    for _ in range(ROUNDS):
        gc.collect()
        start = time.perf_counter()
        work()
        figures.append(time.perf_counter() - start)
    return statistics.median(figures)


def opened(store: ArtifactStore) -> list[Any]:
    """Open the session and derive its messages, as a resumption does."""
    stored = store.load("bench")
    assert stored is not None
    return Session.from_restore("bench", stored.events, stored.header).derive_messages()


def times(folder: Path) -> None:
    session = conversation(turns=EVENTS // 106 + 1, chunks=100)
    lines = [json.dumps(event) for event in session.events]
    baseline = timed(lambda: [json.loads(line) for line in lines])
    show(f"json.loads of {len(lines):,} lines", f"{baseline * 1e3:.0f} ms", "baseline")
    for encoding in Encoding:
        for pack in (True, False):
            store = ArtifactStore(folder / f"{encoding.name}-{pack}", encoding, pack=pack)
            store.create(session.header, session.events)
            cost = timed(lambda store=store: opened(store))
            label = f"open and derive, {encoding.name.lower()}{', packed' if pack else ''}"
            show(label, f"{cost * 1e3:.0f} ms", f"{cost / baseline:.2f}x")
    live = Session.from_restore("bench", list(session.events), session.header)
    show("derive again, nothing new", f"{timed(live.derive_messages) * 1e6:.0f} us")


def memory(folder: Path, megabytes: int) -> None:
    for encoding in Encoding:
        root = folder / f"memory-{encoding.name}"
        store = ArtifactStore(root, encoding, sync=lambda fd: None)
        session = Session.create("bench")
        session.append(USER_MESSAGE, create_user_message("first"), surface_op="append")
        position = store.create(session.header, session.events)
        number = 0
        while session.seq * 10_000 < megabytes << 20:
            first = session.seq
            for _ in range(50):
                number += 1
                text = f"{number} " * (10_000 // (len(str(number)) + 1))
                session.append(USER_MESSAGE, create_user_message(text), surface_op="append")
            position = store.append("bench", position, session.events[first:])
        command = [sys.executable, __file__, "--child", str(position.path)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        held, peak = map(int, done.stdout.split())
        label = f"memory, {encoding.name.lower()}, {megabytes} MB of events"
        note = f"peak {peak >> 20} MB, {peak / held:.2f}x of what is held after"
        show(label, f"{held >> 20} MB", note)


def child(path: Path) -> None:
    """Print what this process holds after resuming a session, and the most it held."""
    session = asyncio.run(resumed(path.parents[2]))
    messages = session.derive_messages()
    gc.collect()
    # The peak of getrusage would be that of the parent, which an exec hands on.
    lines = Path("/proc/self/status").read_text().splitlines()
    sizes = {line.split()[0]: line.split()[1] for line in lines if line.startswith("Vm")}
    print(int(sizes["VmRSS:"]) * 1024, int(sizes["VmHWM:"]) * 1024)
    del messages


async def resumed(root: Path) -> Session:
    """Resume the session as an agent does: repaired, held and whole."""
    context = Context()
    await context.plugin(LocalSessionStore)
    await context.plugin(JsonlPersistence, {"root": str(root)})
    with await context.require(JsonlPersistence).prepare("bench") as preparation:
        session = preparation.session
    await context.dispose()
    return session


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=128)
    parser.add_argument("--child", type=Path)
    options = parser.parse_args()
    if options.child is not None:
        child(options.child)
        return
    with tempfile.TemporaryDirectory() as folder:
        times(Path(folder))
        memory(Path(folder), options.mb)


if __name__ == "__main__":
    main()
