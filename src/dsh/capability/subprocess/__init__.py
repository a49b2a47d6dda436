"""Starting programs, and ending everything they start."""

from dsh.capability.subprocess.service import (
    Collect,
    CollectedOutput,
    ExecutableNotFound,
    FileGrants,
    OutputMode,
    OutputSlice,
    ProcessExit,
    ProcessHandle,
    SpawnFailed,
    SpawnSpec,
    Spill,
    SubprocessError,
    SubprocessRuntime,
)

__all__ = [
    "Collect",
    "CollectedOutput",
    "ExecutableNotFound",
    "FileGrants",
    "OutputMode",
    "OutputSlice",
    "ProcessExit",
    "ProcessHandle",
    "SpawnFailed",
    "SpawnSpec",
    "Spill",
    "SubprocessError",
    "SubprocessRuntime",
]
