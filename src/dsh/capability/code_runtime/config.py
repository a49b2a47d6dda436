"""What the row ``code-runtime`` may set."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from dsh.base.names import camel

_MAX_TIMER_MS = 2_147_483_647
_MAX_MEMORY_MB = 1 << 33


class CodeRuntimeConfig(BaseModel):
    """What one program may use up."""

    model_config = ConfigDict(extra="forbid", alias_generator=camel, populate_by_name=True)

    compute_ms: float = Field(default=60_000, gt=0, le=_MAX_TIMER_MS)
    """Processor time; waiting for a tool costs none."""
    max_wall_ms: float = Field(default=600_000, gt=0, le=_MAX_TIMER_MS)
    """Time on the clock, waiting included."""
    max_output_bytes: int = Field(default=64 << 20, ge=4)
    """What it prints and returns, as JSON."""
    max_old_generation_size_mb: float = Field(default=512, gt=0, le=_MAX_MEMORY_MB)
    """Address space of the interpreter, in MiB; the name is the one in existing configs."""

    @property
    def compute_s(self) -> float:
        """``compute_ms`` in seconds."""
        return self.compute_ms / 1000

    @property
    def max_wall_s(self) -> float:
        """``max_wall_ms`` in seconds."""
        return self.max_wall_ms / 1000

    @property
    def memory_bytes(self) -> int:
        """``max_old_generation_size_mb`` in bytes."""
        return int(self.max_old_generation_size_mb * (1 << 20))
