"""Read before write: a file is changed only in the version that the session has seen.

What a session sees is logged, so a resumed session knows it again. Versions are exact, so old
knowledge does no harm: a file that changed meanwhile has another one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from dsh.capability.fs.events import (
    FS_EDIT_INTENT,
    FS_OBSERVATION,
    FS_OBSERVED,
    FS_WRITE_INTENT,
    Absent,
    FsEditIntent,
    FsObservation,
    FsObservationData,
    FsObserved,
    FsWriteIntent,
    Present,
)
from dsh.capability.fs.service import (
    CreateIfAbsent,
    EditExpectation,
    FsError,
    ReplaceIfVersion,
    WriteExpectation,
)
from dsh.kernel import Inject
from dsh.state.session.service import SessionStore

if TYPE_CHECKING:
    from dsh.execution.tools.service import ToolExecution
    from dsh.kernel import Context
    from dsh.state.session.session import Session

name = "fs-observation-policy"
inject = (Inject.optional(SessionStore),)


class Observations:
    """What each session last saw of each file.

    Args:
        logged: Sessions accept `FS_OBSERVATION`, so that what is seen outlives the process.
    """

    def __init__(self, *, logged: bool) -> None:
        self._logged = logged
        self._seen: WeakKeyDictionary[Session, dict[str, FsObservation]] = WeakKeyDictionary()

    def record(self, event: FsObserved) -> None:
        """Keep what a call saw; a call without an agent has no memory."""
        if event.actor.agent is None:
            return
        session, key = event.actor.agent.session, event.target.target_key
        known = self._known(session)
        if known.get(key) == event.observation:
            return
        known[key] = event.observation
        if self._logged:
            session.append(FS_OBSERVATION, _data(key, event.observation))

    def of(self, actor: ToolExecution, key: str) -> FsObservation | None:
        """Return what the session behind a call last saw of a file."""
        return None if actor.agent is None else self._known(actor.agent.session).get(key)

    def _known(self, session: Session) -> dict[str, FsObservation]:
        known = self._seen.get(session)
        if known is None:
            known = self._seen[session] = _folded(session)
        return known

    async def before_write(
        self, intent: FsWriteIntent, _: Callable[[], Awaitable[WriteExpectation]]
    ) -> WriteExpectation:
        """A file that was seen is replaced in that version; any other may only be created."""
        seen = self.of(intent.actor, intent.target.target_key)
        return ReplaceIfVersion(seen.version) if isinstance(seen, Present) else CreateIfAbsent()

    async def before_edit(
        self, intent: FsEditIntent, _: Callable[[], Awaitable[EditExpectation]]
    ) -> EditExpectation:
        """Only a file that was seen is edited, in that version."""
        seen = self.of(intent.actor, intent.target.target_key)
        path = intent.target.display_path
        match seen:
            case Present(version):
                return ReplaceIfVersion(version)
            case Absent():
                raise FsError(f"there was no file {path!r} to edit", code="FS_NOT_FOUND")
            case _:
                raise FsError(f"{path!r} has not been read yet", code="FS_NOT_OBSERVED")


def apply(ctx: Context) -> None:
    """Watch what the file tools see, and decide what their changes may assume."""
    sessions = ctx.get(SessionStore)
    if sessions is not None:
        sessions.declare(FS_OBSERVATION)
    observations = Observations(logged=sessions is not None)
    ctx.on(FS_OBSERVED, observations.record)
    ctx.on(FS_WRITE_INTENT, observations.before_write)
    ctx.on(FS_EDIT_INTENT, observations.before_edit)


def _data(key: str, seen: FsObservation) -> FsObservationData:
    data = FsObservationData(target=key)
    if isinstance(seen, Present):
        data["version"] = seen.version
    return data


def _folded(session: Session) -> dict[str, FsObservation]:
    """Read what the log says; an entry that makes no sense is skipped, as if nothing was seen."""
    known: dict[str, FsObservation] = {}
    for event in session.events:
        if event["type"] == FS_OBSERVATION.name:
            key, version = event["data"].get("target"), event["data"].get("version")
            if isinstance(key, str):
                known[key] = Present(version) if isinstance(version, str) else Absent()
    return known
