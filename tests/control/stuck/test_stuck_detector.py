from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh.control.stuck.detector import LONGEST_CYCLE, Detector, Finding, Thresholds

NUDGE, STOP = 4, 8
THRESHOLDS = Thresholds(NUDGE, STOP, 5000)

Fact = Callable[[Detector], object]
"""Something that an agent does, or that happens to it."""


def called(tool: str, args: str, content: Any, **more: Any) -> Fact:
    return lambda detector: detector.called(tool, args, content, **more)


def call(tool: str = "read", args: Any = None, result: str = "ok", **more: Any) -> Fact:
    return called(tool, json.dumps(args), [{"type": "text", "text": result}], **more)


def fail(tool: str = "edit", args: Any = None, error: str = "no such text") -> Fact:
    return call(tool, args, f"Error: {error}", failed=True)


def replied(text: str) -> Fact:
    return lambda detector: detector.replied(text)


def waited(detector: Detector) -> None:
    detector.start_over()


def follow(
    facts: Iterable[Fact], detector: Detector | None = None, *, batch: int = 1
) -> list[Finding]:
    """What a guard does that asks after every ``batch`` facts and tells the agent what it finds."""
    detector = detector or Detector(THRESHOLDS)
    found = []
    for index, fact in enumerate(facts, 1):
        fact(detector)
        if index % batch:
            continue
        finding = detector.finding()
        if finding is None:
            continue
        found.append(finding)
        if finding.stop:
            break
        detector.told()
    return found


def told(found: list[Finding]) -> list[tuple[str, int, bool]]:
    return [(each.code, each.times, each.stop) for each in found]


def test_the_same_call_with_the_same_result_is_told_and_then_stopped() -> None:
    found = follow([call()] * 100)
    assert told(found) == [("STUCK_REPEAT", NUDGE, False), ("STUCK_REPEAT", STOP, True)]
    assert found[0].subject == "read"


def test_the_order_of_keys_and_spaces_make_no_other_call() -> None:
    one = called("t", '{"a": 1, "b": [true]}', [])
    two = called("t", '{"b":[true],"a":1}', [])
    assert told(follow([one, two] * 10))[-1] == ("STUCK_REPEAT", STOP, True)


def test_true_is_not_one() -> None:
    pair = [called("t", '{"a": 1}', []), called("t", '{"a": true}', [])]
    assert told(follow(pair * 3)) == []


def test_arguments_that_are_not_json_are_compared_as_text() -> None:
    assert told(follow([called("t", "{broken", [])] * 100))[-1][0] == "STUCK_REPEAT"
    mixed = [called("t", "{broken", []), called("t", "{broken!", [])]
    assert told(follow(mixed * 3)) == []


def test_two_calls_in_turns_are_an_alternation() -> None:
    found = follow([call("a"), call("b")] * 100)
    assert told(found) == [("STUCK_ALTERNATION", NUDGE, False), ("STUCK_ALTERNATION", STOP, True)]
    assert found[0].subject in ("a, b", "b, a")


def test_a_longer_round_is_a_cycle() -> None:
    found = follow([call("a"), call("b"), call("c")] * 100)
    assert told(found) == [("STUCK_CYCLE", NUDGE, False), ("STUCK_CYCLE", STOP, True)]


def test_the_same_failing_call_is_stopped_though_its_words_differ() -> None:
    found = follow([fail(error=f"failed at {n}") for n in range(100)])
    assert told(found) == [("STUCK_ERROR", NUDGE, False), ("STUCK_ERROR", STOP, True)]


def test_the_same_error_is_stopped_though_the_calls_differ() -> None:
    found = follow([fail("edit", {"n": n}) for n in range(100)])
    assert told(found) == [("STUCK_ERROR", NUDGE, False), ("STUCK_ERROR", STOP, True)]
    assert found[0].subject == "edit: Error: no such text"


def test_different_failures_are_a_search() -> None:
    facts = [fail("read", {"path": f"/{n}"}, f"no file /{n}") for n in range(100)]
    assert told(follow(facts)) == []


def test_a_success_ends_a_row_of_failures() -> None:
    facts: list[Fact] = []
    for n in range(40):
        facts += [*(fail(args={"n": n, "try": k}) for k in range(3)), call("read", n)]
    assert told(follow(facts)) == []


