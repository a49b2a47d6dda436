"""Events of the settings; their wire names are facts."""

from __future__ import annotations

from typing import Any, Literal

from dsh.kernel.events import Emit

Source = Literal["update", "provider"]
"""Who changed a section: a writer in this process, or somebody who edited the document."""


class SettingsUpdated:
    """The settings of a namespace are others now.

    Attributes:
        ns: The namespace.
        next: What its scope returns from now on.
        prev: What it returned before.
        source: Who changed it.
    """

    __slots__ = ("next", "ns", "prev", "source")

    def __init__(self, ns: str, next: Any, prev: Any, source: Source) -> None:
        self.ns, self.next, self.prev, self.source = ns, next, prev, source

    def __repr__(self) -> str:  # the values may hold secrets
        return f"SettingsUpdated({self.ns!r}, source={self.source!r})"


class SectionChanged:
    """The section of a namespace was written or edited, whether or not that has an effect.

    Attributes:
        ns: The namespace.
        revision: What writers now give as ``expected_revision``.
    """

    __slots__ = ("ns", "revision")

    def __init__(self, ns: str, revision: int) -> None:
        self.ns, self.revision = ns, revision

    def __repr__(self) -> str:
        return f"SectionChanged({self.ns!r}, {self.revision})"


SETTINGS_UPDATED = Emit[SettingsUpdated]("settings/updated", errors="contain")
"""After a change that a reader of the scope can see."""
SETTINGS_DOCUMENT_UPDATED = Emit[SectionChanged]("settings/document-updated", errors="contain")
"""After any change of a section, before ``settings/updated``."""
