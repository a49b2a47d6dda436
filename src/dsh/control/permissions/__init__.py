"""Permission presets: named pairs of how wide file access is and whether people are asked."""

from __future__ import annotations

from dsh.control.permissions.service import (
    CUSTOM,
    InvalidPresets,
    PermissionFacts,
    PermissionPresetService,
    PresetError,
    PresetOption,
    PresetSelection,
    PresetSpec,
    UnknownPreset,
)

__all__ = [
    "CUSTOM",
    "InvalidPresets",
    "PermissionFacts",
    "PermissionPresetService",
    "PresetError",
    "PresetOption",
    "PresetSelection",
    "PresetSpec",
    "UnknownPreset",
]
