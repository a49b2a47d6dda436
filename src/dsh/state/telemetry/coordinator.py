"""Watching sessions and handing their records to a sink, each once and in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from dsh.base.clock import SYSTEM_CLOCK, Clock
from dsh.base.errors import message_of
from dsh.execution.agent.events import AGENT_ERROR, AgentErrorRaised
from dsh.state.session.events import (
    SESSION_CREATED,
    SESSION_DISPOSED,
    SESSION_EVENT,
    SESSION_FLUSH,
    SessionCreated,
    SessionDisposed,
    SessionEventAppended,
    SessionFlush,
)
from dsh.state.session.service import SessionStore
from dsh.state.telemetry.cursor import Progress, progress_of
from dsh.state.telemetry.events import TELEMETRY_RECORD
from dsh.state.telemetry.records import agent_error_record, ledger_record, shutdown_record
from dsh.state.telemetry.service import SessionTelemetryBackend, TelemetryRecord

if TYPE_CHECKING:
    from dsh.kernel import Context
    from dsh.state.session.events import SessionEvent
    from dsh.state.session.session import Session

__all__ = ["Capture", "SessionTelemetryCoordinator", "TelemetrySink"]

Capture: TypeAlias = Literal["live", "on-demand"]
"""``live``: everything as it happens. ``on-demand``: what `capture_session` is asked for."""

_log = logging.getLogger("dsh.telemetry")


class TelemetrySink(Protocol):
    """Where records go."""

    def emit(self, record: TelemetryRecord) -> None:
        """Queue a record; raising refuses it for now."""
        ...


class SessionTelemetryCoordinator:
    """Turns logs into records, and offers each to the redactors and then to the sink.

    A record that the sink refuses, and all after it, are offered again with the next event of
    the session. One that a redactor keeps back is gone. Nothing that fails here reaches those
    who append. It works until the plugin of ``ctx`` unloads.

    Args:
        ctx: Whose plugin this is; it needs the session store.
        sink: Where the records go.
        capture: Whether to watch sessions.
        clock: Where the time of what is not in a log comes from.
    """

    def __init__(
        self,
        ctx: Context,
        sink: TelemetrySink,
        capture: Capture = "live",
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._ctx = ctx
        self._sink = sink
        self._clock = clock
        self._adopted: dict[Session, None] = {}
        self._announced: dict[Session, None] = {}
        self._refusing = False
        if capture == "live":
            self._watch()

    def capture_session(self, session: Session, through_seq: int | None = None) -> None:
        """Hand over what has not been, up to an event and with it.

        Args:
            session: A session.
            through_seq: The last event wanted; the last one there is when absent.
        """
        progress = progress_of(session)
        events = session.events
        end = len(events) if through_seq is None else min(len(events), through_seq + 1)
        while progress.next_seq < end:
            if not self._hand_over(session, events[progress.next_seq], progress):
                return
            progress.next_seq += 1

    def _watch(self) -> None:
        ctx = self._ctx
        for session in ctx.require(SessionStore).all():
            self._adopt(session)
        ctx.on(SESSION_CREATED, self._created)
        ctx.on(SESSION_EVENT, self._appended)
        ctx.on(SESSION_DISPOSED, self._disposed)
        ctx.on(AGENT_ERROR, self._agent_failed)
        flush = getattr(self._sink, "flush", None)
        # A listener counts as a keeper of a copy, so there is none without need.
        if flush is not None and not _is_inherited(self._sink):
            ctx.on(SESSION_FLUSH, lambda event: self._hint(event, flush))
        ctx.defer(self._stop, "telemetry.stop")

    def _adopt(self, session: Session) -> None:
        self._announced.pop(session, None)
        self._adopted[session] = None
        self.capture_session(session)

    def _created(self, event: SessionCreated) -> None:
        # A listener after this one may still take the session back, so it is not ours yet.
        self._announced[event.session] = None
        asyncio.get_running_loop().call_soon(self._adopt_if_announced, event.session)

    def _adopt_if_announced(self, session: Session) -> None:
        if session in self._announced:
            self._adopt(session)

    def _appended(self, event: SessionEventAppended) -> None:
        session, appended = event.session, event.event
        if session not in self._adopted:
            self._adopt(session)
            return
        progress = progress_of(session)
        if progress.next_seq != appended["seq"]:
            self.capture_session(session)
        elif self._hand_over(session, appended, progress):
            progress.next_seq += 1

    def _disposed(self, event: SessionDisposed) -> None:
        session = event.session
        self._announced.pop(session, None)
        if session not in self._adopted:
            return  # it was taken back before it was ours
        del self._adopted[session]
        self.capture_session(session)
        self._offer(shutdown_record(session, self._clock.now_ms()))

    def _agent_failed(self, event: AgentErrorRaised) -> None:
        self._offer(agent_error_record(event, self._clock.now_ms()))

    def _hint(self, event: SessionFlush, flush: Callable[[], object]) -> None:
        try:
            flush()
        except Exception as error:  # only a hint
            _log.warning("telemetry did not take a flush hint: %s", message_of(error))

    def _stop(self) -> None:
        for session in [*self._announced]:
            self._adopt(session)
        for session in self._adopted:
            self.capture_session(session)
            self._offer(shutdown_record(session, self._clock.now_ms()))
        self._adopted.clear()

    def _hand_over(self, session: Session, event: SessionEvent, progress: Progress) -> bool:
        """Offer the record of an event; tells whether the cursor may pass it."""
        step: tuple[object, object] | None = None
        if event["type"] == "assistant/chunk":
            step = event["data"]["turn"], event["data"]["step"]
            if step == progress.chunk:
                return True
        try:
            record = ledger_record(session, event)
        except Exception as error:  # data of a foreign shape
            _log.warning("event %d of %s has no record: %s", event["seq"], session.id, error)
            return True
        if not self._offer(record):
            return False
        if step is not None:
            progress.chunk = step
        return True

    def _offer(self, record: TelemetryRecord) -> bool:
        """Redact a record and give it to the sink; tells whether it is dealt with."""
        redacted = self._redacted(record)
        if redacted is None:
            return True
        try:
            self._sink.emit(redacted)
        except Exception as error:  # another owner's code; the session must go on
            if not self._refusing:
                _log.warning("telemetry does not take records: %s", message_of(error))
            self._refusing = True
            return False
        self._refusing = False
        return True

    def _redacted(self, record: TelemetryRecord) -> TelemetryRecord | None:
        try:
            redacted = self._ctx.waterfall_sync(TELEMETRY_RECORD, record, lambda: record)
            if isinstance(redacted, TelemetryRecord):
                return redacted
            problem = f"it returned {type(redacted).__name__}, not a record"
        except Exception as error:  # a redactor that fails must not let the record pass
            problem = message_of(error)
        what = record.attributes.get("event.type") or record.attributes.get("telemetry.op")
        _log.warning("a redactor failed, so a record of %r is kept back: %s", what, problem)
        return None


def _is_inherited(sink: object) -> bool:
    """Whether the sink's ``flush`` is the one that does nothing."""
    return getattr(type(sink), "flush", None) is SessionTelemetryBackend.flush
