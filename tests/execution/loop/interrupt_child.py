"""A process that plays the turn of the interrupt matrix and signals itself in the middle.

Takes a folder for its sessions, the number of the callback and that of the signal.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from interrupt_world import at_resumption, mount_world

from dsh.kernel import Context
from dsh.loader.shutdown import ShutdownController
from dsh.state.persistence.jsonl import JsonlPersistence


async def main(folder: str, number: int, sent: signal.Signals) -> int:
    root = Context()
    world = await mount_world(root)
    await root.plugin(JsonlPersistence, {"root": folder})
    controller = ShutdownController(sigterm=143)
    controller.attach(root)
    with controller.signals():
        handle = await world.start("s")
        with at_resumption(number, lambda: os.kill(os.getpid(), sent)):
            await handle.agent.when_idle()
        return await controller.finished()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1], int(sys.argv[2]), signal.Signals(int(sys.argv[3])))))
