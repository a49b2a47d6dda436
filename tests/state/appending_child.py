"""Appends to a session as fast as it can, and says after each flush how much is durable."""

from __future__ import annotations

import asyncio
import sys

from state_logs import call, chunk, close_turn, open_turn, reply, say

from dsh.kernel import Context
from dsh.model.chunks import text_delta
from dsh.state.persistence.jsonl import JsonlPersistence
from dsh.state.session.store import LocalSessionStore


async def main(root: str, compression: str) -> None:
    context = Context()
    await context.plugin(LocalSessionStore)
    config = {"root": root, "compression": compression, "writeBatchMaxDelayMs": 1}
    await context.plugin(JsonlPersistence, config)
    store = context.require(LocalSessionStore)
    session = store.create("victim", meta={"cwd": "/w"})
    turn = 0
    while True:
        turn += 1
        open_turn(session, turn)
        say(session, f"question {turn}")
        for number in range(200):
            chunk(session, text_delta(0, f"word {number} "), turn=turn)
            if number % 50 == 0:
                await asyncio.sleep(0.001)
        reply(session, "", calls={f"c{turn}": "bash"})
        call(session, f"c{turn}")
        await store.flush(session)
        sys.stdout.write(f"{session.seq}\n")
        sys.stdout.flush()
        await asyncio.sleep(0.002)
        close_turn(session, turn)


asyncio.run(main(*sys.argv[1:]))
