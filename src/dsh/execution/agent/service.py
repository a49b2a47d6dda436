"""What an agent is to everybody else: the handle, its inbox, and the registry ``ctx.agents``.

The loop that drives agents is a factory behind the registry, so another loop can take its place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    NotRequired,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
)

from dsh.base.errors import DshError
from dsh.base.values import value
from dsh.kernel import Service

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    from dsh.base.json import JsonValue
    from dsh.base.signal import AbortSignal
    from dsh.kernel import Context, Effect
    from dsh.model.messages import MessageId, SessionId, UserMessage
    from dsh.state.session.events import SessionEvent
    from dsh.state.session.session import Session

T = TypeVar("T")

AgentStatus = Literal["idle", "running"]
"""``running`` while a driver lives; maintenance counts as idle."""

InboxTarget = Literal["next-turn", "next-step"]
"""Which of the two queues a message waits in."""

SessionStartSource = Literal["startup", "resume", "clear", "compact"]
"""Why a session starts to live in this process; the last two are reserved."""


class AgentCancelCause(TypedDict):
    """Who ended the work, as it is logged in ``turn/end``."""

    kind: Literal["user", "parent", "hook", "disposed"]
    reason: NotRequired[str]
    """Only with ``hook``: the hook's own words."""
    code: NotRequired[str]
    """Only with ``hook``: the stable name of what the hook met, such as ``BUDGET_STEPS``."""


USER_CANCEL: AgentCancelCause = {"kind": "user"}
PARENT_CANCEL: AgentCancelCause = {"kind": "parent"}
DISPOSED_CANCEL: AgentCancelCause = {"kind": "disposed"}


@value(kw_only=True)
class AgentOptions:
    """The route an agent starts on; policies may choose another for each request."""

    provider: str | None = None
    model: str | None = None
    max_tokens: int | None = None
    """Upper bound of one reply in tokens; positive."""


class Inbox(ABC):
    """Messages that wait for an agent: one queue for the next turn, one for the next step.

    Message ids are unique across both queues. Every mutation is logged as
    ``agent/inbox/spliced`` before the queues change, so they come back by a fold of the log.
    """

    @property
    @abstractmethod
    def next_turn(self) -> tuple[UserMessage, ...]:
        """Messages that each open a turn of their own, first to last."""

    @property
    @abstractmethod
    def next_step(self) -> tuple[UserMessage, ...]:
        """Messages that join the next step of a turn that is open or about to open."""

    @property
    @abstractmethod
    def has_pending(self) -> bool:
        """Whether any message waits."""

    @abstractmethod
    def append(self, target: InboxTarget, message: UserMessage) -> None:
        """Put a message last.

        Raises:
            DuplicateMessage: a message with this id waits already; nothing is logged.
        """

    @abstractmethod
    def prepend(self, target: InboxTarget, message: UserMessage) -> None:
        """Put a message first; raises as ``append`` does."""

    @abstractmethod
    def replace(self, id: MessageId, message: UserMessage) -> bool:
        """Put a message in the place of a waiting one; its id may differ.

        Returns:
            Whether ``id`` was waiting.

        Raises:
            DuplicateMessage: another waiting message has the new id.
        """

    @abstractmethod
    def remove(self, id: MessageId) -> bool:
        """Withdraw a waiting message; says whether it was there."""

    @abstractmethod
    def clear(self) -> None:
        """Withdraw everything, next-step messages first."""

    @abstractmethod
    def splice(
        self,
        target: InboxTarget,
        start: int,
        delete_count: int,
        inserted: Sequence[UserMessage] = (),
    ) -> list[UserMessage]:
        """Remove and insert in one logged mutation of one queue.

        Args:
            target: The queue.
            start: Position as in a slice: negative counts from the end, clamped to the queue.
            delete_count: How many to remove from there, clamped.
            inserted: What takes their place.

        Returns:
            The removed messages in order.

        Raises:
            DuplicateMessage: an inserted id waits already, or occurs twice.
        """


