"""Settings in one YAML or JSON file of the user's: row ``settings``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dsh.state.documents import DocumentError, DocumentFile, Draft
from dsh.state.documents.config import DocumentConfig
from dsh.state.documents.live import enter_in_thread, follow, home_file
from dsh.state.settings.engine import DocumentSettings, SectionDraft

if TYPE_CHECKING:
    from dsh.kernel import Context

__all__ = ["FileSettings", "plugin"]

_FILE = "settings.yaml"
_SUFFIXES = (".yaml", ".yml", ".json")
_LOCK_S = 2.0


class FileSettings(DocumentSettings):
    """Reads the document when it starts, follows edits, and writes in place.

    A document that cannot be read fails the start. Once it runs, such a document is reported,
    what was in force stays, and writes are refused until it is repaired.
    """

    Config: ClassVar[Any] = DocumentConfig

    def __init__(self, ctx: Context, config: DocumentConfig | None = None) -> None:
        super().__init__(ctx, config)
        self._config = config or DocumentConfig()
        path = home_file(ctx, self._config.path, self._config.dsh_home, _FILE)
        if path.suffix not in _SUFFIXES:
            raise DocumentError(
                path, f"its name must end in {', '.join(_SUFFIXES)}", what="settings document"
            )
        self._file = DocumentFile(path, what="settings document", lock_s=_LOCK_S)

    def start(self) -> None:
        """Read the document, and follow it from then on."""
        self.open(self._file.read())
        if self._config.watch:
            follow(self.ctx, self._file.path, self.reload, self._config.debounce_ms / 1000)

    @property
    def document_path(self) -> Path:
        """See `SettingsProvider.document_path`."""
        return self._file.path

    async def prepare_document(self) -> Path:
        """See `SettingsProvider.prepare_document`."""
        async with self.turn, enter_in_thread(self._file.draft()) as draft:
            if self._file.stamp() is None:
                await asyncio.to_thread(draft.write_text, "", draft.data)
        return self._file.path

    async def reload(self) -> None:
        """Take over the document as it is on disk; one without changes has no effect.

        Raises:
            DocumentError: it cannot be read; what was in force stays.
        """
        async with self.turn:
            self.publish(await asyncio.to_thread(self._file.read))

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[SectionDraft]:
        """See `DocumentSettings.exclusive`."""
        async with enter_in_thread(self._file.draft()) as draft:
            yield _FileDraft(draft)


class _FileDraft:
    """A locked file, written off the loop."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    @property
    def data(self) -> Mapping[str, Any]:
        return self._draft.data

    async def persist(self, ns: str, section: Mapping[str, Any]) -> None:
        data = dict(self._draft.data)
        data.pop(ns, None) if not section else data.update({ns: section})
        await asyncio.to_thread(self._draft.write, data)


plugin = FileSettings
