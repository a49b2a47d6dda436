"""The seam of slash commands: what people drive the program with, without a turn of the model.

A plugin registers a `Command`; whoever takes input from people asks `CommandRuntime.execute` with
each line first. The provider is `dsh.control.commands.runtime`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias

from dsh.base.errors import DshError
from dsh.base.values import value
from dsh.kernel import Service

if TYPE_CHECKING:
    from dsh.base.signal import AbortSignal
    from dsh.capability.attachments.service import EncodedImage
    from dsh.execution.agent.service import Agent
    from dsh.kernel import Effect
    from dsh.model.messages import ImageBlock

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
    "is_command_name",
    "parse_command",
]

_FIRST: Final = frozenset("abcdefghijklmnopqrstuvwxyz")
_REST: Final = "abcdefghijklmnopqrstuvwxyz0123456789_-"
_SEPARATORS: Final = frozenset("\t\n\r ")


class CommandError(DshError):
    """Base of what the command seam refuses."""

    code = "COMMAND"


class CommandRegistrationError(CommandError, ValueError):
    """A command cannot be registered as given, or its name is taken in its scope."""

    code = "INVALID_COMMAND"


class InvalidCommandResult(CommandError, TypeError):
    """A handler returned something that is not a result; its work may be done all the same."""

    code = "INVALID_COMMAND_RESULT"

    def __init__(self, command: str, problem: str) -> None:
        super().__init__(f"command /{command} returned no valid result: {problem}")
        self.command, self.problem = command, problem


class CommandInterrupted(CommandError, RuntimeError):
    """A command was cancelled by something else than whoever entered it."""

    code = "COMMAND_INTERRUPTED"

    def __init__(self, command: str, why: str) -> None:
        super().__init__(
            f"command /{command} was cut short: {why}; look at what it did before entering it again"
        )
        self.command = command


@value
class CommandInput:
    """What may follow a command's name."""

    hint: str
    """Shown where the input goes, as in ``<text>``."""
    images: bool = False
    """Whether pictures may come along."""


@value
class CommandInvocation:
    """One use of a command, as its handler sees it."""

    command_id: str
    """Names this use in the session's log."""
    agent: Agent
    raw_input: str
    """What stood after the name, verbatim: the separator is part of it."""
    attachments: tuple[ImageBlock, ...]
    """The stored pictures, in the order they came."""
    signal: AbortSignal
    """Aborts when whoever entered the command no longer wants it."""


@value
class CommandSuccess:
    """A command did what it was asked."""

    text: str | None = None
    """What the person reads; never part of what a model reads."""
    source_event_seq: int | None = None
    """The event of this session that the command brought about, to point at."""
    kind: ClassVar[Literal["success"]] = "success"

    def wire(self) -> dict[str, Any]:
        """Return it as clients and the log know it."""
        told: dict[str, Any] = {"kind": self.kind}
        if self.text is not None:
            told["text"] = self.text
        if self.source_event_seq is not None:
            told["sourceEventSeq"] = self.source_event_seq
        return told


@value
class CommandFailure:
    """A command could not do what it was asked, for a reason that the person can act on."""

    text: str
    kind: ClassVar[Literal["error"]] = "error"

    def wire(self) -> dict[str, Any]:
        """Return it as clients and the log know it."""
        return {"kind": self.kind, "text": self.text}


CommandResult: TypeAlias = CommandSuccess | CommandFailure

CommandHandler: TypeAlias = Callable[[CommandInvocation], CommandResult | Awaitable[CommandResult]]


@value
class Command:
    """A slash command as the registry holds it."""

    name: str
    """Lower-case letters, digits, ``_`` and ``-``, beginning with a letter; without the slash."""
    description: str
    """One line for menus."""
    handler: CommandHandler
    """Does the work, on the event loop. An exception it raises reaches whoever ran the command."""
    input: CommandInput | None = None
    """``None`` promises nothing about what follows the name; handlers get it all the same."""
    record_input: bool = True
    """Whether the log keeps what was typed after the name."""


@value
class CommandDescriptor:
    """What a menu shows of a command."""

    name: str
    description: str
    input: CommandInput | None = None

    def wire(self) -> dict[str, Any]:
        """Return it as clients know it."""
        told: dict[str, Any] = {"name": self.name, "description": self.description}
        if self.input is not None:
            told["input"] = {"hint": self.input.hint}
            if self.input.images:
                told["input"]["images"] = True
        return told


@value
class CommandExecution:
    """A command that was run, and how it ended."""

    command_id: str
    result: CommandResult

    def wire(self) -> dict[str, Any]:
        """Return it as clients know it."""
        return {"commandId": self.command_id, "result": self.result.wire()}


@value
class ParsedCommand:
    """A line that has the form of a command; whether there is such a command is another matter."""

    name: str
    raw_input: str


def is_command_name(name: str) -> bool:
    """Whether a command may be called this; the slash is no part of it."""
    return name[:1] in _FIRST and not name.strip(_REST)


def parse_command(line: str) -> ParsedCommand | None:
    """Read a line as a command: ``/name`` at its very beginning, then its end or white space.

    White space is a tab, a line feed, a carriage return or a space. Everything after the name is
    the input, separator included. ``None`` for any other line; it is ordinary text.
    """
    if not line.startswith("/"):
        return None
    raw_input = line[1:].lstrip(_REST)
    name = line[1 : len(line) - len(raw_input)]
    if raw_input and raw_input[0] not in _SEPARATORS:
        return None
    return ParsedCommand(name, raw_input) if is_command_name(name) else None


class CommandRuntime(Service, ABC):
    """The commands by scope, and what runs them.

    ``all`` and ``execute`` are made to be called from afar under the names ``commands/list`` and
    ``commands/execute``: agents resolve from their ids, pictures come encoded, and what is
    returned has ``wire()``.
    """

    name = "commands"

    @abstractmethod
    def register(self, command: Command) -> Effect:
        """Offer a command in the calling context's scope until the calling plugin unloads.

        One registered through ``agent.ctx`` is that agent's alone, and shadows a global one of
        the same name.

        Raises:
            CommandRegistrationError: the definition is unusable, or the name is taken in this
                scope.
        """

    @abstractmethod
    def all(self, agent: Agent) -> tuple[CommandDescriptor, ...]:
        """What an agent's user can enter, sorted by name. Never cached."""

    @abstractmethod
    def find(self, agent: Agent, name: str) -> Command | None:
        """The command that an agent's user means by a name."""

    @abstractmethod
    async def execute(
        self,
        agent: Agent,
        line: str,
        images: Sequence[EncodedImage] = (),
        signal: AbortSignal | None = None,
    ) -> CommandExecution | None:
        """Run the command that a line names, and log the use with its outcome as a pair.

        No turn is opened and none is needed; one that is open goes on.

        Args:
            agent: Whose command; its session keeps the pair.
            line: What the person entered.
            images: Pictures that came with the line, stored before the handler runs.
            signal: An abort ends the wait at once. A handler that has begun may run on.

        Returns:
            ``None`` when the line names no command, and nothing was logged.

        Raises:
            AbortedError: the signal aborted (or its reason, when that is an exception).
            CommandInterrupted: the handler was cancelled from elsewhere, or this service unloads.
            InvalidCommandResult: the handler returned no result.
            Exception: what the handler, the log or the attachment store raised.
        """
