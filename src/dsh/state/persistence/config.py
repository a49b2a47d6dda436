"""What the configs of all stores have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

_LONGEST_MS = 2_147_483_647


class StoreConfig(BaseModel):
    """How sessions are kept, whatever the medium."""

    model_config = ConfigDict(extra="forbid", validate_by_name=True, validate_by_alias=True)

    prepared_session_cache_size: Annotated[
        int, Field(alias="preparedSessionCacheSize", ge=1, le=2**53 - 1, strict=True)
    ] = 5
    """How many stored sessions that were read are remembered."""
    write_batch_max_delay_ms: Annotated[
        int, Field(alias="writeBatchMaxDelayMs", ge=1, le=_LONGEST_MS, strict=True)
    ] = 200
    """How long events are collected before they are written, in milliseconds."""
    lease_ms: Annotated[int, Field(alias="leaseMs", ge=100, le=_LONGEST_MS, strict=True)] = 15_000
    """How long a process that gives no sign of life keeps a session from others, in
    milliseconds. One that is known to have ended keeps nothing."""
