"""What the log keeps of slash commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NotRequired, TypedDict

from dsh.state.session.events import EventType


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
