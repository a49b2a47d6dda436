"""The command ``/export``: row ``session-log-download``, for apps that can hand out a file.

The command only says yes; the app that sees it succeed starts the download.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh.control.commands.service import (
    Command,
    CommandFailure,
    CommandInvocation,
    CommandResult,
    CommandRuntime,
    CommandSuccess,
)

if TYPE_CHECKING:
    from dsh.kernel import Context

name = "session-log-download"


def apply(ctx: Context) -> None:
    """Offer the command wherever commands are."""
    command = Command("export", "Download this session's log and its children's.", _export)
    ctx.inject([CommandRuntime], lambda inner: inner.require(CommandRuntime).register(command))


def _export(invocation: CommandInvocation) -> CommandResult:
    if invocation.raw_input.strip():
        return CommandFailure("/export takes no arguments. Usage: /export")
    return CommandSuccess(f"The log of session {invocation.agent.session.id} is being downloaded.")
