"""The seam of questions to the user: how running work asks a person for a choice or a fact.

The provider of ``ctx.user_questions`` is `dsh.control.questions.runtime`. It puts no question to
anybody itself: a user interface registers a `QuestionProvider`, and without one nobody can ask.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol, TypeAlias

from dsh.base.errors import DshError
from dsh.base.values import value
from dsh.kernel import Service

if TYPE_CHECKING:
    from dsh.base.signal import AbortSignal
    from dsh.execution.agent.service import Agent
    from dsh.kernel import Effect

__all__ = [
    "PLAN_REVIEW",
    "Answer",
    "GivenAnswers",
    "Question",
    "QuestionCode",
    "QuestionIntent",
    "QuestionOption",
    "QuestionProvider",
    "QuestionRequest",
    "UserQuestionError",
    "UserQuestionService",
]

PLAN_REVIEW: Final = "plan-review"
"""The intent of a question that shows a plan and asks whether to go on with it."""

QuestionCode: TypeAlias = Literal[
    "ASK_ABORTED",
    "EMPTY_QUESTIONS",
    "CALLER_NOT_LIVE",
    "DELEGATED_CALLER",
    "BAD_INTENT",
    "BAD_QUESTION",
    "NO_PROVIDER",
    "BAD_ANSWER",
    "PROVIDER_FAILED",
    "DUPLICATE_PROVIDER",
    "ASK_MISSING_AGENT",
]
"""Why there is no answer. Those up to ``NO_PROVIDER`` are checked in this order, before anybody is
asked; ``ASK_MISSING_AGENT`` is for providers that cannot show a question without an agent."""


class UserQuestionError(DshError, RuntimeError):
    """A question was not put or not answered; ``code`` says why."""

    code = "USER_QUESTION"

    def __init__(self, code: QuestionCode, message: str) -> None:
        super().__init__(message, code=code)


@value
class QuestionOption:
    """One of the answers to choose from; its label is also what comes back."""

    label: str
    description: str | None = None

    def wire(self) -> dict[str, Any]:
        """Return it as clients know it."""
        told = {"label": self.label}
        return told if self.description is None else {**told, "description": self.description}


@value
class QuestionIntent:
    """What a question is for, so that an interface may show it in a fitting way.

    It changes nothing about the answer, and an interface that does not know the kind shows the
    question as any other.
    """

    kind: str
    approve: str | None = None
    """The label of the option that means yes; required of a plan review."""

    def wire(self) -> dict[str, Any]:
        """Return it as clients know it."""
        told = {"kind": self.kind}
        return told if self.approve is None else {**told, "approve": self.approve}


@value
class Question:
    """One question; several may be asked at once."""

    id: str
    """Chosen by whoever asks, unique within the request; the answer carries it."""
    question: str
    detail: str | None = None
    """Markdown to read before answering, such as a plan."""
    header: str | None = None
    """A word or two that stand for the question."""
    options: tuple[QuestionOption, ...] = ()
    """Labels are unique; without options the answer is free text."""
    multi_select: bool = False
    intent: QuestionIntent | None = None

    def wire(self) -> dict[str, Any]:
        """Return it as clients know it; what is absent is left out."""
        told: dict[str, Any] = {"id": self.id, "question": self.question}
        if self.detail is not None:
            told["detail"] = self.detail
        if self.header is not None:
            told["header"] = self.header
        if self.options:
            told["options"] = [option.wire() for option in self.options]
        if self.multi_select:
            told["multiSelect"] = True
        if self.intent is not None:
            told["intent"] = self.intent.wire()
        return told


@value
class Answer:
    """The answer to one question; nothing selected and nothing written means it was skipped."""

    id: str
    selected: tuple[str, ...] = ()
    """Labels of options: at most one unless several were allowed."""
    custom: str | None = None
    """The person's own words: instead of an option, or beside them when several were allowed."""

    def wire(self) -> dict[str, Any]:
        """Return it as clients and models know it."""
        told: dict[str, Any] = {"id": self.id, "selected": list(self.selected)}
        return told if self.custom is None else {**told, "custom": self.custom}


@value
class QuestionRequest:
    """Questions that belong together; a person sees them as one round."""

    questions: tuple[Question, ...]
    agent: Agent | None = None
    """On whose behalf; ``None`` for a question of the program itself."""
    signal: AbortSignal | None = None
    """Withdraws the questions. A provider always gets one."""


GivenAnswers: TypeAlias = Sequence["Answer | Mapping[str, Any]"] | Mapping[str, Any]
"""One answer a question, in any order: values, or ``{"answers": [...]}`` as it is on the wire."""


class QuestionProvider(Protocol):
    """A user interface that can put questions to a person."""

    def ask(self, request: QuestionRequest) -> Awaitable[GivenAnswers]:
        """Put questions and wait for the answers, without a limit of time.

        The request's signal aborts when the questions are withdrawn: take them off the screen
        then. The call is cancelled as well. A person that refuses to answer is a
        `UserQuestionError` of code ``ASK_ABORTED``.
        """


class UserQuestionService(Service, ABC):
    """Checks who may ask, puts questions to the one provider, and checks what it answers."""

    name: ClassVar[str] = "user_questions"

    @abstractmethod
    def register_provider(self, provider: QuestionProvider) -> Effect:
        """Answer questions until the calling plugin unloads; what is open then fails.

        The unload waits for the calls of `QuestionProvider.ask` that it cancels.

        Raises:
            UserQuestionError: ``DUPLICATE_PROVIDER``: there is one already.
        """

    @abstractmethod
    async def ask(self, request: QuestionRequest) -> tuple[Answer, ...]:
        """Ask, and return one answer a question, in the order of the questions.

        Only a root agent may ask, whatever session it resumed; one that another agent started
        may not. Nobody waits where nobody can answer: without a provider this fails at once.

        Raises:
            UserQuestionError: ``code`` says why; see `QuestionCode`.
            DshError: what the provider raised.
        """
