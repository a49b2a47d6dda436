"""Writes two sessions into a database and waits, with a turn and its tool open.

It answers with how many events one of them had after each commit.
"""

from __future__ import annotations

import asyncio
import json
import sys

from state_logs import call, open_turn, reply, say, whole_turn

from dsh.testing.persistence.medium import Host, Medium


async def main(path: str) -> None:
    host = await Host(
        Medium("dsh.state.persistence.sqlite:SqlitePersistence", {"path": path})
    ).open()
    session, other = host.store.create("s"), host.store.create("other")
    commits = [0]

    async def commit() -> None:
        await host.flush(session)
        commits.append(session.seq)

    for turn in (1, 2):
        whole_turn(session, turn, words=20)
        await commit()
        whole_turn(other, turn, words=20)
        await host.flush(other)
    open_turn(session, 3)
    say(session, "a question " * 1000)
    await commit()
    reply(session, calls={"c1": "bash"})
    await commit()
    call(session, "c1", "bash")
    await commit()
    print(json.dumps(commits), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
