"""Which commands an agent's user has: one layer a scope, nearer names first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dsh.control.commands.service import (
    Command,
    CommandInput,
    CommandRegistrationError,
    is_command_name,
)
from dsh.kernel import NamedEntries, ScopedLayers

if TYPE_CHECKING:
    from dsh.kernel import Context, Effect

__all__ = ["CommandLayers", "Registered"]


class Registered:
    """One registration of a command, and the context whose plugin owns it."""

    __slots__ = ("command", "ctx")

    def __init__(self, command: Command, ctx: Context) -> None:
        self.command, self.ctx = command, ctx


def _duplicate(name: str) -> Exception:
    return CommandRegistrationError(
        f"command /{name} is registered in this scope already; unload its plugin first, or "
        "register through agent.ctx to replace it for one agent"
    )


class CommandLayers:
    """The layers of one runtime, and the views they add up to. Nothing is cached."""

    def __init__(self, changed: Callable[[], object]) -> None:
        self._layers = ScopedLayers(lambda: NamedEntries[Registered](_duplicate), changed)

    def register(self, ctx: Context, command: Command) -> Effect:
        """Add a command to the layer of ``ctx``'s scope."""
        check_command(command)
        entry = Registered(command, ctx)
        return self._layers.effect(
            ctx,
            lambda layer: layer.insert(command.name, entry),
            label=f"commands.register({command.name!r})",
        )

    def visible(self, scope: object) -> dict[str, Registered]:
        """Every command that a scope sees, by name."""
        return self._layers.merge(scope, lambda layer: layer)


def check_command(command: Command) -> None:
    """Refuse a definition that could only fail later.

    Raises:
        CommandRegistrationError: a field is unusable; names the command and the field.
    """
    name = command.name
    if not isinstance(name, str) or not is_command_name(name):
        raise CommandRegistrationError(
            f"{name!r} cannot name a command; use lower-case letters, digits, '_' and '-', "
            "beginning with a letter and without the slash"
        )
    if (problem := _problem(command)) is not None:
        raise CommandRegistrationError(f"command /{name}: {problem}")


def _problem(command: Command) -> str | None:
    if not _is_said(command.description):
        return "description must be text that is not blank"
    if not callable(command.handler):
        return f"handler must be callable, got {command.handler!r}"
    if not isinstance(command.record_input, bool):
        return f"record_input must be a bool, got {command.record_input!r}"
    if command.input is None:
        return None
    if not isinstance(command.input, CommandInput):
        return f"input must be a CommandInput or None, got {command.input!r}"
    if not _is_said(command.input.hint):
        return "input.hint must be text that is not blank, such as '<text>'"
    if not isinstance(command.input.images, bool):
        return f"input.images must be a bool, got {command.input.images!r}"
    return None


def _is_said(text: object) -> bool:
    return isinstance(text, str) and bool(text.strip())
