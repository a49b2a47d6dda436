"""Questions to the user: who may ask, who answers, and what counts as an answer."""

from __future__ import annotations

from dsh.control.questions.service import (
    PLAN_REVIEW,
    Answer,
    GivenAnswers,
    Question,
    QuestionCode,
    QuestionIntent,
    QuestionOption,
    QuestionProvider,
    QuestionRequest,
    UserQuestionError,
    UserQuestionService,
)

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
