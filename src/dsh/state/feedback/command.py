"""The command ``/feedback``: row ``command-feedback``. It keeps a remark in the session's log."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dsh.control.commands.service import (
    Command,
    CommandFailure,
    CommandInput,
    CommandInvocation,
    CommandResult,
    CommandRuntime,
    CommandSuccess,
)
from dsh.state.feedback.events import FEEDBACK_RECORD, FeedbackRecorded
from dsh.state.session.service import SessionStore
from dsh.state.telemetry.service import SessionTelemetryBackend, Sharing

if TYPE_CHECKING:
    from dsh.kernel import Context

name = "command-feedback"
inject = (SessionStore,)

_USAGE: Final = "Nothing was recorded. Usage: /feedback <text>"

_SHARING: Final[dict[Sharing | None, str]] = {
    "full": "Telemetry shares this session, and the feedback with it.",
    "feedback-only": "Telemetry shares this session up to the feedback.",
    "disabled": "Telemetry is disabled, so the feedback stays on this machine.",
    None: "Telemetry is not configured, so the feedback stays on this machine.",
}
"""How much leaves the machine, by what the telemetry service says; None without one."""


def apply(ctx: Context) -> None:
    """Offer the command wherever commands are."""
    ctx.require(SessionStore).declare(FEEDBACK_RECORD)

    async def record(invocation: CommandInvocation) -> CommandResult:
        return await _record(ctx, invocation)

    command = Command(
        "feedback",
        "Keep a remark about this session in its log.",
        record,
        CommandInput("<text>"),
        # The remark is an event of its own; the log need not have it twice.
        record_input=False,
    )
    ctx.inject([CommandRuntime], lambda inner: inner.require(CommandRuntime).register(command))


async def _record(ctx: Context, invocation: CommandInvocation) -> CommandResult:
    text = invocation.raw_input.strip()
    if not text:
        return CommandFailure(_USAGE)
    user = await asyncio.to_thread(_user_id, ctx)
    invocation.signal.throw_if_aborted()
    session = invocation.agent.session
    event = session.append(FEEDBACK_RECORD, FeedbackRecorded(text=text))
    telemetry = ctx.get(SessionTelemetryBackend)
    sharing = _SHARING[telemetry.sharing if telemetry is not None else None]
    return CommandSuccess(
        f"Feedback recorded in session {session.id} (anonymous user {user}). {sharing}",
        event["seq"],
    )


def _user_id(ctx: Context) -> str:
    from dsh.loader.anonymous import FILE_NAME, anonymous_user_id
    from dsh.state.documents.live import home_file

    return anonymous_user_id(Path(home_file(ctx, None, None, FILE_NAME)).parent)
