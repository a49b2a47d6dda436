"""The row ``session-projection``: folds the logs of live sessions, and of stored ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from dsh.base.json import FrozenDict, NotLossless, snapshot
from dsh.base.values import record
from dsh.state.projections.errors import ProjectionConflict, ProjectionFailed, RestoreRefused
from dsh.state.projections.service import (
    ChangeListener,
    Checkpoint,
    CheckpointRow,
    ProjectionRegistry,
    ProjectionSnapshot,
    ProjectionUnit,
    Restored,
)
from dsh.state.session.events import SESSION_EVENT, SessionEventAppended

if TYPE_CHECKING:
    from dsh.base.json import JsonValue
    from dsh.kernel import Context, Effect
    from dsh.state.session.events import SessionEvent
    from dsh.state.session.session import Session


@record
class _Registered:
    """A unit, and how many plugins offer it."""

    unit: ProjectionUnit[Any]
    count: int = 0


class _Cell:
    """The state of one unit for one session, as far as it is folded.

    Attributes:
        next_seq: The first event that is not in the state.
        told: The state that listeners know of, once they were told of any.
        told_seq: The first event that is not in ``told``.
    """

    __slots__ = ("next_seq", "state", "told", "told_seq")

    def __init__(self, unit: ProjectionUnit[Any]) -> None:
        self.state = _made(unit)
        self.next_seq = 0
        self.told: Any = None
        self.told_seq = -1

    def catch_up(self, unit: ProjectionUnit[Any], log: Sequence[SessionEvent], end: int) -> None:
        """Fold the events before ``end`` that are not in the state yet."""
        if self.next_seq < end:
            self.state = _folded(unit, self.state, log[self.next_seq : end])
            self.next_seq = end


class SessionProjections(ProjectionRegistry):
    """The projections of this process; see `ProjectionRegistry`.

    A state is folded when somebody asks for it, and with each event while somebody listens.
    """

    def __init__(self, ctx: Context, config: None = None) -> None:
        self._units: dict[str, _Registered] = {}
        self._listeners: dict[object, ChangeListener] = {}
        self._cells: WeakKeyDictionary[Session, dict[str, _Cell]] = WeakKeyDictionary()
        super().__init__(ctx, config)

    def start(self) -> None:
        """Begin to follow the live sessions."""
        self.ctx.on(SESSION_EVENT, self._appended)

    def register(self, unit: ProjectionUnit[Any]) -> Effect:
        """See `ProjectionRegistry.register`."""
        there = self._units.get(unit.key)
        if there is not None and there.unit.state_version != unit.state_version:
            raise ProjectionConflict(
                unit.key, registered=there.unit.state_version, refused=unit.state_version
            )
        label = f"session_projections.register({unit.key!r})"
        return self.caller.effect(partial(self._offer, unit), label)

    def on_changed(self, listener: ChangeListener) -> Effect:
        """See `ProjectionRegistry.on_changed`."""

        def setup() -> Callable[[], object]:
            token = object()
            self._listeners[token] = listener
            return lambda: self._listeners.pop(token, None)

        return self.caller.effect(setup, "session_projections.on_changed()")

    def state_of(self, session: Session, key: str) -> Any:
        """See `ProjectionRegistry.state_of`."""
        there = self._units.get(key)
        return None if there is None else self._cell(session, there.unit).state

    def snapshot(self, session: Session) -> ProjectionSnapshot:
        """See `ProjectionRegistry.snapshot`."""
        values = {
            unit.key: _viewed(unit, self._cell(session, unit).state)
            for unit in self._all()
            if unit.view is not None
        }
        return _snapshot(session.seq - 1, values)

    def checkpoint(self, session: Session) -> Checkpoint:
        """See `ProjectionRegistry.checkpoint`."""
        rows: dict[str, CheckpointRow] = {}
        for unit in self._all():
            if unit.state_schema is None:
                continue
            try:
                state = self._cell(session, unit).state
                rows[unit.key] = _row(unit, session.seq - 1, state)
            except ProjectionFailed as error:
                self.ctx.report(error, label=f"projection {unit.key!r}")
        return rows

    def restore_floor(self, checkpoint: Mapping[str, Any]) -> int | None:
        """See `ProjectionRegistry.restore_floor`."""
        needed = [
            0 if (row := _usable(unit, checkpoint)) is None else row["seq"] + 1
            for unit in self._all()
        ]
        return max(min(needed) - 1, 0) if needed else None

    def view_checkpoint(self, checkpoint: Mapping[str, Any]) -> dict[str, JsonValue]:
        """See `ProjectionRegistry.view_checkpoint`."""
        views: dict[str, JsonValue] = {}
        for unit in self._all():
            row = _usable(unit, checkpoint)
            if row is None or unit.view is None:
                continue
            try:
                views[unit.key] = _viewed(unit, row["val"])
            except ProjectionFailed:
                continue  # the row is at fault as likely as the unit, and the log decides
        return views

    def restore(
        self, checkpoint: Mapping[str, Any], events: Sequence[SessionEvent], base_seq: int
    ) -> Restored:
        """See `ProjectionRegistry.restore`."""
        if events and events[0]["seq"] != base_seq:
            raise ValueError(f"the events begin at {events[0]['seq']}, not at {base_seq}")
        end_seq = base_seq + len(events) - 1
        rows: dict[str, CheckpointRow] = {}
        values: dict[str, JsonValue] = {}
        for unit in self._all():
            state = _restored(unit, checkpoint, events, base_seq)
            if unit.view is not None:
                values[unit.key] = _viewed(unit, state)
            if unit.state_schema is not None:
                rows[unit.key] = _row(unit, end_seq, state)
        return Restored(_snapshot(end_seq, values), rows)

    def _offer(self, unit: ProjectionUnit[Any]) -> Callable[[], None]:
        there = self._units.setdefault(unit.key, _Registered(unit))
        there.count += 1
        return partial(self._withdraw, there)

    def _withdraw(self, there: _Registered) -> None:
        there.count -= 1
        if there.count:
            return
        key = there.unit.key
        del self._units[key]
        for cells in self._cells.values():
            cells.pop(key, None)

    def _all(self) -> list[ProjectionUnit[Any]]:
        return [there.unit for there in self._units.values()]

    def _cell(self, session: Session, unit: ProjectionUnit[Any]) -> _Cell:
        """Return the state of a session with its whole log in it."""
        return self._cell_until(session, unit, session.seq)

    def _cell_until(self, session: Session, unit: ProjectionUnit[Any], end: int) -> _Cell:
        cells = self._cells.setdefault(session, {})
        cell = cells.get(unit.key)
        if cell is None:
            cell = _Cell(unit)
        try:
            cell.catch_up(unit, session.events, end)
        except ProjectionFailed:
            cells.pop(unit.key, None)
            raise
        cells[unit.key] = cell
        return cell

    def _appended(self, appended: SessionEventAppended) -> None:
        if not self._listeners:
            return
        for unit in self._all():
            if unit.view is None:
                continue
            try:
                self._tell(unit, appended.session, appended.event["seq"])
            except ProjectionFailed as error:
                self.ctx.report(error, label=f"projection {unit.key!r}")

    def _tell(self, unit: ProjectionUnit[Any], session: Session, seq: int) -> None:
        before = self._state_before(session, unit, seq)
        cell = self._cell(session, unit)
        cell.told, cell.told_seq = cell.state, seq + 1
        if cell.state is before:
            return
        view = _viewed(unit, cell.state)
        for listener in list(self._listeners.values()):
            try:
                listener(session, unit.key, view, seq)
            except Exception as error:
                self.ctx.report(error, label=f"listener of projection {unit.key!r}")

    def _state_before(self, session: Session, unit: ProjectionUnit[Any], seq: int) -> Any:
        cell = self._cells.get(session, {}).get(unit.key)
        if cell is not None and cell.told_seq == seq:
            return cell.told
        if cell is not None and cell.next_seq > seq:
            # Somebody who heard of the event earlier asked for the state with it.
            return _folded(unit, _made(unit), session.events[:seq])
        return self._cell_until(session, unit, seq).state


def _made(unit: ProjectionUnit[Any]) -> Any:
    try:
        return unit.init()
    except Exception as error:
        raise ProjectionFailed(unit.key, "make its first state", error) from error


def _folded(unit: ProjectionUnit[Any], state: Any, events: Iterable[SessionEvent]) -> Any:
    event: SessionEvent | None = None
    apply = unit.apply
    try:
        for event in events:
            state = apply(state, event)
    except Exception as error:
        where = "fold" if event is None else f"fold event {event['seq']} ({event['type']})"
        raise ProjectionFailed(unit.key, where, error) from error
    return state


def _viewed(unit: ProjectionUnit[Any], state: Any) -> JsonValue:
    assert unit.view is not None  # callers look
    try:
        view: JsonValue = snapshot(unit.view(state))
        if unit.view_schema is not None:
            unit.view_schema(view)
    except Exception as error:
        raise ProjectionFailed(unit.key, "make its view", error) from error
    return view


def _row(unit: ProjectionUnit[Any], seq: int, state: Any) -> CheckpointRow:
    try:
        val = snapshot(state, logged=True)
    except NotLossless as error:
        raise ProjectionFailed(unit.key, "store its state", error) from error
    return CheckpointRow(ver=unit.state_version, seq=seq, val=val)


def _usable(unit: ProjectionUnit[Any], checkpoint: Mapping[str, Any]) -> CheckpointRow | None:
    """Return the row of a unit when it holds a state of this very version."""
    row = checkpoint.get(unit.key)
    if unit.state_schema is None or not isinstance(row, Mapping) or "val" not in row:
        return None
    if row.get("ver") != unit.state_version or type(row["ver"]) is not int:
        return None
    seq: Any = row.get("seq")
    if type(seq) is not int or seq < -1:
        return None
    try:
        val = snapshot(row["val"])
        unit.state_schema(val)
    except Exception:
        return None  # a stored state proves nothing; the log does
    return CheckpointRow(ver=row["ver"], seq=seq, val=val)


def _restored(
    unit: ProjectionUnit[Any],
    checkpoint: Mapping[str, Any],
    events: Sequence[SessionEvent],
    base_seq: int,
) -> Any:
    row = _usable(unit, checkpoint)
    if row is not None and base_seq - 1 <= row["seq"] < base_seq + len(events):
        rest = events[row["seq"] + 1 - base_seq :]
        try:
            return _folded(unit, row["val"], rest)
        except ProjectionFailed:
            pass  # the stored state may be at fault; without it the unit alone is
    if base_seq > 0:
        raise RestoreRefused(unit.key, base_seq)
    return _folded(unit, _made(unit), events)


def _snapshot(seq: int, values: Mapping[str, JsonValue]) -> ProjectionSnapshot:
    return ProjectionSnapshot(asOfSeq=seq, values=FrozenDict(values))


plugin = SessionProjections
