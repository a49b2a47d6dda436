"""The row ``session-reference``: prompts may cite other sessions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from dsh.base.json import snapshot
from dsh.base.signal import AbortSignal
from dsh.context.session_reference.recall import Recall, recall, recall_text
from dsh.context.session_reference.service import (
    PreparedReferences,
    ReferenceCandidate,
    SessionReference,
    SessionReferenceError,
    SessionReferenceResolver,
)
from dsh.context.session_reference.uri import SCHEME, parse_session_reference_text
from dsh.execution.agent.events import (
    AGENT_PRE_STEP,
    AgentPreStep,
    Enter,
    PreStepDecision,
    Reject,
)
from dsh.model.messages import create_user_message
from dsh.state.projections.service import ProjectionCache
from dsh.state.query.service import SessionQuery, SessionQueryError

if TYPE_CHECKING:
    from dsh.execution.agent.service import Agent
    from dsh.kernel import Context
    from dsh.model.messages import ContentBlock, UserMessage
    from dsh.state.query.service import SessionRecord

T = TypeVar("T")

_VERSION = 1


class Config(BaseModel):
    """How much of other sessions a prompt may bring in."""

    model_config = ConfigDict(
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
    )

    max_references: Annotated[int, Field(ge=1, le=3, strict=True)] = 3
    """Sessions that one prompt can cite."""
    candidate_limit: Annotated[int, Field(ge=1, strict=True)] = 50
    """Sessions that are offered for a mention at once."""
    max_reference_bytes: Annotated[int, Field(ge=1, strict=True)] = 65_536
    """Bytes of one cited conversation."""


class LocalSessionReferences(SessionReferenceResolver):
    """Reads cited sessions through ``ctx.session_query``."""

    inject = (SessionQuery,)
    Config: ClassVar[Any] = Config

    def __init__(self, ctx: Context, config: Config | None = None) -> None:
        self._settings = config or Config()
        self._query = ctx.require(SessionQuery)
        super().__init__(ctx, self._settings)

    def start(self) -> None:
        """Begin to look at the messages of each step."""
        self.ctx.on(AGENT_PRE_STEP, self._before_step, prepend=True)

    async def list_candidates(
        self, agent: Agent, query: str = "", limit: int | None = None
    ) -> list[ReferenceCandidate]:
        """See `SessionReferenceResolver.list_candidates`."""
        most = self._settings.candidate_limit
        if limit is not None and (type(limit) is not int or not 1 <= limit <= most):
            raise SessionReferenceError(
                "SESSION_REFERENCE_INVALID_REFERENCE",
                f"the list has from 1 to {most} sessions, not {limit!r}",
            )
        wanted = query.strip().casefold()
        try:
            records = [each for each in await self._query.list_sessions() if each.id != agent.id]
            records.sort(key=lambda each: _rank(each, agent.session.header.get("cwd")))
            if not wanted:
                records = records[: limit or most]
            titles = await self._titles(records)
        except SessionQueryError as error:
            raise _unreadable("the list of sessions") from error
        found = [_candidate(record, titles.get(record.id)) for record in records]
        return [each for each in found if _matches(each, wanted)][: limit or most]

    async def prepare(
        self,
        agent: Agent,
        content: Sequence[ContentBlock],
        references: Sequence[SessionReference] = (),
        *,
        signal: AbortSignal | None = None,
    ) -> PreparedReferences:
        """See `SessionReferenceResolver.prepare`."""
        blocks, mentioned = _parsed(content)
        chosen = self._chosen(agent, [*references, *mentioned])
        if not chosen:
            return PreparedReferences(blocks, None)
        recalls = [await self._recalled(index, each, signal) for index, each in chosen]
        source = {
            "kind": "session-reference",
            "form": "recall",
            "version": _VERSION,
            "references": [each.facts() for each in recalls],
        }
        return PreparedReferences(blocks, create_user_message(recall_text(recalls), source))

    async def _before_step(
        self, event: AgentPreStep, next: Callable[[], Awaitable[PreStepDecision]]
    ) -> PreStepDecision:
        decision = await next()
        if isinstance(decision, Reject) or not any(map(_may_mention, decision.messages)):
            return decision
        messages: list[UserMessage] = []
        for message in decision.messages:
            messages += await self._expanded(event, message)
        return Enter(tuple(messages))

    async def _expanded(self, event: AgentPreStep, message: UserMessage) -> list[UserMessage]:
        if not _may_mention(message):
            return [message]
        prepared = await self.prepare(event.agent, message["content"], signal=event.signal)
        if prepared.recall is None:
            return [message]
        told = snapshot({**message, "content": list(prepared.content)})
        return [cast("UserMessage", told), prepared.recall]

    def _chosen(
        self, agent: Agent, references: Sequence[SessionReference]
    ) -> list[tuple[int, SessionReference]]:
        """Return each cited session once, with the number of its first mention."""
        chosen: dict[str, tuple[int, SessionReference]] = {}
        for index, reference in enumerate(references):
            if reference.session_id == agent.id:
                raise SessionReferenceError(
                    "SESSION_REFERENCE_SELF_REFERENCE",
                    "a session cannot cite itself; remove the mention of the current session",
                )
            chosen.setdefault(reference.session_id, (index, reference))
        most = self._settings.max_references
        if len(chosen) > most:
            raise SessionReferenceError(
                "SESSION_REFERENCE_TOO_MANY",
                f"a prompt can cite {most} sessions, not {len(chosen)}; remove some mentions",
            )
        return list(chosen.values())

    async def _recalled(
        self, index: int, reference: SessionReference, signal: AbortSignal | None
    ) -> Recall:
        try:
            view = await _until_aborted(self._query.read_surface(reference.session_id), signal)
        except SessionQueryError as error:
            raise _unreadable(f"the cited session {reference.label!r}") from error
        return recall(reference, index, view, self._settings.max_reference_bytes)

    async def _titles(self, records: Sequence[SessionRecord]) -> dict[str, str | None]:
        """Return the titles that can be had; stored logs are read only where no cache has them."""
        titles = {each.id: self._kept_title(each) for each in records}
        unknown = [name for name, title in titles.items() if title is None]
        outcomes = await self._query.read_title_snapshots(unknown)
        return titles | {
            each.session_id: each.value.title for each in outcomes if each.value is not None
        }

    def _kept_title(self, record: SessionRecord) -> str | None:
        cache = None if record.live else self.ctx.get(ProjectionCache)
        kept = None if cache is None else cache.cached_snapshot(record.header)
        title = None if kept is None else kept["values"].get("title")
        return title if isinstance(title, str) else None


plugin = LocalSessionReferences


async def _until_aborted(work: Awaitable[T], signal: AbortSignal | None) -> T:
    if signal is None:
        return await work
    try:
        return await signal.run(work)
    except Exception as error:
        if signal.aborted:
            raise SessionReferenceError(
                "SESSION_REFERENCE_CANCELLED", "the cited sessions were not read: cancelled"
            ) from error
        raise


def _may_mention(message: UserMessage) -> bool:
    return message["source"].get("kind") == "user" and any(
        block["type"] == "text" and SCHEME in block["text"] for block in message["content"]
    )


def _parsed(
    content: Sequence[ContentBlock],
) -> tuple[list[ContentBlock], list[SessionReference]]:
    blocks: list[ContentBlock] = []
    found: list[SessionReference] = []
    for block in content:
        if block["type"] == "text":
            text, references = parse_session_reference_text(block["text"])
            found += references
            block = {"type": "text", "text": text} if references else block
        blocks.append(block)
    return blocks, found


def _rank(record: SessionRecord, own: str | None) -> tuple[int, int, str]:
    cwd = record.header.get("cwd")
    nearness = 1 if cwd is None else 0 if cwd == own else 2
    return nearness, -record.header["createdAt"], record.id


def _candidate(record: SessionRecord, title: str | None) -> ReferenceCandidate:
    header = record.header
    return ReferenceCandidate(record.id, title, header.get("cwd"), header["createdAt"])


def _matches(candidate: ReferenceCandidate, wanted: str) -> bool:
    facts = (candidate.session_id, candidate.cwd, candidate.title)
    return not wanted or any(wanted in fact.casefold() for fact in facts if fact is not None)


def _unreadable(what: str) -> SessionReferenceError:
    return SessionReferenceError("SESSION_REFERENCE_READ_FAILED", f"{what} cannot be read")