def test_replies_without_words_or_calls_are_empty() -> None:
    found = follow([replied(" \n")] * 100)
    assert told(found) == [("STUCK_EMPTY", NUDGE, False), ("STUCK_EMPTY", STOP, True)]


def test_nearly_the_same_words_are_a_monologue() -> None:
    facts = [replied(f"Round {n}: I shall go on with the plan, now. ({n})") for n in range(100)]
    found = follow(facts)
    assert told(found) == [("STUCK_MONOLOGUE", NUDGE, False), ("STUCK_MONOLOGUE", STOP, True)]


def test_a_monologue_is_heard_in_scripts_without_spaces() -> None:
    facts = [replied("我会继续执行计划,现在开始下一步工作。" + "!" * (n % 2)) for n in range(100)]
    assert told(follow(facts))[-1] == ("STUCK_MONOLOGUE", STOP, True)


def test_different_words_are_no_monologue() -> None:
    facts = [replied(f"The {word} is done; its tests are green.") for word in WORDS]
    assert told(follow(facts)) == []


WORDS = ["parser", "lexer", "printer", "loader", "writer", "reader", "linker", "server"] * 4


def test_work_between_replies_ends_a_monologue() -> None:
    facts = [fact for n in range(50) for fact in (replied("going on"), call("edit", n))]
    assert told(follow(facts)) == []


def test_calls_of_one_reply_are_told_before_they_are_stopped() -> None:
    found = follow([call()] * 100, batch=20)
    assert told(found) == [("STUCK_REPEAT", 20, False), ("STUCK_REPEAT", 40, True)]


def test_who_is_told_after_many_calls_of_one_reply_has_as_long_to_mend_its_ways() -> None:
    detector = Detector(THRESHOLDS)
    follow([fail(args=n) for n in range(20)], detector, batch=20)
    found = follow([fail(args=n) for n in range(20, 100)], detector)
    assert told(found) == [("STUCK_ERROR", 20 + STOP - NUDGE, True)]


def test_errors_in_turns_are_stopped_though_the_calls_differ() -> None:
    facts = [
        fail(("edit", "read")[n % 2], n, ("no such text", "no such file")[n % 2]) for n in range(99)
    ]
    assert told(follow(facts)) == [("STUCK_ERROR", NUDGE, False), ("STUCK_ERROR", STOP, True)]


def test_replies_in_turns_are_a_monologue() -> None:
    facts = [replied(("I shall go on.", "The plan stands; next I act.")[n % 2]) for n in range(99)]
    assert told(follow(facts))[-1] == ("STUCK_MONOLOGUE", STOP, True)


def test_an_agent_that_mends_its_ways_is_told_again_before_it_is_stopped() -> None:
    facts = [*[call("a")] * 7, call("b"), *[call("a")] * 100]
    assert told(follow(facts)) == [
        ("STUCK_REPEAT", NUDGE, False),
        ("STUCK_REPEAT", NUDGE, False),
        ("STUCK_REPEAT", STOP, True),
    ]


def test_a_row_that_was_broken_off_is_told_anew_though_it_comes_back_at_once() -> None:
    detector = Detector(THRESHOLDS)
    follow([*[call("a")] * NUDGE, call("b")], detector)
    assert told(follow([call("a")] * 20, detector, batch=20)) == [("STUCK_REPEAT", 20, False)]


def test_being_told_of_something_else_is_no_reprieve() -> None:
    facts = [*[fail(args=n) for n in range(NUDGE - 1)], *[fail(args="same")] * 100]
    found = told(follow(facts))
    assert found[0] == ("STUCK_ERROR", NUDGE, False)
    assert found[-1] == ("STUCK_ERROR", STOP, True)
    assert ("STUCK_REPEAT", NUDGE, False) in found


def test_a_failure_is_no_success_of_the_same_words() -> None:
    facts = [call(result="x"), call(result="x", failed=True)] * (NUDGE - 1)
    assert told(follow(facts)) == []


def test_one_nudge_covers_all_that_is_wrong_at_once() -> None:
    assert [each.stop for each in follow([fail()] * 100)] == [False, True]


# patience


def test_results_that_differ_are_patience() -> None:
    facts = [call("status", 1, f"{n} of 1000 done") for n in range(1000)]
    assert told(follow(facts)) == []


