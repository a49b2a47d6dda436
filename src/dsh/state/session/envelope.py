"""The shape of one entry of a log, wherever it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from dsh.base.json import FrozenDict, NotLossless, snapshot
from dsh.state.session.errors import RefusedEvent
from dsh.state.session.surface import MAX_SAFE_INTEGER, is_index
from dsh.state.session.vocabulary import RETIRED_SESSION_EVENT_TYPES

if TYPE_CHECKING:
    from dsh.state.session.events import SessionEvent

_PLAIN_KEYS = frozenset({"type", "seq", "time", "data"})
_ALL_KEYS = _PLAIN_KEYS | {"surfaceOp", "sourceEventSeqs", "ignorable"}
_HEADER_DEFAULTS = {"reasoningEffort", "maxTokens"}


def snapshot_session_event(event: object) -> SessionEvent:
    """Return a detached, frozen copy of an event, with its shape checked.

    The place of the event in a log, and its effect on the surface, are not looked at.

    Raises:
        RefusedEvent: it is not lossless JSON, or not an event.
    """
    try:
        frozen = snapshot(event, logged=True)
    except NotLossless as error:
        kind = event.get("type") if isinstance(event, Mapping) else None
        raise RefusedEvent(kind, error.message) from error
    return adopt_session_event(frozen)


def adopt_session_event(event: object) -> SessionEvent:
    """Check the shape of an event that is frozen JSON already.

    Raises:
        RefusedEvent: it is not an event.
    """
    if type(event) is not FrozenDict:
        raise RefusedEvent(None, "it is not an object")
    if _is_plain_chunk(event):
        return cast("SessionEvent", event)
    if (problem := _envelope_problem(event)) is not None:
        raise RefusedEvent(event.get("type"), problem)
    check_payload(event["type"], event["data"])
    return cast("SessionEvent", event)


def _is_plain_chunk(event: Mapping[str, Any]) -> bool:
    """Whether all is right with the commonest event; spares it the longer look."""
    return (
        len(event) == 4
        and event.get("type") == "assistant/chunk"
        and is_index(event.get("seq"))
        and is_index(event.get("time"))
        and type(event.get("data")) is FrozenDict
    )


def _envelope_problem(event: Mapping[str, Any]) -> str | None:
    keys = event.keys()
    if keys != _PLAIN_KEYS:
        if missing := _PLAIN_KEYS - keys:
            return f"{', '.join(sorted(missing))} missing"
        if foreign := keys - _ALL_KEYS:
            return f"unknown keys {', '.join(sorted(foreign))}"
        if "ignorable" in event and event["ignorable"] is not True:
            return "ignorable must be true or absent"
    if type(event["type"]) is not str or not event["type"]:
        return "type is not a text"
    if not is_index(event["seq"]):
        return "seq is not a non-negative integer"
    time = event["time"]
    if type(time) is not int or not -MAX_SAFE_INTEGER <= time <= MAX_SAFE_INTEGER:
        return "time is not an integer"
    if type(event["data"]) is not FrozenDict:
        return "data is not an object"
    return None


def check_payload(type: str, data: Mapping[str, Any]) -> None:
    """Check what readers of any log rely on: messages, brackets, request headers, retired words.

    Raises:
        RefusedEvent: says what is wrong.
    """
    checker = _CHECKERS.get(type)
    problem = checker(data) if checker is not None else None
    if type in RETIRED_SESSION_EVENT_TYPES:
        problem = "the type is retired"
    if problem is not None:
        raise RefusedEvent(type, problem)


def _message_problem(message: object, role: str) -> str | None:
    if not isinstance(message, Mapping):
        return "message is not an object"
    if not _is_text(message.get("id")):
        return "message.id is not a text"
    if message.get("role") != role:
        return f"message.role is not {role!r}"
    source = message.get("source")
    if not isinstance(source, Mapping) or not _is_text(source.get("kind")):
        return "message.source.kind is not a text"
    if not isinstance(message.get("content"), list):
        return "message.content is not a list"
    if not all(isinstance(block, Mapping) for block in message["content"]):
        return "message.content holds something that is no block"
    return None


def _user_problem(data: Mapping[str, Any]) -> str | None:
    return _message_problem(data, "user")


def _assistant_problem(data: Mapping[str, Any]) -> str | None:
    message = data.get("message")
    if (problem := _message_problem(message, "assistant")) is not None:
        return problem
    source = cast("Mapping[str, Any]", message)["source"]
    if source["kind"] != "model":
        return "message.source.kind is not 'model'"
    if not (_is_text(source.get("provider")) and _is_text(source.get("model"))):
        return "message.source names no provider and model"
    for block in cast("Mapping[str, Any]", message)["content"]:
        if block.get("type") == "tool-call" and not _is_text(block.get("id")):
            return "message.content has a tool-call without an id"
    return _step_problem(data)


def _result_problem(data: Mapping[str, Any]) -> str | None:
    message = data.get("message")
    if (problem := _message_problem(message, "user")) is not None:
        return problem
    message = cast("Mapping[str, Any]", message)
    source, content = message["source"], message["content"]
    if source["kind"] != "tool" or not _is_text(source.get("callId")):
        return "message.source is not that of a tool call"
    if len(content) != 1 or not isinstance(content[0], Mapping):
        return "message.content is not exactly one block"
    block = content[0]
    if block.get("type") != "tool-result" or block.get("toolCallId") != source["callId"]:
        return "message.content is not the result of message.source.callId"
    if not isinstance(block.get("content"), list):
        return "the result block has no content list"
    return None


def _request_problem(data: Mapping[str, Any]) -> str | None:
    if data.get("reason") == "fallback":
        return "reason 'fallback' is retired"
    header = data.get("header")
    config = header.get("config") if isinstance(header, Mapping) else None
    if not isinstance(header, Mapping) or not isinstance(config, Mapping):
        return "header.config is not an object"
    if not (_is_text(config.get("provider")) and _is_text(config.get("model"))):
        return "header.config names no provider and model"
    if "reasoningEffort" in config and not _is_text(config["reasoningEffort"]):
        return "header.config.reasoningEffort is not a text"
    markers = header.get("adapterDefaults", {})
    if not isinstance(markers, Mapping) or not markers.keys() <= _HEADER_DEFAULTS:
        return "header.adapterDefaults has unknown markers"
    for key, on in markers.items():
        if on is not True or key not in config:
            return f"header.adapterDefaults.{key} marks a value that is not in header.config"
    return None


def _turn_problem(data: Mapping[str, Any]) -> str | None:
    return None if is_index(data.get("turn")) else "turn is not a number of a turn"


def _turn_end_problem(data: Mapping[str, Any]) -> str | None:
    if not isinstance(data.get("reason"), Mapping):
        return "reason is not an object"
    return _turn_problem(data)


def _step_problem(data: Mapping[str, Any]) -> str | None:
    return _turn_problem(data) if is_index(data.get("step")) else "step is not a number of a step"


def _call_problem(data: Mapping[str, Any]) -> str | None:
    return _step_problem(data) if _is_text(data.get("callId")) else "callId is not a text"


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


_CHECKERS = {
    "turn/start": _turn_problem,
    "turn/end": _turn_end_problem,
    "step/start": _step_problem,
    "step/end": _step_problem,
    "tool/call": _call_problem,
    "user/message": _user_problem,
    "assistant/message": _assistant_problem,
    "tool/result": _result_problem,
    "request/header": _request_problem,
}
