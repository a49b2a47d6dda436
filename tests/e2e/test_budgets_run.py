"""Budgets and cost in a whole tree: the installed command over real HTTP."""

from __future__ import annotations

import json
import os
import pty
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import Home, call, say

from dsh.testing.provider import Provider

PRICE = {"input": 1000, "cachedInput": 100, "output": 10_000}
ROUTE = "deepseek-official/deepseek-v4-flash"


def patch(home: Home, **config: Any) -> list[str]:
    path = home.folder.parent / "budget.yml"
    path.write_text(json.dumps([{"id": "budgets", "config": config}]))  # JSON is YAML, too
    return ["--patch", str(path)]


def looks(count: int) -> dict[str, Any]:
    usage = {"input": 50, "output": 7, "cache_read": 40}
    reply = {"calls": [call("glob", pattern="*")], "usage": usage, "repeat": count}
    return {"replies": [reply, {"text": "done", "repeat": 9, "usage": usage}]}


def test_the_result_has_the_cost_when_the_route_has_a_price(
    home: Home, provide: Callable[..., Provider]
) -> None:
    provide(looks(1))
    words = patch(home, prices={ROUTE: PRICE}, currency="EUR")

    ran = home.run(*words, "--profile", "headless", "--output-format", "json", "look")

    result = json.loads(ran.out)
    assert result["cost"] == {
        "amount": pytest.approx(2 * (10 * 1000 + 40 * 100 + 7 * 10_000) / 1e6),
        "currency": "EUR",
    }
    assert result["usage"]["cacheReadTokens"] == 80


def test_a_reached_budget_is_told_and_a_resume_with_more_goes_on(
    home: Home, provide: Callable[..., Provider]
) -> None:
    provider = provide(looks(9))
    few = patch(home, session={"steps": 2})

    ran = home.run(*few, "--profile", "headless", "--output-format", "json", "look")

    result = json.loads(ran.out)
    assert ran.code == 1
    assert "BUDGET_STEPS: the budget of this session is used up: 2 steps of 2 steps" in ran.err
    assert (result["reason"], result["error"]["code"]) == ("aborted", "BUDGET_STEPS")
    assert len(provider.requests()) == 2
    again = home.run(*few, "--profile", "headless", "--resume", "last", "go on")
    assert (again.code, again.out) == (1, "\n")
    assert "BUDGET_STEPS" in again.err
    assert len(provider.requests()) == 2
    more = patch(home, session={"steps": 3})
    home.run(*more, "--profile", "headless", "--resume", "last", "go on")
    assert len(provider.requests()) == 3


def test_the_result_of_a_stopped_run_is_the_last_line_of_the_stream(
    home: Home, provide: Callable[..., Provider]
) -> None:
    provide(looks(9))
    few = patch(home, session={"steps": 3})  # the third equal call leaves a notice in the inbox

    ran = home.run(*few, "--profile", "headless", "--output-format", "stream-json", "look")

    kinds = [json.loads(line)["type"] for line in ran.out.splitlines()]
    assert kinds[-1] == "result"
    assert home.log().events[-1]["type"] == "agent/inbox/spliced"


def test_a_limit_of_money_without_a_price_asks_no_model(
    home: Home, provide: Callable[..., Provider]
) -> None:
    provider = provide({"replies": [say("hello")]})
    ran = home.run(*patch(home, session={"money": 1}), "--profile", "headless", "look")
    assert ran.code == 1
    assert f"the route {ROUTE} has no price" in ran.err
    assert provider.requests() == []


def test_on_a_terminal_the_last_line_has_the_cost(
    home: Home, provide: Callable[..., Provider], tmp_path: Path
) -> None:
    provide(looks(1))
    words = patch(home, prices={ROUTE: PRICE})
    ours, theirs = pty.openpty()
    try:
        process = home.start(*words, "--profile", "headless", "look", stderr=theirs)
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            shown += part
        assert process.wait() == 0
    finally:
        os.close(ours)
    assert "0.1680 USD" in shown.decode().splitlines()[-1]


def test_a_model_that_always_repeats_is_told_and_stopped(
    home: Home, provide: Callable[..., Provider]
) -> None:
    provider = provide(looks(99))
    ran = home.headless("--output-format", "json", "look")
    assert ran.code == 1
    assert json.loads(ran.out)["error"]["code"] == "STUCK_REPEAT"
    assert len(provider.requests()) == 8
    kinds = [
        event["data"]["source"]["plugin"]
        for event in home.log().events
        if event["type"] == "user/message" and event["data"]["source"]["kind"] == "plugin"
    ]
    assert [kind for kind in kinds if kind in ("repeat-tool-reminder", "stuck-guard")] == [
        "repeat-tool-reminder",
        "stuck-guard",
        "repeat-tool-reminder",
    ]
