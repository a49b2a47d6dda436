"""The row ``session-title``: the first words as a title, until somebody knows a better one."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from dsh.base.errors import error_chain
from dsh.model.llm.events import LLM_STREAM, LlmStream, is_loop_built
from dsh.state.projections.service import ProjectionRegistry
from dsh.state.session.errors import SessionNotLive
from dsh.state.session.events import (
    REQUEST_HEADER,
    SESSION_DISPOSED,
    SESSION_EVENT,
    SessionEventAppended,
)
from dsh.state.session.service import SessionStore
from dsh.state.titles.events import SESSION_TITLE, SessionTitleData
from dsh.state.titles.facts import TITLE, TitleFacts
from dsh.state.titles.service import (
    SessionTitleInvalidError,
    SessionTitleProvider,
    SessionTitleProviderTaken,
    SessionTitleService,
    SessionTitleSuperseded,
)
from dsh.state.titles.text import (
    collect_session_title_messages,
    eligible_text,
    fallback_session_title,
    normalize_session_title,
)
from dsh.state.titles.work import TitleWork

if TYPE_CHECKING:
    from dsh.kernel import Context, Effect
    from dsh.model.llm.service import ChunkStream
    from dsh.state.session.session import Session
    from dsh.state.titles.text import TitleMessage

_log = logging.getLogger("dsh.session_title")


class Config(BaseModel):
    """How long titles are."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True)

    fallback_max_words: Annotated[int, Field(ge=1, strict=True)]
    """Words of a title that is cut from the first message."""
    fallback_max_bytes: Annotated[int, Field(ge=1, strict=True)]
    """Bytes of such a title, as UTF-8."""
    max_title_bytes: Annotated[int, Field(ge=1, strict=True)]
    """Bytes of any title, as UTF-8."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.fallback_max_bytes > self.max_title_bytes:
            msg = "fallbackMaxBytes must not exceed maxTitleBytes"
            raise ValueError(msg)
        return self


class TitleKeeper(SessionTitleService):
    """Makes titles as messages come; see `SessionTitleService`.

    A provider is asked beside the turn, once the turn's own request is on its way, and never
    delays it.
    """

    inject = (SessionStore,)
    Config: ClassVar[Any] = Config

    def __init__(self, ctx: Context, config: Config) -> None:
        self._facts: WeakKeyDictionary[Session, TitleFacts] = WeakKeyDictionary()
        self._unnamed: set[Session] = set()
        self._current: dict[Session, TitleWork] = {}
        self._running: set[TitleWork] = set()
        self._provider: SessionTitleProvider | None = None
        self._provider_ends = False
        self._stop = ctx.stop
        # Title work must not carry the identity of the agent whose message caused it.
        self._identity = contextvars.copy_context()
        super().__init__(ctx, config)

    def start(self) -> Callable[[], None]:
        """Begin to follow the live sessions."""
        self.ctx.require(SessionStore).declare(SESSION_TITLE)
        self.ctx.on(SESSION_EVENT, self._appended)
        self.ctx.on(SESSION_DISPOSED, lambda gone: self._supersede(gone.session, "it left"))
        self.ctx.on(LLM_STREAM, self._streaming, prepend=True, everywhere=True)
        self.ctx.inject([ProjectionRegistry], _offer_projection)
        return self._close

    def get(self, session: Session) -> SessionTitleData | None:
        """See `SessionTitleService.get`."""
        return self._known(session).title

    def rename(self, session: Session, title: str) -> SessionTitleData:
        """See `SessionTitleService.rename`."""
        self._check_live(session)
        text = normalize_session_title(title, self.config.max_title_bytes)
        if not text:
            raise SessionTitleInvalidError
        self._supersede(session, "the user gave it a title")
        data = SessionTitleData(title=text, messageSeqs=[], source={"kind": "user"})
        return self._append(session, data)

    async def regenerate(self, session: Session) -> SessionTitleData | None:
        """See `SessionTitleService.regenerate`."""
        self._check_live(session)
        self._supersede(session, "it was asked for again")
        if self._provider is None or self._provider_ends:
            return self._back_to_first_words(session)
        messages = collect_session_title_messages(session.events)
        if not messages:
            return self.get(session)
        work = self._begin(session, messages, self._provider)
        self._run(work)
        try:
            return await work.done
        except asyncio.CancelledError:
            if not work.signal.aborted:
                work.abort("nobody waits for it any more")
            raise

    def register(self, provider: SessionTitleProvider) -> Effect:
        """See `SessionTitleService.register`."""
        if self._provider is not None:
            raise SessionTitleProviderTaken(self._provider.name, provider.name)

        def setup() -> Callable[[], Awaitable[None]]:
            self._provider, self._provider_ends = provider, False
            return self._end_provider

        return self.caller.effect(setup, f"session_title.register({provider.name!r})")

    async def _end_provider(self) -> None:
        self._provider_ends = True
        for session in list(self._current):
            self._supersede(session, "its provider ends")
        while self._running:
            await asyncio.wait({work.task for work in self._running if work.task is not None})
        self._provider = None

    def _close(self) -> None:
        for session in list(self._current):
            self._supersede(session, "titles are shut down")

    # What happens by itself.

    def _appended(self, appended: SessionEventAppended) -> None:
        session, event = appended.session, appended.event
        kind = event["type"]
        if kind == "user/message":
            if eligible_text(event) is not None:
                self._heard(session, event["seq"])
        elif kind == REQUEST_HEADER.name:
            self._release(session)

    async def _streaming(
        self, event: LlmStream, next: Callable[[], Awaitable[ChunkStream]]
    ) -> ChunkStream:
        options = event.options
        if self._current and options.session_id is not None and is_loop_built(options):
            session = self.ctx.require(SessionStore).get(options.session_id)
            header = None if session is None else session.request_header()
            if session is not None and header is not None:
                route = header["config"]
                if (route["provider"], route["model"]) == (options.provider, options.model):
                    self._release(session)
        return await next()

    def _heard(self, session: Session, seq: int) -> None:
        self._supersede(session, "a newer message came")
        facts = self._known(session)
        if facts.title is None and session not in self._unnamed:
            self._unnamed.add(session)
            loop = asyncio.get_running_loop()
            loop.call_soon(self._name_by_first_words, session, context=self._identity)
        provider = self._provider
        if provider is None or self._provider_ends or facts.pinned:
            return
        if provider.automatic == "first-prompt" and (
            "parentSession" in session.header or facts.messages != 1 or facts.title is not None
        ):
            return
        # It waits for the main request of this message; see `_release`.
        self._begin(session, collect_session_title_messages(session.events, seq), provider)

    def _release(self, session: Session) -> None:
        """Start what waits for the session's own request."""
        work = self._current.get(session)
        if work is not None and work.task is None and not self._stop.aborted:
            self._run(work)

    def _name_by_first_words(self, session: Session) -> None:
        self._unnamed.discard(session)
        if self._stop.aborted or not self._is_live(session) or self.get(session) is not None:
            return
        try:
            self._append_first_words(session)
        except Exception as error:
            _warn(session, error)

    def _back_to_first_words(self, session: Session) -> SessionTitleData | None:
        facts = self._known(session)
        if facts.title is None or facts.pinned:
            self._append_first_words(session)
        return self.get(session)

    def _append_first_words(self, session: Session) -> None:
        first = self._known(session).first
        if first is None:
            return
        title = fallback_session_title(
            first.text, self.config.fallback_max_words, self.config.fallback_max_bytes
        )
        if title is not None:
            source = {"kind": "fallback"}
            data: Any = {"title": title, "messageSeqs": [first.seq], "source": source}
            self._append(session, data)

    # Work of the provider.

    def _begin(
        self, session: Session, messages: list[TitleMessage], provider: SessionTitleProvider
    ) -> TitleWork:
        work = self._current[session] = TitleWork(session, messages, provider)
        return work

    def _run(self, work: TitleWork) -> None:
        name = f"session-title:{work.session.id}"
        context = self._identity.copy()
        work.task = context.run(self.ctx.spawn, self._finish(work), name)
        self._running.add(work)
        work.task.add_done_callback(lambda _: self._ended(work))

    def _ended(self, work: TitleWork) -> None:
        self._running.discard(work)
        if self._current.get(work.session) is work:
            del self._current[work.session]
        work.settle(SessionTitleSuperseded(work.session.id, "titles are shut down"))

    async def _finish(self, work: TitleWork) -> None:
        try:
            data = await work.make(self.config.max_title_bytes)
            self._check_wanted(work)
            work.settle(self._append(work.session, data))
        except Exception as error:
            if not work.settle(error) and not isinstance(error, SessionTitleSuperseded):
                _warn(work.session, error)

    def _check_wanted(self, work: TitleWork) -> None:
        if not self._is_live(work.session) or self._current.get(work.session) is not work:
            raise SessionTitleSuperseded(work.session.id, "it left")

    def _supersede(self, session: Session, cause: str) -> None:
        work = self._current.pop(session, None)
        if work is not None:
            work.abort(cause)

    # Small things.

    def _append(self, session: Session, data: SessionTitleData) -> SessionTitleData:
        logged = session.append(SESSION_TITLE, data)
        return logged["data"]  # type: ignore[return-value]  # the payload, frozen

    def _known(self, session: Session) -> TitleFacts:
        facts = self._facts.setdefault(session, TitleFacts())
        facts.follow(session)
        return facts

    def _is_live(self, session: Session) -> bool:
        return self.ctx.require(SessionStore).get(session.id) is session

    def _check_live(self, session: Session) -> None:
        if not self._is_live(session):
            raise SessionNotLive(session.id)


def _offer_projection(ctx: Context) -> None:
    ctx.require(ProjectionRegistry).register(TITLE)


def _warn(session: Session, error: Exception) -> None:
    _log.warning("session %r gets no better title: %s", session.id, error_chain(error))


plugin = TitleKeeper
