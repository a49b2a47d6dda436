from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from dsh.model.rehearsal import (
    Play,
    ScriptError,
    Seen,
    SeenMessage,
    load_script,
    parse_script,
)


def user(text: str) -> SeenMessage:
    return SeenMessage("user", text)


def assistant(*calls: tuple[str, str]) -> SeenMessage:
    return SeenMessage("assistant", "", calls)


def result(call_id: str, text: str, is_error: bool | None = False) -> SeenMessage:
    return SeenMessage("tool", text, call_id=call_id, is_error=is_error)


def play(document: Any, **variables: str) -> Play:
    return Play(parse_script(document), variables)


def replies(*entries: Any, **more: Any) -> dict[str, Any]:
    return {"replies": list(entries), **more}


HI = Seen([user("hi")])


def test_replies_come_in_order_each_once() -> None:
    show = play(replies({"text": "one"}, {"text": "two", "repeat": 2}))
    assert ["".join(show.next(HI).text) for _ in range(3)] == ["one", "two", "two"]
    assert show.unplayed == []
    with pytest.raises(ScriptError, match="no reply left: 3") as raised:
        show.next(HI)
    assert raised.value.code == "REHEARSAL_EXHAUSTED"


def test_text_is_cut_by_the_chunk_size_and_a_list_is_chunks_already() -> None:
    show = play(replies({"text": "abcdefg"}, {"text": ["ab", "cdefg"]}, chunk_size=3))
    assert show.next(HI).text == ("abc", "def", "g")
    assert show.next(HI).text == ("ab", "cdefg")


def test_pieces_are_reasoning_then_text_then_calls() -> None:
    call = {"name": "read", "arguments": {"p": 1}}
    line = play(replies({"reasoning": "hm", "text": "ok", "calls": [call, {"name": "n"}]})).next(HI)
    assert line.pieces == (
        ("reasoning", 0, "hm"),
        ("text", 0, "ok"),
        ("call", 0, '{"p":1}'),
        ("call", 1, "{}"),
    )
    assert line.finish == "tool_calls"
    assert line.calls[0].id != line.calls[1].id


def test_slots_are_filled_everywhere() -> None:
    entry = {
        "text": "in {{cwd}}",
        "reasoning": "{{ name }}",
        "calls": [
            {"name": "{{tool}}", "arguments": {"{{name}}": ["{{main}}", 1]}},
            {"name": "x", "raw_arguments": '{"a": "{{name}}'},
        ],
    }
    document = replies(entry, vars={"main": "{{cwd}}/calc.py", "name": "n", "tool": "read"})
    line = play(document, cwd="/w", name="N").next(HI)
    assert line.text == ("in /w",)
    assert line.reasoning == ("N",)
    assert line.calls[0].name == "read"
    assert line.calls[0].arguments == '{"N":["/w/calc.py",1]}'
    assert line.calls[1].arguments == '{"a": "N'


def test_a_slot_may_take_a_value_from_the_request() -> None:
    show = play(replies({"text": "kill {{from_request:job (\\d+)}} {{from_request:h.}}"}))
    line = show.next(Seen([user("hi"), assistant(), user("job 1"), user("job 2 and job 3")]))
    assert "".join(line.text) == "kill 3 hi"


def test_a_group_that_is_not_part_of_the_match_fills_a_slot_with_nothing() -> None:
    show = play(replies({"text": "[{{from_request:(a)|b}}]"}))
    assert show.next(Seen([user("b")])).text == ("[]",)


@pytest.mark.parametrize(
    ("slot", "problem"),
    [
        ("{{pythn}}", "did you mean 'python'"),
        ("{{loop}}", "contains itself"),
        ("{{from_request:(}}", "no regular expression"),
        ("{{from_request:absent}}", "nothing in the request"),
    ],
)
def test_a_slot_that_cannot_be_filled_is_an_error(slot: str, problem: str) -> None:
    show = play(replies({"text": slot}, vars={"loop": "{{loop}}"}))
    with pytest.raises(ScriptError, match=problem):
        show.next(HI)


CALLED = [user("go"), assistant(("c1", "read"), ("c2", "bash"))]
GOOD = Seen([*CALLED, result("c1", "file text"), result("c2", "OK\nexit 0")])


