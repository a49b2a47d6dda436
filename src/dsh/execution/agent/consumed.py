"""What became of the work that an agent was given, read from its log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from dsh.base.values import value

if TYPE_CHECKING:
    from dsh.state.session.events import SessionEvent


@value
class ConsumedWork:
    """The last turn that accounts for work, and whether later input was dropped unrun."""

    end: SessionEvent | None = None
    """Its ``turn/end``; ``None`` when no turn took any work."""
    dropped_unrun: bool = False
    """Waiting messages were withdrawn after it and nothing took their place."""


def fold_consumed_work(events: Iterable[SessionEvent]) -> ConsumedWork:
    """Find the turn that speaks for the work done, in one pass over a log or its own part of it.

    A turn accounts for work when it entered a step, or when it claimed input and ended in anything
    but ``completed``.
    """
    end: SessionEvent | None = None
    dropped = open_turn = entered = claimed = False
    for event in events:
        data = cast("Mapping[str, Any]", event["data"])
        match event["type"]:
            case "turn/start":
                open_turn, entered, claimed = True, False, False
            case "step/start":
                entered = True
            case "agent/inbox/spliced":
                if data.get("outcome") == "canceled":
                    dropped = dropped or not data["inserted"]
                elif open_turn and data.get("removedCount"):
                    claimed = True
            case "turn/end":
                open_turn = False
                if entered or (claimed and data["reason"].get("kind") != "completed"):
                    end, dropped = event, False
            case _:
                pass
    return ConsumedWork(end, dropped)
