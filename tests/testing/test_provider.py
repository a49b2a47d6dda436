from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from dsh.testing.provider import Provider, start_provider

PATH = "/chat/completions"


def ask(provider: Provider, body: Any = None, path: str = PATH, **headers: str) -> tuple[int, str]:
    """Make one plain request and return status and body."""
    host = provider.url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=10)
    try:
        data = body if isinstance(body, bytes) else json.dumps(body or chat()).encode()
        connection.request("POST", path, data, headers)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def chat(text: str = "hi", *more: Any, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}, *more]
    return {"model": "m", "stream": True, "messages": messages, **fields}


def said(stream: str) -> str:
    events = [line[6:] for line in stream.splitlines() if line.startswith("data: {")]
    deltas = [choice["delta"] for event in events for choice in json.loads(event)["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


def test_replies_stream_as_events_that_end_with_the_mark() -> None:
    with start_provider("replies:\n  - text: Hello there\n    chunk_size: 5\n") as provider:
        status, stream = ask(provider)
    assert status == 200
    assert said(stream) == "Hello there"
    assert stream.endswith("data: [DONE]\n\n")
    assert stream.count('"content":"') == 4


def test_requests_are_logged_with_their_bodies_but_without_the_key() -> None:
    with start_provider({"replies": [{"text": "x"}]}) as provider:
        ask(provider, chat("größe"), Authorization="Bearer sk-very-secret")
        (request,) = provider.requests()
        (body,) = provider.bodies()
        log = provider.log_path.read_text()

    assert request["path"] == PATH
    assert request["body"]["messages"] == [{"role": "user", "content": "größe"}]
    assert request["headers"]["authorization"] == "[redacted]"
    assert json.loads(body) == request["body"]
    assert "sk-very-secret" not in log


def test_the_log_tells_which_reply_was_given_and_what_is_left() -> None:
    with start_provider({"replies": [{"text": "x"}, {"text": "y"}]}) as provider:
        ask(provider)
        provider.stop()
        assert [line["place"] for line in provider.events("reply")] == ["replies[0]"]
        (end,) = provider.events("end")
    assert end["unplayed"] == ["replies[1]"]


def test_once_ends_with_the_last_reply() -> None:
    with start_provider({"replies": [{"text": "x"}, {"text": "y"}]}, once=True) as provider:
        ask(provider)
        ask(provider)
        assert provider.wait() == 0


def test_a_result_that_differs_is_refused_and_told_by_the_exit_code() -> None:
    script = {"replies": [{"text": "x", "expect": {"contains": "OK"}}]}
    call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    messages = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "FAILED"},
    ]
    with start_provider(script) as provider:
        status, body = ask(provider, chat("go", *messages))
        provider.stop()
        assert provider.wait() == 1
        (mismatch,) = provider.events("mismatch")

    assert status == 400
    for part in ("replies[0].expect", "bash", "OK", "FAILED"):
        assert part in json.loads(body)["error"]["message"]
        assert part in mismatch["problem"]


def test_sessions_at_once_keep_their_place_by_header() -> None:
    header = "x-deepseek-harness-session-id"
    with start_provider({"replies": [{"text": "one"}, {"text": "two"}]}) as provider:
        got = [said(ask(provider, **{header: session})[1]) for session in ("a", "b", "b", "a")]
    assert got == ["one", "one", "two", "two"]


def test_many_clients_at_once_get_their_own_conversation() -> None:
    names = [f"client-{number}" for number in range(8)]
    script = {
        "conversations": [
            {"when": name, "replies": [{"text": f"{name}!", "chunk_size": 1, "delay_ms": 1}]}
            for name in names
        ]
    }
    got: dict[str, str] = {}
    with start_provider(script) as provider:
        threads = [
            threading.Thread(
                target=lambda name=name: got.update({name: said(ask(provider, chat(name))[1])})
            )
            for name in names
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert got == {name: f"{name}!" for name in names}


def test_a_request_that_does_not_stream_gets_one_object() -> None:
    call = {"name": "read", "arguments": {"p": 1}}
    with start_provider(
        {"replies": [{"reasoning": "hm", "text": "x", "calls": [call]}]}
    ) as provider:
        _, body = ask(provider, chat(stream=False))
    (choice,) = json.loads(body)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "x"
    assert choice["message"]["reasoning_content"] == "hm"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"p":1}'


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "says"),
    [
        ("/other", None, {"Authorization": "Bearer k"}, 404, "/other"),
        (PATH, b"{", {"Authorization": "Bearer k"}, 400, "JSON object"),
        (PATH, None, {}, 401, "authentication"),
        (PATH, chat(model="x"), {"Authorization": "Bearer k"}, 400, "Model Not Exist"),
    ],
)
def test_requests_that_are_wrong_take_no_reply(
    path: str, body: Any, headers: dict[str, str], status: int, says: str
) -> None:
    script = {"api_key": "k", "models": ["m"], "replies": [{"text": "x"}]}
    with start_provider(script) as provider:
        got, text = ask(provider, body, path, **headers)
        assert got == status
        assert says in json.loads(text)["error"]["message"]
        assert said(ask(provider, Authorization="Bearer k")[1]) == "x"


def test_a_status_fault_has_its_headers() -> None:
    fault = {"status": 429, "retry_after": 3, "request_id": "r-1", "message": "slow down"}
    with start_provider({"replies": [{"fault": fault}, {"text": "x"}]}) as provider:
        host = provider.url.removeprefix("http://")
        connection = http.client.HTTPConnection(host, timeout=10)
        connection.request("POST", PATH, json.dumps(chat()))
        response = connection.getresponse()
        body = json.loads(response.read())
        connection.close()
        assert said(ask(provider)[1]) == "x"

    assert response.status == 429
    assert response.headers["Retry-After"] == "3"
    assert response.headers["X-Request-Id"] == "r-1"
    assert body["error"]["message"] == "slow down"


def test_slots_are_filled_from_the_command_line_and_the_working_folder(tmp_path: Path) -> None:
    script = {"replies": [{"text": "{{name}} in {{cwd}}"}]}
    with start_provider(script, variables={"name": "N"}, cwd=tmp_path) as provider:
        _, stream = ask(provider)
    assert said(stream) == f"N in {tmp_path}"


def test_models_are_listed() -> None:
    with start_provider({"models": ["a", "b"], "replies": [{"text": "x"}]}) as provider:
        connection = http.client.HTTPConnection(provider.url.removeprefix("http://"), timeout=10)
        connection.request("GET", "/v1/models")
        listed = json.loads(connection.getresponse().read())
        connection.close()
    assert [entry["id"] for entry in listed["data"]] == ["a", "b"]


def test_a_script_that_is_wrong_ends_the_program_with_one_line(tmp_path: Path) -> None:
    script = tmp_path / "bad.yml"
    script.write_text("replies:\n  - txt: x\n")
    done = subprocess.run(
        [sys.executable, "-m", "dsh.testing.provider", "--script", str(script)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "replies[0]: unknown key 'txt'" in done.stderr
    assert done.stderr.count("\n") == 1
    with pytest.raises(RuntimeError, match="unknown key 'txt'"), start_provider(script):
        pass


def test_the_server_runs_on_the_standard_library_alone(tmp_path: Path) -> None:
    script = tmp_path / "s.json"
    script.write_text('{"replies": [{"text": "x"}]}')
    code = f"""
import sys
from dsh.model.rehearsal import Play, load_script
from dsh.testing.provider import __main__
load_script({str(script)!r})
heavy = {{"yaml", "httpx", "pydantic", "rich", "click"}} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)
