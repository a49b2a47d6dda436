"""What counts as a question, and as an answer to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dsh.control.questions.service import PLAN_REVIEW, Answer, Question, UserQuestionError

__all__ = ["check_intents", "check_questions", "checked_answers"]


def check_intents(questions: Sequence[Question]) -> None:
    """Refuse a plan review that cannot be shown as one; other intents are only hints.

    Raises:
        UserQuestionError: ``BAD_INTENT``.
    """
    for question in questions:
        intent = question.intent
        if intent is None or intent.kind != PLAN_REVIEW:
            continue
        labels = [option.label for option in question.options]
        if intent.approve not in labels:
            raise UserQuestionError(
                "BAD_INTENT",
                f"question {question.id!r}: its intent approves with {intent.approve!r}, which is "
                f"none of its options ({_listed(labels)})",
            )
        if not question.detail:
            raise UserQuestionError(
                "BAD_INTENT",
                f"question {question.id!r}: a {PLAN_REVIEW} needs the plan itself in detail",
            )


def check_questions(questions: Sequence[Question]) -> None:
    """Refuse questions whose answers could not be told apart.

    Raises:
        UserQuestionError: ``BAD_QUESTION``.
    """
    seen: set[str] = set()
    for question in questions:
        if not question.id or not question.question.strip():
            raise UserQuestionError(
                "BAD_QUESTION", f"question {question.id!r} needs an id and a text that is not blank"
            )
        if question.id in seen:
            raise UserQuestionError(
                "BAD_QUESTION",
                f"two questions have the id {question.id!r}; give each its own, so that the "
                "answers can be told apart",
            )
        seen.add(question.id)
        labels = [option.label for option in question.options]
        if len(set(labels)) != len(labels) or not all(labels):
            raise UserQuestionError(
                "BAD_QUESTION",
                f"question {question.id!r}: each option needs a label of its own, got "
                f"{_listed(labels)}",
            )


def checked_answers(questions: Sequence[Question], given: object) -> tuple[Answer, ...]:
    """Return what a provider gave as one answer a question, in the order of the questions.

    Where only one answer was asked for, a person's own words take the place of an option.

    Raises:
        UserQuestionError: ``BAD_ANSWER``; says what is wrong with what the provider gave.
    """
    items = given.get("answers") if isinstance(given, Mapping) else given
    if not isinstance(items, Sequence) or isinstance(items, str | bytes):
        raise _bad(f"expected a list of answers, got {type(items).__name__}")
    by_id: dict[str, Answer] = {}
    known = {question.id: question for question in questions}
    for item in items:
        answer = item if isinstance(item, Answer) else _read(item)
        question = known.get(answer.id) if isinstance(answer.id, str) else None
        if question is None:
            raise _bad(f"no question has the id {answer.id!r}; asked were {_listed(known)}")
        if answer.id in by_id:
            raise _bad(f"question {answer.id!r} is answered twice")
        by_id[answer.id] = _checked(question, answer)
    if missing := [name for name in known if name not in by_id]:
        raise _bad(f"no answer to {_listed(missing)}; a skipped question has one without content")
    return tuple(by_id[name] for name in known)


def _read(item: object) -> Answer:
    if not isinstance(item, Mapping):
        raise _bad(f"an answer is an object with an id, got {type(item).__name__}")
    fields: dict[str, Any] = {key: item.get(key) for key in ("id", "selected", "custom")}
    return Answer(**fields)


def _checked(question: Question, answer: Answer) -> Answer:
    selected, custom = _selected(question, answer), answer.custom
    if custom is not None and not isinstance(custom, str):
        raise _bad(f"question {question.id!r}: custom is text, got {custom!r}")
    if custom is not None and not custom.strip():
        custom = None
    if custom is not None and not question.multi_select:
        return Answer(question.id, (), custom)
    labels = {option.label for option in question.options}
    if unknown := [label for label in selected if label not in labels]:
        raise _bad(
            f"question {question.id!r} has no option {unknown[0]!r}; its options are "
            f"{_listed(option.label for option in question.options)}"
        )
    if len(set(selected)) != len(selected):
        raise _bad(f"question {question.id!r}: an option is selected twice")
    if len(selected) > 1 and not question.multi_select:
        raise _bad(f"question {question.id!r} takes one option, got {_listed(selected)}")
    return Answer(question.id, selected, custom)


def _selected(question: Question, answer: Answer) -> tuple[str, ...]:
    selected: object = answer.selected
    if selected is None:
        return ()
    if not isinstance(selected, Sequence) or isinstance(selected, str | bytes):
        raise _bad(f"question {question.id!r}: selected is a list of labels, got {selected!r}")
    if not all(isinstance(label, str) for label in selected):
        raise _bad(f"question {question.id!r}: selected holds something that is no label")
    return tuple(selected)


def _bad(problem: str) -> UserQuestionError:
    return UserQuestionError(
        "BAD_ANSWER", f"the user interface gave no valid answer, so none was taken: {problem}"
    )


def _listed(labels: Any) -> str:
    return ", ".join(repr(label) for label in labels) or "none"
