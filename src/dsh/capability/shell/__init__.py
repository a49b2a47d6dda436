"""Running command lines."""

from dsh.capability.shell.service import (
    SandboxOutcome,
    ShellDelta,
    ShellEnv,
    ShellEnvContributor,
    ShellExecutor,
    ShellProcess,
    ShellRequest,
    ShellRunResult,
    ShellSpec,
    ShellVariable,
    StreamText,
)

__all__ = [
    "SandboxOutcome",
    "ShellDelta",
    "ShellEnv",
    "ShellEnvContributor",
    "ShellExecutor",
    "ShellProcess",
    "ShellRequest",
    "ShellRunResult",
    "ShellSpec",
    "ShellVariable",
    "StreamText",
]
