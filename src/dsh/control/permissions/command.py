"""The command ``/permission``: show the preset of a session, or choose another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh.control.commands.service import (
    Command,
    CommandFailure,
    CommandInput,
    CommandSuccess,
)
from dsh.control.permissions.service import UnknownPreset

if TYPE_CHECKING:
    from dsh.control.commands.service import CommandInvocation, CommandResult
    from dsh.control.permissions.service import PermissionPresetService


def permission_command(presets: PermissionPresetService) -> Command:
    """Return the command over a service of presets."""

    def handle(invocation: CommandInvocation) -> CommandResult:
        agent, wanted = invocation.agent, invocation.raw_input.strip()
        if not wanted:
            current = presets.current(agent.session.events)
            known = ", ".join(presets.names)
            return CommandSuccess(f"current preset {current} (available: {known})")
        try:
            presets.set(agent.session, wanted, agent=agent)
        except UnknownPreset as error:
            return CommandFailure(error.message)
        return CommandSuccess(f"preset {wanted}")

    return Command(
        name="permission",
        description="Show or switch how wide file access is and whether people are asked.",
        handler=handle,
        input=CommandInput("<preset>"),
    )
