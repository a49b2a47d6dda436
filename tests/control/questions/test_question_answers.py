"""What counts as an answer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from question_bench import COLOURS, OPEN, SEVERAL

from dsh.control.questions import Answer, UserQuestionError
from dsh.control.questions.answers import checked_answers

ALL = (COLOURS, SEVERAL, OPEN)
SKIPPED = (Answer("colour"), Answer("several"), Answer("open"))


def test_answers_come_in_the_order_of_the_questions() -> None:
    assert checked_answers(ALL, list(reversed(SKIPPED))) == SKIPPED


def test_answers_may_come_as_they_are_on_the_wire() -> None:
    given = {
        "answers": [
            {"id": "colour", "selected": ["red"]},
            {"id": "several", "selected": ["a", "c"], "custom": "and d"},
            {"id": "open", "selected": [], "custom": "dsh"},
        ]
    }
    assert checked_answers(ALL, given) == (
        Answer("colour", ("red",)),
        Answer("several", ("a", "c"), "and d"),
        Answer("open", (), "dsh"),
    )


def test_own_words_take_the_place_of_a_single_choice() -> None:
    assert checked_answers((COLOURS,), [Answer("colour", ("red",), "green")]) == (
        Answer("colour", (), "green"),
    )


def test_own_words_stand_beside_several_choices() -> None:
    assert checked_answers((SEVERAL,), [Answer("several", ("a",), "more")]) == (
        Answer("several", ("a",), "more"),
    )


@pytest.mark.parametrize("blank", ["", " \n"])
def test_blank_words_are_none(blank: str) -> None:
    assert checked_answers((COLOURS,), [Answer("colour", ("red",), blank)]) == (
        Answer("colour", ("red",)),
    )


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (None, "expected a list of answers, got NoneType"),
        ("red", "expected a list"),
        ({"answer": []}, "expected a list"),
        ([None], "an answer is an object"),
        ([{}], "no question has the id None"),
        ([{"id": ["colour"], "selected": []}], "no question has the id"),
        ([Answer("other")], "no question has the id 'other'"),
        ([], "no answer to 'colour'"),
        ([Answer("colour"), Answer("colour")], "answered twice"),
        ([Answer("colour", ("green",))], "no option 'green'; its options are 'red', 'blue'"),
        ([Answer("colour", ("red", "blue"))], "takes one option"),
        ([Answer("colour", ("red", "red"))], "selected twice"),
        ([{"id": "colour", "selected": "red"}], "selected is a list of labels"),
        ([{"id": "colour", "selected": [1]}], "no label"),
        ([{"id": "colour", "selected": [], "custom": 1}], "custom is text"),
    ],
)
def test_garbage_is_refused_by_name(given: Any, problem: str) -> None:
    with pytest.raises(UserQuestionError, match="gave no valid answer") as caught:
        checked_answers((COLOURS,), given)
    assert caught.value.code == "BAD_ANSWER"
    assert problem in caught.value.message


def test_a_question_without_options_has_nothing_to_select() -> None:
    with pytest.raises(UserQuestionError, match="no option 'x'; its options are none"):
        checked_answers((OPEN,), [Answer("open", ("x",))])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["colour", "red", "a", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["answers", "id", "selected", "custom"]), inner)
    ),
    max_leaves=12,
)


ANSWER = st.builds(
    Answer,
    st.sampled_from(["colour", "several"]),
    st.lists(st.sampled_from(["red", "blue", "a", "b", "c"]), max_size=3).map(tuple),
    st.none() | st.sampled_from(["", " ", "my own"]),
)
COLOURS_AND_SEVERAL = (COLOURS, SEVERAL)


def outcome(given: Any) -> tuple[Answer, ...] | str:
    try:
        return checked_answers(COLOURS_AND_SEVERAL, given)
    except UserQuestionError as error:
        return error.code


@given(JSON | st.lists(ANSWER, max_size=3))
def test_anything_is_refused_or_becomes_answers_that_keep_the_rules(given: Any) -> None:
    answers = outcome(given)
    if isinstance(answers, str):
        assert answers == "BAD_ANSWER"
        return
    colour, several = answers
    assert (colour.id, several.id) == ("colour", "several")
    assert len(colour.selected) + (colour.custom is not None) <= 1
    assert set(colour.selected) <= {"red", "blue"}
    assert set(several.selected) <= {"a", "b", "c"}
    assert len(set(several.selected)) == len(several.selected)
    assert outcome(answers) == answers
