"""The mode of each session, folded from its log, and the session's private folder."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, Field

from dsh.base.values import record
from dsh.capability.sandbox.escalation import escalate
from dsh.capability.sandbox.events import SANDBOX_MODE, SandboxModeSet
from dsh.capability.sandbox.folders import PrivateFolder, sweep
from dsh.capability.sandbox.service import (
    SANDBOX_MODES,
    EscalationRequest,
    ResolvedPolicy,
    SandboxMode,
    SandboxPolicy,
)
from dsh.control.approval.service import ApprovalService
from dsh.execution.prompt.service import AssembleContext, PromptContext, SystemPrompt
from dsh.state.session.service import SessionStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from dsh.kernel import Context
    from dsh.model.messages import SessionId
    from dsh.state.session.session import Session

_ORDER = 110


class SandboxPolicyConfig(BaseModel):
    """What holds where no session says otherwise."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    mode: SandboxMode = "read-only"
    workspace_root: Path | None = Field(default=None, alias="workspaceRoot")
    """Root of operations without a session directory; default: the process's own."""


@record
class _Fold:
    """The last mode in the first ``seen`` events of a log, and the root as its agent knows it."""

    seen: int = 0
    mode: SandboxMode | None = None
    told_root: Path | None = None


class SessionSandboxPolicy(SandboxPolicy):
    """Folds ``sandbox/mode`` events, reading each event of a log once."""

    inject = (SessionStore, SystemPrompt)
    Config = SandboxPolicyConfig

    def __init__(self, ctx: Context, config: SandboxPolicyConfig | None = None) -> None:
        super().__init__(ctx, config)
        config = config or SandboxPolicyConfig()
        self.default_mode = config.mode
        self.workspace_root = _canonical(config.workspace_root or Path.cwd())
        self._folds: WeakKeyDictionary[Session, _Fold] = WeakKeyDictionary()
        self._folder: PrivateFolder | None = None

    def start(self) -> Callable[[], Awaitable[None]]:
        """Declare the session event and tell agents the policy in force."""
        self.ctx.require(SessionStore).declare(SANDBOX_MODE)
        self.ctx.require(SystemPrompt).context(
            PromptContext("sandbox:policy", _ORDER, self._describe)
        )
        self.ctx.spawn(asyncio.to_thread(sweep), "sandbox-policy: sweep")
        return self._remove_folder

    def resolve(
        self, session: Session | None = None, mode: SandboxMode | None = None
    ) -> ResolvedPolicy:
        """See `SandboxPolicy`."""
        if session is None:
            root = self.workspace_root
            return ResolvedPolicy(mode or self.default_mode, root, None, self.temp_dir())
        return ResolvedPolicy(
            mode or self.override_of(session) or self.default_mode,
            self._root_of(session),
            session.id,
            self.temp_dir(session.id),
        )

    def override_of(self, session: Session) -> SandboxMode | None:
        """See `SandboxPolicy`."""
        fold = self._folds.setdefault(session, _Fold())
        events = session.events
        while fold.seen < len(events):
            event = events[fold.seen]
            if event["type"] == SANDBOX_MODE.name:
                fold.mode = _checked(event["data"].get("mode"), f"event {event['seq']}")
            fold.seen += 1
        return fold.mode

    def set_mode(
        self, session: Session, mode: SandboxMode, *, source: Literal["delegation"] | None = None
    ) -> None:
        """See `SandboxPolicy`."""
        data = SandboxModeSet(mode=_checked(mode, "the argument"))
        if source is not None:
            data["source"] = source
        session.append(SANDBOX_MODE, data)

    def temp_dir(self, session_id: SessionId | None = None) -> Path:
        """See `SandboxPolicy`."""
        # A hash, since an id that comes from outside may hold anything.
        name = hashlib.sha256(session_id.encode()).hexdigest()[:16] if session_id else "common"
        if self._folder is not None:
            try:
                return Path(self._folder.inner(name))
            except OSError:
                # Deleted by who tidies up, or swapped by a command: no use any more.
                self._folder.remove()
        self._folder = PrivateFolder()
        return Path(self._folder.inner(name))

    async def escalate(self, request: EscalationRequest) -> ResolvedPolicy:
        """See `SandboxPolicy`."""
        granted = await escalate(request, self.ctx.get(ApprovalService))
        if granted is None:
            return request.policy
        session = request.agent.session if request.agent else None
        return self.resolve(session, granted)

    def _root_of(self, session: Session) -> Path:
        cwd = session.header.get("cwd")
        return _canonical(Path(cwd)) if cwd else self.workspace_root

    def _describe(self, context: AssembleContext) -> str:
        if context.agent is None:
            return describe(self.default_mode, self.workspace_root)
        session = context.agent.session
        mode = self.override_of(session) or self.default_mode
        fold = self._folds[session]
        if fold.told_root is None:
            fold.told_root = self._root_of(session)
        return describe(mode, fold.told_root)

    async def _remove_folder(self) -> None:
        if self._folder is not None:
            await asyncio.to_thread(self._folder.remove)
            self._folder = None


plugin = SessionSandboxPolicy


def describe(mode: SandboxMode, workspace_root: Path) -> str:
    """Return what the model is told; the same text as long as mode and root stay."""
    if mode == "danger-full-access":
        return (
            "File access: danger-full-access. Commands and file tools are not confined; take care "
            "outside the workspace."
        )
    if mode == "read-only":
        return (
            f"File access: read-only. Commands and file tools may read every file; they can change "
            f"none, the workspace {workspace_root} included."
        )
    return (
        f"File access: workspace-write. Commands and file tools may read every file; they may "
        f"change files below the workspace {workspace_root} and in the folder that $TMPDIR "
        f"names, which is private to this session. Everywhere else writing is refused, /tmp "
        f"included."
    )


def _checked(mode: object, where: str) -> SandboxMode:
    if mode not in get_args(SandboxMode):
        raise ValueError(f"{where} names the sandbox mode {mode!r}; the modes are {SANDBOX_MODES}")
    return mode  # type: ignore[return-value]  # one of the literals, as just checked


def _canonical(path: Path) -> Path:
    return Path(os.path.realpath(path))
