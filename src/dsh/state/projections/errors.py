"""What can be wrong with projections."""

from __future__ import annotations

from dsh.base.errors import message_of
from dsh.state.session.errors import SessionError


class ProjectionError(SessionError):
    """Anything about projections."""

    code = "PROJECTION"


class ProjectionConflict(ProjectionError, ValueError):
    """Two versions of one projection are registered at the same time."""

    code = "PROJECTION_CONFLICT"

    def __init__(self, key: str, *, registered: int, refused: int) -> None:
        super().__init__(
            f"projection {key!r} is registered with state version {registered}; version {refused} "
            "must wait until the plugin of the other one is unloaded"
        )
        self.key, self.registered, self.refused = key, registered, refused


class ProjectionFailed(ProjectionError, RuntimeError):
    """The functions of a projection raised, or returned what does not fit its schema."""

    code = "PROJECTION_FAILED"

    def __init__(self, key: str, doing: str, error: BaseException) -> None:
        super().__init__(f"projection {key!r} failed to {doing}: {message_of(error)}")
        self.key = key


class RestoreRefused(ProjectionError, ValueError):
    """Rows of a checkpoint do not go with the events that were read; read the log from 0."""

    code = "PROJECTION_RESTORE_REFUSED"

    def __init__(self, key: str, base_seq: int) -> None:
        super().__init__(
            f"the checkpoint of projection {key!r} cannot be continued from event {base_seq}; "
            "restore from event 0 instead"
        )
        self.key, self.base_seq = key, base_seq
