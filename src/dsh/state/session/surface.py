"""The surface: which events the model sees, in which order.

A surface event is a *node*. It joins at the end, or takes the place of a run of nodes; what it
replaced stays in the log and is no longer seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dsh.base.json import equal
from dsh.base.values import value
from dsh.state.session.errors import RefusedEvent
from dsh.state.session.vocabulary import SURFACE_EVENT_TYPES

if TYPE_CHECKING:
    from dsh.state.session.events import SessionEvent

MAX_SAFE_INTEGER = 2**53 - 1


def is_index(value: object) -> bool:
    """Whether a value is a non-negative integer that every JSON reader holds exactly."""
    return type(value) is int and 0 <= value <= MAX_SAFE_INTEGER


def is_surface_event(event: Mapping[str, Any]) -> bool:
    """Whether an event has a place on the surface, now or once."""
    return event["type"] in SURFACE_EVENT_TYPES and "surfaceOp" in event


def is_append_surface_event(event: Mapping[str, Any]) -> bool:
    """Whether an event joined the surface at its end.

    These, and not the current nodes, are what a person said and saw: a replacement is a copy for
    the model.
    """
    return is_surface_event(event) and event["surfaceOp"] == "append"


def is_replacement_surface_event(event: Mapping[str, Any]) -> bool:
    """Whether an event took the place of others."""
    return is_surface_event(event) and event["surfaceOp"] != "append"


@value
class Replacement:
    """One event that took the place of others."""

    seq: int
    shadowed: tuple[int, ...]


@value
class FoldedSurface:
    """The nodes at the end of a log, and every replacement on the way."""

    nodes: tuple[int, ...]
    replacements: tuple[Replacement, ...]


@value
class SurfacePlan:
    """What admitting one event will do: ``nodes[first:last]`` becomes ``seq``."""

    seq: int
    first: int
    last: int
    replaces: bool


class SurfaceManager:
    """The surface of a log that grows.

    Args:
        log: The events, a list that its owner extends after each `commit`.
        base_seq: The ``seq`` of ``log[0]``, for a reader that has only the end of a log.
    """

    __slots__ = ("_base", "_log", "_next", "_nodes", "_tuple", "replace_generation")

    def __init__(self, log: Sequence[SessionEvent], base_seq: int = 0) -> None:
        self._log = log
        self._base = base_seq
        self._next = base_seq
        self._nodes: list[int] = []
        self._tuple: tuple[int, ...] | None = ()
        self.replace_generation = 0

    @property
    def nodes(self) -> tuple[int, ...]:
        """The ``seq`` of each event on the surface, in the order of the model."""
        if self._tuple is None:
            self._tuple = tuple(self._nodes)
        return self._tuple

    def __len__(self) -> int:
        return len(self._nodes)

    def since(self, position: int) -> list[int]:
        """The nodes from a position on; what came before costs nothing."""
        return self._nodes[position:]

    def plan(self, event: Mapping[str, Any]) -> SurfacePlan | None:
        """Check one candidate against the surface; change nothing.

        Returns:
            What `commit` takes once the event is in the log; ``None`` for a log-only event.

        Raises:
            RefusedEvent: the event breaks a rule of the surface.
        """
        name = event["type"]
        if name not in SURFACE_EVENT_TYPES:
            for key in ("surfaceOp", "sourceEventSeqs"):
                if key in event:
                    raise RefusedEvent(name, f"only surface events have {key}")
            return None
        op = event.get("surfaceOp")
        if op is None:
            raise RefusedEvent(name, "a surface event needs surfaceOp")
        sources = _checked_sources(event)
        if op == "append":
            return SurfacePlan(event["seq"], len(self._nodes), len(self._nodes), False)
        return self._plan_replacement(event, op, sources)

    def commit(self, plan: SurfacePlan | None) -> tuple[int, ...]:
        """Apply a plan; return the nodes it took off the surface."""
        if plan is None:
            return ()
        self._tuple = None
        if not plan.replaces:
            self._nodes.append(plan.seq)
            return ()
        shadowed = tuple(self._nodes[plan.first : plan.last])
        self._nodes[plan.first : plan.last] = [plan.seq]
        self.replace_generation += 1
        return shadowed

    def admit(self, event: Mapping[str, Any]) -> tuple[int, ...]:
        """Check and apply the next event of the log; return what it shadowed.

        Raises:
            RefusedEvent: it is not the next one, or breaks a rule of the surface.
        """
        if event["seq"] != self._next:
            raise RefusedEvent(event["type"], f"seq {event['seq']!r} is not {self._next}")
        shadowed = self.commit(self.plan(event))
        self._next += 1
        return shadowed

    def _plan_replacement(
        self, event: Mapping[str, Any], op: Any, sources: Sequence[int] | None
    ) -> SurfacePlan:
        name = event["type"]
        start, end = _checked_range(name, op)
        if min(start, end) < self._base:
            raise RefusedEvent(name, f"it replaces events before {self._base}, which are not here")
        first, last = self._position(name, start), self._position(name, end)
        if first > last:
            raise RefusedEvent(name, f"node {start} comes after node {end} on the surface")
        shadowed = self._nodes[first : last + 1]
        if missing := sorted(set(shadowed).difference(sources or ())):
            raise RefusedEvent(name, f"sourceEventSeqs must name what it replaces, also {missing}")
        if name == "tool/result":
            self._check_rewrite(event, shadowed)
        return SurfacePlan(event["seq"], first, last + 1, True)

    def _position(self, name: str, seq: int) -> int:
        try:
            return self._nodes.index(seq)
        except ValueError:
            raise RefusedEvent(name, f"event {seq} is not on the surface") from None

    def _check_rewrite(self, event: Mapping[str, Any], shadowed: Sequence[int]) -> None:
        if len(shadowed) != 1:
            raise RefusedEvent("tool/result", "a rewritten result replaces exactly one result")
        target = self._log[shadowed[0] - self._base]
        if target["type"] != "tool/result":
            raise RefusedEvent("tool/result", f"event {shadowed[0]} is not a tool/result")
        if not equal(_without_content(target["data"]), _without_content(event["data"])):
            raise RefusedEvent(
                "tool/result", "a rewritten result may change only the content of its result block"
            )


def fold_surface(events: Iterable[Mapping[str, Any]]) -> FoldedSurface:
    """Fold a whole log.

    Raises:
        RefusedEvent: the events are not a valid log from 0.
    """
    log: list[Any] = []
    surface = SurfaceManager(log)
    replacements: list[Replacement] = []
    for event in events:
        if shadowed := surface.admit(event):
            replacements.append(Replacement(event["seq"], shadowed))
        log.append(event)
    return FoldedSurface(surface.nodes, tuple(replacements))


def _checked_sources(event: Mapping[str, Any]) -> Sequence[int] | None:
    name, seq = event["type"], event["seq"]
    if "sourceEventSeqs" not in event:
        return None
    sources = event["sourceEventSeqs"]
    if not isinstance(sources, list) or not all(map(is_index, sources)):
        raise RefusedEvent(name, "sourceEventSeqs must be a list of event numbers")
    if not sources and name != "assistant/message":
        raise RefusedEvent(name, "sourceEventSeqs may be empty on assistant/message only")
    if len(set(sources)) != len(sources):
        raise RefusedEvent(name, "sourceEventSeqs names an event twice")
    if sources and max(sources) >= seq:
        raise RefusedEvent(name, "sourceEventSeqs must name earlier events")
    return sources


def _checked_range(name: str, op: Any) -> tuple[int, int]:
    if not isinstance(op, Mapping) or op.keys() != {"op", "start", "end"} or op["op"] != "replace":
        raise RefusedEvent(name, "surfaceOp must be 'append' or a replace with start and end")
    start, end = op["start"], op["end"]
    if not (is_index(start) and is_index(end)):
        raise RefusedEvent(name, "start and end of surfaceOp must be event numbers")
    return start, end


def _without_content(data: Mapping[str, Any]) -> dict[str, Any]:
    message = data["message"]
    blocks = [{**block, "content": None} for block in message["content"]]
    return {**data, "message": {**message, "content": blocks}}
