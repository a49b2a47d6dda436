"""Row ``stuck-guard``: tells an agent that it goes round in circles, then ends its turn.

It acts between two steps only. A turn that it ended is a turn like any other: the next message of
a user starts everything over.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from dsh.base.values import value
from dsh.control.stuck.detector import Thresholds
from dsh.control.stuck.events import STUCK_DETECTED, StuckCode, StuckDetected
from dsh.control.stuck.fold import NOTICE_SOURCE, StuckFold, brings_news
from dsh.execution.agent.events import (
    AGENT_DISPOSED,
    AGENT_PRE_STEP,
    AgentDisposed,
    AgentPreStep,
    Enter,
    PreStepDecision,
    Reject,
)
from dsh.execution.tools.service import ToolRuntime, parse_call
from dsh.kernel.errors import ValidationError
from dsh.kernel.validation import checked_fields
from dsh.model.messages import MessageId, create_user_message
from dsh.state.session.service import SessionStore

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from typing import Self

    from dsh.base.json import JsonValue
    from dsh.control.stuck.detector import Finding
    from dsh.execution.agent.service import Agent
    from dsh.kernel import Context, Next
    from dsh.model.messages import UserMessage

name = NOTICE_SOURCE
inject = (SessionStore, ToolRuntime)


@value
class Config:
    """How much repetition is too much."""

    nudge_at: int = 4
    """At how many repetitions in a row the model is told."""
    stop_at: int = 8
    """At how many the turn ends, if the model was told and goes on."""
    patience_ms: float = 5000
    """A call, or a rest between turns, that takes this many milliseconds is a wait and no
    repetition."""

    @classmethod
    def validate(cls, raw: object) -> Self:
        """Return the config behind a row's mapping.

        Raises:
            ValidationError: it names every field that does not fit.
        """
        given = checked_fields(raw, _CHECKS)
        config = cls(**{_FIELDS[name]: found for name, found in given.items()})
        if config.stop_at <= config.nudge_at:
            problem = (
                f"expected more than nudgeAt ({config.nudge_at}), so that the model can mend its "
                f"ways, got {config.stop_at}"
            )
            raise ValidationError([(problem, "stopAt")])
        return config


_FIELDS: Final = {"nudgeAt": "nudge_at", "stopAt": "stop_at", "patienceMs": "patience_ms"}
_CHECKS: Final = {
    "nudgeAt": (
        lambda given: type(given) is int and given >= 2,
        "a whole number of at least 2",
    ),
    "stopAt": (
        lambda given: type(given) is int and given >= 3,
        "a whole number of at least 3",
    ),
    "patienceMs": (
        lambda given: type(given) in (int, float) and 0 < given < inf,
        "a number above 0",
    ),
}


def apply(ctx: Context, config: Config) -> None:
    """Watch all agents until the plugin unloads."""
    ctx.require(SessionStore).declare(STUCK_DETECTED)
    guard = StuckGuard(ctx.require(ToolRuntime), config)
    # Outermost: what it adds to a step is not taken out again behind its back.
    ctx.on(AGENT_PRE_STEP, guard.before_step, prepend=True)
    ctx.on(AGENT_DISPOSED, guard.forget)


class StuckGuard:
    """Looks at each agent's log before each of its steps."""

    def __init__(self, tools: ToolRuntime, config: Config) -> None:
        self._tools = tools
        self._thresholds = Thresholds(config.nudge_at, config.stop_at, config.patience_ms)
        self._folds: dict[Agent, StuckFold] = {}

    def before_step(
        self, event: AgentPreStep, next: Next[PreStepDecision]
    ) -> Awaitable[PreStepDecision] | PreStepDecision:
        """Let the step go on, add a nudge to it, or end the turn."""
        fold = self._folds.get(event.agent)
        if fold is None:
            fold = self._folds[event.agent] = self._fold(event.agent)
        if event.signal.aborted or brings_news(event.messages):
            return next()
        fold.catch_up()
        finding = fold.detector.finding()
        if finding is None:
            return next()
        if finding.stop:
            return self._stop(event, finding)
        return self._nudge(event, finding, next, owed=fold.detector.owes_reply)

    def forget(self, event: AgentDisposed) -> None:
        """Let go of an agent."""
        self._folds.pop(event.agent, None)

    def _fold(self, agent: Agent) -> StuckFold:
        tools = self._tools

        def polls(tool: str, arguments: JsonValue) -> bool:
            definition = tools.get(tool, agent)
            if definition is None or definition.polls is None:
                return False
            try:
                given = parse_call(arguments) if isinstance(arguments, str) else arguments
                return definition.polls(given) is True
            except Exception as error:
                agent.ctx.report(error, label=f"whether a call of {tool!r} polls")
                return False

        return StuckFold(agent.session, self._thresholds, polls)

    async def _nudge(
        self, event: AgentPreStep, finding: Finding, next: Next[PreStepDecision], *, owed: bool
    ) -> PreStepDecision:
        decision = await next()
        if not isinstance(decision, Enter) or event.signal.aborted:
            return decision
        if not decision.messages and not (owed and event.step > 1):
            return decision  # there will be no step, and a nudge alone must not make one
        self._log(event, finding, self._thresholds.nudge)
        return Enter((*decision.messages, self._message(finding)))

    def _stop(self, event: AgentPreStep, finding: Finding) -> PreStepDecision:
        self._log(event, finding, self._thresholds.stop)
        agent = event.agent
        # What was claimed for this step has not been read by anybody; it waits for the next one.
        _put_back(event)
        reason = (
            f"the agent is stuck: {_WORDS[finding.code]}, {finding.times} times in a row (it is "
            f"stopped at {self._thresholds.stop}): {finding.subject}; look at what stands in its "
            "way, then tell it how to go on"
        )
        agent.cancel({"kind": "hook", "reason": reason, "code": finding.code}, keep_inbox=True)
        _wake_for_news(agent)
        return Reject()

    def _log(self, event: AgentPreStep, finding: Finding, limit: int) -> None:
        event.agent.session.append(
            STUCK_DETECTED,
            StuckDetected(
                turn=event.turn,
                step=event.step,
                code=finding.code,
                action="stop" if finding.stop else "nudge",
                count=finding.times,
                limit=limit,
                subject=finding.subject,
            ),
        )

    def _message(self, finding: Finding) -> UserMessage:
        text = (
            f"You seem to be stuck: {_WORDS[finding.code]}, {finding.times} times in a row "
            f"({finding.subject}). {_ADVICE[finding.code]} Your turn is ended if this goes on."
        )
        source = {
            "kind": "plugin",
            "plugin": name,
            "form": "notice",
            "summary": f"{finding.code} × {finding.times}",  # noqa: RUF001 - as other notices have it
        }
        return create_user_message(text, source)


