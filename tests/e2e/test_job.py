"""A whole job: the installed command, a server that streams, real tools, a real log."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from support import KEY, Home, call

from dsh.model.adapters.deepseek.wire import encode_messages
from dsh.state.session.session import Session
from dsh.testing.provider import Provider

JOB = {
    "chunk_size": 3,
    "replies": [
        {
            "reasoning": "Two files matter.",
            "text": "Reading both.",
            "calls": [call("read", file_path="a.txt"), call("read", file_path="b.txt")],
            "usage": {"input": 100, "output": 20},
        },
        {
            "expect": [{"call": 1, "contains": "alpha"}, {"call": 2, "contains": "beta"}],
            "text": "Changing one.",
            "calls": [call("edit", file_path="a.txt", old_string="alpha", new_string="gamma")],
        },
        {
            "text": "Checking.",
            "calls": [
                call("bash", command="cat a.txt b.txt | wc -c; echo $TERM", description="Count")
            ],
        },
        {"expect": [{"contains": ["11", "dumb"]}], "text": "Changed a.txt."},
    ],
}


def prepare(home: Home) -> None:
    (home.workspace / "a.txt").write_text("alpha\n")
    (home.workspace / "b.txt").write_text("beta\n")


def messages_of(provider: Provider) -> list[list[dict[str, Any]]]:
    return [request["body"]["messages"] for request in provider.requests()]


def test_a_four_step_job_changes_the_files_and_exits_0(
    home: Home, provide: Callable[..., Provider]
) -> None:
    prepare(home)
    provide(JOB)

    ran = home.headless("change alpha to gamma")

    assert (ran.code, ran.out, ran.err) == (0, "Changed a.txt.\n", "")
    assert (home.workspace / "a.txt").read_text() == "gamma\n"


def test_requests_carry_stable_tools_and_a_prefix_that_only_grows(
    home: Home, provide: Callable[..., Provider]
) -> None:
    prepare(home)
    provider = provide(JOB)

    home.headless("go")

    bodies = [request["body"] for request in provider.requests()]
    assert len(bodies) == 4
    names = [tool["function"]["name"] for tool in bodies[0]["tools"]]
    assert names == sorted(names) == ["bash", "edit", "glob", "grep", "read", "todo_write", "write"]
    assert all(body["tools"] == bodies[0]["tools"] for body in bodies)
    for earlier, later in pairwise(bodies):
        assert later["messages"][: len(earlier["messages"])] == earlier["messages"]


def test_every_call_in_a_request_is_followed_by_its_results_in_order(
    home: Home, provide: Callable[..., Provider]
) -> None:
    prepare(home)
    provider = provide(JOB)

    home.headless("go")

    last = messages_of(provider)[-1]
    roles = [message["role"] for message in last]
    assert roles == [
        "system", "user", "user",  # the task and the runtime context
        "assistant", "tool", "tool", "assistant", "tool", "assistant", "tool",
    ]  # fmt: skip
    asked = [one["id"] for message in last for one in message.get("tool_calls", [])]
    answered = [message["tool_call_id"] for message in last if message["role"] == "tool"]
    assert asked == answered


def test_the_log_read_back_derives_the_last_request_byte_for_byte(
    home: Home, provide: Callable[..., Provider]
) -> None:
    prepare(home)
    provider = provide(JOB)
    home.headless("go")
    stored = home.log()
    last_reply = max(
        event["seq"] for event in stored.events if event["type"] == "assistant/message"
    )

    session = Session.create(stored.header["id"], seed=stored.events[:last_reply])

    header = session.request_header()
    assert header is not None
    derived = encode_messages(header.get("system"), session.derive_messages())
    sent = json.loads(provider.bodies()[-1])
    assert json.dumps(derived) == json.dumps(sent["messages"])
    assert sent["model"] == header["config"]["model"]


def test_two_parallel_reads_are_in_flight_together_and_logged_in_order(
    home: Home, provide: Callable[..., Provider]
) -> None:
    prepare(home)
    provide(JOB)
    home.headless("go")

    kinds = [
        event["type"]
        for event in home.log().events
        if event["type"] in {"tool/call", "tool/result", "step/end"}
    ]

    assert kinds[:5] == ["tool/call", "tool/call", "tool/result", "tool/result", "step/end"]


def test_the_key_is_sent_and_stands_nowhere_else(
    home: Home, provide: Callable[..., Provider]
) -> None:
    prepare(home)
    provider = provide({"api_key": KEY, **JOB})

    ran = home.headless("go", "--output-format", "stream-json")

    assert ran.code == 0
    written = b"".join(path.read_bytes() for path in home.folder.rglob("*") if path.is_file())
    everything = ran.out + ran.err + provider.log_path.read_text()
    assert KEY not in everything
    assert KEY.encode() not in written


def test_the_shell_does_not_see_the_key(home: Home, provide: Callable[..., Provider]) -> None:
    provide(
        {
            "replies": [
                {"calls": [call("bash", command="env", description="Show the environment")]},
                {"expect": [{"not_contains": [KEY, "DEEPSEEK_API_KEY"]}], "text": "clean"},
            ]
        }
    )
    ran = home.headless("go")
    assert (ran.code, ran.out) == (0, "clean\n")


def test_new_files_honour_the_umask(home: Home, provide: Callable[..., Provider]) -> None:
    provide(
        {
            "replies": [
                {"calls": [call("write", file_path="new.txt", content="x\n")]},
                {"text": "written"},
            ]
        }
    )
    process = home.start("--profile", "headless", "go", umask=0o027)
    process.communicate()
    assert (home.workspace / "new.txt").stat().st_mode & 0o777 == 0o640


def test_the_shell_cannot_write_outside_the_workspace(
    home: Home, provide: Callable[..., Provider]
) -> None:
    beside = home.workspace.parent / "beside.txt"
    provide(
        {
            "replies": [
                {"calls": [call("bash", command=f"echo x > {beside}", description="Write beside")]},
                {"expect": [{"contains": "[sandbox:"}], "text": "refused"},
            ]
        }
    )
    ran = home.headless("go")
    assert (ran.code, ran.out) == (0, "refused\n")
    assert not beside.exists()
