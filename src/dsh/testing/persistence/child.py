"""A process that writes a session: a turn for each line it reads, until there are no more."""

from __future__ import annotations

import asyncio
import json
import sys

from dsh.base.errors import DshError
from dsh.state.persistence.errors import SessionNotFound
from dsh.testing.persistence.logs import whole_turn
from dsh.testing.persistence.medium import Host, Medium


async def main(plugin: str, config: str, id: str) -> None:
    """Resume the session, or create it; answer each line with how many events are durable."""
    host = await Host(Medium(plugin, json.loads(config))).open()
    try:
        session = await host.resume(id)
    except SessionNotFound:
        session = host.store.create(id, meta={"cwd": "/w"})
    turn = 0
    while await asyncio.to_thread(sys.stdin.readline):
        turn += 1
        whole_turn(session, turn)
        try:
            await host.store.flush(session)
            answer = str(session.seq)
        except DshError as error:
            answer = error.code
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
