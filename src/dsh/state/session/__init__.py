"""The session log: its events, its store, and the folds that need no store."""

from dsh.state.session.codec import decode_storage_record, pack_chunk_runs
from dsh.state.session.derive import derive_event_message
from dsh.state.session.envelope import adopt_session_event, snapshot_session_event
from dsh.state.session.errors import (
    DuplicateEventType,
    DuplicateSession,
    InvalidHeader,
    InvalidSeed,
    ReentrantAppend,
    RefusedEvent,
    SessionError,
    SessionForkError,
    SessionNotLive,
    UndeclaredEventType,
)
from dsh.state.session.events import (
    KNOWN_SESSION_EVENT_TYPES,
    SESSION_FORMAT_VERSION,
    EventType,
    SessionEvent,
    SessionHeader,
    SessionMeta,
)
from dsh.state.session.fork import fork_stored
from dsh.state.session.repair import (
    TOOL_NOT_STARTED,
    TOOL_OUTCOME_UNKNOWN,
    interrupted_turn_closers,
)
from dsh.state.session.request import canonical_header, fold_request_header, header_equals
from dsh.state.session.service import SessionStore
from dsh.state.session.session import Session
from dsh.state.session.surface import (
    SurfaceManager,
    fold_surface,
    is_append_surface_event,
    is_replacement_surface_event,
    is_surface_event,
)
from dsh.state.session.vocabulary import is_surface_type

__all__ = [
    "KNOWN_SESSION_EVENT_TYPES",
    "SESSION_FORMAT_VERSION",
    "TOOL_NOT_STARTED",
    "TOOL_OUTCOME_UNKNOWN",
    "DuplicateEventType",
    "DuplicateSession",
    "EventType",
    "InvalidHeader",
    "InvalidSeed",
    "ReentrantAppend",
    "RefusedEvent",
    "Session",
    "SessionError",
    "SessionEvent",
    "SessionForkError",
    "SessionHeader",
    "SessionMeta",
    "SessionNotLive",
    "SessionStore",
    "SurfaceManager",
    "UndeclaredEventType",
    "adopt_session_event",
    "canonical_header",
    "decode_storage_record",
    "derive_event_message",
    "fold_request_header",
    "fold_surface",
    "fork_stored",
    "header_equals",
    "interrupted_turn_closers",
    "is_append_surface_event",
    "is_replacement_surface_event",
    "is_surface_event",
    "is_surface_type",
    "pack_chunk_runs",
    "snapshot_session_event",
]
