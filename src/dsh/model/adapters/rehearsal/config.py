"""Configuration of the rehearsal adapter."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from dsh.model.llm.retry_config import NormalRetryConfig, RetryPolicyConfig

__all__ = ["Config"]


class Config(BaseModel):
    """Which script to play, and how."""

    model_config = ConfigDict(populate_by_name=True, extra="forbid", frozen=True)

    script: Path
    """The script, YAML or JSON; see ``docs/rehearsal.md``."""
    model: str = Field(default="rehearsal", min_length=1)
    """The model that is listed; any other name works as well."""
    variables: dict[str, str] = {}
    """Values for the slots of the script, stronger than its own."""
    context_window: int = Field(default=1_000_000, gt=0, alias="contextWindow")
    """Tokens the pretended model holds."""
    retry_policy: RetryPolicyConfig = Field(default=NormalRetryConfig(), alias="retryPolicy")
    """What to do about scripted failures."""
