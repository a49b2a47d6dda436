"""What can confine a command on Linux: bubblewrap by argv, Landlock by the supervisor."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence

from dsh.capability.sandbox.service import (
    Confinement,
    Enforcement,
    ResolvedPolicy,
    RunnerFailureRule,
)
from dsh.capability.subprocess.service import (
    ExecutableNotFound,
    FileGrants,
    SubprocessError,
    SubprocessRuntime,
)

SYSTEM_FOLDERS: tuple[str, ...] = (
    "/usr/bin",
    "/bin",
    "/usr/local/bin",
    "/usr/sbin",
    "/sbin",
    "/run/wrappers/bin",
    "/run/current-system/sw/bin",
)
"""Where a runner may come from: a command could have put one on PATH, into the workspace's venv."""

BWRAP_DENIALS = ("read-only file system",)
LANDLOCK_DENIALS = ("permission denied",)

_CAPABILITIES_THAT_UNDO_MOUNTS = (
    "CAP_SYS_ADMIN",
    "CAP_SYS_PTRACE",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_BOOT",
    "CAP_SYS_CHROOT",
    "CAP_MKNOD",
    "CAP_DAC_READ_SEARCH",
    "CAP_SETPCAP",
    "CAP_BPF",
    "CAP_PERFMON",
)
"""Root keeps its capabilities in bubblewrap; with these it could mount its way out again."""

_WRITABLE_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


class Backend(ABC):
    """One way to confine."""

    name: str
    denial_signatures: tuple[str, ...]

    @abstractmethod
    async def prepare(self, runtime: SubprocessRuntime) -> Enforcement:
        """Find what the backend needs and say how much it enforces.

        Raises:
            SubprocessError: it is not there; the message says what is missing.
        """

    @abstractmethod
    def confine(self, argv: Sequence[str], policy: ResolvedPolicy) -> Confinement:
        """Return the confined command line; only after `prepare`."""


class Bubblewrap(Backend):
    """A mount namespace in which everything but the granted trees is read-only.

    It has a process namespace of its own, so that nothing inside outlives it, and it governs
    changes of metadata, too.
    """

    name = "bwrap"
    denial_signatures = BWRAP_DENIALS

    def __init__(self) -> None:
        self._program = ""
        self._loader: dict[str, str] = {}

    async def prepare(self, runtime: SubprocessRuntime) -> Enforcement:
        """See `Backend`."""
        try:
            self._program = await runtime.resolve_executable(
                "bwrap", env={"PATH": os.pathsep.join(SYSTEM_FOLDERS)}
            )
        except ExecutableNotFound as error:
            raise SubprocessError("bubblewrap is in none of the system's folders") from error
        self._loader = _loader_variables(runtime)
        return "full"

    def confine(self, argv: Sequence[str], policy: ResolvedPolicy) -> Confinement:
        """See `Backend`."""
        profile = bwrap_profile(policy)
        for name, value in self._loader.items():
            profile += ["--setenv", name, value]
        if os.geteuid() == 0:
            for capability in _CAPABILITIES_THAT_UNDO_MOUNTS:
                profile += ["--cap-drop", capability]
        return Confinement(
            argv=(self._program, *profile, "--", *argv),
            backend=self.name,
            enforcement="full",
            denial_signatures=self.denial_signatures,
            runner_failure_rules=(
                RunnerFailureRule(fatal_signatures=("bwrap: ",), allowed_exit_codes=(1,)),
            ),
            runner=self._program,
            runner_env=dict.fromkeys(self._loader),
        )


class Landlock(Backend):
    """Rights that the supervisor gives up before the command runs; no package is needed.

    It is the cheaper one, and leaves metadata (``chmod``, ``utime``) of readable files alone.
    """

    name = "landlock"
    denial_signatures = LANDLOCK_DENIALS

    def __init__(self) -> None:
        self._enforcement: Enforcement = "partial"

    async def prepare(self, runtime: SubprocessRuntime) -> Enforcement:
        """See `Backend`."""
        enforcement = runtime.grants_enforcement()
        if enforcement is None:
            raise SubprocessError("this kernel does not offer Landlock")
        self._enforcement = enforcement
        return enforcement

    def confine(self, argv: Sequence[str], policy: ResolvedPolicy) -> Confinement:
        """See `Backend`."""
        roots = [str(root) for root in policy.writable_roots]
        devices = [device for device in _WRITABLE_DEVICES if os.path.exists(device)]
        return Confinement(
            argv=tuple(argv),
            backend=self.name,
            enforcement=self._enforcement,
            denial_signatures=self.denial_signatures,
            grants=FileGrants(read=("/",), write=(*devices, *roots)),
        )


class OperatorRunner(Backend):
    """A runner named in the configuration, called with bubblewrap's own arguments."""

    name = "runner"
    denial_signatures = BWRAP_DENIALS + LANDLOCK_DENIALS

    def __init__(self, command: Sequence[str], failure_signatures: Sequence[str]) -> None:
        self._command = tuple(command)
        self._rule = RunnerFailureRule(fatal_signatures=tuple(failure_signatures))

    async def prepare(self, runtime: SubprocessRuntime) -> Enforcement:
        """See `Backend`; the operator answers for the runner, so nothing is looked up."""
        return "full"

    def confine(self, argv: Sequence[str], policy: ResolvedPolicy) -> Confinement:
        """See `Backend`."""
        return Confinement(
            argv=(*self._command, *bwrap_profile(policy), "--", *argv),
            backend=self.name,
            enforcement="full",
            denial_signatures=self.denial_signatures,
            runner_failure_rules=(self._rule,),
            runner=self._command[0],
        )


def _loader_variables(runtime: SubprocessRuntime) -> dict[str, str]:
    """Return what tells the dynamic loader to load more, or from elsewhere.

    The runner must not heed it, or it would run code of the workspace before it confines anything.
    """
    environment = runtime.environment()
    return {name: value for name, value in environment.items() if name.startswith("LD_")}


def bwrap_profile(policy: ResolvedPolicy) -> list[str]:
    """Return the arguments that make bubblewrap enforce a policy."""
    roots = [str(root) for root in policy.writable_roots]
    whole = "--bind" if "/" in roots else "--ro-bind"
    profile = [whole, "/", "/", "--dev", "/dev", "--unshare-pid", "--proc", "/proc"]
    # Kernel settings are files there, and for root bubblewrap leaves them writable.
    profile += ["--remount-ro", "/proc"]
    for root in roots:
        if root != "/":
            profile += ["--bind", root, root]
    return [*profile, "--die-with-parent"]
