"""A store with titles, a provider that does what a test tells it, and a model of our own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal, cast

from state_logs import open_turn

from dsh.kernel import Context
from dsh.model.chunks import StreamChunk, block_end, block_start, finish, text_delta
from dsh.model.llm.events import mark_loop_built
from dsh.model.llm.runtime import AdapterRuntime
from dsh.model.llm.service import (
    GenerateOptions,
    LlmAdapter,
    LlmProviderInfo,
    LlmRuntime,
    ResolvedModelInfo,
)
from dsh.model.messages import create_user_message
from dsh.state.session.events import REQUEST_HEADER, USER_MESSAGE, SessionEvent, SessionMeta
from dsh.state.session.session import Session
from dsh.state.session.store import LocalSessionStore
from dsh.state.titles import (
    SESSION_TITLE,
    SessionTitleService,
    TitleRequest,
    TitleResult,
)
from dsh.state.titles.keeper import TitleKeeper

SHIPPED = {"fallbackMaxWords": 5, "fallbackMaxBytes": 40, "maxTitleBytes": 80}
ROUTE = {"provider": "script", "model": "m1"}


class Titles:
    """The row ``session-title`` over a store."""

    def __init__(self, root: Context, **config: Any) -> None:
        self.root = root
        self.config = {**SHIPPED, **config}
        self._detach: dict[Session, Callable[[], object]] = {}

    async def open(self) -> Titles:
        await self.root.plugin(LocalSessionStore)
        self.fiber = await self.root.plugin(TitleKeeper, self.config)
        return self

    @property
    def store(self) -> LocalSessionStore:
        return self.root.require(LocalSessionStore)

    @property
    def service(self) -> SessionTitleService:
        return self.root.require(SessionTitleService)

    def session(self, id: str | None = None, seed: Any = None, **meta: Any) -> Session:
        session = self.store.prepare(id, seed=seed, meta=cast("SessionMeta", meta))
        self._detach[session] = self.store.enter(session, self.root)
        self.store.announce(session)
        return session

    def leave(self, session: Session) -> None:
        self._detach.pop(session)()

    def register(self, provider: Any) -> Any:
        return self.service.register(provider)


class Provider:
    """A title provider whose answers a test gives."""

    def __init__(
        self,
        name: str = "told",
        automatic: Literal["first-prompt", "all-prompts"] = "first-prompt",
    ) -> None:
        self.name = name
        self.automatic: Literal["first-prompt", "all-prompts"] = automatic
        self.requests: list[TitleRequest] = []
        self.asked = asyncio.Event()
        self.answers: asyncio.Queue[TitleResult | Exception] = asyncio.Queue()
        self.ended = 0
        self.holds: asyncio.Event | None = None
        """Set: an aborted call ends only after this."""

    async def make_title(self, request: TitleRequest) -> TitleResult:
        self.requests.append(request)
        self.asked.set()
        try:
            answer = await self.answers.get()
        except asyncio.CancelledError:
            if self.holds is not None:
                await self.holds.wait()
            raise
        finally:
            self.ended += 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    def answer(self, title: str, *seqs: int, **more: Any) -> None:
        self.answers.put_nowait(TitleResult(title, list(seqs), **more))


class Model(LlmAdapter):
    """An adapter that answers with the chunks that a test gives."""

    def __init__(self) -> None:
        self.calls: list[GenerateOptions] = []
        self.chunks: list[StreamChunk] | Exception = spoken("A name")
        self.waits: asyncio.Event | None = None
        self.asked = asyncio.Event()

    def provider_info(self, provider: str) -> LlmProviderInfo:
        return LlmProviderInfo(provider, provider)

    async def resolve_model(self, provider: str, model: str, signal: Any = None) -> Any:
        return ResolvedModelInfo(provider, model, model)

    async def stream(self, options: GenerateOptions) -> AsyncIterator[StreamChunk]:
        self.calls.append(options)
        self.asked.set()
        if self.waits is not None:
            await self.waits.wait()
        if isinstance(self.chunks, Exception):
            raise self.chunks
        for chunk in self.chunks:
            yield chunk


def spoken(text: str, kind: Any = "stop") -> list[StreamChunk]:
    """The chunks of a reply with one text."""
    return [
        block_start(0, "text"),
        text_delta(0, text),
        block_end(0, {"type": "text", "text": text}),
        finish(kind),
    ]


async def open_llm(root: Context, model: Model | None = None) -> Model:
    """Serve the provider ``script``."""
    await root.plugin(AdapterRuntime)
    model = model or Model()
    root.require(LlmRuntime).register_adapter(["script"], model)
    return model


def write(session: Session, content: Any, **source: Any) -> SessionEvent:
    """Append a message with the role of the user."""
    message = create_user_message(content, {"kind": "user", **source})
    return session.append(USER_MESSAGE, message, surface_op="append")


def request(session: Session, **config: Any) -> SessionEvent:
    """Append the header of a request, as a loop does before its first request."""
    header: Any = {"config": {**ROUTE, **config}}
    return session.append(REQUEST_HEADER, {"header": header, "reason": "initial"})


async def main_request(root: Context, session: Session, **route: str) -> None:
    """Make the call that a step makes."""
    path = {**ROUTE, **route}
    options = mark_loop_built(
        GenerateOptions(path["provider"], path["model"], [], session_id=session.id)
    )
    async for _ in root.require(LlmRuntime).stream(options):
        pass


def first_turn(session: Session, text: Any = "Please fix the tests") -> SessionEvent:
    """Open a turn with a message and the request that follows it."""
    open_turn(session)
    said = write(session, text)
    request(session)
    return said


def titles_of(session: Session) -> list[Any]:
    """All titles that are in the log."""
    return [event["data"] for event in session.events if event["type"] == SESSION_TITLE.name]


async def settle() -> None:
    """Let what is due on the loop run; nothing here waits for time or threads."""
    for _ in range(20):
        await asyncio.sleep(0)
