"""The variables that choose a mode, checked before anything starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsh.loader.environment import LaunchEnvironment

PERMISSION_MODES = ("read-only", "workspace-write", "danger-full-access")
"""What ``DSH_PERMISSION_MODE`` may say."""

TOOLS_MODES = ("native", "code", "both")
"""What ``DSH_TOOLS_MODE`` may say."""


def mode_problem(environment: LaunchEnvironment) -> str | None:
    """Return what is wrong with a variable that chooses a mode, or None."""
    for name, modes in (("DSH_PERMISSION_MODE", PERMISSION_MODES), ("DSH_TOOLS_MODE", TOOLS_MODES)):
        mode = environment.value(name)
        if mode is None or mode in modes:
            continue
        from dsh.base.text import did_you_mean

        wanted = ", ".join(modes)
        return f"{name} must be one of {wanted}, got {mode!r}{did_you_mean(mode, modes)}"
    return None
