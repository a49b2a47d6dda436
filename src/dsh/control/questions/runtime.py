"""Questions to the user: row ``user-questions``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from dsh.base.errors import DshError, message_of
from dsh.base.signal import AbortController, AbortedError
from dsh.base.values import changed
from dsh.control.questions.service import (
    Answer,
    QuestionProvider,
    QuestionRequest,
    UserQuestionError,
    UserQuestionService,
)
from dsh.execution.agent.service import AgentRegistry

if TYPE_CHECKING:
    from dsh.execution.agent.service import Agent
    from dsh.kernel import Context, Effect

__all__ = ["UserQuestions", "plugin"]

_DECIDE = (
    "Where a careful choice can be undone, make it yourself and say which one you made; otherwise "
    "end your turn with the open question"
)


class _Registered:
    """A provider, the questions that wait for it, and what ends them."""

    __slots__ = ("open", "provider", "withdrawal")

    def __init__(self, provider: QuestionProvider) -> None:
        self.provider = provider
        self.open: set[asyncio.Task[Any]] = set()
        self.withdrawal = AbortController()


class UserQuestions(UserQuestionService):
    """Puts questions to the one registered provider, on behalf of root agents."""

    def __init__(self, ctx: Context, config: object = None) -> None:
        super().__init__(ctx, config)
        self._registered: _Registered | None = None

    def register_provider(self, provider: QuestionProvider) -> Effect:
        """See `UserQuestionService.register_provider`."""

        def setup() -> Callable[[], object]:
            if self._registered is not None:
                raise UserQuestionError(
                    "DUPLICATE_PROVIDER",
                    "a user interface answers questions already; unload it before another one",
                )
            entry = self._registered = _Registered(provider)
            return lambda: self._withdraw(entry)

        return self.caller.effect(setup, "user_questions.register_provider()")

    async def ask(self, request: QuestionRequest) -> tuple[Answer, ...]:
        """See `UserQuestionService.ask`."""
        asked = self._check(request)
        controller = AbortController()
        removers = [
            signal.add_listener(controller.abort, now=True)
            for signal in (request.signal, asked.withdrawal.signal)
            if signal is not None
        ]
        try:
            return await self._put(asked, request, controller)
        except AbortedError:
            raise _withdrawn(request) from None
        finally:
            for remove in removers:
                remove()

    def _check(self, request: QuestionRequest) -> _Registered:
        """Return whom to ask, or say why nobody is."""
        from dsh.control.questions.answers import check_intents, check_questions

        if request.signal is not None and request.signal.aborted:
            raise _withdrawn(request)
        if not request.questions:
            raise UserQuestionError("EMPTY_QUESTIONS", "there is no question to ask; give one")
        if request.agent is not None:
            self._check_caller(request.agent)
        check_intents(request.questions)
        check_questions(request.questions)
        if self._registered is None:
            raise UserQuestionError(
                "NO_PROVIDER", f"nobody can answer here: no user interface is attached. {_DECIDE}"
            )
        return self._registered

    def _check_caller(self, agent: Agent) -> None:
        agents = self.ctx.get(AgentRegistry)
        if agents is None or agents.get(agent.id) is not agent:
            raise UserQuestionError(
                "CALLER_NOT_LIVE",
                f"agent {agent.id!r} is not live, so an answer would reach nobody; ask from the "
                "agent that runs",
            )
        if not any(root is agent for root in agents.roots()):
            raise UserQuestionError(
                "DELEGATED_CALLER",
                f"agent {agent.id!r} works for another agent and cannot ask the user. Put the open "
                "question in your final result; the agent that gave you the task can ask it",
            )

    async def _put(
        self, asked: _Registered, request: QuestionRequest, controller: AbortController
    ) -> tuple[Answer, ...]:
        """Let the provider answer in a task of its own, until it does or is told to stop.

        Raises:
            AbortedError: the question was withdrawn before there was an answer.
            DshError: what the provider raised, or what is wrong with its answer.
        """
        signal, stop = controller.signal, self.ctx.stop
        work = _answered(asked.provider, changed(request, signal=signal))
        task = self.ctx.spawn(work, "user question")
        asked.open.add(task)
        task.add_done_callback(asked.open.discard)
        try:
            await signal.until(task)
        finally:
            if not task.done():
                # The signal first: a provider may take its question back at once.
                controller.abort()
                task.cancel()
        if not task.done() or (task.cancelled() and (signal.aborted or stop.aborted)):
            raise AbortedError
        if task.cancelled():
            raise _given_up()
        answers = task.result()
        if isinstance(answers, DshError):
            raise answers
        return answers

    def _withdraw(self, entry: _Registered) -> Awaitable[object] | None:
        self._registered = None
        entry.withdrawal.abort()
        # Taking a question off the screen needs what the provider's plugin still holds.
        return asyncio.wait(set(entry.open)) if entry.open else None


plugin = UserQuestions


async def _answered(
    provider: QuestionProvider, request: QuestionRequest
) -> tuple[Answer, ...] | DshError:
    """Ask a provider; what it raises is returned, for whoever still waits."""
    from dsh.control.questions.answers import checked_answers

    outcome: tuple[Answer, ...] | DshError
    try:
        outcome = checked_answers(request.questions, await provider.ask(request))
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        outcome = _given_up()
    except AbortedError:
        outcome = _given_up()
    except DshError as error:
        outcome = error
    except Exception as error:
        outcome = UserQuestionError(
            "PROVIDER_FAILED", f"the user interface failed to put the question: {message_of(error)}"
        )
        outcome.__cause__ = error
    # What a provider says to a question that was withdrawn is nobody's answer.
    withdrawn = request.signal is not None and request.signal.aborted
    return AbortedError() if withdrawn else outcome


def _given_up() -> UserQuestionError:
    return UserQuestionError("ASK_ABORTED", "the user interface gave the question up")


def _withdrawn(request: QuestionRequest) -> UserQuestionError:
    if request.signal is not None and request.signal.aborted:
        return UserQuestionError("ASK_ABORTED", "the question was withdrawn before it was answered")
    return UserQuestionError(
        "NO_PROVIDER", f"nobody can answer any more: the user interface has gone. {_DECIDE}"
    )
