"""SIGKILL right after something happened outside: what led to it is in the log by then."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

from support import Home, call, finish, wait_for

from dsh.testing.provider import Provider


def _killed_in_a_tool(home: Home, provide: Callable[..., Provider]) -> Provider:
    effect = call("bash", command="touch happened; sleep 600", description="Do it")
    later = call("bash", command="touch later", description="Do more")
    provider = provide({"replies": [{"text": "Doing it.", "calls": [effect, later]}]})
    process = home.start("--profile", "headless", "do it")
    wait_for((home.workspace / "happened").exists, "the effect of the tool")
    process.send_signal(signal.SIGKILL)
    finish(process)
    return provider


def test_what_a_model_saw_and_a_tool_did_survives_a_kill_at_once(
    home: Home, provide: Callable[..., Provider]
) -> None:
    _killed_in_a_tool(home, provide)
    types = [event["type"] for event in home.log().events]
    assert types.index("user/message") < types.index("request/header")
    assert types.index("request/header") < types.index("assistant/message")
    assert types.index("assistant/message") < types.index("tool/call")
    assert "tool/result" not in types


def test_a_call_that_a_kill_interrupted_is_told_as_of_unknown_outcome(
    home: Home, provide: Callable[..., Provider]
) -> None:
    _killed_in_a_tool(home, provide)
    assert home.run("sessions", "repair").code == 0
    results = [each for each in home.log().events if each["type"] == "tool/result"]
    codes: list[Any] = [each["data"]["error"]["code"] for each in results]
    assert codes == ["TOOL_OUTCOME_UNKNOWN", "TOOL_NOT_STARTED"]
    assert home.log().events[-1]["data"]["reason"] == {"kind": "interrupted"}
    shown = json.loads(home.run("sessions", "show", "last", "--json").out)
    calls = [each for each in shown[0]["transcript"] if each["kind"] == "call"]
    assert [each["failed"] for each in calls] == [True, True]
    assert not (home.workspace / "later").exists()