class Agent(Protocol):
    """A live agent: one session, one inbox, at most one driver at a time.

    All methods belong to the thread of the agent's event loop.
    """

    @property
    def id(self) -> SessionId:
        """The identity of the agent and of its session."""

    @property
    def session(self) -> Session:
        """The log that this agent writes."""

    @property
    def options(self) -> AgentOptions:
        """What it was created with."""

    @property
    def inbox(self) -> Inbox:
        """What waits for it."""

    @property
    def ctx(self) -> Context:
        """The agent's registration scope; what is registered here dies with the agent."""

    @property
    def status(self) -> AgentStatus:
        """Whether a driver lives."""

    def send(self, message: UserMessage, target: InboxTarget, wakeup: bool) -> None:
        """Queue a message, and wake the agent if asked.

        A waking message that comes after an abort and before the agent is idle again waits for a
        turn of its own.
        """

    def followup(self, message: UserMessage) -> None:
        """Queue a message for a turn of its own and wake the agent."""

    def steer(self, message: UserMessage) -> None:
        """Queue a message for the next step of the running turn, or for a new turn."""

    def inject(self, message: UserMessage) -> None:
        """Leave a message for whatever step comes next, without waking the agent."""

    def cancel(self, cause: AgentCancelCause, *, keep_inbox: bool = False) -> None:
        """Abort what runs now; the first cause wins.

        Args:
            cause: Logged as the reason of the turn's end.
            keep_inbox: Leave waiting messages for a later wake instead of withdrawing them.
        """

    async def when_idle(self) -> None:
        """Wait until nothing runs, driver or maintenance; never raises for their failures."""

    def run_maintenance(self, job: Callable[[AbortSignal], Awaitable[T]]) -> asyncio.Future[T]:
        """Run a job while no turn can; wakes that come meanwhile are kept for its end.

        Raises:
            AgentBusy: a driver or another job runs.
        """


class AgentHandle(Protocol):
    """What the creator of an agent holds."""

    @property
    def agent(self) -> Agent:
        """The live agent."""

    async def dispose(self) -> None:
        """End the agent and wait until nothing of it runs; every call joins the same end."""


class AgentSetupCommit(Protocol):
    """The last word of a set-up, said when nothing can fail any more but itself."""

    def commit(self) -> None:
        """Make the set-up final; raising takes the whole agent back."""


AgentSetup: TypeAlias = (
    "Callable[[Context], AgentSetupCommit | Awaitable[AgentSetupCommit | None] | None]"
)
"""Composes an unpublished agent through its context; must not drive it."""


@value(kw_only=True)
class CreateAgent:
    """How to make a fresh agent."""

    session_id: SessionId
    meta: Mapping[str, JsonValue] | None = None
    """Session header fields by wire key: ``cwd``, ``parentSession``, ``seedLength``, ..."""
    seed: Sequence[SessionEvent] | None = None
    """Events that the session starts with."""
    agent_options: AgentOptions = AgentOptions()
    signal: AbortSignal | None = None
    """Ends the creation; has no part in the agent's life afterwards."""
    setup: AgentSetup | None = None
    """Runs before anybody else sees the agent."""


@value(kw_only=True)
class ResumeAgent:
    """How to bring a stored session back to life."""

    resume_session_id: SessionId
    agent_options: AgentOptions = AgentOptions()
    signal: AbortSignal | None = None
    """Ends the resumption; has no part in the agent's life afterwards."""
    setup: AgentSetup | None = None
    """As in ``CreateAgent``."""


class AgentFactory(Protocol):
    """A loop that can make agents; ``ctx.agents`` holds at most one."""

    async def create_agent(self, owner: Context, options: CreateAgent) -> AgentHandle:
        """Make and publish a fresh agent that dies with ``owner``."""

    async def resume_agent(self, owner: Context, options: ResumeAgent) -> AgentHandle:
        """Load and publish a stored agent that dies with ``owner``."""


class InitiatorFace(Protocol):
    """A door to the identities that a registry carries."""

    def current(self) -> Agent | None:
        """As ``AgentRegistry.current_initiator``."""

    def require(self) -> Agent:
        """As ``AgentRegistry.require_initiator``."""

    def run(self, agent: Agent | None, operation: Callable[[], T]) -> T:
        """As ``AgentRegistry.with_initiator``; ``without_initiator`` for None."""


