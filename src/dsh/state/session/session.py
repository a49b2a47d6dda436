"""One session: an append-only log and the folds that follow it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from dsh.base.clock import SYSTEM_CLOCK, Clock
from dsh.base.json import FrozenDict, NotLossless, snapshot
from dsh.state.session.derive import MessageDerivation, derive_event_message
from dsh.state.session.envelope import adopt_session_event, check_payload, snapshot_session_event
from dsh.state.session.errors import (
    InvalidSeed,
    ReentrantAppend,
    RefusedEvent,
    UndeclaredEventType,
)
from dsh.state.session.events import (
    CORE_EVENT_TYPES,
    SESSION_END_SEED,
    EventType,
    SessionEndSeedData,
)
from dsh.state.session.header import checked_header, new_header
from dsh.state.session.log import EventLog
from dsh.state.session.request import canonical_header
from dsh.state.session.surface import SurfaceManager, SurfacePlan

if TYPE_CHECKING:
    from dsh.model.messages import Message, SessionId
    from dsh.state.session.events import (
        EpochHeader,
        RequestContext,
        SessionEvent,
        SessionHeader,
        SessionMeta,
        SurfaceOp,
    )

T = TypeVar("T", bound=Mapping[str, object])


Publisher: TypeAlias = "Callable[[Session, SessionEvent], Callable[[], object]]"
"""How a store hears of appends: called before the commit, where it may raise to refuse the event;
what it returns is called after the commit."""


class Session:
    """An append-only log of typed events, the one source of truth of an interaction.

    Lives on the event loop's thread. A session is *detached* until a store takes it; then each
    append is announced there.

    Args:
        header: The facts beside the log; checked and frozen.
        seed: Events to start from. Any seed, even an empty one, ends with `SESSION_END_SEED`.
        owned: The seed is frozen already and nobody else holds it, so it is not copied.
        types: The event types that `append` accepts; a store passes its live registry.
        clock: Where the time of events comes from.

    Raises:
        InvalidHeader: the header is wrong.
        InvalidSeed: an event of the seed breaks a rule; names its index.

    Attributes:
        header: The frozen header.
        id: ``header["id"]``.
        first_live_seq: How many events came with the seed.
        surface: Which events the model sees.
    """

    __slots__ = (
        "__weakref__",
        "_after_publication",
        "_clock",
        "_context_seq",
        "_derivation",
        "_header_seq",
        "_log",
        "_publisher",
        "_publishing",
        "_request_header",
        "_types",
        "_view",
        "first_live_seq",
        "header",
        "id",
        "surface",
    )

    def __init__(
        self,
        header: Mapping[str, Any],
        *,
        seed: Iterable[Mapping[str, Any]] | None = None,
        owned: bool = False,
        types: Mapping[str, EventType[Any]] = CORE_EVENT_TYPES,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.header: SessionHeader = checked_header(header)
        self.id = cast("SessionId", self.header["id"])
        self._types = types
        self._clock = clock
        self._log: list[SessionEvent] = []
        self._view: EventLog | None = None
        self.surface = SurfaceManager(self._log)
        self._derivation = MessageDerivation(self._log, self.surface)
        self._header_seq = self._context_seq = -1
        self._request_header: tuple[int, EpochHeader] | None = None
        self._publisher: Publisher | None = None
        self._publishing = False
        self._after_publication: list[Callable[[], object]] = []
        self.first_live_seq = 0
        if seed is not None:
            self._plant(seed, owned)

    @classmethod
    def create(
        cls,
        id: str,
        seed: Iterable[Mapping[str, Any]] | None = None,
        header: Mapping[str, Any] | None = None,
        *,
        types: Iterable[EventType[Any]] = (),
    ) -> Session:
        """Make a detached session from copies of what is given.

        Args:
            id: Its id.
            seed: Events to start from.
            header: Its header; a minimal one is made when absent.
            types: Event types to accept beside those of the core.
        """
        own = new_header(id, None, SYSTEM_CLOCK.now_ms()) if header is None else header
        accepted = {**CORE_EVENT_TYPES, **{declared.name: declared for declared in types}}
        return cls(checked_header(own, id), seed=seed, types=accepted)

    @classmethod
    def fresh(cls, id: str, seed: Iterable[Mapping[str, Any]], meta: SessionMeta) -> Session:
        """Make a detached session that begins now with frozen events of another."""
        return cls(new_header(id, meta, SYSTEM_CLOCK.now_ms()), seed=seed, owned=True)

    @classmethod
    def from_restore(
        cls,
        id: str,
        seed: Iterable[Mapping[str, Any]],
        header: Mapping[str, Any],
        *,
        types: Mapping[str, EventType[Any]] = CORE_EVENT_TYPES,
    ) -> Session:
        """Make a detached session from frozen events that nobody else holds."""
        return cls(checked_header(header, id), seed=seed, owned=True, types=types)

    def __repr__(self) -> str:
        return f"<Session {self.id} ({len(self._log)} events)>"

    @property
    def events(self) -> EventLog:
        """The log as it is now; the value does not grow."""
        if (view := self._view) is None:
            view = self._view = EventLog(self._log, len(self._log))
        return view

    @property
    def seq(self) -> int:
        """The ``seq`` of the next event."""
        return len(self._log)

    def append(
        self,
        event_type: EventType[T],
        data: T,
        *,
        surface_op: SurfaceOp | None = None,
        source_event_seqs: Sequence[int] | None = None,
    ) -> SessionEvent:
        """Append one event, tell its observers, and return it as it was logged.

        The data is copied and frozen; what the caller does with its own object later changes
        nothing. Observers cannot undo the append, and their failures do not reach the caller.

        Args:
            event_type: A type of the core, or one that was declared to the store.
            data: The payload.
            surface_op: Required on surface types, refused on others.
            source_event_seqs: The earlier events this one is made from; surface types only.

        Raises:
            UndeclaredEventType: nobody declared the type.
            RefusedEvent: the data or the event breaks a rule. The log is unchanged.
            ReentrantAppend: called by an observer of this session's append.
        """
        name = event_type.name
        if self._types.get(name) is not event_type:
            self._check_declared(event_type)
        try:
            frozen = snapshot(data, logged=True)
        except NotLossless as error:
            raise RefusedEvent(name, error.message) from error
        if type(frozen) is not FrozenDict:
            raise RefusedEvent(name, "data is not an object")
        fields: dict[str, Any] = {
            "type": name,
            "seq": len(self._log),
            "time": self._clock.now_ms(),
            "data": frozen,
        }
        if event_type.ignorable:
            fields["ignorable"] = True
        if surface_op is not None or source_event_seqs is not None:
            _add_surface_fields(fields, surface_op, source_event_seqs)
        if self._publishing:
            raise ReentrantAppend(self.id, name)
        event = cast("SessionEvent", FrozenDict(fields))
        plan: SurfacePlan | None = None
        if event_type.surface or len(fields) > 4:
            plan = self.surface.plan(event)
        if name != "assistant/chunk":
            check_payload(name, frozen)
        if self._publisher is None:
            self._commit(event, plan)
        else:
            self._publish(event, plan, self._publisher)
        return event

    def request_header(self) -> EpochHeader | None:
        """Return the header that requests have now, in canonical form."""
        seq = self._header_seq
        if seq < 0:
            return None
        if self._request_header is None or self._request_header[0] != seq:
            data: Any = self._log[seq]["data"]
            self._request_header = (seq, canonical_header(data["header"]))
        return self._request_header[1]

    def request_context(self) -> RequestContext | None:
        """Return the route that requests take now, and its capacity when known."""
        if self._context_seq < 0:
            return None
        return cast("RequestContext", self._log[self._context_seq]["data"])

    def derive_messages(self) -> list[Message]:
        """Return the conversation as the model sees it: a fresh list of shared, frozen messages."""
        return self._derivation.messages()

    derive_event_message = staticmethod(derive_event_message)

    # What follows is for stores.

    @property
    def attached(self) -> bool:
        """Whether a store holds this session."""
        return self._publisher is not None

    def attach(self, publisher: Publisher) -> None:
        """Let a store publish the appends; only the store that holds the session calls this."""
        self._publisher = publisher

    def detach(self) -> None:
        """Stop publishing; the log stays."""
        self._publisher = None

    def when_published(self, action: Callable[[], object]) -> None:
        """Run an action now, or as soon as the append in progress has been published."""
        if self._publishing:
            self._after_publication.append(action)
        else:
            action()

    def _publish(self, event: SessionEvent, plan: SurfacePlan | None, publisher: Publisher) -> None:
        self._publishing = True
        try:
            announce = publisher(self, event)
            self._commit(event, plan)
            announce()
        finally:
            self._publishing = False
            if self._after_publication:
                actions, self._after_publication = self._after_publication, []
                for action in actions:
                    action()

    def _commit(self, event: SessionEvent, plan: SurfacePlan | None) -> None:
        self._log.append(event)
        self._view = None
        if plan is not None:
            self.surface.commit(plan)
            return
        name = event["type"]
        if name == "request/header":
            self._header_seq = event["seq"]
        elif name == "request/context":
            self._context_seq = event["seq"]

    def _check_declared(self, event_type: EventType[Any]) -> None:
        # A reloaded module makes a new object for the name it declared; that one is as good.
        declared = self._types.get(event_type.name)
        if declared is None or declared.ignorable is not event_type.ignorable:
            raise UndeclaredEventType(event_type.name)

    def _plant(self, seed: Iterable[Mapping[str, Any]], owned: bool) -> None:
        take = adopt_session_event if owned else snapshot_session_event
        for index, candidate in enumerate(seed):
            try:
                event = take(candidate)
                plan = self.surface.plan(event)
            except RefusedEvent as error:
                raise InvalidSeed(index, error.message) from error
            if event["seq"] != index:
                raise InvalidSeed(index, f"its seq is {event['seq']}")
            self._commit(event, plan)
        self.first_live_seq = len(self._log)
        if not self._log or self._log[-1]["type"] != SESSION_END_SEED.name:
            self.append(SESSION_END_SEED, SessionEndSeedData())


def _add_surface_fields(
    fields: dict[str, Any], surface_op: object, source_event_seqs: Sequence[int] | None
) -> None:
    try:
        if source_event_seqs is not None:
            fields["sourceEventSeqs"] = snapshot(list(source_event_seqs), logged=True)
        if surface_op is not None:
            fields["surfaceOp"] = snapshot(surface_op, logged=True)
    except NotLossless as error:
        raise RefusedEvent(fields["type"], error.message) from error
