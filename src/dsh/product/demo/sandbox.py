"""Whether commands can be confined on this machine."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


async def sandbox_problem() -> str | None:
    """Try the sandbox; return why it cannot confine commands, or ``None`` when it can."""
    from dsh.capability.sandbox.local import plugin as sandbox_plugin
    from dsh.capability.sandbox.service import (
        ResolvedPolicy,
        SandboxProvider,
        SandboxUnavailable,
    )
    from dsh.capability.subprocess.local import plugin as subprocess_plugin
    from dsh.kernel import Context

    folder = Path(os.path.realpath(tempfile.gettempdir()))  # noqa: ASYNC240 - nothing else runs
    root = Context()
    await root.plugin(subprocess_plugin)
    await root.plugin(sandbox_plugin)
    policy = ResolvedPolicy(
        mode="read-only", workspace_root=folder, session_id=None, temp_dir=folder
    )
    try:
        await root.require(SandboxProvider).confine(["true"], policy)
    except SandboxUnavailable as error:
        return error.message
    finally:
        await root.dispose()
    return None
