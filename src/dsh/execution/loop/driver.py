"""One driver run: turns until nothing waits, steps until a turn owes nothing.

Whatever happens inside, a logged ``turn/start`` gets its ``turn/end`` and a logged ``step/start``
its ``step/end``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from dsh.base.errors import DshError, error_chain
from dsh.base.signal import AbortController
from dsh.base.values import value
from dsh.execution.agent.dispatch import assemble_context_for
from dsh.execution.agent.events import (
    AGENT_ERROR,
    AGENT_PRE_STEP,
    AGENT_TURN_STOPPING,
    AgentErrorRaised,
    AgentPreStep,
    AgentTurnStopping,
    Enter,
    PreStepDecision,
    Reject,
)
from dsh.execution.agent.service import DISPOSED_CANCEL
from dsh.execution.loop.phase import is_outer_cancel
from dsh.execution.loop.step import Step
from dsh.model.failures import LlmError
from dsh.state.session.events import (
    STEP_END,
    STEP_START,
    TURN_END,
    TURN_START,
    USER_MESSAGE,
    StepData,
    TurnEndData,
    TurnStartData,
)

if TYPE_CHECKING:
    from dsh.base.signal import AbortSignal
    from dsh.execution.loop.agent import LoopAgent
    from dsh.execution.loop.phase import Running
    from dsh.execution.loop.step import StepOutcome
    from dsh.execution.prompt.service import PromptAssembly
    from dsh.model.messages import UserMessage

_log = logging.getLogger("dsh.agent")

Reason = Mapping[str, Any]
_COMPLETED: Final[Reason] = {"kind": "completed"}
_MAX_TOKENS: Final[Reason] = {"kind": "max-tokens"}
_BLOCKED: Final[Reason] = {"kind": "blocked"}


@value
class Opening:
    """What the synchronous prefix of a turn did."""

    started: bool = False
    batch: tuple[UserMessage, ...] = ()
    error: BaseException | None = None

    def raise_error(self) -> None:
        """Raise what the prefix met, if anything."""
        if self.error is not None:
            raise self.error


@value
class Ending:
    """How a turn ended on its own."""

    reason: Reason
    goes_on: bool = True
    """Whether the driver may take the next turn."""


class Driver:
    """Drives one agent from its wake to its rest."""

    def __init__(self, agent: LoopAgent, phase: Running) -> None:
        self._agent = agent
        self._phase = phase
        self._session = agent.session
        self._ran = False
        self.launching = False
        """Whether the call that wakes the agent has yet to return."""

    @property
    def _signal(self) -> AbortSignal:
        return self._phase.abort.signal

    def open_turn(self) -> Opening:
        """Log the start of the next turn and claim its batch; errors are kept for ``run``."""
        started = False
        try:
            self._signal.throw_if_aborted()
            turn = self._phase.turn + 1
            self._session.append(TURN_START, TurnStartData(turn=turn))
            self._phase.turn, self._phase.step = turn, 0
            started = True
            self._signal.throw_if_aborted()
            return Opening(True, self._agent.inbox.claim("next-turn", turn))
        except BaseException as error:
            return Opening(started, error=error)

    async def run(self, opening: Opening) -> None:
        """Run turns until one leaves nothing to do, fails, or is cancelled."""
        if self.launching:  # by an eager task factory; what is sent in this tick comes first
            await asyncio.sleep(0)
        self._ran, replay = True, False
        try:
            while await self._turn(opening):
                opening = self.open_turn()
            replay = True
        except asyncio.CancelledError as error:
            if is_outer_cancel(error):
                raise
            replay = True
        except Exception:  # reported where the turn ended
            replay = True
        finally:
            self._agent.converge(self._phase, replay=replay)

    def close_unrun(self, opening: Opening) -> None:
        """Close what ``open_turn`` opened if the task of ``run`` was cancelled before it began."""
        if self._ran:
            return
        self._phase.abort.abort(DISPOSED_CANCEL)
        if opening.started:
            self._end_turn({"kind": "aborted", "reason": self._signal.reason})
        self._agent.converge(self._phase, replay=False)

    async def _turn(self, opening: Opening) -> bool:
        """Run one opened turn; say whether another one is due."""
        if not opening.started:
            self._judge(opening.error)
            opening.raise_error()
        reason: Reason = _COMPLETED
        try:
            opening.raise_error()
            ending = await self._steps(opening.batch)
            reason = ending.reason
        except BaseException as error:
            reason = self._judge(error)
            raise
        finally:
            self._end_turn(reason)
        if not ending.goes_on or self._signal.aborted or not self._agent.inbox.has_pending:
            return False
        self._phase.abort = AbortController()
        return True

    async def _steps(self, batch: tuple[UserMessage, ...]) -> Ending:
        agent, phase, signal = self._agent, self._phase, self._signal
        # Two facts, kept apart: whether a reply was cut marks the whole turn, whether the last step
        # owes the model an answer decides if the turn may stop.
        truncated = settled = False
        while True:
            signal.throw_if_aborted()
            step = phase.step + 1
            with agent.patience(signal):
                await agent.services.tools.settle(scope=agent, signal=signal)
                assembly = await agent.services.system_prompt.assemble(
                    assemble_context_for(agent, signal)
                )
            signal.throw_if_aborted()
            with agent.patience(signal):
                decision = await self._propose(batch, assembly, step)
            signal.throw_if_aborted()
            if isinstance(decision, Reject):
                return Ending(_BLOCKED, goes_on=False)
            if not decision.messages and settled:
                break
            if not decision.messages and step == 1:
                return Ending(_COMPLETED, goes_on=False)
            outcome = await self._step(step, decision.messages, assembly)
            truncated = truncated or outcome.truncated
            settled = not outcome.owes_request
            signal.throw_if_aborted()
            if settled and not agent.inbox.has_next_step:
                with agent.patience(signal):
                    await agent.events.serial(
                        AGENT_TURN_STOPPING, AgentTurnStopping(agent, phase.turn, signal)
                    )
                signal.throw_if_aborted()
                if not agent.inbox.has_next_step:
                    break
            batch = agent.inbox.claim("next-step", phase.turn)
        return Ending(_MAX_TOKENS if truncated else _COMPLETED)

    async def _propose(
        self, batch: tuple[UserMessage, ...], assembly: PromptAssembly, step: int
    ) -> PreStepDecision:
        agent = self._agent
        proposal = AgentPreStep(agent, batch, self._phase.turn, step, self._signal)
        snapshot = agent.snapshots.candidate(assembly)
        entered = Enter(batch if snapshot is None else (*batch, snapshot))
        decision = await agent.events.waterfall(AGENT_PRE_STEP, proposal, lambda: entered)
        if not isinstance(decision, (Reject, Enter)):
            raise TypeError(
                f"a listener of agent/pre-step answered {decision!r}; answer Enter(messages) or "
                "Reject()"
            )
        return decision

    async def _step(
        self, step: int, messages: Sequence[UserMessage], assembly: PromptAssembly
    ) -> StepOutcome:
        agent, phase = self._agent, self._phase
        place = StepData(turn=phase.turn, step=step)
        self._session.append(STEP_START, place)
        phase.step = step
        try:
            for message in messages:
                agent.snapshots.observe(
                    self._session.append(USER_MESSAGE, message, surface_op="append")
                )
            return await Step(agent, phase).run(assembly)
        finally:
            self._session.append(STEP_END, place)

    def _judge(self, error: BaseException | None) -> Reason:
        """Return the reason with which an error ends a turn, and report failures."""
        self._phase.failed = True
        if error is not None and (
            is_outer_cancel(error) or not isinstance(error, (Exception, asyncio.CancelledError))
        ):
            self._phase.abort.abort(DISPOSED_CANCEL)
        if self._signal.aborted:
            return {"kind": "aborted", "reason": self._signal.reason}
        if error is None:
            return _COMPLETED
        self._report(error)
        return {"kind": "error", "error": failure_facts(error)}

    def _end_turn(self, reason: Reason) -> None:
        try:
            self._session.append(TURN_END, TurnEndData(turn=self._phase.turn, reason=reason))
        except Exception as error:
            self._report(error)

    def _report(self, error: BaseException) -> None:
        phase, agent = self._phase, self._agent
        _log.debug("turn %d of agent %s failed", phase.turn, agent.id, exc_info=error)
        agent.events.emit(AGENT_ERROR, AgentErrorRaised(agent, phase.turn, phase.step, error))


def failure_facts(error: BaseException) -> Mapping[str, Any]:
    """Return what ``turn/end`` says about a failure."""
    if isinstance(error, LlmError):
        return error.failure
    code = error.code if isinstance(error, DshError) else None
    named = isinstance(code, str) and code not in ("", DshError.code)
    return {"message": error_chain(error), "code": code if named else "UNKNOWN"}
