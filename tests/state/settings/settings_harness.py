"""A tree with settings in a file, and plugins that register namespaces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from dsh.kernel import Context, Fiber
from dsh.state.settings import (
    SETTINGS_DOCUMENT_UPDATED,
    SETTINGS_UPDATED,
    SettingsProvider,
    SettingsScope,
)
from dsh.state.settings.file import FileSettings


class Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True, frozen=True)


class Limits(Frozen):
    """A namespace of the tests."""

    timeout_ms: int = Field(default=100, alias="timeoutMs", gt=0)
    tags: list[str] = Field(default_factory=list)
    nested: dict[str, Any] = Field(default_factory=dict)


class Keyed(Frozen):
    """A namespace with a secret."""

    url: str = "http://x"
    key: SecretStr | None = None


class Tree:
    """A root with settings in ``path``; what happens is written down."""

    def __init__(self, root: Context, path: Path) -> None:
        self.root, self.path = root, path
        self.updated: list[tuple[str, str]] = []
        self.revisions: list[tuple[str, int]] = []
        self.reports: list[str] = []

    async def open(self, **config: Any) -> Tree:
        self.root.set_reporter(lambda error, *_: self.reports.append(str(error)))
        self.root.on(SETTINGS_UPDATED, lambda e: self.updated.append((e.ns, e.source)))
        self.root.on(SETTINGS_DOCUMENT_UPDATED, lambda e: self.revisions.append((e.ns, e.revision)))
        return await self.mount(**config)

    async def mount(self, **config: Any) -> Tree:
        self.provider = await self.root.plugin(FileSettings, {"path": str(self.path), **config})
        return self

    @property
    def settings(self) -> SettingsProvider:
        return self.root.require(SettingsProvider)

    @property
    def file(self) -> FileSettings:
        provider = self.settings
        assert isinstance(provider, FileSettings)
        return provider

    async def register(
        self, ns: str = "limits", model: type[Any] = Limits, **options: Any
    ) -> tuple[SettingsScope[Any], Fiber]:
        made: list[SettingsScope[Any]] = []

        def body(ctx: Context) -> None:
            made.append(ctx.require(SettingsProvider).register(ns, model, **options))

        fiber = await self.root.inject([SettingsProvider], body)
        return made[0], fiber

    def write(self, text: str) -> None:
        """Edit the document as a person would: not atomically, and without the lock."""
        self.path.parent.mkdir(exist_ok=True)
        self.path.write_text(text)

    def text(self) -> str:
        return self.path.read_text()


async def wait_until(condition: Callable[[], object], within_s: float = 10.0) -> None:
    """Let other tasks run until something holds."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.001)
