"""Settings: what a user may change while the tree runs, a section a namespace."""

from dsh.state.settings.events import (
    SETTINGS_DOCUMENT_UPDATED,
    SETTINGS_UPDATED,
    SectionChanged,
    SettingsUpdated,
)
from dsh.state.settings.service import (
    Applies,
    SecretPath,
    SettingsConflict,
    SettingsDescriptor,
    SettingsError,
    SettingsProvider,
    SettingsRefused,
    SettingsScope,
)

__all__ = [
    "SETTINGS_DOCUMENT_UPDATED",
    "SETTINGS_UPDATED",
    "Applies",
    "SecretPath",
    "SectionChanged",
    "SettingsConflict",
    "SettingsDescriptor",
    "SettingsError",
    "SettingsProvider",
    "SettingsRefused",
    "SettingsScope",
    "SettingsUpdated",
]
