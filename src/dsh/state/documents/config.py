"""The config of a row that keeps a document."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["DocumentConfig"]


class DocumentConfig(BaseModel):
    """Where the document is, and whether it is followed."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, frozen=True)

    path: str | None = Field(default=None, min_length=1)
    """The document; a file of the home folder when absent."""
    dsh_home: str | None = Field(default=None, alias="dshHome")
    """The home folder, in place of the one of this run."""
    watch: bool = True
    """Whether edits are taken up, and told, as soon as they are made."""
    debounce_ms: float = Field(default=100, alias="debounceMs", ge=0, allow_inf_nan=False)
    """How long an edit may settle before it is read, in milliseconds."""
