"""The row ``session-invariants``: refuses what dsh itself must never log or send.

For tests, and to find a plugin that breaks a log: each event is checked before it is committed,
each request of the agent loop before it goes out. It costs time with every event, so it is off
unless ``DSH_SESSION_INVARIANTS=1``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict

from dsh.base.json import equal
from dsh.kernel import INTERNAL_DISPATCH
from dsh.model.llm.events import LLM_STREAM, LlmStream, is_loop_built
from dsh.model.llm.service import call_config_of
from dsh.state.session.derive import derive_event_message
from dsh.state.session.events import ASSISTANT_CHUNK, SESSION_CREATED, SESSION_EVENT
from dsh.state.session.nesting import BrokenInvariant, Nesting
from dsh.state.session.payloads import payload_problem
from dsh.state.session.request import fold_request_header
from dsh.state.session.service import SessionStore
from dsh.state.session.surface import fold_surface

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from dsh.kernel import Context, Dispatching
    from dsh.model.llm.service import ChunkStream, GenerateOptions
    from dsh.state.session.events import SessionCreated, SessionEvent, SessionEventAppended
    from dsh.state.session.session import Session

name = "session-invariants"
inject = (SessionStore,)


class Config(BaseModel):
    """What is checked beside the order of a log."""

    model_config = ConfigDict(extra="forbid")

    payloads: bool = True
    """Compare the data of each appended event with the declaration of its type."""


def apply(ctx: Context, config: Config) -> None:
    """Check the sessions that are live, then every session and event to come.

    Raises:
        BrokenInvariant: the history of a live session breaks a rule.
    """
    checks = _Checks(ctx.require(SessionStore), payloads=config.payloads)
    for session in ctx.require(SessionStore).all():
        checks.follow(session)
    ctx.on(SESSION_CREATED, checks.created)
    ctx.on(INTERNAL_DISPATCH, checks.dispatching)
    ctx.on(LLM_STREAM, checks.before_request, prepend=True)


class _Checks:
    """The rules, and how far each session has been followed."""

    def __init__(self, store: SessionStore, *, payloads: bool) -> None:
        self._store = store
        self._payloads = payloads
        self._nesting: WeakKeyDictionary[Session, Nesting] = WeakKeyDictionary()

    def follow(self, session: Session) -> Nesting:
        """Read what was committed since the last look; a seed is history as good as any."""
        nesting = self._nesting.setdefault(session, Nesting())
        for event in session.events[nesting.count :]:
            if (problem := nesting.problem(event)) is not None:
                raise BrokenInvariant(session.id, event["seq"], event["type"], problem)
            nesting.read(event)
        return nesting

    def created(self, event: SessionCreated) -> None:
        """Refuse a session whose history breaks a rule."""
        self.follow(event.session)

    def dispatching(self, event: Dispatching) -> None:
        """Refuse an event before it is committed."""
        if event.name == SESSION_EVENT.name:
            self._check(event.payload)

    def _check(self, appended: SessionEventAppended) -> None:
        session, event = appended.session, appended.event
        problem = self.follow(session).problem(event) or self._payload_problem(event)
        if problem is not None:
            raise BrokenInvariant(session.id, event["seq"], event["type"], problem)

    def _payload_problem(self, event: SessionEvent) -> str | None:
        # Chunks are logged as a model sent them; the grammar of streams is the model seam's.
        declared = self._store.declared().get(event["type"])
        if not self._payloads or declared is None or declared is ASSISTANT_CHUNK:
            return None
        return payload_problem(declared, event["data"])

    async def before_request(
        self, event: LlmStream, next_: Callable[[], Awaitable[ChunkStream]]
    ) -> ChunkStream:
        """Refuse a request of the loop that its log cannot reconstruct."""
        options = event.options
        session = self._store.get(options.session_id or "")
        if session is not None and is_loop_built(options):
            _check_request(session, options)
        return await next_()


def _check_request(session: Session, options: GenerateOptions) -> None:
    if (problem := _request_problem(session, options)) is not None:
        raise BrokenInvariant(session.id, session.seq, "request", problem)


def _request_problem(session: Session, options: GenerateOptions) -> str | None:
    events = session.events
    surface = (derive_event_message(events[seq]) for seq in fold_surface(events).nodes)
    logged: list[Any] = [message for message in surface if message is not None]
    if not equal(logged, list(options.messages)):
        return "its messages are not those of the log"
    header: Mapping[str, Any] = fold_request_header(events) or {}
    sent: dict[str, Any] = {"config": call_config_of(options)}
    sent |= {"system": options.system} if options.system else {}
    sent |= {"tools": list(options.tools)} if options.tools else {}
    for part in ("config", "system", "tools"):
        if not equal(header.get(part), sent.get(part)):
            return f"its {part} is not that of the last request/header"
    return None
