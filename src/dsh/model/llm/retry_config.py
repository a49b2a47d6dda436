"""The ``retryPolicy`` field of adapter configurations."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic.alias_generators import to_camel

from dsh.model.llm.service import (
    DEFAULT_RETRYABLE_CODES,
    AlwaysRetry,
    Backoff,
    NormalRetry,
)

__all__ = ["AlwaysRetryConfig", "BackoffConfig", "NormalRetryConfig", "RetryPolicyConfig"]


class _Model(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True
    )


class BackoffConfig(_Model):
    """Delays between attempts."""

    initial_delay_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 500
    """Delay before the first retry; doubles with each further one."""
    max_delay_ms: Annotated[float, Field(gt=0, le=2_147_483_647)] = 10_000
    """Longest delay, also for delays that a provider asks for."""
    jitter_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of the delay by which it may vary."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.initial_delay_ms > self.max_delay_ms:
            msg = "initialDelayMs must not exceed maxDelayMs"
            raise ValueError(msg)
        return self

    def resolve(self) -> Backoff:
        """Return the value the retry policy works with."""
        return Backoff(self.initial_delay_ms / 1000, self.max_delay_ms / 1000, self.jitter_ratio)


class NormalRetryConfig(_Model):
    """Retry failures of some codes a few times."""

    mode: Literal["normal"] = "normal"
    max_retries: Annotated[int, Field(ge=0)] = 5
    """Retries after the first attempt."""
    retryable_codes: Annotated[tuple[str, ...], Field(min_length=1)] = DEFAULT_RETRYABLE_CODES
    """Failure codes that are retried."""
    backoff: BackoffConfig = BackoffConfig()
    """Delays between attempts."""

    @model_validator(mode="after")
    def _codes(self) -> Self:
        codes = self.retryable_codes
        if len(set(codes)) != len(codes) or not all(codes):
            msg = "retryableCodes must be unique and not empty"
            raise ValueError(msg)
        return self

    def resolve(self) -> NormalRetry:
        """Return the value the retry policy works with."""
        return NormalRetry(self.max_retries, self.retryable_codes, self.backoff.resolve())


class AlwaysRetryConfig(_Model):
    """Retry every failure; fields of the normal mode may stay in the row and mean nothing."""

    mode: Literal["always"]
    max_retries: Annotated[Any, Field(exclude=True)] = None
    """Means nothing in this mode."""
    retryable_codes: Annotated[Any, Field(exclude=True)] = None
    """Means nothing in this mode."""
    backoff: BackoffConfig = BackoffConfig()
    """Delays between attempts."""

    def resolve(self) -> AlwaysRetry:
        """Return the value the retry policy works with."""
        return AlwaysRetry(self.backoff.resolve())


def _mode(value: Any) -> str:
    mode = value.get("mode", "normal") if isinstance(value, dict) else getattr(value, "mode", None)
    return "always" if mode == "always" else "normal"


RetryPolicyConfig = Annotated[
    Annotated[NormalRetryConfig, Tag("normal")] | Annotated[AlwaysRetryConfig, Tag("always")],
    Discriminator(_mode),
]
"""Either mode; ``normal`` when none is named."""
