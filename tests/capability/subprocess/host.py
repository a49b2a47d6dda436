"""A host that starts the command given after a grace period, and then waits to be killed."""

from __future__ import annotations

import asyncio
import sys

from dsh.capability.subprocess.local import LocalSubprocess
from dsh.capability.subprocess.service import SpawnSpec, SubprocessRuntime
from dsh.kernel import Context


async def main() -> None:
    root = Context()
    await root.plugin(LocalSubprocess)
    grace_s, *argv = sys.argv[1:]
    spec = SpawnSpec(argv=argv, cwd="/", grace_s=float(grace_s), stdout="inherit", stderr="inherit")
    await root.require(SubprocessRuntime).spawn(spec).wait()


asyncio.run(main())
