"""What the model reads of a command's result, and how programs read that text again."""

from __future__ import annotations

import re
from typing import Literal, NotRequired, TypedDict

from dsh.capability.sandbox.service import Enforcement, SandboxMode, denial_lines
from dsh.capability.shell.service import SandboxOutcome, ShellRunResult, StreamText

_EXIT_CODE = re.compile(r"\[exit code: (\d+)\]")
_KILLED = re.compile(r"\[killed by signal: (\w+)\]")


class StreamValue(TypedDict):
    """One output stream in a result."""

    text: str
    truncated: bool
    spillPath: NotRequired[str]


class SandboxValue(TypedDict):
    """The sandbox's part in a result."""

    mode: SandboxMode
    denied: bool
    enforcement: NotRequired[Enforcement]


class ForegroundValue(TypedDict):
    """Canonical value of a command that ran to its end."""

    kind: Literal["foreground"]
    exitCode: int | None
    signal: str | None
    timedOut: bool
    aborted: bool
    timeoutMs: int
    stdout: StreamValue
    stderr: StreamValue
    sandbox: NotRequired[SandboxValue]


def to_value(result: ShellRunResult) -> ForegroundValue:
    """Return the canonical value of a result."""
    value = ForegroundValue(
        kind="foreground",
        exitCode=result.exit_code,
        signal=result.signal,
        timedOut=result.timed_out,
        aborted=result.aborted,
        timeoutMs=round(result.timeout_s * 1000),
        stdout=_stream(result.stdout),
        stderr=_stream(result.stderr),
    )
    if result.sandbox is not None:
        value["sandbox"] = _sandbox(result.sandbox)
    return value


def render(value: ForegroundValue, *, escalation: bool) -> str:
    """Return the text of a result: output first, then one marker a line.

    Args:
        value: The canonical value.
        escalation: The tool takes ``sandbox_permissions``, so a denial may say so.
    """
    lines = [_section(value["stdout"])]
    if value["stderr"]["text"] or value["stderr"]["truncated"]:
        lines.append("[stderr]\n" + _section(value["stderr"]))
    lines = [line for line in lines if line] or ["(no output)"]
    sandbox = value.get("sandbox")
    if sandbox is not None and sandbox["denied"]:
        lines += denial_lines(sandbox["mode"], escalation=escalation)
    if value["timedOut"]:
        lines.append(f"[timed out after {value['timeoutMs']}ms]")
    if value["signal"] is not None:
        lines.append(f"[killed by signal: {value['signal']}]")
    elif value["exitCode"]:
        lines.append(f"[exit code: {value['exitCode']}]")
    return "\n".join(lines)


def parse_exit_status(text: str) -> dict[str, int | str]:
    """Return ``exitCode`` or ``signal`` of a rendered result; neither after a plain success.

    Only the last line counts: a command may print such a line itself.
    """
    last = text.rstrip("\n").rpartition("\n")[2]
    if match := _EXIT_CODE.fullmatch(last):
        return {"exitCode": int(match[1])}
    if match := _KILLED.fullmatch(last):
        return {"signal": match[1]}
    return {}


def _section(stream: StreamValue) -> str:
    text = stream["text"].rstrip("\n")
    if not stream["truncated"]:
        return text
    where = stream.get("spillPath", "(unavailable)")
    return f"{text}\n[output truncated; full output: {where}]".lstrip("\n")


def _stream(stream: StreamText) -> StreamValue:
    value = StreamValue(text=stream.text, truncated=stream.truncated)
    if stream.spill_path is not None:
        value["spillPath"] = str(stream.spill_path)
    return value


def _sandbox(outcome: SandboxOutcome) -> SandboxValue:
    value = SandboxValue(mode=outcome.mode, denied=outcome.denied)
    if outcome.enforcement is not None:
        value["enforcement"] = outcome.enforcement
    return value
