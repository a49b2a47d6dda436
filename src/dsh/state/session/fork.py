"""Forking: a new session that begins with the history of another.

`SessionStore.fork` cuts a live session at any event outside a turn. `fork_stored` is what people
ask for: a whole turn of any session, live or stored, by the number of an event in it.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dsh.state.session.declared.agent_presets import AGENT_PRESET_SELECTED
from dsh.state.session.errors import SessionForkError
from dsh.state.session.session import Session
from dsh.state.session.surface import is_index

if TYPE_CHECKING:
    from dsh.state.persistence.service import SessionPersistence
    from dsh.state.session.events import SessionEvent, SessionHeader, SessionMeta


def new_session_id() -> str:
    """Return a fresh id as hosts give them."""
    return f"session-{uuid.uuid4()}"


def prefix_at(
    id: str, events: Sequence[SessionEvent], boundary: int | None
) -> Sequence[SessionEvent]:
    """Return the events up to a boundary, which is included.

    Args:
        id: Whose events they are; for messages.
        events: The whole log.
        boundary: A ``seq``; the last event when absent.

    Raises:
        SessionForkError: ``INVALID_BOUNDARY`` or ``OPEN_TURN``.
    """
    if boundary is None:
        boundary = len(events) - 1
    elif not is_index(boundary) or boundary >= len(events):
        problem = f"has {len(events)} events, and {boundary!r} is the number of none"
        raise SessionForkError("INVALID_BOUNDARY", id, problem)
    for event in reversed(events[: boundary + 1]):
        if event["type"] == "turn/start":
            problem = f"cannot be forked at event {boundary}, which is inside an open turn"
            raise SessionForkError("OPEN_TURN", id, problem)
        if event["type"] == "turn/end":
            break
    return events[: boundary + 1]


def whole_turns_at(
    id: str, events: Sequence[SessionEvent], at: int | None
) -> Sequence[SessionEvent]:
    """Return the events up to the end of a turn, with what follows it before the next turn.

    Args:
        id: Whose events they are; for messages.
        events: The whole log.
        at: The ``seq`` of an event; the turn that ends with or after it is the last one kept. The
            last turn that ended when absent, or when the log is not that long.

    Raises:
        SessionForkError: ``INVALID_BOUNDARY``, or ``FORK_UNAVAILABLE``: no turn has ended there.
            An earlier turn is never taken instead.
    """
    if at is not None and not is_index(at):
        raise SessionForkError("INVALID_BOUNDARY", id, f"has no event with the number {at!r}")
    ends = [event["seq"] for event in events if event["type"] == "turn/end"]
    if at is None or at >= len(events):
        end = ends[-1] if ends else None
    else:
        end = next((seq for seq in ends if seq >= at), None)
    if end is None:
        where = "" if at is None else f" at event {at} or after it"
        problem = f"cannot be forked: no turn has ended{where}; wait for the end of a turn"
        raise SessionForkError("FORK_UNAVAILABLE", id, problem)
    cut = end + 1
    while cut < len(events) and events[cut]["type"] != "turn/start":
        cut += 1
    return events[:cut]


def effective_preset(header: SessionHeader, events: Sequence[SessionEvent]) -> str | None:
    """Return the agent preset of a session: the one chosen last, else that of its header."""
    for event in reversed(events):
        if event["type"] == AGENT_PRESET_SELECTED.name:
            data: Any = event["data"]
            return str(data["agentPreset"])
    return header.get("agentPreset")


def child_meta(parent: SessionHeader, prefix: Sequence[SessionEvent]) -> SessionMeta:
    """Return what the header of a fork says: its workspace and where it comes from."""
    meta: SessionMeta = {"parentSession": parent["id"], "seedLength": len(prefix)}
    if "cwd" in parent:
        meta["cwd"] = parent["cwd"]
    return meta


async def fork_stored(
    persistence: SessionPersistence,
    id: str,
    *,
    at: int | None = None,
    child_id: str | None = None,
) -> SessionHeader:
    """Store a fork of a session, live or stored; it can be resumed like any other.

    The source is only read, so another process may have it open. The fork has its workspace and
    the agent preset in force, and is no subagent.

    Args:
        persistence: Where the source is, and the fork will be.
        id: The source.
        at: As in `whole_turns_at`.
        child_id: The id of the fork; a fresh one when absent.

    Returns:
        The header of the fork.

    Raises:
        SessionForkError: ``INVALID_BOUNDARY`` or ``FORK_UNAVAILABLE``.
        SessionNotFound: there is no such session.
        SessionConflict: the id of the fork is taken.
        SessionPersistenceCorruptionError: what was committed of the source is damaged.
        SessionFormatUnsupportedError: this build cannot interpret the source.
    """
    source = await persistence.inspect(id)
    prefix = whole_turns_at(id, source.events, at)
    meta = child_meta(source.meta, prefix)
    if (preset := effective_preset(source.meta, prefix)) is not None:
        meta["agentPreset"] = preset
    child = Session.fresh(new_session_id() if child_id is None else child_id, prefix, meta)
    await persistence.create(child.header)
    await persistence.append(child.id, child.events)
    return child.header
