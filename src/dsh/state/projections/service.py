"""The definitions of ``ctx.session_projections`` and ``ctx.session_projection_cache``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypedDict, TypeVar

from dsh.base.values import value
from dsh.kernel import Service

if TYPE_CHECKING:
    from dsh.base.json import JsonValue
    from dsh.kernel import Effect
    from dsh.state.session.events import SessionEvent, SessionHeader
    from dsh.state.session.session import Session

__all__ = [
    "ChangeListener",
    "Checkpoint",
    "CheckpointRow",
    "ProjectionCache",
    "ProjectionRegistry",
    "ProjectionSnapshot",
    "ProjectionUnit",
    "Restored",
    "Schema",
]

S = TypeVar("S")

Schema: TypeAlias = Callable[[Any], object]
"""Raises ``ValueError`` when a value does not fit; what it returns does not matter."""

ChangeListener: TypeAlias = "Callable[[Session, str, JsonValue, int], object]"
"""Gets the session, the key, the new view, and the ``seq`` of the event that changed it."""


class ProjectionUnit(Generic[S]):
    """One value that is folded from a log. Its functions are pure and do not block.

    Args:
        key: Names the value on the wire.
        init: Makes the state of an empty log.
        apply: Makes the state after one more event. It never changes the state it gets, which may
            be frozen, and returns the very same object when the event does not matter.
        state_version: Raise it whenever the states of earlier code no longer fit.
        state_schema: Checks a state that was stored; the state is plain JSON then. Without one,
            the state is never taken from a cache and always folded anew.
        view: Makes what readers get of a state, as JSON; without one the state stays inside.
        view_schema: Checks each view before it is handed out.

    Raises:
        ValueError: the key is empty, or the version is no integer from 0.
    """

    __slots__ = ("apply", "init", "key", "state_schema", "state_version", "view", "view_schema")

    def __init__(
        self,
        key: str,
        *,
        init: Callable[[], S],
        apply: Callable[[S, SessionEvent], S],
        state_version: int = 1,
        state_schema: Schema | None = None,
        view: Callable[[S], JsonValue] | None = None,
        view_schema: Schema | None = None,
    ) -> None:
        if not isinstance(key, str) or not key:
            raise ValueError("a projection needs a key")
        if type(state_version) is not int or state_version < 0:
            raise ValueError(
                f"the state version of projection {key!r} is {state_version!r}; it must be an "
                "integer from 0"
            )
        self.key = key
        self.init = init
        self.apply = apply
        self.state_version = state_version
        self.state_schema = state_schema
        self.view = view
        self.view_schema = view_schema

    def __repr__(self) -> str:
        return f"<ProjectionUnit {self.key} v{self.state_version}>"


class ProjectionSnapshot(TypedDict):
    """The views of a session's log up to and including event ``asOfSeq``; -1 for none."""

    asOfSeq: int
    values: Mapping[str, JsonValue]


class CheckpointRow(TypedDict):
    """A stored state: its version, the last event that is in it, and itself."""

    ver: int
    seq: int
    val: JsonValue


Checkpoint: TypeAlias = Mapping[str, CheckpointRow]
"""States by the key of their projection."""


@value
class Restored:
    """What a stored log amounts to.

    Attributes:
        snapshot: The views.
        checkpoint: The states, for the next time.
    """

    snapshot: ProjectionSnapshot
    checkpoint: Checkpoint


class ProjectionRegistry(Service, ABC):
    """The projections that plugins offer, for live sessions and for stored logs.

    A key that is not in a snapshot says that no plugin offers it.
    """

    name: ClassVar[str] = "session_projections"

    @abstractmethod
    def register(self, unit: ProjectionUnit[Any]) -> Effect:
        """Offer a projection until the calling plugin unloads.

        Sessions that are live already are folded from their first event on. Plugins that
        register the same key and version share the first one's.

        Raises:
            ProjectionConflict: the key is registered with another version.
        """

    @abstractmethod
    def on_changed(self, listener: ChangeListener) -> Effect:
        """Call a function after each event that changed a view, until the caller unloads.

        It must not block. Its failures are reported, and do not reach anybody else.
        """

    @abstractmethod
    def state_of(self, session: Session, key: str) -> Any:
        """Return the state of a live session, or ``None`` when nobody offers the key.

        Only read it: it is the state itself.

        Raises:
            ProjectionFailed: the unit raised.
        """

    @abstractmethod
    def snapshot(self, session: Session) -> ProjectionSnapshot:
        """Return all views of a live session; they are detached and frozen.

        Raises:
            ProjectionFailed: a unit raised, or its view does not fit its schema.
        """

    @abstractmethod
    def checkpoint(self, session: Session) -> Checkpoint:
        """Return copies of the states that can be stored.

        Projections that fail, and states that are no JSON, are reported and left out.
        """

    @abstractmethod
    def restore_floor(self, checkpoint: Mapping[str, Any]) -> int | None:
        """Return from which event on a log must be read to `restore` it.

        That is one below what the states need, so that a log that shrank is noticed. ``None``
        without projections.
        """

    @abstractmethod
    def view_checkpoint(self, checkpoint: Mapping[str, Any]) -> dict[str, JsonValue]:
        """Return the views of the rows that this process understands; others are left out."""

    @abstractmethod
    def restore(
        self, checkpoint: Mapping[str, Any], events: Sequence[SessionEvent], base_seq: int
    ) -> Restored:
        """Fold the end of a stored log on top of stored states.

        Args:
            checkpoint: Rows as they were stored; those that do not fit are not used.
            events: The log from ``base_seq`` on.
            base_seq: The ``seq`` of the first of them.

        Raises:
            RestoreRefused: a projection needs earlier events; read from 0 instead.
            ProjectionFailed: a unit raised, or its view does not fit its schema.
            ValueError: the events do not begin at ``base_seq``.
        """


class ProjectionCache(Service, ABC):
    """Keeps checkpoints of sessions, so that stored ones are shown without reading their logs.

    What is kept can always be made again from the logs: what does not fit is not used.
    """

    name: ClassVar[str] = "session_projection_cache"

    @abstractmethod
    def cached_snapshot(self, header: SessionHeader) -> ProjectionSnapshot | None:
        """Return what is kept of a session, without any reading; ``None`` when nothing is.

        The views may be of different ages: ``asOfSeq`` is that of the oldest.
        """

    @abstractmethod
    async def write(self, session: Session) -> None:
        """Keep the present states of a live session, after its log is durable so far.

        Raises:
            Exception: what the flush or the medium raised; what was kept before stays.
        """

    @abstractmethod
    async def cold_snapshot(self, id: str) -> ProjectionSnapshot:
        """Return the views of a stored session; reads only the end of its log if it can.

        Raises:
            SessionNotFound: nothing is stored under this id.
            SessionPersistenceCorruptionError: what was committed is damaged.
            ProjectionFailed: a unit raised, or its view does not fit its schema.
        """
