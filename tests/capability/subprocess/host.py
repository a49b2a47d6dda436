"""A host that starts the command given as arguments and then only waits to be killed."""

from __future__ import annotations

import asyncio
import sys

from dsh.capability.subprocess.local import LocalSubprocess
from dsh.capability.subprocess.service import SpawnSpec, SubprocessRuntime
from dsh.kernel import Context


async def main() -> None:
    root = Context()
    await root.plugin(LocalSubprocess)
    spec = SpawnSpec(argv=sys.argv[1:], cwd="/", grace_s=0.2, stdout="inherit", stderr="inherit")
    await root.require(SubprocessRuntime).spawn(spec).wait()


asyncio.run(main())
