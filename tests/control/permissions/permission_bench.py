"""The presets over the real policies, and agents as far as presets need them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsh.capability.sandbox.local import LocalSandbox
from dsh.capability.sandbox.policy import SessionSandboxPolicy
from dsh.capability.sandbox.service import SandboxPolicy
from dsh.capability.shell.sandboxed import SandboxedShell
from dsh.capability.subprocess.local import LocalSubprocess
from dsh.control.approval.policy import PolicyApproval
from dsh.control.permissions.presets import TablePresets
from dsh.control.permissions.service import PermissionPresetService
from dsh.execution.prompt.assembly import LayeredSystemPrompt
from dsh.kernel import Context, Fiber, create_scope
from dsh.model.messages import UserMessage
from dsh.state.session.session import Session
from dsh.state.session.store import LocalSessionStore
from dsh.state.settings.file import FileSettings

TABLE = {
    "read-only": {"sandbox": "read-only", "approval": "ask"},
    "workspace-write": {"sandbox": "workspace-write", "approval": "ask", "name": "Workspace"},
    "danger-full-access": {
        "sandbox": "danger-full-access",
        "approval": "never",
        "description": "Nothing is confined.",
    },
}
KINDS = ("permission/preset", "sandbox/mode", "approval/policy")


class FakeAgent:
    """A session, a scope, and what it was told."""

    def __init__(self, session: Session, ctx: Context) -> None:
        self.id, self.session = session.id, session
        self.told: list[UserMessage] = []
        self.ctx = create_scope(ctx, self).ctx

    def inject(self, message: UserMessage) -> None:
        self.told.append(message)


class Bench:
    """One process with the row ``permission`` on demand."""

    def __init__(self, root: Context) -> None:
        self.root = root
        self.fiber: Fiber

    @property
    def presets(self) -> PermissionPresetService:
        return self.root.require(PermissionPresetService)

    @property
    def store(self) -> LocalSessionStore:
        return self.root.require(LocalSessionStore)

    @property
    def sandbox(self) -> SandboxPolicy:
        return self.root.require(SandboxPolicy)

    async def mount(self, **config: Any) -> Bench:
        self.fiber = self.root.plugin(TablePresets, {"presets": TABLE, **config})
        await self.fiber
        return self

    def session(self, id: str | None = None, **options: Any) -> Session:
        return self.store.create(id, **options)


async def ground(
    root: Context,
    *,
    mode: str = "workspace-write",
    policy: str = "ask",
    settings: Path | None = None,
) -> Bench:
    if settings is not None:
        await root.plugin(FileSettings, {"path": str(settings), "watch": False})
    await root.plugin(LocalSessionStore)
    await root.plugin(LayeredSystemPrompt)
    await root.plugin(LocalSubprocess)
    await root.plugin(LocalSandbox)
    await root.plugin(SessionSandboxPolicy, {"mode": mode})
    await root.plugin(SandboxedShell)
    await root.plugin(PolicyApproval, {"policy": policy})
    return Bench(root)


def stated(session: Session) -> list[tuple[str, Any]]:
    """The facts about permissions in the log, in order."""
    found: list[tuple[str, Any]] = []
    for event in session.events:
        if event["type"] in KINDS:
            data: Mapping[str, Any] = event["data"]
            found.append((event["type"], next(iter(data.values()))))
    return found
