"""Telling a refused file access, and a broken sandbox, from an ordinary failure."""

from __future__ import annotations

from dsh.capability.sandbox.service import Confinement, RunnerFailureRule
from dsh.capability.subprocess.service import ProcessExit


def runner_failure(confinement: Confinement, ended: ProcessExit, stderr: str) -> str | None:
    """Return the line with which the sandbox runner says that it failed, if it did.

    The command never ran then, so this outranks words that look like a refused access.
    """
    for rule in confinement.runner_failure_rules:
        if (line := _fatal_line(rule, ended, stderr)) is not None:
            return line
    return None


def is_denial(confinement: Confinement, ended: ProcessExit, stderr: str) -> bool:
    """Say whether a failed command ran into the policy.

    A command that ended well, or by a signal, was never denied, whatever it printed.
    """
    if not ended.exit_code:
        return False
    words = stderr.lower()
    return any(
        signature.lower() in words
        for signature in confinement.denial_signatures
        if signature.strip()
    )


def _fatal_line(rule: RunnerFailureRule, ended: ProcessExit, stderr: str) -> str | None:
    if not ended.exit_code:
        return None
    if rule.allowed_exit_codes is not None and ended.exit_code not in rule.allowed_exit_codes:
        return None
    signatures = [text for text in rule.fatal_signatures if text.strip()]
    for line in stderr.splitlines():
        if line.strip() in rule.informational_lines:
            continue
        if any(signature in line for signature in signatures):
            return line.strip()
    return None
