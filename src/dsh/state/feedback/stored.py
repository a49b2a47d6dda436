"""The row ``message-feedback``: feedback in a storage domain, checked against the stored logs."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, cast

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from dsh.base.clock import SYSTEM_CLOCK
from dsh.base.json import equal
from dsh.base.serial import SerialQueue
from dsh.state.feedback.service import (
    Deleted,
    DeleteFeedback,
    FeedbackClosed,
    FeedbackFailure,
    FeedbackItem,
    FeedbackProblem,
    MessageFeedback,
    NotDurable,
    PutFeedback,
    Stored,
)
from dsh.state.persistence.errors import SessionNotFound
from dsh.state.persistence.service import SessionPersistence
from dsh.state.session.service import SessionStore
from dsh.state.storage.domain.service import Domain, DomainFacility, DomainSpec, KvTable

if TYPE_CHECKING:
    from dsh.kernel import Context
    from dsh.state.session.events import SessionEvent, SessionHeader

_TABLE: Final = "sessions"
_RATINGS: Final = ("positive", "negative")
_AFTER_ALL: Final = 2**53 - 1
"""Reads a header and no event."""


class Config(BaseModel):
    """How much users may write."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True)

    max_note_bytes: Annotated[int, Field(ge=1, strict=True)]
    """The longest note, in bytes of UTF-8."""


def _check_item(item: Any) -> None:
    for field in ("messageId", "version"):
        if not (isinstance(item[field], str) and item[field]):
            raise ValueError(f"an item has no {field}")
    if item["rating"] not in _RATINGS or not isinstance(item.get("note", ""), str):
        raise ValueError("an item has no valid rating or note")
    if type(item["createdAt"]) is not int or type(item["updatedAt"]) is not int:
        raise ValueError("an item has no times")


def _check_record(record: Any) -> None:
    session = record["session"]
    if type(session["createdAt"]) is not int or not isinstance(session.get("cwd", ""), str):
        raise ValueError("it does not say of which session it is")
    items = record["items"]
    for item in items:
        _check_item(item)
    for field in ("messageId", "version"):
        if len({item[field] for item in items}) != len(items):
            raise ValueError(f"two items have one {field}")


DOMAIN: Final = DomainSpec("message_feedback", version=0, tables={_TABLE: _check_record})
"""The domain; nothing can make it again."""


