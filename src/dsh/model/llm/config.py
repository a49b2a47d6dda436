"""Configuration of the model runtime."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["RuntimeConfig"]


class RuntimeConfig(BaseModel):
    """Settings of the runtime."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    check_grammar: bool = Field(default=False, alias="checkGrammar")
    """Raise when a stream breaks the grammar of chunks; for tests and adapter authors."""
