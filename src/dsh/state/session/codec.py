"""Rows of the store: a run of similar chunk events shares one row; all else is one row an event.

Only storage knows of such rows. Reading does not depend on how the events were grouped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from dsh.base.json import FrozenDict, NotLossless, snapshot
from dsh.state.session.errors import SessionError
from dsh.state.session.surface import MAX_SAFE_INTEGER, is_index
from dsh.state.session.vocabulary import CHUNK_ROW_TYPES

if TYPE_CHECKING:
    from dsh.state.session.events import SessionEvent

_SHORTEST_RUN = 3
_ROW_OF = {
    "text-delta": "text-chunks",
    "reasoning-delta": "reasoning-chunks",
    "tool-call-delta": "tool-call-chunks",
}
_KIND_OF = {row: kind for kind, row in _ROW_OF.items()}
_ROW_KEYS = frozenset({"type", "seq0", "time0", "data"})
_TEXT_ROW_KEYS = frozenset({"turn", "step", "index", "dt", "texts"})
_CALL_ROW_KEYS = frozenset({"turn", "step", "index", "id", "dt", "args"})


class MalformedRow(SessionError, ValueError):
    """A stored row is not what its tag says."""

    code = "SESSION_ROW_MALFORMED"

    def __init__(self, row: object, problem: str) -> None:
        super().__init__(f"stored row {row!r} is malformed: {problem}")
        self.row = row
        self.problem = problem


_Group: TypeAlias = "tuple[str, int, int, int, str | None, str | None]"
"""What the chunks of one run have in common: kind, turn, step, index, call id, call name."""


def pack_chunk_runs(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows to store for consecutive events."""
    rows: list[Mapping[str, Any]] = []
    run: list[Mapping[str, Any]] = []
    group: _Group | None = None
    for event in events:
        own = _group_of(event)
        if own is None or own != group or not _follows(run[-1], event):
            _close_run(rows, run, group)
            run, group = [], own
        if own is None:
            rows.append(event)
        else:
            run.append(event)
    _close_run(rows, run, group)
    return rows


def _close_run(
    rows: list[Mapping[str, Any]], run: Sequence[Mapping[str, Any]], group: _Group | None
) -> None:
    if group is None or len(run) < _SHORTEST_RUN:
        rows += run
        return
    kind, turn, step, index, call_id, name = group
    data: dict[str, Any] = {"turn": turn, "step": step, "index": index}
    if call_id is not None:
        data["id"] = call_id
    if name is not None:
        data["name"] = name
    data["dt"] = [later["time"] - earlier["time"] for earlier, later in pairwise(run)]
    texts = "texts" if call_id is None else "args"
    delta = "text" if call_id is None else "argumentsDelta"
    data[texts] = [event["data"]["chunk"][delta] for event in run]
    first = run[0]
    rows.append({"type": _ROW_OF[kind], "seq0": first["seq"], "time0": first["time"], "data": data})


def _follows(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> bool:
    gap: int = later["time"] - earlier["time"]
    return bool(later["seq"] == earlier["seq"] + 1) and abs(gap) <= MAX_SAFE_INTEGER


def _group_of(event: Mapping[str, Any]) -> _Group | None:
    """Return what a run must share, or ``None`` for an event that is stored as it is."""
    # This runs for every chunk of every reply. An envelope has four keys at least, so that
    # counting keys and reading the wanted ones shows that there are no others.
    if event["type"] != "assistant/chunk" or len(event) != 4:
        return None
    data = event["data"]
    try:
        turn, step, chunk = data["turn"], data["step"], data["chunk"]
        kind, index = chunk["type"], chunk["index"]
        if kind == "text-delta" or kind == "reasoning-delta":
            whole = len(data) == 3 and len(chunk) == 3 and type(chunk["text"]) is str
            call_id = name = None
        elif kind == "tool-call-delta":
            call_id, name = chunk["id"], chunk.get("name")
            whole = len(data) == 3 and len(chunk) == (4 if "name" not in chunk else 5)
            texts = (call_id, chunk["argumentsDelta"], chunk.get("name", ""))
            whole = whole and all(type(text) is str for text in texts)
        else:
            return None
    except (KeyError, TypeError):
        return None
    if not whole or not (type(turn) is type(step) is type(index) is int):
        return None
    if not (0 <= turn <= MAX_SAFE_INTEGER and 0 <= step <= MAX_SAFE_INTEGER):
        return None
    return (kind, turn, step, index, call_id, name) if 0 <= index <= MAX_SAFE_INTEGER else None


def decode_storage_record(value: object) -> list[SessionEvent]:
    """Return the frozen events of one stored row.

    The shape of an event that has a row of its own is not checked here.

    Raises:
        MalformedRow: the value is not a lossless JSON object, or a row of chunks that breaks
            its own format.
    """
    if not isinstance(value, dict):
        raise MalformedRow(None, "it is not an object")
    row = value.get("type")
    if isinstance(row, str) and row in CHUNK_ROW_TYPES:
        return _unpack(row, value)
    try:
        # Not as strict as an append: what was stored by others is read, whatever they allowed.
        return [snapshot(value)]
    except NotLossless as error:
        raise MalformedRow(row, error.message) from error


def _unpack(row: str, value: Mapping[str, Any]) -> list[SessionEvent]:
    data = value.get("data")
    if value.keys() != _ROW_KEYS or not isinstance(data, dict):
        raise MalformedRow(row, "its keys are not type, seq0, time0 and data")
    kind = _KIND_OF[row]
    is_call = kind == "tool-call-delta"
    wanted = _CALL_ROW_KEYS if is_call else _TEXT_ROW_KEYS
    if data.keys() - ({"name"} if is_call else set()) != wanted:
        raise MalformedRow(row, "its data has other keys than such rows have")
    numbers = (value["seq0"], data["turn"], data["step"], data["index"])
    if not all(map(is_index, numbers)) or not _is_safe(value["time0"]):
        raise MalformedRow(row, "a number is not an integer in range")
    texts, gaps = data["args" if is_call else "texts"], data["dt"]
    if not isinstance(texts, list) or not texts or not all(type(text) is str for text in texts):
        raise MalformedRow(row, "its texts are not a list of text")
    if not isinstance(gaps, list) or not all(map(_is_safe, gaps)) or len(gaps) != len(texts) - 1:
        raise MalformedRow(row, "its time gaps do not fit its texts")
    shared: dict[str, Any] = {"type": kind, "index": data["index"]}
    if is_call:
        if not all(type(data.get(key, "")) is str for key in ("id", "name")):
            raise MalformedRow(row, "id and name must be text")
        shared |= {key: data[key] for key in ("id", "name") if key in data}
    return _members(row, value, shared, "argumentsDelta" if is_call else "text", texts)


def _members(
    row: str, value: Mapping[str, Any], shared: dict[str, Any], key: str, texts: Sequence[str]
) -> list[SessionEvent]:
    data, seq, time = value["data"], value["seq0"], value["time0"]
    turn, step = data["turn"], data["step"]
    events: list[Any] = []
    for text, gap in zip(texts, [0, *data["dt"]], strict=True):
        time += gap
        if not _is_safe(time) or seq > MAX_SAFE_INTEGER:
            raise MalformedRow(row, "a member is out of range")
        chunk = FrozenDict({**shared, key: text})
        payload = FrozenDict({"turn": turn, "step": step, "chunk": chunk})
        events.append(
            FrozenDict({"type": "assistant/chunk", "seq": seq, "time": time, "data": payload})
        )
        seq += 1
    return cast("list[SessionEvent]", events)


def _is_safe(value: object) -> bool:
    return type(value) is int and -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER
