"""Looks at what can confine commands here."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from dsh.capability.sandbox.service import SandboxPolicy, SandboxProvider
from dsh.product.doctor.findings import Case, Finding

if TYPE_CHECKING:
    from dsh.capability.sandbox.local import LocalSandbox
    from dsh.kernel import Context

TOPIC: Final = "sandbox"
_NONE: Final = (
    "install bubblewrap, or use a Linux kernel from 5.13 on with Landlock; without one, commands "
    "run only under DSH_PERMISSION_MODE=danger-full-access"
)


def look_at_sandbox(case: Case) -> Iterator[Finding]:
    """Say which backends work here, without a profile."""
    yield from asyncio.run(_on_own_tree())


async def find_sandbox(root: Context) -> list[Finding]:
    """Return what confines commands in a mounted tree.

    Nothing when the tree has no sandbox at work: its row says why.
    """
    from dsh.capability.sandbox.local import LocalSandbox

    sandbox = root.get(SandboxProvider)
    policy = root.get(SandboxPolicy)
    if not isinstance(sandbox, LocalSandbox):
        return []
    mode = policy.default_mode if policy is not None else None
    found = list(_verdicts(sandbox, await sandbox.survey(), mode))
    if mode == "danger-full-access":
        remedy = "unset DSH_PERMISSION_MODE, or set it to workspace-write, to confine them"
        what = "commands are not confined: the mode is danger-full-access"
        found.append(Finding("warning", TOPIC, what, remedy=remedy))
    return found


def _verdicts(
    sandbox: LocalSandbox, backends: dict[str, str | None], mode: str | None
) -> Iterator[Finding]:
    if sandbox.config is not None and sandbox.config.runner_command:
        yield Finding("ok", TOPIC, "commands are confined by the runner of the row sandbox")
        return
    works = [name for name, problem in backends.items() if problem is None]
    if works:
        free = mode == "danger-full-access"
        confined = "can be confined" if free else "are confined"
        where = f", in mode {mode}" if mode and not free else ""
        more = f"; {', '.join(works[1:])} would work, too" if len(works) > 1 else ""
        yield Finding("ok", TOPIC, f"commands {confined} by {works[0]}{where}{more}")
    for name, problem in backends.items():
        if problem is not None:
            level = "note" if works else "warning"
            yield Finding(level, TOPIC, f"{name} does not work here: {problem}", remedy=_ways(name))  # type: ignore[arg-type]
    if not works:
        level = "warning" if mode == "danger-full-access" else "error"
        system = "" if sys.platform == "linux" else f" on {sys.platform}"
        what = f"nothing can confine commands here{system}, so none is run"
        yield Finding(level, TOPIC, what, remedy=_NONE)  # type: ignore[arg-type]


def _ways(name: str) -> str:
    if name == "bwrap":
        return "install bubblewrap; in a container, allow it to make namespaces"
    return "use a kernel from 5.13 on with Landlock switched on"


async def _on_own_tree() -> list[Finding]:
    """Try the backends with the plugins' defaults."""
    from dsh.capability.sandbox.local import LocalSandbox
    from dsh.capability.subprocess.local import LocalSubprocess
    from dsh.kernel import Context

    root = Context()
    try:
        await root.plugin(LocalSubprocess)
        await root.plugin(LocalSandbox)
        sandbox = root.require(LocalSandbox)
        return list(_verdicts(sandbox, await sandbox.survey(), None))
    finally:
        await root.dispose()