def _put_back(event: AgentPreStep) -> None:
    inbox = event.agent.inbox
    waiting = {message["id"] for message in (*inbox.next_turn, *inbox.next_step)}
    unread = [message for message in event.messages if message["id"] not in waiting]
    inbox.splice("next-step", 0, 0, unread)


def _wake_for_news(agent: Agent) -> None:
    """Give those who wait with news the turn that they were promised; the stop is not theirs."""
    for message in agent.inbox.next_turn:
        if brings_news([message]):
            agent.inbox.remove(MessageId(message["id"]))
            agent.followup(message)


_WORDS: Final[dict[StuckCode, str]] = {
    "STUCK_REPEAT": "the same call with the same result",
    "STUCK_ALTERNATION": "the same two calls in turns with the same results",
    "STUCK_CYCLE": "the same round of calls with the same results",
    "STUCK_ERROR": "a call that fails as it failed before",
    "STUCK_EMPTY": "a reply without words or calls",
    "STUCK_MONOLOGUE": "nearly the same reply without a call",
}

_ANOTHER_WAY: Final = (
    "Nothing changes by it. Think about what you do not know yet, and take another way; if there "
    "is none, tell the user what is in the way. If you wait for something, use a call that waits."
)
_ADVICE: Final[dict[StuckCode, str]] = {
    "STUCK_REPEAT": _ANOTHER_WAY,
    "STUCK_ALTERNATION": _ANOTHER_WAY,
    "STUCK_CYCLE": _ANOTHER_WAY,
    "STUCK_ERROR": (
        "Read the error, look at the state that it speaks of, and change the call or the way; if "
        "it cannot work, tell the user why."
    ),
    "STUCK_EMPTY": "Do the next piece of work with a call, or say in words what you need.",
    "STUCK_MONOLOGUE": (
        "Do the next piece of work with a call; if the work is done or cannot go on, say so as "
        "whoever drives you expects it."
    ),
}
