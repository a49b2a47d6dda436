"""A question in a run that no person watches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dsh.testing.headless import run_headless

ROW = """\
- insert:
    - id: tool-ask-user
      name: '@deepseek-ai/dsh-tool-ask-user'
"""
ASK = {"questions": [{"id": "db", "question": "Which?", "options": [{"label": "SQLite"}]}]}


def test_a_headless_run_is_told_at_once_that_nobody_answers_and_goes_on(tmp_path: Path) -> None:
    patch = tmp_path / "ask.yml"
    patch.write_text(ROW)
    script: dict[str, Any] = {
        "replies": [
            {"calls": [{"name": "ask_user_question", "arguments": ASK}]},
            {"text": "Took SQLite."},
        ]
    }
    run = run_headless(script, patches=[patch], timeout_s=15)
    assert (run.code, run.out.strip()) == (0, "Took SQLite."), run.err
    [result] = [event["data"] for event in run.log if event["type"] == "tool/result"]
    assert result["error"]["code"] == "NO_PROVIDER"
    assert "no user interface is attached" in json.dumps(result["message"])
    types = [event["type"] for event in run.log]
    assert types.count("step/start") == 2
    assert run.log[-1]["data"]["reason"] == {"kind": "completed"}
