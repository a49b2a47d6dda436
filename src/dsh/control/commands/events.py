"""The change of the registry as a bus event, and what the log keeps of each use of a command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NotRequired, TypedDict

from dsh.base.values import value
from dsh.kernel import Emit
from dsh.state.session.events import EventType

__all__ = [
    "COMMANDS_CHANGE",
    "COMMAND_DONE",
    "COMMAND_RUN",
    "CommandDone",
    "CommandRun",
    "CommandsChanged",
]


@value
class CommandsChanged:
    """Commands were registered or removed somewhere; ask again what an agent has."""


COMMANDS_CHANGE: Final = Emit[CommandsChanged]("commands/change", errors="contain")
"""The registry changed; a listener can neither veto that nor keep it from the others."""


class CommandRun(TypedDict):
    """A command was entered."""

    commandId: str
    name: str
    args: NotRequired[str]
    """What was typed after the name; absent when the command keeps its input private."""
    source: Mapping[str, object]


class CommandDone(TypedDict):
    """The command of the same id is settled."""

    commandId: str
    kind: Literal["success", "error"]
    text: NotRequired[str]
    sourceEventSeq: NotRequired[int]


COMMAND_RUN: Final = EventType("command/run", CommandRun)
"""Before the command acts."""
COMMAND_DONE: Final = EventType("command/done", CommandDone)
"""Once for each run."""
