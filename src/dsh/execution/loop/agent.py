"""The agent of this loop: its phases, and how messages and cancellations move it between them."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from dsh.base.json import snapshot
from dsh.execution.agent.dispatch import agent_events
from dsh.execution.agent.events import (
    AGENT_INBOX_CLAIMED,
    AGENT_INBOX_DISCARDED,
    AGENT_INBOX_INSERTED,
    AGENT_STATUS,
    AgentStatusChanged,
    InboxClaimed,
    InboxDiscarded,
    InboxInserted,
)
from dsh.execution.agent.inbox import SessionInbox
from dsh.execution.agent.service import (
    DISPOSED_CANCEL,
    AgentBusy,
    AgentCancelCause,
    AgentStatus,
    InboxTarget,
    InitiatorScopeDisposed,
)
from dsh.execution.loop.driver import Driver, Opening
from dsh.execution.loop.patience import Patience
from dsh.execution.loop.phase import Busy, Idle, Maintenance, Phase, Running
from dsh.execution.loop.request import RequestBuilder
from dsh.execution.loop.service import IdleFromWithin, NoLoop
from dsh.execution.loop.snapshot import SnapshotProjection
from dsh.kernel import AGENT, create_scope

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from dsh.base.signal import AbortSignal
    from dsh.execution.agent.service import AgentOptions
    from dsh.execution.loop.services import LoopServices
    from dsh.kernel import Context
    from dsh.model.messages import SessionId, UserMessage
    from dsh.state.session.session import Session

T = TypeVar("T")
_log = logging.getLogger("dsh.agent")


class LoopAgent:
    """One session and the driver that works on it. Implements ``Agent``.

    A phase changes in one synchronous step, and everything that depends on it (a latched wake, the
    next driver) is decided in the same step, so no message falls between two phases.
    """

    def __init__(self, services: LoopServices, session: Session, options: AgentOptions) -> None:
        self.services = services
        self._session = session
        self._options = options
        self.scope = create_scope(services.ctx, self)
        self._ctx = self.scope.ctx.extend(meta={AGENT: self})
        self.events = agent_events(services.ctx, self)
        self._inbox = SessionInbox(session, _InboxVoice(self))
        self.requests = RequestBuilder(self)
        self.snapshots = SnapshotProjection(session)
        self._phase: Phase = Idle(last_turn(session))
        self._activity: asyncio.Future[Any] | None = None
        self._ending = False
        self._withdrawn = False
        self.inner_tasks: set[asyncio.Task[Any]] = set()
        """Tasks beside the driver that the driver waits for."""

    def __repr__(self) -> str:
        return f"<LoopAgent {self.id} {self.status}>"

    @property
    def id(self) -> SessionId:
        """See `Agent.id`."""
        return self._session.id

    @property
    def session(self) -> Session:
        """See `Agent.session`."""
        return self._session

    @property
    def options(self) -> AgentOptions:
        """See `Agent.options`."""
        return self._options

    @property
    def inbox(self) -> SessionInbox:
        """See `Agent.inbox`."""
        return self._inbox

    @property
    def ctx(self) -> Context:
        """See `Agent.ctx`."""
        return self._ctx

    @property
    def status(self) -> AgentStatus:
        """See `Agent.status`."""
        return "running" if isinstance(self._phase, Running) else "idle"

    def send(self, message: UserMessage, target: InboxTarget, wakeup: bool) -> None:
        """See `Agent.send`."""
        if wakeup:
            self._require_loop()
        phase = self._phase
        late = wakeup and not isinstance(phase, Idle) and phase.abort.signal.aborted
        self._inbox.append("next-turn" if late else target, message)
        if wakeup:
            self._wake(late=late)

    def followup(self, message: UserMessage) -> None:
        """See `Agent.followup`."""
        self.send(message, "next-turn", True)

    def steer(self, message: UserMessage) -> None:
        """See `Agent.steer`."""
        self.send(message, "next-step", True)

    def inject(self, message: UserMessage) -> None:
        """See `Agent.inject`."""
        self.send(message, "next-step", False)

    def cancel(self, cause: AgentCancelCause, *, keep_inbox: bool = False) -> None:
        """See `Agent.cancel`."""
        phase = self._phase
        # The abort comes first: withdrawing messages appends to the log and may be refused there.
        if not isinstance(phase, Idle):
            if not keep_inbox:
                phase.wake_requested = False
            phase.abort.abort(snapshot(dict(cause), logged=True))
        if not keep_inbox:
            self._inbox.clear()

    async def when_idle(self) -> None:
        """See `Agent.when_idle`.

        Raises:
            IdleFromWithin: the agent cannot come to rest before the caller goes on.
        """
        if (current := asyncio.current_task()) is not None and self.waits_for(current):
            raise IdleFromWithin(self.id)
        while (activity := self._activity) is not None:
            if not activity.done():
                await asyncio.wait([activity])
            if self._activity is activity:
                return

    def run_maintenance(self, job: Callable[[AbortSignal], Awaitable[T]]) -> asyncio.Future[T]:
        """See `Agent.run_maintenance`."""
        phase = self._phase
        if not isinstance(phase, Idle) or self._ending:
            raise AgentBusy(self.id)
        self._require_loop()
        held = Maintenance(phase.last_turn)
        self._phase = held
        task = asyncio.create_task(self._maintain(held, job), name=f"maintenance:{self.id}")
        # A task that is cancelled before its first step runs nothing, not even its finally.
        task.add_done_callback(lambda _: self._free(held))
        self._activity = task
        return task

    def patience(self, signal: AbortSignal) -> Patience:
        """Bound what is awaited inside, once ``signal`` is aborted."""
        return Patience(signal, self.services.grace_s)

    def waits_for(self, task: asyncio.Task[Any]) -> bool:
        """Whether the agent cannot come to rest before ``task`` goes on."""
        return task is self._activity or task in self.inner_tasks

    def begin_ending(self) -> None:
        """Abort what runs, withdraw what waits, and start nothing any more."""
        self._ending = True
        self.cancel(DISPOSED_CANCEL, keep_inbox=True)
        self.withdraw_waiting()

    def withdraw_waiting(self) -> None:
        """Withdraw what waits, once; where the log refuses that, the next call tries again.

        What comes after that stays in the log for whoever resumes the session.
        """
        if self._withdrawn:
            return
        try:
            self._inbox.clear()
            self._withdrawn = True
        except Exception:
            _log.exception("messages that wait for agent %s could not be withdrawn", self.id)

    def converge(self, phase: Busy, *, replay: bool = True) -> None:
        """End a phase; start over at once if a wake was latched during it.

        Args:
            phase: The phase that ends.
            replay: Heed latched wakes; not so when the event loop itself goes down.
        """
        running = isinstance(phase, Running)
        self._phase = Idle(phase.turn if isinstance(phase, Running) else phase.last_turn)
        if running:
            self._tell_status("idle")
        if replay and phase.wake_requested and self._inbox.has_pending:
            self._wake(late=False)

    def _wake(self, *, late: bool) -> None:
        phase = self._phase
        if isinstance(phase, Idle):
            if not self._ending:
                self._start(phase)
            return
        # A live driver claims what waits by itself. Only what comes when it cannot any more (after
        # an abort or a failure), or where there is none (maintenance), must be remembered.
        unheard = late or isinstance(phase, Maintenance) or phase.failed
        if unheard and not _is_disposal(phase.abort.signal):
            phase.wake_requested = True

    def _start(self, idle: Idle) -> None:
        phase = Running(idle.last_turn)
        self._phase = phase
        self._tell_status("running")
        try:
            self._activity = self.services.agents.with_initiator(self, partial(self._launch, phase))
        except InitiatorScopeDisposed:
            _log.info("agent %s stays idle: the agent registry is going", self.id)
            self.converge(phase, replay=False)

    def _launch(self, phase: Running) -> asyncio.Task[None]:
        driver = Driver(self, phase)
        # The turn is open and its first batch claimed when the waking call returns.
        opening = driver.open_turn()
        driver.launching = True
        task = asyncio.create_task(driver.run(opening), name=f"agent:{self.id}")
        driver.launching = False
        task.add_done_callback(partial(_end_driver, driver, opening))
        return task

    def _free(self, held: Maintenance) -> None:
        if self._phase is held:
            self.converge(held, replay=False)

    async def _maintain(self, held: Maintenance, job: Callable[[AbortSignal], Awaitable[T]]) -> T:
        try:
            with self.patience(held.abort.signal):
                return await job(held.abort.signal)
        finally:
            self.converge(held)

    def _tell_status(self, status: AgentStatus) -> None:
        self.events.emit(AGENT_STATUS, AgentStatusChanged(self, status))

    def _require_loop(self) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise NoLoop(self.id) from None


class _InboxVoice:
    """Tells the bus what happened to an agent's inbox."""

    def __init__(self, agent: LoopAgent) -> None:
        self._agent = agent

    def inserted(self, message: UserMessage) -> None:
        self._agent.events.emit(AGENT_INBOX_INSERTED, InboxInserted(self._agent, message))

    def discarded(self, message: UserMessage) -> None:
        self._agent.events.emit(AGENT_INBOX_DISCARDED, InboxDiscarded(self._agent, message))

    def claimed(self, message: UserMessage, turn: int) -> None:
        self._agent.events.emit(AGENT_INBOX_CLAIMED, InboxClaimed(self._agent, message, turn))


def last_turn(session: Session) -> int:
    """Return the number of the newest turn in a log, 0 without one."""
    for event in reversed(session.events):
        if event["type"] == "turn/start":
            return cast("int", event["data"]["turn"])
    return 0


def _end_driver(driver: Driver, opening: Opening, task: asyncio.Task[None]) -> None:
    driver.close_unrun(opening)
    if not task.cancelled():
        task.exception()  # what ends the program is told by the event loop


def _is_disposal(signal: AbortSignal) -> bool:
    reason = signal.reason
    return isinstance(reason, dict) and reason.get("kind") == "disposed"
