"""A process whose agent waits for approval for ever; prints the id once the question is stored."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from late_house import House
from loop_harness import calls, user


async def main(folder: str) -> None:
    house = await House(Path(folder)).open()
    house.model.will(calls(("c1", "deploy", '{"target": "live"}')))
    agent = await house.loop.agent()
    agent.followup(user("release"))
    request = await house.desk.asked(1)
    await house.store.flush(agent.session)
    print(request.id, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
