"""A process that writes one namespace of a settings document again and again.

Usage: python writing_child.py PATH NAMESPACE COUNT
"""

from __future__ import annotations

import asyncio
import sys

from pydantic import BaseModel, ConfigDict

from dsh.kernel import Context
from dsh.state.settings import SettingsProvider
from dsh.state.settings.file import FileSettings


class Counter(BaseModel):
    model_config = ConfigDict(frozen=True)

    number: int = 0


async def main(path: str, ns: str, count: int) -> None:
    root = Context()
    await root.plugin(FileSettings, {"path": path})
    scope = root.require(SettingsProvider).register(ns, Counter)
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(1, count + 1):
        await scope.update({"number": number})
    await root.dispose()


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
