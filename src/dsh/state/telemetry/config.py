"""The config of the OpenTelemetry backend; its transport counts only in modes that upload."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["ExporterConfig", "OtelConfig", "ProcessorConfig", "TelemetryMode", "TracesConfig"]

TelemetryMode = Literal["FULL", "FEEDBACK_ONLY", "DISABLED"]
"""``FULL``: all sessions. ``FEEDBACK_ONLY``: a session up to feedback that was given in it."""

_LONGEST_MS: Final = 2_147_483_647
_LOGS_PATH: Final = "/v1/logs"
_TRACES_PATH: Final = "/v1/traces"
_TRANSPORT: Final = ("exporter", "processor", "traces", "shutdownTimeoutMillis")

_Milliseconds = Annotated[float, Field(gt=0, le=_LONGEST_MS, allow_inf_nan=False)]


class _Part(BaseModel):
    # Addresses and headers hold keys, so what is given is neither in errors nor shown.
    model_config = ConfigDict(
        extra="forbid",
        populate_by_name=True,
        hide_input_in_errors=True,
    )


class ExporterConfig(_Part):
    """Where records are sent over OTLP/HTTP, and how."""

    url: str | None = Field(default=None, repr=False)
    """Address of the receiver of logs; usually ends with ``/v1/logs``."""
    compression: Literal["gzip", "none"] = "none"
    """How request bodies are compressed."""
    timeout_millis: _Milliseconds = Field(default=10_000, alias="timeoutMillis")
    """Milliseconds for one export, its retries included."""
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    """Headers of each request, such as a key of the receiver."""
    keep_alive: Any = Field(default=None, alias="keepAlive", exclude=True)
    """Accepted for configs of upstream; connections are always kept."""
    concurrency_limit: Any = Field(default=None, alias="concurrencyLimit", exclude=True)
    """Accepted for configs of upstream; exports never overlap."""


class ProcessorConfig(_Part):
    """How records are batched before they are sent."""

    scheduled_delay_millis: _Milliseconds = Field(default=1_000, alias="scheduledDelayMillis")
    """Milliseconds between exports."""
    max_queue_size: int = Field(default=2_048, ge=1, alias="maxQueueSize")
    """Records that wait at most; the oldest are dropped, and the drop is logged."""
    max_export_batch_size: int = Field(default=512, ge=1, alias="maxExportBatchSize")
    """Records of one request at most."""
    export_timeout_millis: _Milliseconds = Field(default=30_000, alias="exportTimeoutMillis")
    """Milliseconds for one batch."""

    @model_validator(mode="after")
    def _batch_fits(self) -> Self:
        if self.max_export_batch_size > self.max_queue_size:
            raise ValueError("maxExportBatchSize is more than maxQueueSize, so it is never reached")
        return self


class TracesConfig(_Part):
    """Whether spans are sent, too."""

    enabled: bool = False
    """Send spans of sessions, turns, steps, model calls and tools; only in mode ``FULL``."""
    url: str | None = Field(default=None, repr=False)
    """Address of the receiver of spans; made from ``exporter.url`` when that ends with /v1/logs."""


class OtelConfig(_Part):
    """What is shared, and with which receiver."""

    mode: TelemetryMode = "DISABLED"
    """What leaves this machine; with ``DISABLED``, nothing else here is looked at."""
    exporter: ExporterConfig = Field(default_factory=ExporterConfig)
    """The receiver."""
    processor: ProcessorConfig = Field(default_factory=ProcessorConfig)
    """The batches."""
    traces: TracesConfig = Field(default_factory=TracesConfig)
    """The spans."""
    shutdown_timeout_millis: _Milliseconds = Field(default=3_000, alias="shutdownTimeoutMillis")
    """Milliseconds that unloading may take to send what waits."""

    @model_validator(mode="before")
    @classmethod
    def _ignore_what_is_not_used(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("mode", "DISABLED") != "DISABLED":
            return given
        unread = {*_TRANSPORT, "shutdown_timeout_millis"}
        return {name: part for name, part in given.items() if name not in unread}

    @model_validator(mode="after")
    def _know_where_to_send(self) -> Self:
        if self.mode == "DISABLED":
            return self
        if not self.exporter.url:
            raise ValueError(
                f"mode {self.mode} needs exporter.url, the address of an OTLP/HTTP receiver of "
                "logs: set DSH_TELEMETRY_OTLP_URL, or set the mode to DISABLED"
            )
        _check_url("exporter.url", self.exporter.url)
        if self.mode == "FULL" and self.traces.enabled:
            _check_url("traces.url", self.traces_url)
        return self

    @property
    def logs_url(self) -> str:
        """Where logs go; only with a mode that uploads."""
        assert self.exporter.url
        return self.exporter.url

    @property
    def traces_url(self) -> str:
        """Where spans go; only when they are enabled."""
        if self.traces.url:
            return self.traces.url
        if not self.logs_url.endswith(_LOGS_PATH):
            raise ValueError(
                f"traces.url is missing, and exporter.url does not end with {_LOGS_PATH}, so it "
                "cannot be made from that: set traces.url"
            )
        return self.logs_url.removesuffix(_LOGS_PATH) + _TRACES_PATH


def _check_url(field: str, url: str) -> None:
    # The address is not repeated: it may hold a key.
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ValueError(f"{field} is not an address that begins with http:// or https://")
