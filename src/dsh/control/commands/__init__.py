"""Slash commands: how people drive the program without a turn of the model."""

from __future__ import annotations

from dsh.control.commands.service import (
    Command,
    CommandDescriptor,
    CommandError,
    CommandExecution,
    CommandFailure,
    CommandHandler,
    CommandInput,
    CommandInterrupted,
    CommandInvocation,
    CommandRegistrationError,
    CommandResult,
    CommandRuntime,
    CommandSuccess,
    InvalidCommandResult,
    ParsedCommand,
    parse_command,
)

__all__ = [
    "Command",
    "CommandDescriptor",
    "CommandError",
    "CommandExecution",
    "CommandFailure",
    "CommandHandler",
    "CommandInput",
    "CommandInterrupted",
    "CommandInvocation",
    "CommandRegistrationError",
    "CommandResult",
    "CommandRuntime",
    "CommandSuccess",
    "InvalidCommandResult",
    "ParsedCommand",
    "parse_command",
]
