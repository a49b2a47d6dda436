"""The row ``session-stats``: how many turns and steps a session took, and where the time went."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, TypedDict, cast

from dsh.model.chunks import is_first_token
from dsh.state.projections.service import ProjectionRegistry, ProjectionUnit

if TYPE_CHECKING:
    from dsh.base.json import JsonValue
    from dsh.kernel import Context
    from dsh.state.session.events import SessionEvent

__all__ = ["SESSION_STATS", "SessionStats", "apply", "inject", "name"]

name = "session-stats"
inject = (ProjectionRegistry,)


class SessionStats(TypedDict):
    """The view; times are in milliseconds.

    ``llmMs`` runs from the start of a step to its reply, ``ttftMs`` to its first token (of
    ``ttftSteps`` steps), ``decodeMs`` from there to the reply, where ``decodeTokens`` are known.
    A step without a whole reply has no times.
    """

    turns: int
    steps: int
    llmMs: int
    toolMs: int
    ttftMs: int
    ttftSteps: int
    decodeMs: int
    decodeTokens: int


class _Step(TypedDict):
    """The open step; ``firstAt`` is when its first token came."""

    startedAt: int
    firstAt: int | None
    replied: bool


class _State(TypedDict):
    view: SessionStats
    lastTurn: int
    step: _Step | None
    calls: Mapping[str, int]


def apply(ctx: Context) -> None:
    """Register the projection until the plugin unloads."""
    ctx.require(ProjectionRegistry).register(SESSION_STATS)


def _begin() -> _State:
    counts = dict.fromkeys(SessionStats.__annotations__, 0)
    return _State(view=cast("SessionStats", counts), lastTurn=0, step=None, calls={})


def _fold(state: _State, event: SessionEvent) -> _State:
    handler = _HANDLERS.get(event["type"])
    if handler is None:
        return state
    try:
        return handler(state, event, event["data"])
    except (LookupError, TypeError, AttributeError):
        return state  # a log from elsewhere; what is not shaped as declared is not counted


def _step_started(state: _State, event: SessionEvent, data: Any) -> _State:
    step = _Step(startedAt=event["time"], firstAt=None, replied=False)
    return {**state, "step": step}


def _chunk(state: _State, event: SessionEvent, data: Any) -> _State:
    step = state["step"]
    if step is None or step["firstAt"] is not None or step["replied"]:
        return state
    if not is_first_token(data["chunk"]):
        return state
    return {**state, "step": {**step, "firstAt": event["time"]}}


def _replied(state: _State, event: SessionEvent, data: Any) -> _State:
    step = state["step"]
    if step is None or step["replied"] or data.get("interrupted"):
        return state
    view, first = state["view"], step["firstAt"]
    more = {"llmMs": _gap(step["startedAt"], event)}
    if first is not None:
        more |= {"ttftMs": max(0, first - step["startedAt"]), "ttftSteps": 1}
        tokens: Any = (data.get("usage") or {}).get("outputTokens")
        if _is_count(tokens):
            more |= {"decodeMs": _gap(first, event), "decodeTokens": tokens}
    return {**state, "view": _plus(view, more), "step": {**step, "replied": True}}


def _step_ended(state: _State, event: SessionEvent, data: Any) -> _State:
    more = {"steps": 1}
    if data["turn"] != state["lastTurn"]:
        more["turns"] = 1
    return {
        **state,
        "view": _plus(state["view"], more),
        "lastTurn": data["turn"],
        "step": None,
    }


def _called(state: _State, event: SessionEvent, data: Any) -> _State:
    return {**state, "calls": {**state["calls"], data["callId"]: event["time"]}}


def _answered(state: _State, event: SessionEvent, data: Any) -> _State:
    call_id = data["message"]["source"]["callId"]
    started = state["calls"].get(call_id)
    if started is None:
        return state
    rest = {key: at for key, at in state["calls"].items() if key != call_id}
    view = _plus(state["view"], {"toolMs": _gap(started, event)})
    return {**state, "view": view, "calls": rest}


def _turn_ended(state: _State, event: SessionEvent, data: Any) -> _State:
    if state["step"] is None and not state["calls"]:
        return state
    return {**state, "step": None, "calls": {}}


_HANDLERS: Final[Mapping[str, Callable[[_State, SessionEvent, Any], _State]]] = {
    "step/start": _step_started,
    "assistant/chunk": _chunk,
    "assistant/message": _replied,
    "step/end": _step_ended,
    "tool/call": _called,
    "tool/result": _answered,
    "turn/end": _turn_ended,
}


def _gap(since: int, event: SessionEvent) -> int:
    return max(0, event["time"] - since)  # the wall clock may step backwards


def _plus(view: SessionStats, more: Mapping[str, int]) -> SessionStats:
    counts = cast("Mapping[str, int]", view)
    grown = {**counts, **{key: counts[key] + count for key, count in more.items()}}
    return cast("SessionStats", grown)


def _is_count(value: object) -> bool:
    return type(value) in (int, float) and isfinite(cast("float", value)) and value >= 0  # type: ignore[operator]


def _check_view(view: Any) -> None:
    if not isinstance(view, dict) or view.keys() != SessionStats.__annotations__.keys():
        raise ValueError("it does not have the fields of the statistics")
    for key, count in view.items():
        if not _is_count(count):
            raise ValueError(f"its {key} is {count!r}")


def _check_state(state: Any) -> None:
    if not isinstance(state, dict) or state.keys() != _State.__annotations__.keys():
        raise ValueError("it does not have the fields of a state")
    _check_view(state["view"])
    calls, step = state["calls"], state["step"]
    if not _is_count(state["lastTurn"]) or not isinstance(calls, dict):
        raise ValueError("its lastTurn or its calls are wrong")
    times = list(calls.values())
    if step is not None:
        if not isinstance(step, dict) or step.keys() != _Step.__annotations__.keys():
            raise ValueError("its step is wrong")
        if type(step["replied"]) is not bool:
            raise ValueError("its step is wrong")
        times.append(step["startedAt"])
        times += [] if step["firstAt"] is None else [step["firstAt"]]
    if not all(type(at) is int for at in times):
        raise ValueError("a time is no integer")


SESSION_STATS: Final = ProjectionUnit[_State](
    "sessionStats",
    state_version=1,
    state_schema=_check_state,
    init=_begin,
    apply=_fold,
    view=lambda state: cast("JsonValue", dict(state["view"])),
    view_schema=_check_view,
)
"""The projection ``sessionStats``."""
