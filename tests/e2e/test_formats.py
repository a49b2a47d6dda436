"""What the headless app prints: text, json, stream-json; where the task comes from; resuming."""

from __future__ import annotations

import json
import os
import pty
from collections.abc import Callable
from typing import Any

import pytest
from support import Home, call, say, wait_for

from dsh.testing.provider import Provider

TWO_STEPS = {
    "replies": [
        {
            "calls": [call("glob", pattern="*")],
            "usage": {"input": 50, "output": 7, "cache_read": 40},
        },
        {"text": "Nothing there.", "usage": {"input": 60, "output": 9}},
    ]
}


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_json_is_one_object_with_the_outcome(home: Home, provide: Callable[..., Provider]) -> None:
    provide(TWO_STEPS)

    ran = home.headless("look", "--output-format", "json")

    (result,) = lines(ran.out)
    assert ran.code == 0
    assert result.pop("durationMs") >= 0
    assert result.pop("sessionId").startswith("session-")
    usage = result.pop("usage")
    assert usage["outputTokens"] == 16
    assert result == {
        "reason": "completed",
        "text": "Nothing there.",
        "turns": 1,
        "steps": 2,
        "model": "deepseek-official/deepseek-v4-flash",
        "cwd": str(home.workspace),
    }


def test_stream_json_prints_a_header_every_logged_event_and_a_result(
    home: Home, provide: Callable[..., Provider]
) -> None:
    provide(TWO_STEPS)

    ran = home.headless("look", "--output-format", "stream-json")

    first, *events, last = lines(ran.out)
    assert first["type"] == "session"
    assert first["id"] == last["sessionId"]
    assert last["type"] == "result"
    assert last["reason"] == "completed"
    assert events == [json.loads(json.dumps(event)) for event in home.log().events]
    assert {"assistant/chunk", "tool/call", "tool/result", "turn/end"} <= {
        event["type"] for event in events
    }


def test_events_are_printed_as_they_happen(home: Home, provide: Callable[..., Provider]) -> None:
    provide({"replies": [{"text": ["first "], "fault": {"stall": 1}}]})
    process = home.start("--profile", "headless", "--output-format", "stream-json", "go")
    assert process.stdout is not None

    seen = ""
    while '"text-delta"' not in seen:
        seen += process.stdout.readline()

    process.terminate()
    process.communicate()
    assert '"turn/end"' not in seen


@pytest.mark.parametrize("words", [[], ["-"]])
def test_the_task_may_come_from_standard_input(
    home: Home, provide: Callable[..., Provider], words: list[str]
) -> None:
    provider = provide({"replies": [say("yes")]})

    ran = home.headless(*words, input="from the pipe\n")

    assert ran.out == "yes\n"
    user = provider.requests()[0]["body"]["messages"]
    assert "from the pipe" in json.dumps(user)


@pytest.mark.parametrize("blank", ["", "  \n"])
def test_a_blank_task_is_refused(home: Home, blank: str) -> None:
    ran = home.headless(input=blank)
    assert ran.code == 1
    assert "a task is required" in ran.err
    assert ran.out == ""


def test_words_after_the_first_are_part_of_the_task(
    home: Home, provide: Callable[..., Provider]
) -> None:
    provider = provide({"replies": [say("ok")]})
    home.headless("run", "the", "tests")
    assert "run the tests" in json.dumps(provider.requests()[0]["body"])


def test_cwd_moves_the_workspace(home: Home, provide: Callable[..., Provider]) -> None:
    other = home.workspace / "inner"
    other.mkdir()
    (other / "here.txt").write_text("x")
    provide(
        {
            "replies": [
                {"calls": [call("glob", pattern="*")]},
                {"expect": [{"contains": "here.txt"}], "text": "found"},
            ]
        }
    )
    ran = home.headless("--cwd", "inner", "look")
    assert (ran.code, ran.out) == (0, "found\n")
    assert home.log().header["cwd"] == str(other)


def test_model_splits_only_at_a_registered_provider(
    home: Home, provide: Callable[..., Provider]
) -> None:
    provider = provide({"replies": [say("a"), say("b")]})
    home.headless("--model", "deepseek-official/other-model", "go")
    home.headless("--model", "vendor/strange-model", "go")
    assert [request["body"]["model"] for request in provider.requests()] == [
        "other-model",
        "vendor/strange-model",
    ]


def test_resume_goes_on_with_the_newest_session_of_the_folder(
    home: Home, provide: Callable[..., Provider]
) -> None:
    provider = provide({"replies": [say("one"), say("two"), say("three")]})
    home.headless("first task", "--model", "other")
    elsewhere = home.workspace / "elsewhere"
    elsewhere.mkdir()
    home.headless("unrelated", cwd=elsewhere)

    ran = home.headless("--resume", "last", "second task")

    assert (ran.code, ran.out) == (0, "three\n")
    request = provider.requests()[-1]["body"]
    texts = [message["content"] for message in request["messages"] if message["role"] != "system"]
    assert "first task" in texts[0]
    assert "one" in texts
    assert any("second task" in text for text in texts)
    assert "unrelated" not in json.dumps(texts)
    assert request["model"] == "other"


def test_resume_by_id_keeps_one_log(home: Home, provide: Callable[..., Provider]) -> None:
    provide({"replies": [say("one"), say("two")]})
    first = json.loads(home.headless("a", "--output-format", "json").out)
    second = json.loads(
        home.headless("b", "--output-format", "json", "--resume", first["sessionId"]).out
    )
    assert second["sessionId"] == first["sessionId"]
    assert second["turns"] == 1
    turns = [each["data"] for each in home.log().events if each["type"] == "turn/start"]
    assert turns == [{"turn": 1}, {"turn": 2}]


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [("last", "no session of"), ("session-nope", "session-nope")],
)
def test_nothing_to_resume_is_one_clear_line(home: Home, wanted: str, problem: str) -> None:
    home.variables["DEEPSEEK_API_KEY"] = "sk-x"
    ran = home.headless("--resume", wanted, "go")
    assert ran.code == 1
    assert problem in ran.err
    assert len(ran.err.splitlines()) == 1


def test_a_terminal_sees_each_step_and_a_summary(
    home: Home, provide: Callable[..., Provider]
) -> None:
    provide(TWO_STEPS)
    ours, theirs = pty.openpty()
    process = home.start("--profile", "headless", "look", stderr=theirs)
    os.close(theirs)
    out = process.communicate()[0]
    seen = os.read(ours, 65536).decode()
    os.close(ours)
    assert out == "Nothing there.\n"
    assert "glob" in seen
    assert "session session-" in seen
    assert "16 out" in seen.replace("\r\n", " ")


def test_sessions_list_shows_what_ran(home: Home, provide: Callable[..., Provider]) -> None:
    provide({"replies": [say("one")]})
    result = json.loads(home.headless("a", "--output-format", "json").out)

    listed = home.run("sessions", "list", "--json")

    (row,) = json.loads(listed.out)
    assert row["id"] == result["sessionId"]
    assert row["cwd"] == str(home.workspace)
    assert row["damage"] is None
    assert row["events"] == len(home.log().events)
    assert result["sessionId"] in home.run("sessions", "list").out


def test_a_reader_that_leaves_ends_the_run_quietly(
    home: Home, provide: Callable[..., Provider]
) -> None:
    provide({"replies": [{"text": "word " * 4000, "chunk_size": 4}]})
    process = home.start("--profile", "headless", "--output-format", "stream-json", "go")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    wait_for(lambda: process.poll() is not None, "the end of dsh")
    errors = process.stderr.read()
    process.stderr.close()
    assert "Traceback" not in errors