class StoredFeedback(MessageFeedback):
    """Keeps feedback beside the logs; see `MessageFeedback`."""

    inject = (SessionStore, SessionPersistence, DomainFacility)
    Config: ClassVar[Any] = Config
    _domain: Domain

    def __init__(self, ctx: Context, config: Config) -> None:
        self._queue = SerialQueue("message-feedback")
        self._closed = False
        super().__init__(ctx, config)

    async def start(self) -> None:
        """Open the domain."""
        self._domain = await self.ctx.require(DomainFacility).open(DOMAIN)
        self.ctx.defer(self._drain, "message_feedback.drain")

    async def items(self, session_id: str) -> list[FeedbackItem]:
        """See `MessageFeedback.items`."""
        self._check_open()
        header = await self._header(session_id)
        return [] if header is None else list(self._items(header))

    async def put(self, request: PutFeedback) -> Stored | FeedbackFailure:
        """See `MessageFeedback.put`."""
        self._check_open()
        if (problem := self._note_problem(request.get("note"))) is not None:
            return _refused(problem)
        return await self._queue.run(partial(self._put, request), key=request["sessionId"])

    async def delete(self, request: DeleteFeedback) -> Deleted | FeedbackFailure:
        """See `MessageFeedback.delete`."""
        self._check_open()
        return await self._queue.run(partial(self._delete, request), key=request["sessionId"])

    async def _put(self, request: PutFeedback) -> Stored | FeedbackFailure:
        stored = await self._stored(request["sessionId"])
        if stored is None:
            return _refused({"code": "session-not-found"})
        header, events = stored
        if not any(_is_reply(event, request["messageId"]) for event in events):
            return _refused({"code": "target-not-found"})
        items = self._items(header)
        current = _item_of(items, request["messageId"])
        if not _is_version(current, request["ifVersion"]):
            return _refused({"code": "version-conflict", "current": current})
        if current is not None and _says_the_same(current, request):
            return {"ok": True, "value": current}
        item = _item(request, current)
        kept = [each for each in items if each is not current]
        await self._store(header, [*kept, item])
        return {"ok": True, "value": item}

    async def _delete(self, request: DeleteFeedback) -> Deleted | FeedbackFailure:
        header = await self._header(request["sessionId"])
        if header is None:
            return _refused({"code": "session-not-found"})
        items = self._items(header)
        current = _item_of(items, request["messageId"])
        if current is not None:
            if not _is_version(current, request["ifVersion"]):
                return _refused({"code": "version-conflict", "current": current})
            await self._store(header, [each for each in items if each is not current])
        return {"ok": True, "value": {"absent": True}}

    async def _stored(self, id: str) -> tuple[SessionHeader, Sequence[SessionEvent]] | None:
        """Return a session as it is in storage, where the reply must be to stay.

        Raises:
            NotDurable: it is live, and nobody stores it.
        """
        sessions = self.ctx.require(SessionStore)
        live = sessions.get(id)
        if live is not None and not await sessions.flush(live):
            raise NotDurable(id)
        try:
            return await self.ctx.require(SessionPersistence).read_from(id, 0)
        except SessionNotFound:
            return None if live is None else (live.header, ())

    async def _header(self, id: str) -> SessionHeader | None:
        live = self.ctx.require(SessionStore).get(id)
        if live is not None:
            return live.header
        try:
            found = await self.ctx.require(SessionPersistence).read_from(id, _AFTER_ALL)
        except SessionNotFound:
            return None
        return found[0]

    @property
    def _table(self) -> KvTable:
        return self._domain.table(_TABLE)

    def _items(self, header: SessionHeader) -> Sequence[FeedbackItem]:
        record = self._table.get(header["id"])
        if record is None or not equal(record["session"], _identity(header)):
            return ()
        items: Sequence[FeedbackItem] = record["items"]
        return items

    async def _store(self, header: SessionHeader, items: Sequence[FeedbackItem]) -> None:
        if not items:
            await self._table.delete(header["id"])
            return
        record = {"session": _identity(header), "items": list(items)}
        await self._table.put(header["id"], cast("Any", record))

    def _note_problem(self, note: str | None) -> FeedbackProblem | None:
        if note is None:
            return None
        if not note.strip():
            return {"code": "note-blank"}
        size, most = len(note.encode("utf-8", "surrogatepass")), self.config.max_note_bytes
        if size > most:
            return {"code": "note-too-large", "maxBytes": most, "actualBytes": size}
        return None

    def _check_open(self) -> None:
        if self._closed:
            raise FeedbackClosed

    async def _drain(self) -> None:
        """Take no more changes, and finish those that were asked for."""
        self._closed = True
        await self._queue.join()


def _identity(header: SessionHeader) -> dict[str, Any]:
    identity: dict[str, Any] = {"createdAt": header["createdAt"]}
    if "cwd" in header:
        identity["cwd"] = header["cwd"]
    return identity


def _is_reply(event: SessionEvent, message_id: str) -> bool:
    """Whether an event is the reply itself, with something in it, and not a later copy."""
    if event["type"] != "assistant/message" or event.get("surfaceOp") != "append":
        return False
    message = cast("Mapping[str, Any]", event["data"])["message"]
    return bool(message["id"] == message_id and message["content"])


def _item_of(items: Sequence[FeedbackItem], message_id: str) -> FeedbackItem | None:
    return next((item for item in items if item["messageId"] == message_id), None)


def _is_version(current: FeedbackItem | None, wanted: str | None) -> bool:
    return (None if current is None else current["version"]) == wanted


def _says_the_same(current: FeedbackItem, request: PutFeedback) -> bool:
    same_note = current.get("note") == request.get("note")
    return same_note and current["rating"] == request["rating"]


def _item(request: PutFeedback, current: FeedbackItem | None) -> FeedbackItem:
    now = SYSTEM_CLOCK.now_ms()
    item = FeedbackItem(
        messageId=request["messageId"],
        rating=request["rating"],
        version=str(uuid.uuid4()),
        createdAt=now if current is None else current["createdAt"],
        updatedAt=now,
    )
    if (note := request.get("note")) is not None:
        item["note"] = note
    return item


def _refused(problem: FeedbackProblem) -> FeedbackFailure:
    return {"ok": False, "error": problem}


plugin = StoredFeedback
