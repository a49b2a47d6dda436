"""What dsh and the interpreter of a run tell each other: JSON, one line a frame.

The interpreter is not trusted: a frame counts only when it has the shape that it must have, and
what is used is made anew from the parts that were checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import copysign, isfinite
from typing import Any, Final, TypeAlias, cast

from dsh.base.json import JsonValue, dumps, loads, snapshot
from dsh.base.values import value
from dsh.capability.code_runtime.child.values import MOST_VALUES, number_problem
from dsh.capability.code_runtime.service import BindingNamespace, CodeError, CodeErrorKind

CLAIMABLE: Final = frozenset({"exception", "invalid-output", "output-limit", "worker-exit"})
"""Kinds of failure that the interpreter itself may tell; the others are for dsh to find."""

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_MOST_MARKS = 2 * MOST_VALUES + 10
"""Each value has a bracket or a comma, an empty container both; the rest is for the frame."""


class Unfit:
    """Stands for a value that is not lossless JSON."""


UNFIT: Final = Unfit()


@value
class BootAck:
    """The limits are in force; the program may come."""


@value
class Called:
    """The program calls a function."""

    id: float
    namespace: str
    name: str
    args: JsonValue | Unfit


@value
class Logged:
    """The program printed something."""

    text: str
    truncated: bool


@value
class Done:
    """The program ended by itself."""

    value: JsonValue | Unfit = None
    error: CodeError | None = None


Frame: TypeAlias = BootAck | Called | Logged | Done


def marks_in(line: bytes) -> int:
    """Return how many commas and opening brackets a line holds: at least its values, nearly."""
    return sum(map(line.count, (b",", b"[", b"{")))


def has_too_many_values(line: bytes) -> bool:
    """Whether a line holds more values than an honest interpreter would send."""
    return marks_in(line) > _MOST_MARKS and marks_in(_STRING.sub(b"", line)) > _MOST_MARKS


def parse_frame(line: bytes) -> Frame | None:
    """Return what a line says; ``None`` for anything that is not exactly a frame."""
    try:
        frame = loads(line)
    except (ValueError, RecursionError):
        return None
    if type(frame) is not dict:
        return None
    match frame.get("type"):
        case "boot-ack":
            return BootAck()
        case "call":
            return _called(frame)
        case "log":
            return _logged(frame)
        case "done":
            return _done(frame)
    return None


def boot_frame(
    namespaces: Iterable[BindingNamespace],
    *,
    cpu_s: float,
    memory_bytes: int,
    max_output_bytes: int,
) -> bytes:
    """Return the first frame to the interpreter: its limits, and the functions it may call."""
    return _line(
        {
            "type": "boot",
            "cpuSeconds": cpu_s,
            "addressSpaceBytes": memory_bytes,
            "maxLogBytes": max_output_bytes,
            "maxValueBytes": max_output_bytes,
            "namespaces": [_namespace(each) for each in namespaces],
        }
    )


def run_frame(program: str) -> bytes:
    """Return the frame that starts the program."""
    return _line({"type": "run", "program": program})


def success_frame(id: float, value: JsonValue) -> bytes:
    """Return the reply to a call that has a value.

    Raises:
        NotLossless: the value is not JSON.
    """
    return _line({"type": "reply", "id": id, "ok": True, "value": snapshot(value)})


def failure_frame(id: float, message: str) -> bytes:
    """Return the reply to a call that failed."""
    return _line({"type": "reply", "id": id, "ok": False, "message": message})


def _line(frame: object) -> bytes:
    return dumps(frame) + b"\n"


def _namespace(namespace: BindingNamespace) -> dict[str, Any]:
    told: dict[str, Any] = {"global": namespace.name, "names": list(namespace.functions)}
    if (error := namespace.error) is not None:
        told["errorClass"] = {"name": error.name, "memberNameProperty": error.member_property}
    return told


def _called(frame: Mapping[str, Any]) -> Called | None:
    number, namespace, name = frame.get("id"), frame.get("global"), frame.get("name")
    if number is None or not _is_id(number) or "args" not in frame:
        return None
    if type(namespace) is not str or type(name) is not str:
        return None
    return Called(number, namespace, name, _lossless(frame["args"]))


def _is_id(id: Any) -> bool:
    if type(id) is int:
        return True
    return type(id) is float and isfinite(id) and not (id == 0.0 and copysign(1.0, id) < 0)


def _logged(frame: Mapping[str, Any]) -> Logged | None:
    text = frame.get("text")
    return Logged(text, frame.get("truncated") is True) if type(text) is str else None


def _done(frame: Mapping[str, Any]) -> Done | None:
    if "error" not in frame:
        return Done(_lossless(frame.get("value")))
    error = frame["error"]
    if type(error) is not dict:
        return None
    kind, message = error.get("kind"), error.get("message")
    if type(kind) is not str or kind not in CLAIMABLE or type(message) is not str:
        return None
    return Done(error=CodeError(cast("CodeErrorKind", kind), message))


def _lossless(value: JsonValue) -> JsonValue | Unfit:
    work: list[Any] = [value]
    while work:
        item = work.pop()
        if isinstance(item, dict):
            work += item.values()
        elif isinstance(item, list):
            work += item
        elif number_problem(item) is not None:
            return UNFIT
    return value
