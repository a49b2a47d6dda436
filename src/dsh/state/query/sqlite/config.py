"""The config of the search."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

_Count = Annotated[int, Field(ge=1, strict=True)]


class Config(BaseModel):
    """Where the index is, when it is made, and how much an answer holds."""

    model_config = ConfigDict(
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
    )

    path: Annotated[str, Field(min_length=1)]
    """The index file, which can be deleted at any time; ``:memory:`` keeps it in memory."""
    open_at: Literal["startup", "first-search", "never"] = "startup"
    """When the index is made. With ``never`` there is no search; all else works."""
    journal_mode: Literal["wal", "delete", "truncate", "persist"] = "wal"
    """How SQLite makes commits safe."""
    default_limit: _Count = 20
    """Hits of a page when the request does not say."""
    max_limit: _Count = 100
    """The most hits of a page that a request can ask for."""
    snippet_chars: _Count = 240
    """Code points of the text shown around a match."""
    read_window_max: Annotated[int, Field(ge=0, strict=True)] = 50
    """Neighbours of an event that can be read with it, on each side."""
    persisted_inspect_concurrency: _Count = 4
    """Stored logs that are read at once."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.default_limit > self.max_limit:
            msg = "defaultLimit must not exceed maxLimit"
            raise ValueError(msg)
        return self
