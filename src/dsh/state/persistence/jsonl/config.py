"""The config of the JSONL store."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dsh.state.persistence.config import StoreConfig


class Config(StoreConfig):
    """Where sessions are kept, and how."""

    root: Annotated[str, Field(min_length=1)]
    """The folder of all sessions; made when it is first needed."""
    pack_chunks: Annotated[bool, Field(alias="packChunks")] = True
    """Whether consecutive chunks of a model stream share one row."""
    compression: Literal["zstd", "none"] = "zstd"
    """How new sessions are written; stored ones of either kind are read and continued."""
