"""What a log is made of: the envelope, the core event types, and the bus events about sessions.

An *event type* names an entry of a log (`EventType`); a *bus event* is what plugins subscribe
to. They are different things, even where their names look alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    NotRequired,
    TypeAlias,
    TypedDict,
    TypeVar,
)

from dsh.base.values import value
from dsh.kernel import Emit, Parallel
from dsh.model.messages import UserMessage
from dsh.state.session.vocabulary import (
    CORE_SESSION_EVENT_TYPES,
    KNOWN_SESSION_EVENT_TYPES,
    RESERVED_RECORD_TYPES,
    SESSION_FORMAT_VERSION,
    SURFACE_EVENT_TYPES,
)

if TYPE_CHECKING:
    from dsh.model.chunks import StreamChunk, TokenUsage
    from dsh.model.llm.service import AdapterDefaults, LlmCallConfig, ToolSchema
    from dsh.model.messages import AssistantMessage, ToolResultMessage
    from dsh.state.session.session import Session

__all__ = [
    "ASSISTANT_CHUNK",
    "ASSISTANT_MESSAGE",
    "CORE_EVENT_TYPES",
    "KNOWN_SESSION_EVENT_TYPES",
    "REQUEST_CONTEXT",
    "REQUEST_HEADER",
    "SESSION_CREATED",
    "SESSION_DISPOSED",
    "SESSION_END_SEED",
    "SESSION_EVENT",
    "SESSION_FLUSH",
    "SESSION_FORMAT_VERSION",
    "STEP_END",
    "STEP_START",
    "TODO_WRITE",
    "TOOL_CALL",
    "TOOL_RESULT",
    "TURN_END",
    "TURN_START",
    "USER_MESSAGE",
    "AssistantChunkData",
    "AssistantMessageData",
    "EpochHeader",
    "EventType",
    "RequestContext",
    "RequestHeaderData",
    "SessionCreated",
    "SessionDisposed",
    "SessionEndSeedData",
    "SessionEvent",
    "SessionEventAppended",
    "SessionFlush",
    "SessionHeader",
    "SessionMeta",
    "StepData",
    "SurfaceOp",
    "SurfaceReplace",
    "TodoItem",
    "TodoWriteData",
    "ToolCallData",
    "ToolError",
    "ToolResultData",
    "TurnEndData",
    "TurnStartData",
]

T = TypeVar("T", bound=Mapping[str, object])


class EventType(Generic[T]):
    """A declared kind of log entry: its wire name and the shape of its data.

    Build the data with its class, ``session.append(TURN_START, TurnStartData(turn=1))``: that is
    a plain ``dict`` at run time, and type checkers compare it with the declaration.

    Args:
        name: The wire name.
        payloads: The ``TypedDict`` of the data; several when it takes several forms. They serve
            documentation, static checking, and `state.session.invariants`.
        ignorable: A reader that does not know the type may skip such events. All types that the
            shared format does not have must be ignorable, and none of its own may be.

    Raises:
        ValueError: the name and ``ignorable`` do not go together.
    """

    __slots__ = ("ignorable", "name", "payloads", "surface")

    def __init__(self, name: str, *payloads: type[T], ignorable: bool = False) -> None:
        if not name or name in RESERVED_RECORD_TYPES:
            raise ValueError(f"{name!r} cannot name an event type")
        if ignorable == (name in KNOWN_SESSION_EVENT_TYPES):
            problem = (
                "belongs to the shared format, so readers must not skip it: drop ignorable=True"
                if ignorable
                else "is unknown to other readers of the format: declare it with ignorable=True"
            )
            raise ValueError(f"event type {name!r} {problem}")
        self.name = name
        self.payloads = payloads
        self.ignorable = ignorable
        self.surface = name in SURFACE_EVENT_TYPES

    def __repr__(self) -> str:
        return f"EventType({self.name!r})"


class SurfaceReplace(TypedDict):
    """Replace the surface nodes from ``start`` to ``end``, both included, by this event."""

    op: Literal["replace"]
    start: int
    end: int


SurfaceOp: TypeAlias = "Literal['append'] | SurfaceReplace"
"""What an event does to the surface."""


class SessionEvent(TypedDict):
    """One entry of a log. ``seq`` is its index; data and entry are frozen."""

    type: str
    seq: int
    time: int
    data: Mapping[str, object]
    surfaceOp: NotRequired[SurfaceOp]
    sourceEventSeqs: NotRequired[list[int]]
    ignorable: NotRequired[Literal[True]]


class SessionMeta(TypedDict, total=False):
    """What a creator may say about a session."""

    cwd: str
    parentSession: str
    createdAt: int
    seedLength: int
    origin: Literal["subagent"]
    delegationDepth: int
    agentPreset: str


class SessionHeader(SessionMeta):
    """The immutable facts beside a log; ``createdAt`` is always there."""

    version: int
    id: str


class TurnStartData(TypedDict):
    """A turn opens; numbers start at 1."""

    turn: int


class TurnEndData(TypedDict):
    """A turn closed; ``reason`` is an open union on ``kind``."""

    turn: int
    reason: Mapping[str, object]


class StepData(TypedDict):
    """One model call and its tools; steps are numbered per turn, from 1."""

    turn: int
    step: int


class AssistantChunkData(TypedDict):
    """One raw chunk of a model stream."""

    turn: int
    step: int
    chunk: StreamChunk


class AssistantMessageData(TypedDict):
    """The assembled output of a step."""

    turn: int
    step: int
    message: AssistantMessage
    usage: NotRequired[TokenUsage]
    interrupted: NotRequired[Literal[True]]


class ToolCallData(TypedDict):
    """A call starts; ``arguments`` is the raw text from the model."""

    turn: int
    step: int
    callId: str
    name: str
    arguments: str


class ToolError(TypedDict):
    """Why a call has no good result."""

    name: str
    code: str


class ToolResultData(TypedDict):
    """The outcome of a call."""

    turn: int
    step: int
    message: ToolResultMessage
    error: NotRequired[ToolError]
    meta: NotRequired[object]


class TodoItem(TypedDict):
    """One line of the list."""

    content: str
    status: Literal["pending", "in_progress", "completed"]


class TodoWriteData(TypedDict):
    """The whole list; the last one counts."""

    todos: list[TodoItem]


class EpochHeader(TypedDict):
    """What requests have in common until the next header."""

    config: LlmCallConfig
    adapterDefaults: NotRequired[AdapterDefaults]
    system: NotRequired[str]
    tools: NotRequired[list[ToolSchema]]


class RequestHeaderData(TypedDict):
    """Requests look like this from here on."""

    header: EpochHeader
    reason: Literal["initial", "resume", "change"]


class RequestContext(TypedDict):
    """The route of the requests and its capacity, when known."""

    provider: str
    model: str
    contextWindow: NotRequired[int]


class SessionEndSeedData(TypedDict):
    """Nothing: the position says it all."""


TURN_START: Final = EventType("turn/start", TurnStartData)
TURN_END: Final = EventType("turn/end", TurnEndData)
STEP_START: Final = EventType("step/start", StepData)
STEP_END: Final = EventType("step/end", StepData)
USER_MESSAGE: Final = EventType("user/message", UserMessage)
ASSISTANT_CHUNK: Final = EventType("assistant/chunk", AssistantChunkData)
ASSISTANT_MESSAGE: Final = EventType("assistant/message", AssistantMessageData)
TOOL_CALL: Final = EventType("tool/call", ToolCallData)
TOOL_RESULT: Final = EventType("tool/result", ToolResultData)
TODO_WRITE: Final = EventType("todo/write", TodoWriteData)
REQUEST_HEADER: Final = EventType("request/header", RequestHeaderData)
REQUEST_CONTEXT: Final = EventType("request/context", RequestContext)
SESSION_END_SEED: Final = EventType("session/end-seed", SessionEndSeedData)

CORE_EVENT_TYPES: Final[Mapping[str, EventType[Any]]] = {
    declared.name: declared
    for declared in (
        TURN_START,
        TURN_END,
        STEP_START,
        STEP_END,
        USER_MESSAGE,
        ASSISTANT_CHUNK,
        ASSISTANT_MESSAGE,
        TOOL_CALL,
        TOOL_RESULT,
        TODO_WRITE,
        REQUEST_HEADER,
        REQUEST_CONTEXT,
        SESSION_END_SEED,
    )
}
"""The types that every session accepts."""

assert CORE_EVENT_TYPES.keys() == CORE_SESSION_EVENT_TYPES


@value
class SessionCreated:
    """A session is live; a listener that raises takes it back."""

    session: Session


@value
class SessionDisposed:
    """An announced session is gone from the store."""

    session: Session


@value
class SessionEventAppended:
    """An event is in the log; appending to the same session from here is refused."""

    session: Session
    event: SessionEvent


@value
class SessionFlush:
    """Make durable what is buffered of this session; the dispatcher waits for all."""

    session: Session


SESSION_CREATED: Final = Emit[SessionCreated]("session/created", errors="veto")
"""From `SessionStore.announce`, once a session. The first error withdraws the session."""
SESSION_DISPOSED: Final = Emit[SessionDisposed]("session/disposed", errors="contain")
"""From the store, once for each announced session, also when its creation was vetoed."""
SESSION_EVENT: Final = Emit[SessionEventAppended]("session/event", errors="contain")
"""From `Session.append`, after the event is committed."""
SESSION_FLUSH: Final = Parallel[SessionFlush]("session/flush")
"""From `SessionStore.flush` only: each listener returns when its copy is durable."""