@pytest.mark.parametrize(
    "expect",
    [
        {"contains": "file"},
        [{"contains": ["file", "text"]}, {"matches": "^exit 0$", "not_contains": "FAILED"}],
        {"call": "bash", "contains": "OK", "is_error": False},
        {"call": 2, "contains": "OK"},
        {"contains": "{{what}}"},
    ],
)
def test_results_that_are_as_expected_pass(expect: Any) -> None:
    assert play(replies({"text": "x", "expect": expect}), what="text").next(GOOD).text == ("x",)


@pytest.mark.parametrize(
    ("expect", "says"),
    [
        ({"contains": "nope"}, r"replies\[0\].expect.*call 1 \(read\).*'nope'.*'file text'"),
        ({"call": "bash", "not_contains": "OK"}, r"call 2 \(bash\).*without 'OK'"),
        ({"call": 2, "matches": "^exit 1"}, r"matches '\^exit 1'"),
        ({"call": 1, "is_error": True}, "expected an error"),
        ([{}, {}, {"contains": "x"}], r"expect\[2\].*call 3.*got 'read, bash'"),
        ({"call": "write", "contains": "x"}, "call 'write'"),
    ],
)
def test_results_that_differ_are_named_with_expected_and_got(expect: Any, says: str) -> None:
    show = play(replies({"text": "x", "expect": expect}))
    with pytest.raises(ScriptError, match=says) as raised:
        show.next(GOOD)
    assert raised.value.code == "REHEARSAL_MISMATCH"
    assert show.unplayed == ["replies[0]"]


def test_every_call_needs_a_result_even_when_nothing_is_expected_of_it() -> None:
    with pytest.raises(ScriptError, match=r"call 2 \(bash\)"):
        play(replies({"text": "x"})).next(Seen([*CALLED, result("c1", "file text")]))


def test_whether_a_result_is_an_error_is_not_checked_where_the_wire_does_not_tell() -> None:
    seen = Seen([user("go"), assistant(("c", "n")), result("c", "boo", None)])
    assert play(replies({"text": "x", "expect": {"is_error": True}})).next(seen).text == ("x",)


def test_a_long_result_is_shown_by_both_ends() -> None:
    seen = Seen([user("go"), assistant(("c", "n")), result("c", "A" * 5000 + "the end")])
    with pytest.raises(ScriptError, match="the end") as raised:
        play(replies({"text": "x", "expect": {"contains": "zzz"}})).next(seen)
    assert len(str(raised.value)) < 1000


TWO = {
    "conversations": [
        {"when": "red", "replies": [{"text": "R1"}, {"text": "R2"}]},
        {"when": {"matches": "bl.e"}, "replies": [{"text": "B1"}]},
        {"session": "^s-9$", "replies": [{"text": "S1"}]},
        {"replies": [{"text": "any"}]},
    ]
}


def test_conversations_are_chosen_by_the_latest_user_message_that_matches() -> None:
    show = play(TWO)
    texts = [
        show.next(Seen([user("red")])).text[0],
        show.next(Seen([user("red"), assistant(), user("blue")])).text[0],
        show.next(Seen([user("red"), assistant(), user("a reminder")])).text[0],
        show.next(Seen([user("green")])).text[0],
    ]
    assert texts == ["R1", "B1", "R2", "any"]


def test_sessions_keep_their_place_in_a_conversation_apart() -> None:
    show = play(TWO)
    texts = [
        show.next(Seen([user("red")], session)).text[0] for session in ("a", "b", "a", "b", "s-9")
    ]
    assert texts == ["R1", "R1", "R2", "R2", "R1"]
    assert show.next(Seen([user("green")], "s-9")).text == ("S1",)


def test_a_request_that_no_conversation_matches_is_an_error() -> None:
    show = play({"conversations": [{"when": "red", "replies": [{"text": "x"}]}]})
    with pytest.raises(ScriptError, match=r"no conversation matches.*'green'"):
        show.next(Seen([user("green")]))


def test_by_history_the_replies_so_far_decide_for_any_number_of_sessions() -> None:
    show = play(replies({"text": "one"}, {"text": "two"}, order="history"))
    first, second = HI, Seen([user("hi"), assistant()])
    assert [show.next(seen).text[0] for seen in (first, first, second, first, second)] == [
        "one",
        "one",
        "two",
        "one",
        "two",
    ]


