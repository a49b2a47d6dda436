"""What dsh itself must never log of commands, refused before it is: row ``command-invariants``.

It goes with the row ``session-invariants`` and is off unless ``DSH_SESSION_INVARIANTS=1``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from dsh.control.commands.log import CommandLog
from dsh.kernel import INTERNAL_DISPATCH
from dsh.state.session.events import SESSION_EVENT
from dsh.state.session.nesting import BrokenInvariant

if TYPE_CHECKING:
    from dsh.kernel import Context, Dispatching
    from dsh.state.session.events import SessionEventAppended
    from dsh.state.session.session import Session

name = "command-invariants"


def apply(ctx: Context) -> None:
    """Check every event to come; history that was not written here is read, not judged."""
    logs: WeakKeyDictionary[Session, CommandLog] = WeakKeyDictionary()

    def check(dispatching: Dispatching) -> None:
        if dispatching.name != SESSION_EVENT.name:
            return
        appended: SessionEventAppended = dispatching.payload
        session, event = appended.session, appended.event
        log = logs.setdefault(session, CommandLog())
        for past in session.events[log.count : event["seq"]]:
            log.read(past)
        if (problem := log.problem(event)) is not None:
            raise BrokenInvariant(session.id, event["seq"], event["type"], problem)

    ctx.on(INTERNAL_DISPATCH, check)
