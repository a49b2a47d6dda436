"""What agents tell: the ``agent/*`` events of the bus and the inbox's entry in the log.

Every event here is dispatched for its agent (see ``dispatch.agent_events``): listeners of an
agent's own context hear that agent alone, untagged listeners hear all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict

from dsh.base.values import value
from dsh.kernel import Emit, Serial, Waterfall
from dsh.model.llm.service import LlmCallConfig
from dsh.state.session.events import EventType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsh.base.signal import AbortSignal
    from dsh.execution.agent.service import Agent, AgentStatus, InboxTarget, SessionStartSource
    from dsh.model.failures import LlmFailure
    from dsh.model.llm.service import RetryPolicy
    from dsh.model.messages import UserMessage


@value
class AgentCreated:
    """An agent is set up and in both registries; raising takes it back."""

    agent: Agent


@value
class AgentDisposed:
    """An announced agent is gone from the registry; its session is still stored."""

    agent: Agent


@value
class AgentSessionStarted:
    """An agent is about to begin; the first moment at which messages may be queued."""

    agent: Agent
    source: SessionStartSource


@value
class AgentStatusChanged:
    """The public status is now ``status``."""

    agent: Agent
    status: AgentStatus


@value
class InboxInserted:
    """A message began to wait."""

    agent: Agent
    message: UserMessage


@value
class InboxDiscarded:
    """A waiting message was withdrawn before any turn took it."""

    agent: Agent
    message: UserMessage


@value
class InboxClaimed:
    """A turn took a waiting message; it never goes back."""

    agent: Agent
    message: UserMessage
    turn: int


@value
class Reject:
    """End the turn as ``blocked`` before the proposed step."""


@value
class Enter:
    """Enter the proposed step with these messages."""

    messages: Sequence[UserMessage]


PreStepDecision = Reject | Enter
"""What becomes of a proposed step."""


@value
class AgentPreStep:
    """A step is proposed with the messages claimed for it.

    ``messages`` is the claimed batch; what ``next()`` returns may hold more (such as a snapshot of
    the runtime context), so a listener edits that.
    """

    agent: Agent
    messages: tuple[UserMessage, ...]
    turn: int
    step: int
    signal: AbortSignal


@value
class AgentRequest:
    """A model request is being configured; the value of ``next()`` is frozen."""

    agent: Agent
    turn: int
    step: int
    signal: AbortSignal


@value
class Retry:
    """Ask the model again in the same step."""


@value
class AgentRequestError:
    """A model request failed in the provider; a listener may own the recovery."""

    agent: Agent
    turn: int
    step: int
    provider: str
    failure: LlmFailure
    retry_policy: RetryPolicy | None
    signal: AbortSignal


@value
class AgentTurnStopping:
    """A turn has nothing left to do; ``agent.steer`` keeps it going."""

    agent: Agent
    turn: int
    signal: AbortSignal


@value
class AgentErrorRaised:
    """A driver failed; cancellation is not told here."""

    agent: Agent
    turn: int
    step: int
    error: BaseException


AgentErrorEvent = AgentErrorRaised
"""The payload of ``AGENT_ERROR``."""


AGENT_CREATED = Emit[AgentCreated]("agent/created", errors="veto")
"""After set-up, before any work; the first error of a listener takes the agent back."""

AGENT_DISPOSED = Emit[AgentDisposed]("agent/disposed", errors="contain")
"""Once for each begun ``agent/created``; the driver is at rest and the scope unwound."""

AGENT_SESSION_START = Emit[AgentSessionStarted]("agent/session-start", errors="contain")
"""Right after ``agent/created``."""

AGENT_STATUS = Emit[AgentStatusChanged]("agent/status", errors="contain")
"""Only when the public status really changes."""

AGENT_INBOX_INSERTED = Emit[InboxInserted]("agent/inbox/inserted", errors="contain")
"""One for each message, after the logged splice."""

AGENT_INBOX_DISCARDED = Emit[InboxDiscarded]("agent/inbox/discarded", errors="contain")
"""One for each message that an ordinary removal took; claims are not told here."""

AGENT_INBOX_CLAIMED = Emit[InboxClaimed]("agent/inbox/claimed", errors="contain")
"""One for each claimed message in the order of the batch."""

AGENT_PRE_STEP = Waterfall[AgentPreStep, PreStepDecision]("agent/pre-step")
"""Around the entry of a step; keep what ``next()`` returned unless replacing on purpose."""

AGENT_REQUEST = Waterfall[AgentRequest, LlmCallConfig]("agent/request")
"""Around the configuration of a request; return a replacement, messages are out of reach."""

AGENT_REQUEST_ERROR = Waterfall[AgentRequestError, Retry | None]("agent/request-error")
"""Around the failure of a request; an abort beats ``Retry``."""

AGENT_TURN_STOPPING = Serial[AgentTurnStopping, None]("agent/turn-stopping")
"""Before a turn closes; may come more than once in a turn."""

AGENT_ERROR = Emit[AgentErrorRaised]("agent/error", errors="contain")
"""The exception as it was raised."""


class InboxSpliced(TypedDict):
    """One mutation of one queue, in normalised coordinates."""

    target: InboxTarget
    start: int
    removedCount: NotRequired[int]
    inserted: Sequence[UserMessage]
    outcome: NotRequired[Literal["canceled"]]
    """Present when messages were withdrawn, absent when a turn claimed them."""


INBOX_SPLICED = EventType("agent/inbox/spliced", InboxSpliced)
"""Written before the live queues change; never visible to the model."""
