"""The sandbox seam: how wide file access is, and what confines a command to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from dsh.base.errors import DshError
from dsh.base.values import value
from dsh.kernel import Service

if TYPE_CHECKING:
    from dsh.base.signal import AbortSignal
    from dsh.capability.subprocess.service import FileGrants
    from dsh.execution.agent.service import Agent
    from dsh.model.messages import CallId, SessionId
    from dsh.state.session.session import Session

SandboxMode = Literal["read-only", "workspace-write", "danger-full-access"]
"""What a command may do to files. A mode says nothing about network or processes."""

SANDBOX_MODES: tuple[SandboxMode, ...] = get_args(SandboxMode)
"""Every mode, narrowest first."""

Enforcement = Literal["full", "partial"]
"""``partial``: this kernel cannot enforce every right of the mode."""


def is_wider(mode: SandboxMode, than: SandboxMode) -> bool:
    """Say whether ``mode`` allows strictly more than ``than``."""
    return SANDBOX_MODES.index(mode) > SANDBOX_MODES.index(than)


def denial_lines(mode: SandboxMode, *, escalation: bool) -> list[str]:
    """Return what the model reads when the policy refused a file access.

    Args:
        mode: In force for the call.
        escalation: The tool takes ``sandbox_permissions``, so the text may say so.
    """
    lines = [f"[sandbox: file access denied under {mode} mode]"]
    if escalation:
        lines.append(
            "[sandbox: this is policy, not a fault of the call. if the access is needed, repeat "
            "the same call once with the narrowest sandbox_permissions that suffice and a "
            "justification; the user is asked]"
        )
    return lines


class SandboxUnavailable(DshError):
    """No backend can confine a command here, or the one at work broke down.

    The command did not run.
    """

    code = "SANDBOX_UNAVAILABLE"


class EscalationRefused(DshError):
    """A wider mode was asked for and not granted; nothing ran.

    Attributes:
        outcome: ``invalid``, or the approval outcome that refused.
    """

    code = "SANDBOX_ESCALATION_REFUSED"

    def __init__(
        self,
        message: str,
        *,
        outcome: Literal["invalid", "rejected", "cancelled", "unavailable"],
    ) -> None:
        super().__init__(message)
        self.outcome = outcome


@value
class ResolvedPolicy:
    """The file policy of one operation."""

    mode: SandboxMode
    workspace_root: Path
    """Canonical; in ``workspace-write`` the tree below it is writable."""
    session_id: SessionId | None
    temp_dir: Path
    """Canonical private folder of the session, shared by shell and files; exported as TMPDIR.

    Writable in ``workspace-write``; it exists in every mode.
    """

    @property
    def writable_roots(self) -> tuple[Path, ...]:
        """Trees that ``workspace-write`` opens; empty in ``read-only``."""
        if self.mode == "read-only":
            return ()
        return (self.workspace_root, self.temp_dir)


@value(kw_only=True)
class RunnerFailureRule:
    """How to tell from stderr that the sandbox runner failed, not the command."""

    fatal_signatures: tuple[str, ...]
    """A line that contains one is the runner's own; blank ones are ignored."""
    allowed_exit_codes: tuple[int, ...] | None = None
    """Exit codes with which the runner fails; ``None`` admits any but 0."""
    informational_lines: tuple[str, ...] = ()
    """Whole lines that are notices of the runner and never failures."""


@value(kw_only=True)
class Confinement:
    """A command line as it must be spawned to be confined."""

    argv: tuple[str, ...]
    backend: str
    """Name of what confines: ``bwrap``, ``landlock`` or ``runner``."""
    enforcement: Enforcement
    denial_signatures: tuple[str, ...]
    """Words on stderr, in any case, that mean a refused file access."""
    runner_failure_rules: tuple[RunnerFailureRule, ...] = ()
    grants: FileGrants | None = None
    """Goes into `SpawnSpec.grants`; without it the argv alone would not be confined."""
    runner: str | None = None
    """Program in ``argv[0]`` that confines; goes into `SpawnSpec.runner` as a flag."""
    runner_env: Mapping[str, None] = field(default_factory=dict)
    """Names to keep from the runner, which hands them on itself; goes into `SpawnSpec.env`."""


class SandboxProvider(Service, ABC):
    """Confines command lines."""

    name = "sandbox"

    @abstractmethod
    async def confine(self, argv: Sequence[str], policy: ResolvedPolicy) -> Confinement:
        """Return how to run ``argv`` under ``policy``; never the bare argv.

        Args:
            argv: The command and its arguments.
            policy: Any mode but ``danger-full-access``.

        Raises:
            SandboxUnavailable: nothing on this machine can confine the command.
            ValueError: the mode does not confine.
        """


@value(kw_only=True)
class EscalationRequest:
    """What a tool call asks for when it wants a wider mode for itself."""

    tool_name: str
    policy: ResolvedPolicy
    """The policy in force."""
    sandbox_permissions: str | None
    justification: str | None
    agent: Agent | None
    call_id: CallId | None
    signal: AbortSignal | None


class SandboxPolicy(Service, ABC):
    """Decides the mode of each session and owns its private temporary folder."""

    name = "sandbox_policy"

    default_mode: SandboxMode
    workspace_root: Path
    """Root of operations that belong to no session."""

    @abstractmethod
    def resolve(
        self, session: Session | None = None, mode: SandboxMode | None = None
    ) -> ResolvedPolicy:
        """Return the policy of one operation.

        Mode: the argument, else the session's last ``sandbox/mode`` event, else the default. Root:
        the session's directory, else the configured one.
        """

    @abstractmethod
    def override_of(self, session: Session) -> SandboxMode | None:
        """Return the mode the session's log sets, if it sets one.

        Raises:
            ValueError: the log names a mode that does not exist.
        """

    @abstractmethod
    def set_mode(
        self, session: Session, mode: SandboxMode, *, source: Literal["delegation"] | None = None
    ) -> None:
        """Switch the mode of a session by exactly one logged event.

        Raises:
            ValueError: no such mode; nothing is logged.
        """

    @abstractmethod
    def temp_dir(self, session_id: SessionId | None = None) -> Path:
        """Return the private folder (mode 0700) of a session, made on first use.

        It goes away with all it holds when the service unloads.
        """

    @abstractmethod
    async def escalate(self, request: EscalationRequest) -> ResolvedPolicy:
        """Return the policy for one tool call: the one in force, or a wider one just approved.

        Without permissions and justification this is ``request.policy``. A grant is for this call
        only; check the signal again before acting on it.

        Raises:
            EscalationRefused: the request makes no sense, or was not approved.
        """