class AgentRegistry(Service, ABC):
    """The live agents of this process, who makes new ones, and which one started this work."""

    name: ClassVar[str] = "agents"

    @abstractmethod
    def register(self, agent: Agent) -> Effect:
        """Enter and announce an agent until the calling plugin unloads."""

    @abstractmethod
    def enter(self, agent: Agent, owner: Agent | None) -> Callable[[], None]:
        """Insert an agent without telling anybody.

        Returns:
            The detachment: idempotent, bound to this very entry, held back while the entry is
            being announced. It tells ``agent/disposed`` if ``agent/created`` was begun.

        Raises:
            AgentRegistryError: the id is taken, or is not that of the agent's session.
        """

    @abstractmethod
    def announce(self, agent: Agent) -> None:
        """Tell ``agent/created``, once; a listener's error reaches the caller.

        Raises:
            AgentRegistryError: the agent is not live, or was announced before.
        """

    @abstractmethod
    def get(self, id: SessionId) -> Agent | None:
        """Find a live agent."""

    @abstractmethod
    def is_owned_by(self, id: SessionId, owner: Agent) -> bool:
        """Whether ``owner`` made the live agent ``id`` at run time; lineage does not count."""

    def owner_of(self, id: SessionId) -> Agent | None:
        """Return who made the live agent ``id`` at run time; None for a root, or for no agent."""
        return next((each for each in self.all() if self.is_owned_by(id, each)), None)

    @abstractmethod
    def all(self) -> list[Agent]:
        """Every live agent in order of registration, as a fresh list."""

    @abstractmethod
    def roots(self) -> list[Agent]:
        """Live agents that no other agent owns."""

    @abstractmethod
    def set_factory(self, factory: AgentFactory) -> Effect:
        """Name the loop that makes agents, until the calling plugin unloads.

        Raises:
            AgentRegistryError: there is one already.
        """

    @abstractmethod
    async def create(self, options: CreateAgent) -> AgentHandle:
        """Make a fresh agent; it is owned by the calling plugin and by the loop.

        Raises:
            NoAgentFactory: no loop is mounted.
        """

    @abstractmethod
    async def resume(self, options: ResumeAgent) -> AgentHandle:
        """Bring a stored session back; ownership and errors as for ``create``."""

    @abstractmethod
    def current_initiator(self) -> Agent | None:
        """The agent whose driver, directly or not, started the work that runs now.

        It says who, not whether that agent still lives or what it may do.

        Raises:
            InitiatorScopeDisposed: this registry is gone.
        """

    @abstractmethod
    def require_initiator(self) -> Agent:
        """As ``current_initiator``, for work that only a driver starts.

        Raises:
            NoInitiator: nothing here was started by an agent.
            InitiatorScopeDisposed: this registry is gone.
        """

    @abstractmethod
    def with_initiator(self, agent: Agent, operation: Callable[[], T]) -> T:
        """Run an operation as work of an agent.

        The operation is called once, now. What it returns is returned unchanged, except that a
        lazy object (coroutine, generator, async generator) comes back wrapped, so that each of its
        steps runs as work of the agent whoever drives it, while the driver keeps its own identity.

        Raises:
            InitiatorScopeDisposed: the registry is closing or gone; nothing was called.
        """

    @abstractmethod
    def without_initiator(self, operation: Callable[[], T]) -> T:
        """Run an operation as nobody's work; otherwise as ``with_initiator``.

        Shared pools, timers, pumps and long-lived connections are made in here, or they carry the
        first agent that touched them for ever.
        """

    @abstractmethod
    def spawn_with_initiator(
        self, agent: Agent, body: Callable[[], Coroutine[Any, Any, T]], *, name: str
    ) -> asyncio.Task[T]:
        """Start a task as work of an agent and keep it referenced until it is done."""

    @abstractmethod
    def open_face(
        self, *, missing: Callable[[], Exception], disposed: Callable[[], Exception]
    ) -> InitiatorFace:
        """Open another door to the same identities, for a service that speaks its own words.

        Boundaries of all doors nest in one another. The door belongs to the calling plugin: it
        closes when that begins to unload, and the unload waits for what runs behind it.

        Args:
            missing: Makes the error of ``require`` where nobody is current.
            disposed: Makes the error of what comes after the door, or this registry, has closed.
        """


class AgentError(DshError):
    """Base of what agents and their registry refuse."""

    code = "AGENT"


class AgentRegistryError(AgentError):
    """An agent cannot be entered, announced or made like this."""

    code = "AGENT_REGISTRY"


class NoAgentFactory(AgentRegistryError, LookupError):
    """Nobody can make agents."""

    code = "NO_AGENT_FACTORY"

    def __init__(self) -> None:
        super().__init__("no agent factory is registered; load an agent-loop plugin")


class AgentBusy(AgentError):
    """Maintenance was asked of an agent that is not idle."""

    code = "AGENT_BUSY"

    def __init__(self, agent: str) -> None:
        super().__init__(f"agent {agent!r} is not idle; wait for when_idle() before maintenance")
        self.agent = agent


class DuplicateMessage(AgentError, ValueError):
    """A message id would wait twice in one inbox."""

    code = "DUPLICATE_MESSAGE"

    def __init__(self, message: str) -> None:
        super().__init__(f"message {message!r} waits in the inbox already")
        self.id = message


class NoInitiator(AgentError, LookupError):
    """Work that needs an initiating agent runs outside of any driver."""

    code = "NO_INITIATOR"

    def __init__(self) -> None:
        super().__init__("no initiating agent is active")


class InitiatorScopeDisposed(AgentError, RuntimeError):
    """The registry that holds initiator identities is closing or gone."""

    code = "INITIATOR_DISPOSED"

    def __init__(self) -> None:
        super().__init__("agent initiator scope is disposed")
