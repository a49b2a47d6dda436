"""What the launcher itself adds on top of a profile's layers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsh.loader.layers import Layer

if TYPE_CHECKING:
    from dsh.loader.environment import LaunchEnvironment

SHIPPED_PRESETS = Path(__file__).parent.parent / "agent_presets"
"""The folder of the agent presets that come with dsh."""


def launcher_overlays(
    environment: LaunchEnvironment, presets: Path = SHIPPED_PRESETS
) -> list[Layer]:
    """Return the launcher's layers; a profile without the rows they mean is left as it is.

    Args:
        environment: ``DSH_TELEMETRY_DISABLED``, whatever it says, switches telemetry off.
        presets: Trusted agent presets; nothing is added while there is no such folder.
    """
    patches: list[dict[str, Any]] = []
    if presets.is_dir():
        roots = [{"path": str(presets), "trust": "system"}]
        patches.append({"id": "agent-presets", "merge": {"roots": roots}})
    if environment.value("DSH_TELEMETRY_DISABLED"):
        patches.append({"id": "session-telemetry-otel", "disabled": True})
    return [Layer("launcher", patches, quiet=True)] if patches else []
