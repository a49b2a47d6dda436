"""Sending session records to an OpenTelemetry collector: row ``session-telemetry-otel``.

Off by default: then nothing of OpenTelemetry is imported, and nothing is built.
"""

from __future__ import annotations

import asyncio
import logging
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dsh.base.errors import DshError
from dsh.state.session.events import SESSION_EVENT, SessionEventAppended
from dsh.state.session.service import SessionStore
from dsh.state.telemetry.config import OtelConfig
from dsh.state.telemetry.coordinator import SessionTelemetryCoordinator
from dsh.state.telemetry.service import SessionTelemetryBackend, Sharing, TelemetryRecord

if TYPE_CHECKING:
    from dsh.kernel import Context
    from dsh.state.telemetry.pipeline import Exporters, Pipeline

__all__ = ["OtelConfig", "OtelTelemetry", "TelemetryPackagesMissing", "plugin"]

_log = logging.getLogger("dsh.telemetry")
_FEEDBACK = "feedback/record"
_SHARING: dict[str, Sharing] = {
    "FULL": "full",
    "FEEDBACK_ONLY": "feedback-only",
    "DISABLED": "disabled",
}


class TelemetryPackagesMissing(DshError, ImportError):
    """Telemetry is switched on, and the packages that send it are not installed."""

    code = "TELEMETRY_PACKAGES_MISSING"

    def __init__(self, mode: str, missing: str | None) -> None:
        super().__init__(
            f"telemetry mode {mode} needs OpenTelemetry, and {missing or 'a package of it'} is not "
            "installed; run `pip install 'dsh[telemetry]'`, or set the mode to DISABLED"
        )
        self.mode = mode


class TelemetryClosed(DshError):
    """The backend has been shut down and takes no more records."""

    code = "TELEMETRY_CLOSED"

    def __init__(self) -> None:
        super().__init__("telemetry has been shut down")


class OtelTelemetry(SessionTelemetryBackend):
    """Sends records as OTLP logs, and spans where they are asked for."""

    inject = (SessionStore,)
    Config: ClassVar[Any] = OtelConfig

    def __init__(self, ctx: Context, config: OtelConfig | None = None) -> None:
        super().__init__(ctx, config)
        self._config = config or OtelConfig()
        self._pipeline: Pipeline | None = None
        self._closing: asyncio.Task[None] | None = None

    @property
    def sharing(self) -> Sharing:
        """See `SessionTelemetryBackend.sharing`."""
        return _SHARING[self._config.mode]

    async def start(self) -> None:
        """Build what the mode needs, and begin to watch.

        Raises:
            TelemetryPackagesMissing: the mode uploads, and OpenTelemetry is not installed.
        """
        mode = self._config.mode
        if mode == "DISABLED":
            self.ctx.on(SESSION_EVENT, self._feedback_stays)
            return
        user_id = await asyncio.to_thread(self._prepare)
        self._pipeline = self._build(user_id)
        self.ctx.defer(self.shutdown, "telemetry.shutdown")
        if mode == "FULL":
            SessionTelemetryCoordinator(self.ctx, self)
            return
        asked = SessionTelemetryCoordinator(self.ctx, _Direct(self._pipeline), "on-demand")
        self.ctx.on(SESSION_EVENT, lambda event: self._share_feedback(asked, event))

    def emit(self, record: TelemetryRecord) -> None:
        """See `SessionTelemetryBackend.emit`; does nothing unless all sessions are shared.

        Raises:
            TelemetryClosed: after `shutdown`.
        """
        if self._config.mode != "FULL":
            return
        if self._pipeline is None:
            raise TelemetryClosed
        self._pipeline.emit(record)

    async def shutdown(self) -> None:
        """See `SessionTelemetryBackend.shutdown`."""
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            within_s = self._config.shutdown_timeout_millis / 1000
            self._closing = asyncio.ensure_future(pipeline.close(within_s))
        if self._closing is not None:
            await asyncio.shield(self._closing)

    def exporters(self) -> Exporters:
        """Make what sends the batches; a subclass may send them elsewhere."""
        from dsh.state.telemetry.pipeline import otlp_exporters

        return otlp_exporters(self._config)

    def _prepare(self) -> str:
        """Do what blocks: load the packages and read the anonymous id."""
        try:
            import_module("dsh.state.telemetry.pipeline")
        except ImportError as error:
            if (error.name or "").split(".")[0] == "dsh":
                raise
            raise TelemetryPackagesMissing(self._config.mode, error.name) from error
        from dsh.loader.anonymous import FILE_NAME, anonymous_user_id
        from dsh.state.documents.live import home_file

        return anonymous_user_id(Path(home_file(self.ctx, None, None, FILE_NAME)).parent)

    def _build(self, user_id: str) -> Pipeline:
        from dsh.state.telemetry.pipeline import Pipeline

        return Pipeline(self._config, self.exporters(), user_id)

    def _share_feedback(
        self, coordinator: SessionTelemetryCoordinator, event: SessionEventAppended
    ) -> None:
        if _is_feedback(event):
            coordinator.capture_session(event.session, event.event["seq"])

    def _feedback_stays(self, event: SessionEventAppended) -> None:
        if _is_feedback(event):
            _log.warning(
                "feedback in session %s stays on this machine, because telemetry is disabled",
                event.session.id,
            )


class _Direct:
    """The way to the pipeline that feedback takes; ``ctx.session_telemetry.emit`` has none."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def emit(self, record: TelemetryRecord) -> None:
        self._pipeline.emit(record)


def _is_feedback(event: SessionEventAppended) -> bool:
    """Whether feedback is in the log; an event that only looks like it is not."""
    appended = event.event
    if appended["type"] != _FEEDBACK:
        return False
    events, seq = event.session.events, appended["seq"]
    return seq < len(events) and events[seq] is appended


plugin = OtelTelemetry