def test_by_history_each_attempt_passes_one_fault() -> None:
    busy = {"fault": {"status": 503}}
    show = play(replies(busy, busy, {"text": "one"}, busy, {"text": "two"}, order="history"))
    second = Seen([user("hi"), assistant()])
    got = [show.next(seen) for seen in (HI, HI, HI, second, second, second)]
    assert [line.text[0] if line.text else "busy" for line in got] == [
        "busy",
        "busy",
        "one",
        "busy",
        "two",
        "two",
    ]
    with pytest.raises(ScriptError, match="no reply left"):
        show.next(Seen([user("hi"), assistant(), assistant()]))


def test_by_history_a_conversation_counts_from_the_message_it_matched() -> None:
    show = play(
        {
            "order": "history",
            "conversations": [
                {"when": "red", "replies": [{"text": "R1"}]},
                {"when": "blue", "replies": [{"text": "B1"}]},
            ],
        }
    )
    assert show.next(Seen([user("red"), assistant(), user("blue")])).text == ("B1",)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ([], "script: must be a mapping"),
        ({}, "needs either 'replies' or 'conversations'"),
        (replies({"text": "x"}, conversations=[]), "needs either"),
        (replies(), "replies: is empty"),
        (replies({"txt": "x"}), r"replies\[0\]: unknown key 'txt' \(did you mean 'text'\?\)"),
        (replies({"calls": [{}]}), r"replies\[0\].calls\[0\]: has no 'name'"),
        (replies({"calls": [{"name": "n", "arguments": "x"}]}), "must be a mapping"),
        (
            replies({"calls": [{"name": "n", "arguments": {}, "raw_arguments": ""}]}),
            "has both",
        ),
        (replies({"expect": {"matches": "("}}), "no regular expression"),
        (replies({"expect": {"is_error": "yes"}}), "must be true or false"),
        (replies({"fault": {}}), "needs exactly one of status"),
        (replies({"fault": {"status": 429, "cut": 1}}), "needs exactly one of"),
        (replies({"fault": {"status": 999}}), "at most 599"),
        (replies({"fault": {"reset": False}}), "must be true"),
        (replies({"quirks": ["crfl"]}), r"did you mean 'crlf'"),
        (replies({"usage": {"input": -1}}), "whole number"),
        (replies({"text": ["a", None]}), r"text\[1\]: must be text, not nothing"),
        (replies({"repeat": 0}), "at least 1"),
        (replies({"first_delay_ms": float("nan")}), "at least 0"),
        (replies({"delay_ms": float("inf")}), "at least 0"),
        (replies({"calls": [{"name": "n", "arguments": {"d": date(2026, 1, 1)}}]}), "is not JSON"),
        (replies({"calls": [{"name": "n", "arguments": {"x": float("nan")}}]}), "is not JSON"),
        (replies({"fault": {"status": 100}}), "at least 200"),
        (replies({"fault": {"status": 429, "retry_after": "1\r\nX: y"}}), "one line"),
        (replies({"fault": {"body": "x", "content_type": "a\nb: c"}}), "one line"),
        (replies({"fault": {"status": 429, "request_id": "ж"}}), "one line"),
        (replies({"delay_ms": -1}), "at least 0"),
        (replies({"text": "x"}, order="random"), "one of arrival, history"),
        ({"conversations": [{"when": "x"}]}, r"conversations\[0\]: has no 'replies'"),
    ],
)
def test_a_mistake_in_a_script_is_named_with_its_place(document: Any, says: str) -> None:
    with pytest.raises(ScriptError, match=says):
        parse_script(document)


def test_a_script_is_read_from_yaml_and_json(tmp_path: Path) -> None:
    yaml, json = tmp_path / "a.yml", tmp_path / "a.json"
    yaml.write_text("\ufefftitle: T\nreplies:\n  - text: |\n      two\n      lines\n", "utf-8")
    json.write_text('{"title": "T", "replies": [{"text": "two\\nlines\\n"}]}')
    one, two = load_script(yaml), load_script(json)
    assert one.title == two.title == "T"
    assert one.conversations == two.conversations


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("missing.yml", None, "cannot read"),
        ("bad.yml", "a: [", "not YAML"),
        ("bad.json", "{", "not JSON"),
        ("typo.yml", "reples: []", "typo.yml: script: unknown key 'reples'"),
    ],
)
def test_a_script_file_that_cannot_be_used_is_named(
    tmp_path: Path, name: str, content: str | None, says: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(ScriptError, match=says) as raised:
        load_script(path)
    assert name in str(raised.value)
