"""Records as OTLP logs and spans, in the batches of the OpenTelemetry SDK. Imports the SDK."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import opentelemetry.sdk._logs as sdk_logs
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import INVALID_SPAN, Span, set_span_in_context

from dsh import __version__
from dsh.base.errors import message_of
from dsh.state.telemetry.safe import safe_attributes, safe_body
from dsh.state.telemetry.spans import SessionSpans

if TYPE_CHECKING:
    from dsh.state.telemetry.config import OtelConfig
    from dsh.state.telemetry.service import TelemetryRecord

__all__ = ["SCOPES", "Exporters", "Pipeline", "otlp_exporters"]

SCOPES: Final = {"ledger": "dsh.session.ledger", "ops": "dsh.session.ops"}
"""The instrumentation scopes of the channels."""

TRACES_SCOPE: Final = "dsh.session.traces"

_SEVERITIES: Final = {
    "info": SeverityNumber.INFO,
    "warn": SeverityNumber.WARN,
    "error": SeverityNumber.ERROR,
}
# Until 1.38 the SDK had a record of its own, which holds its resource.
_SDK_RECORD: Final[Any] = getattr(sdk_logs, "LogRecord", None)

_TALKATIVE: Final = (
    OTLPLogExporter.__module__,
    OTLPSpanExporter.__module__,
    "opentelemetry.sdk._logs._internal.export",
    "opentelemetry.sdk._shared_internal",
    "opentelemetry.sdk.trace.export",
)
"""Loggers of the SDK that tell of failed exports."""
_ADDRESS: Final = re.compile(r"(url: |https?://)[^\s'\"]+")

_log = logging.getLogger("dsh.telemetry")


class Exporters(NamedTuple):
    """What sends batches: of logs, and of spans when these are wanted."""

    logs: Any
    spans: SpanExporter | None = None


def otlp_exporters(config: OtelConfig) -> Exporters:
    """Make the exporters of a config that uploads; nothing is sent yet."""
    for name in _TALKATIVE:
        logging.getLogger(name).addFilter(_hide_addresses)  # once, however often it is asked for
    exporter = config.exporter
    options: dict[str, Any] = {
        "headers": dict(exporter.headers),
        "timeout": exporter.timeout_millis / 1000,
        "compression": Compression(exporter.compression),
    }
    logs = OTLPLogExporter(endpoint=config.logs_url, **options)
    if config.mode != "FULL" or not config.traces.enabled:
        return Exporters(logs)
    return Exporters(logs, OTLPSpanExporter(endpoint=config.traces_url, **options))


def _hide_addresses(told: logging.LogRecord) -> bool:
    """Take out of what the SDK logs what may hold a key; of an exception its name is left."""
    text = told.getMessage()
    if told.exc_info and told.exc_info[0] is not None:
        text = f"{text} ({told.exc_info[0].__name__})"
    told.msg, told.args, told.exc_info, told.exc_text = _ADDRESS.sub(r"\1...", text), (), None, None
    return True


class Pipeline:
    """The queues and threads between a session and a collector.

    Args:
        config: A config that uploads.
        exporters: What sends the batches; closed with the pipeline.
        user_id: The anonymous id of the user.
    """

    def __init__(self, config: OtelConfig, exporters: Exporters, user_id: str) -> None:
        self._resource = Resource.create(
            {"service.name": "dsh", "service.version": __version__, "user.id": user_id}
        )
        self._exporters = exporters
        processor = config.processor
        batches: dict[str, Any] = {
            "schedule_delay_millis": processor.scheduled_delay_millis,
            "max_queue_size": processor.max_queue_size,
            "max_export_batch_size": processor.max_export_batch_size,
            "export_timeout_millis": processor.export_timeout_millis,
        }
        # The end of the process is ours to arrange: an exit handler would wait without a bound.
        self._logs = LoggerProvider(self._resource, shutdown_on_exit=False)
        # The base class of exporters has had two names, so ours is one by its methods alone.
        careful: Any = _Careful(exporters.logs)
        self._logs.add_log_record_processor(BatchLogRecordProcessor(careful, **batches))
        self._loggers = {
            channel: self._logs.get_logger(scope, __version__) for channel, scope in SCOPES.items()
        }
        self._traces: TracerProvider | None = None
        self._spans: SessionSpans | None = None
        if exporters.spans is not None:
            self._traces = TracerProvider(resource=self._resource, shutdown_on_exit=False)
            self._traces.add_span_processor(BatchSpanProcessor(exporters.spans, **batches))
            self._spans = SessionSpans(self._traces.get_tracer(TRACES_SCOPE, __version__))

    def emit(self, record: TelemetryRecord) -> None:
        """Queue a record and the spans that end with it; a full queue drops its oldest."""
        span = None
        if self._spans is not None:
            try:
                span = self._spans.follow(record)
            except Exception as error:  # a redactor may have left any shape behind
                _log.warning("a record makes no span: %s", message_of(error))
        self._loggers[record.channel].emit(self._log_record(record, span))

    async def close(self, within_s: float) -> None:
        """Send what is queued; after the bound, what is left is lost, and that is logged."""
        if self._spans is not None:
            self._spans.close()
        closing = [self._logs.shutdown]
        if self._traces is not None:
            closing.append(self._traces.shutdown)
        done = [_in_thread(call) for call in closing]
        _, late = await asyncio.wait(done, timeout=within_s)
        if late:
            _log.warning("telemetry could not be sent within %g s; the rest is lost", within_s)
            for exporter in filter(None, self._exporters):
                exporter.shutdown()  # ends the pauses between its retries

    def _log_record(self, record: TelemetryRecord, span: Span | None) -> Any:
        severity = _SEVERITIES[record.severity]
        fields: dict[str, Any] = {
            "timestamp": record.time * 1_000_000,
            "observed_timestamp": time.time_ns(),
            "severity_text": record.severity.upper(),
            "severity_number": severity,
            "body": record.body,
            "attributes": safe_attributes(record.attributes),
        }
        if _SDK_RECORD is None:
            return LogRecord(**fields, context=set_span_in_context(span or INVALID_SPAN))
        where = (span or INVALID_SPAN).get_span_context()
        return _SDK_RECORD(
            **fields,
            resource=self._resource,
            trace_id=where.trace_id,
            span_id=where.span_id,
            trace_flags=where.trace_flags,
        )


class _Careful:
    """Makes bodies fit for the wire, in the exporter's thread, and isolates one that is not."""

    def __init__(self, exporter: Any) -> None:
        self._exporter = exporter

    def export(self, batch: Sequence[Any]) -> Any:
        for item in batch:
            record = item.log_record
            try:
                record.body = safe_body(record.body)
            except Exception as error:  # a body that a redactor made; the others must go on
                record.body = f"unreadable body: {message_of(error)}"
        return self._exporter.export(batch)

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return bool(self._exporter.force_flush(timeout_millis))


def _in_thread(call: Callable[[], object]) -> asyncio.Future[None]:
    """Run a call in a thread that does not keep the process alive."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle() -> None:
        if not done.done():
            done.set_result(None)

    def run() -> None:
        try:
            call()
        except Exception as error:  # an exporter's; there is nobody to raise it to
            _log.warning("telemetry could not be closed: %s", message_of(error))
        finally:
            try:
                loop.call_soon_threadsafe(settle)
            except RuntimeError:
                pass  # the loop is gone, and with it whoever waited

    threading.Thread(target=run, name="dsh-telemetry-close", daemon=True).start()
    return done
