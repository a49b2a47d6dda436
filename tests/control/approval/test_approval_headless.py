"""Without a person a run never waits for one, whatever the policy, and the model is told why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsh.testing.headless import run_headless

GATE: list[Any] = [{"insert": [{"id": "gate", "name": "gate_plugin"}]}]
NEVER: list[Any] = [
    {"id": "approval", "config": {"policy": "never"}},
    {
        "id": "permission",
        "config": {"presets": {"alone": {"sandbox": "workspace-write", "approval": "never"}}},
    },
]
RUN = {"command": "true", "description": "Do nothing"}
WIDER = {
    **RUN,
    "sandbox_permissions": "danger-full-access",
    "justification": "it needs more",
}


@pytest.mark.parametrize(
    ("patch", "arguments", "outcome", "told"),
    [
        (GATE, RUN, "unavailable", "commands need a yes: nobody can be asked here"),
        ([], WIDER, "unavailable", "nobody can be asked about wider file access here"),
        (GATE + NEVER, RUN, "rejected", "do not try the same again"),
        (NEVER, WIDER, "rejected", "do not ask for it again"),
    ],
    ids=["ask-gate", "ask-escalation", "never-gate", "never-escalation"],
)
def test_a_headless_run_is_refused_at_once(
    tmp_path: Path, patch: Any, arguments: Any, outcome: str, told: str
) -> None:
    file = tmp_path / "patch.yml"
    file.write_text(json.dumps(patch))
    script = {
        "replies": [
            {"calls": [{"name": "bash", "arguments": arguments}]},
            {"expect": {"contains": told, "is_error": True}, "text": "I leave it."},
        ]
    }
    ran = run_headless(script, patches=[file])
    assert (ran.code, ran.out) == (0, "I leave it.\n"), ran.err
    decided = [event["data"] for event in ran.log if event["type"] == "approval/decided"]
    asked = [event["data"]["id"] for event in ran.log if event["type"] == "approval/asked"]
    assert decided == [{"id": asked[0], "outcome": outcome}]
