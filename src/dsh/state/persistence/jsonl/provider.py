"""The service that keeps sessions in files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from dsh.state.persistence.artifact.layout import Encoding
from dsh.state.persistence.artifact.store import ArtifactStore
from dsh.state.persistence.jsonl.backend import JsonlBackend
from dsh.state.persistence.jsonl.config import Config as JsonlConfig
from dsh.state.persistence.provider import KeptSessions

if TYPE_CHECKING:
    from dsh.kernel import Context


class JsonlPersistence(KeptSessions):
    """Sessions as JSON lines below one folder."""

    Config: ClassVar[type[JsonlConfig]] = JsonlConfig

    def __init__(self, ctx: Context, config: JsonlConfig) -> None:
        encoding = Encoding.ZSTD if config.compression == "zstd" else Encoding.PLAIN
        lease_s = config.lease_ms / 1000
        store = ArtifactStore(Path(config.root), encoding, pack=config.pack_chunks, lease_s=lease_s)
        super().__init__(ctx, config, JsonlBackend(store, lease_s))
