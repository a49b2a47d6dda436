"""Configuration of the DeepSeek adapter, and what one request makes of it."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator
from pydantic.alias_generators import to_camel

from dsh.model.llm.retry_config import NormalRetryConfig, RetryPolicyConfig

__all__ = ["DEFAULT_MODELS", "Config", "ModelEntry"]

_MIB = 1024 * 1024
_MAX_TIMER_MS = 2_147_483_647
_Bytes = Annotated[int, Field(gt=0)]
_TimerMs = Annotated[float, Field(gt=0, le=_MAX_TIMER_MS)]


class _Model(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True
    )


class ModelEntry(_Model):
    """One model of the catalogue. Models that are not listed may be called as well."""

    id: Annotated[str, Field(min_length=1)]
    """Name on the wire."""
    name: str | None = None
    """Name for people; the id when absent."""
    description: str | None = None
    """One line on what the model is for."""
    context_window: PositiveInt | None = None
    """Tokens of input and output together; ``defaultContextWindow`` when absent."""
    max_tokens: PositiveInt | None = None
    """Output limit of calls that set none; ``maxTokens`` of the adapter when absent."""
    input_modalities: tuple[Literal["text", "image"], ...] = ("text",)
    """What the model reads."""
    image_pixel_budget: PositiveInt | None = None
    """Largest picture, in pixels. Images are not sent yet."""
    image_max_bytes: _Bytes | None = None
    """Largest picture, in bytes. Images are not sent yet."""
    image_detail: Literal["auto", "low"] | None = None
    """How closely pictures are read. Images are not sent yet."""

    @model_validator(mode="after")
    def _image_fields_need_images(self) -> Self:
        limits = (self.image_pixel_budget, self.image_max_bytes, self.image_detail)
        if "image" not in self.input_modalities and any(limit is not None for limit in limits):
            msg = f"model {self.id!r} has image limits, but its inputModalities have no 'image'"
            raise ValueError(msg)
        return self


DEFAULT_MODELS = (
    ModelEntry(id="deepseek-v4-flash", name="DeepSeek V4 Flash", description="fast and cheap"),
    ModelEntry(id="deepseek-v4-pro", name="DeepSeek V4 Pro", description="for hard problems"),
    ModelEntry(
        id="deepseek-v4-flash-vision-exp",
        name="DeepSeek V4 Flash Vision (experimental)",
        description="reads pictures; this version of dsh sends it text only",
    ),
)
"""The catalogue of a configuration that names no models."""


class Config(_Model):
    """Endpoint, key reference and defaults of the DeepSeek route."""

    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = "DEEPSEEK_API_KEY"
    """Name of the environment variable that holds the key."""
    base_url: Annotated[str, Field(min_length=1)] | None = Field(default=None, alias="baseURL")
    """Where ``/chat/completions`` is. Absent: ``DEEPSEEK_BASE_URL``, then the vendor's."""
    thinking: Literal["enabled", "disabled"] | None = None
    """Whether calls that name no effort think; the vendor decides when absent."""
    reasoning_effort: Literal["off", "low", "high", "max"] | None = None
    """Effort of calls that name none; ``high`` on the vendor's endpoint when absent."""
    max_tokens: PositiveInt = 256_000
    """Output limit of calls that set none. Elsewhere than at the vendor, sent only when set."""
    default_context_window: PositiveInt = 1_000_000
    """Window of models that have none of their own."""
    models: tuple[ModelEntry, ...] = DEFAULT_MODELS
    """The catalogue; a list replaces the whole default."""
    stream_idle_timeout_ms: _TimerMs = 300_000
    """Longest silence of the endpoint while it is being read."""
    max_request_files_bytes: _Bytes = 128 * _MIB
    """Bytes of pictures in one request. Images are not sent yet."""
    max_inline_request_image_bytes: _Bytes = 20 * _MIB
    """Bytes of pictures sent inside a request. Images are not sent yet."""
    max_images_per_request: PositiveInt = 600
    """Pictures in one request. Images are not sent yet."""
    image_offload_byte_quantum: _Bytes = 64 * _MIB
    """Step, in bytes, in which old pictures leave a request. Images are not sent yet."""
    inline_image_offload_byte_quantum: _Bytes = 10 * _MIB
    """The same for pictures sent inside a request. Images are not sent yet."""
    image_offload_count_quantum: PositiveInt = 20
    """Step, in pictures, in which old ones leave a request. Images are not sent yet."""
    files_api_timeout_ms: _TimerMs = 60_000
    """Longest upload of a picture. Images are not sent yet."""
    file_expires_after_seconds: Annotated[int, Field(ge=3600, le=2_592_000)] = 604_800
    """Life of an uploaded picture. Images are not sent yet."""
    file_refresh_margin_seconds: Annotated[int, Field(ge=0)] = 3600
    """When to upload again before it ends. Images are not sent yet."""
    file_quota_cleanup_batch: Annotated[int, Field(ge=1, le=1000)] = 100
    """Uploads removed at once when the account is full. Images are not sent yet."""
    retry_policy: RetryPolicyConfig = NormalRetryConfig()
    """What to do about failed requests."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        ids = [entry.id for entry in self.models]
        if len(set(ids)) != len(ids):
            raise ValueError("models must have unique ids")
        if self.thinking == "disabled" and self.reasoning_effort not in (None, "off"):
            raise ValueError("thinking is disabled, so reasoningEffort can only be 'off'")
        bounds = (
            ("imageOffloadByteQuantum", "image_offload_byte_quantum", "max_request_files_bytes"),
            (
                "inlineImageOffloadByteQuantum",
                "inline_image_offload_byte_quantum",
                "max_inline_request_image_bytes",
            ),
            (
                "imageOffloadCountQuantum",
                "image_offload_count_quantum",
                "max_images_per_request",
            ),
        )
        for label, step, bound in bounds:
            if getattr(self, step) > getattr(self, bound):
                msg = f"{label} must not exceed the limit it works towards"
                raise ValueError(msg)
        if self.file_refresh_margin_seconds >= self.file_expires_after_seconds:
            raise ValueError("fileRefreshMarginSeconds must be less than fileExpiresAfterSeconds")
        return self

    def entry(self, model: str) -> ModelEntry | None:
        """Return the catalogue's entry of a model, if it has one."""
        return next((entry for entry in self.models if entry.id == model), None)
