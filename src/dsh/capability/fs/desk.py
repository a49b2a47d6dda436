"""What the file tools have in common: where a call works, what it may do, what it tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from dsh.capability.fs.events import (
    FS_EDIT_INTENT,
    FS_OBSERVED,
    FS_WRITE_INTENT,
    FsEditIntent,
    FsObservation,
    FsObserved,
    FsWriteIntent,
)
from dsh.capability.fs.service import (
    EditExpectation,
    FileSystem,
    FsError,
    FsErrorCode,
    FsTarget,
    WriteExpectation,
)
from dsh.capability.sandbox.service import (
    EscalationRequest,
    ResolvedPolicy,
    SandboxPolicy,
    denial_lines,
)
from dsh.execution.tools.service import ToolRunContext
from dsh.kernel import scope_target

if TYPE_CHECKING:
    from dsh.kernel import Carrier, Context

_REMEDIES: dict[str, str] = {
    "FS_STALE_VERSION": "read the file again, then repeat the change on what it holds now",
    "FS_NOT_OBSERVED": "read the file first, then repeat the change",
}


class SandboxRequest(BaseModel):
    """The parameters by which one call asks for a wider sandbox mode."""

    model_config = ConfigDict(extra="forbid")

    sandbox_permissions: Literal["workspace-write", "danger-full-access"] | None = Field(
        default=None,
        description=(
            "Ask the user to run this one call under a wider sandbox mode. Only after a call was "
            "denied by the sandbox, and only the narrowest mode that suffices."
        ),
    )
    justification: str | None = Field(
        default=None,
        description=(
            "Why this call needs the wider mode, in one sentence for the user. "
            "Goes together with sandbox_permissions."
        ),
    )


class Desk:
    """The surroundings of the file tools.

    Args:
        ctx: Context of the plugin that offers the tools.
        fs: Where they work.
        policy: Who decides the sandbox mode; required when ``fs`` confines.

    Raises:
        FsError: ``fs`` confines and there is no policy.
    """

    def __init__(self, ctx: Context, fs: FileSystem, policy: SandboxPolicy | None) -> None:
        self.fs = fs
        self.confined = fs.sandbox_mode is not None
        if self.confined and policy is None:
            raise FsError(
                "the mounted filesystem confines, but nobody provides 'sandbox_policy'; "
                "mount the sandbox-policy row beside it",
                code="FS_SANDBOX_DENIED",
            )
        self._ctx = ctx
        self._policy = policy

    def policy_for(self, run: ToolRunContext) -> ResolvedPolicy | None:
        """Return the policy in force for a call; ``None`` where nobody confines."""
        if self._policy is None:
            return None
        return self._policy.resolve(run.agent.session if run.agent else None)

    def base_for(self, run: ToolRunContext, policy: ResolvedPolicy | None) -> str | None:
        """Return where relative paths of a call start."""
        if policy is not None:
            return str(policy.workspace_root)
        return run.agent.session.header.get("cwd") if run.agent else None

    async def granted(
        self, run: ToolRunContext, policy: ResolvedPolicy | None, request: object
    ) -> ResolvedPolicy | None:
        """Return the policy that a change may use, asking for a wider one if the call does.

        Raises:
            EscalationRefused: it asks in vain, or without sense.
        """
        if not isinstance(request, SandboxRequest) or policy is None or self._policy is None:
            return policy
        return await self._policy.escalate(
            EscalationRequest(
                tool_name=run.name,
                policy=policy,
                sandbox_permissions=request.sandbox_permissions,
                justification=request.justification,
                agent=run.agent,
                call_id=run.call_id,
                signal=run.signal,
            )
        )

    async def write_intent(self, target: FsTarget, run: ToolRunContext) -> WriteExpectation:
        """Ask what must hold of ``target`` for a write; nothing, if nobody cares."""
        intent = FsWriteIntent(target, run)
        return await self._ctx.waterfall(FS_WRITE_INTENT, intent, _nothing, self._carrier(run))

    async def edit_intent(self, target: FsTarget, run: ToolRunContext) -> EditExpectation:
        """Ask what must hold of ``target`` for an edit; nothing, if nobody cares."""
        intent = FsEditIntent(target, run)
        return await self._ctx.waterfall(FS_EDIT_INTENT, intent, _nothing, self._carrier(run))

    def observed(self, target: FsTarget, seen: FsObservation, run: ToolRunContext) -> None:
        """Tell what the call saw. What a listener raises fails the call."""
        self._ctx.emit(FS_OBSERVED, FsObserved(target, seen, run), self._carrier(run))

    def explained(self, error: FsError, policy: ResolvedPolicy | None) -> FsError:
        """Return the error with what the model can do about it; code and facts stay."""
        code: FsErrorCode = error.code  # type: ignore[assignment] # FsError takes no other
        if remedy := _REMEDIES.get(code):
            return FsError(f"{error.message}; {remedy}", code=code)
        if code == "FS_SANDBOX_DENIED" and policy is not None:
            lines = [error.message, *denial_lines(policy.mode, escalation=self.confined)]
            return FsError("\n".join(lines), code=code)
        return error

    def _carrier(self, run: ToolRunContext) -> Carrier | None:
        return None if run.agent is None else scope_target(self._ctx, run.agent)


def _nothing() -> None:
    return None


def envelope(path: str, content: str, *, kind: str = "file") -> str:
    """Return what the model reads of a file operation."""
    return f"<path>{path}</path>\n<type>{kind}</type>\n<content>\n{content}\n</content>"
