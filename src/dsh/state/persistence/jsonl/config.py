"""The config of the JSONL store."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class Config(BaseModel):
    """Where sessions are kept, and how."""

    model_config = ConfigDict(extra="forbid", validate_by_name=True, validate_by_alias=True)

    root: Annotated[str, Field(min_length=1)]
    """The folder of all sessions; made when it is first needed."""
    pack_chunks: Annotated[bool, Field(alias="packChunks")] = True
    """Whether consecutive chunks of a model stream share one row."""
    compression: Literal["zstd", "none"] = "zstd"
    """How new sessions are written; stored ones of either kind are read and continued."""
    prepared_session_cache_size: Annotated[
        int, Field(alias="preparedSessionCacheSize", ge=1, le=2**53 - 1, strict=True)
    ] = 5
    """How many stored sessions that were read are remembered."""
    write_batch_max_delay_ms: Annotated[
        int, Field(alias="writeBatchMaxDelayMs", ge=1, le=2_147_483_647, strict=True)
    ] = 200
    """How long events are collected before they are written, in milliseconds."""
