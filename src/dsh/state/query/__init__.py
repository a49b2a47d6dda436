"""Questions over all sessions: the definition that other plugins depend on."""

from dsh.state.query.service import (
    EventSearch,
    SessionQuery,
    SessionQueryError,
    SessionSearch,
)

__all__ = ["EventSearch", "SessionQuery", "SessionQueryError", "SessionSearch"]