def test_edit_test_edit_test_is_work() -> None:
    facts: list[Fact] = []
    for n in range(200):
        facts += [
            call("edit", {"path": "a.py", "old": f"x{n}", "new": f"x{n + 1}"}, "edited"),
            call("bash", {"command": "make test"}, "1 failed"),
        ]
    assert told(follow(facts)) == []


def test_reading_many_files_is_work() -> None:
    facts = [call("read", {"path": f"src/{n}.py"}, "") for n in range(500)]
    assert told(follow(facts)) == []


def test_an_hour_of_polling_is_patience() -> None:
    detector = Detector(THRESHOLDS, polls=lambda tool, _: tool == "job_output")
    facts = [call("job_output", {"id": 1}, "running") for _ in range(3600)]
    assert told(follow(facts, detector)) == []


def test_polling_and_looking_in_turns_is_patience() -> None:
    detector = Detector(THRESHOLDS, polls=lambda tool, _: tool == "job_output")
    facts = [call("job_output", {"id": 1}, "running"), call("read", "log", "empty")] * 600
    assert told(follow(facts, detector)) == []


def test_waiting_by_a_slow_command_is_patience() -> None:
    facts = [call("bash", "sleep 5; curl", "refused", failed=True, took_ms=5000)] * 700
    assert told(follow(facts)) == []


def test_polls_is_asked_only_about_what_looks_repeated() -> None:
    asked = []
    detector = Detector(THRESHOLDS, polls=lambda tool, args: bool(asked.append((tool, args))))
    follow([call("a", n) for n in range(100)], detector)
    assert asked == []
    follow([call("b", 1), call("b", 1)], detector)
    assert asked == [("b", "1")]


some_calls = st.builds(
    call,
    st.sampled_from(["a", "b", "c"]),
    st.integers(0, 2),
    st.sampled_from(["x", "y"]),
    failed=st.booleans(),
)
facts = st.one_of(
    some_calls,
    st.builds(replied, st.sampled_from(["", "going on", "done with it"])),
    st.just(waited),
)


@given(
    st.lists(facts, max_size=60),
    st.lists(some_calls, min_size=1, max_size=LONGEST_CYCLE),
)
def test_whatever_came_before_exact_repetition_is_stopped_by_a_bound(
    before: list[Fact], round: list[Fact]
) -> None:
    detector = Detector(THRESHOLDS)
    follow(before, detector)
    found = follow(round * (STOP + LONGEST_CYCLE + 1), detector)
    assert found
    assert found[-1].stop


@given(st.lists(facts, max_size=80))
def test_nobody_is_stopped_who_was_not_told(sequence: list[Fact]) -> None:
    detector = Detector(THRESHOLDS)
    for fact in sequence:
        fact(detector)
        finding = detector.finding()
        assert finding is None or not finding.stop


@given(
    st.lists(st.tuples(st.sampled_from(["poll", "slow", "fresh"]), st.integers(0, 1)), max_size=200)
)
def test_patience_is_never_stopped(steps: list[tuple[str, int]]) -> None:
    detector = Detector(THRESHOLDS, polls=lambda tool, _: tool == "poll")
    sequence: list[Fact] = []
    for index, (kind, variant) in enumerate(steps):
        sequence.append(
            {
                "poll": call("poll", variant, "still running"),
                "slow": call("bash", variant, "same", failed=bool(variant), took_ms=6000),
                "fresh": call("bash", variant, f"line {index}"),
            }[kind]
        )
    assert follow(sequence, detector) == []


@given(st.lists(facts, max_size=200))
def test_what_is_held_does_not_grow(sequence: list[Fact]) -> None:
    detector = Detector(THRESHOLDS)
    for fact in sequence:
        fact(detector)
    assert len(detector._calls) <= LONGEST_CYCLE
    assert len(detector._said) <= LONGEST_CYCLE


def test_a_search_of_any_length_holds_no_more_than_its_last_failures() -> None:
    detector = Detector(THRESHOLDS)
    assert follow([fail("read", n, f"no file /{n}") for n in range(10_000)], detector) == []
    assert len(detector._failures._seen) < 20


@pytest.mark.parametrize("fact", [call(), fail(), replied(""), replied("so be it")])
def test_news_starts_everything_over(fact: Fact) -> None:
    facts = [*[fact] * (NUDGE - 1), waited] * 10
    assert told(follow(facts)) == []
