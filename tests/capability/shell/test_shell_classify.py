from __future__ import annotations

import pytest

from dsh.capability.sandbox.service import Confinement, RunnerFailureRule
from dsh.capability.shell.classify import is_denial, runner_failure
from dsh.capability.subprocess.service import ProcessExit

NOTICE = "run: partial enforcement"
RULE = RunnerFailureRule(
    fatal_signatures=("run: ", " "), allowed_exit_codes=(125,), informational_lines=(NOTICE,)
)
BOX = Confinement(
    argv=("run", "x"),
    backend="runner",
    enforcement="full",
    denial_signatures=("permission denied", " ", ""),
    runner_failure_rules=(RULE,),
)
FAILED = ProcessExit(125, None)


@pytest.mark.parametrize(
    ("code", "stderr", "denied"),
    [
        (1, "sh: x: Permission Denied\n", True),
        (1, "sh: x: no such file\n", False),
        (0, "sh: x: Permission denied\n", False),
        (1, "", False),
    ],
)
def test_a_denial_needs_a_failure_and_the_words(code: int, stderr: str, denied: bool) -> None:
    assert is_denial(BOX, ProcessExit(code, None), stderr) is denied


def test_death_by_signal_is_never_a_denial() -> None:
    assert not is_denial(BOX, ProcessExit(None, "SIGKILL"), "permission denied")


def test_a_notice_alone_is_no_failure_and_hides_no_denial() -> None:
    stderr = f"{NOTICE}\nsh: x: Permission denied\n"
    assert runner_failure(BOX, FAILED, stderr) is None
    assert is_denial(BOX, FAILED, stderr)


def test_a_fatal_line_after_the_notice_is_a_failure() -> None:
    stderr = f"{NOTICE}\nrun: cannot start: permission denied\n"
    assert runner_failure(BOX, FAILED, stderr) == "run: cannot start: permission denied"


@pytest.mark.parametrize(
    "ended", [ProcessExit(0, None), ProcessExit(1, None), ProcessExit(None, "SIGKILL")]
)
def test_only_the_exit_codes_of_the_rule_are_failures(ended: ProcessExit) -> None:
    assert runner_failure(BOX, ended, "run: broken\n") is None


def test_blank_signatures_are_ignored() -> None:
    assert runner_failure(BOX, FAILED, "some words\n") is None
    assert not is_denial(BOX, FAILED, "some words\n")
