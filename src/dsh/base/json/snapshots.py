"""Taking values in: copies that are checked, detached from their source, and frozen."""

from __future__ import annotations

from collections.abc import Iterator
from math import copysign, isfinite
from typing import Any, Final

from dsh.base.json.values import FrozenDict, FrozenList, NotLossless

_MAX_SAFE: Final = 2**53 - 1
_FAST_DEPTH: Final = 64
_set_member: Final = dict.__setitem__
_set_item: Final = list.__setitem__


def snapshot(value: object, *, logged: bool = False) -> Any:
    """Return a detached, frozen copy of a JSON value; each part is read once.

    What is frozen already is shared: nobody can change it.

    Args:
        value: Plain or frozen containers and JSON scalars.
        logged: Also refuse what readers in other languages cannot hold: ``-0.0`` and integers
            beyond 2**53 - 1. Looks into frozen parts too, because who froze them may not have
            known that they would be logged. The halves of a surrogate pair that are two
            characters become the one that every reader makes of them.

    Raises:
        NotLossless: a value is not JSON (NaN, a tuple, a subclass, a key that is not text, a
            cycle); the path names it.
    """
    try:
        return _take_logged(value, 0) if logged else _take(value, 0)
    except (_Unfit, RecursionError):
        return _DeepCopy(checked=True, logged=logged).run(value)


def freeze(value: Any) -> Any:
    """Return a frozen view of a graph that the caller owns and nobody else holds.

    Unlike `snapshot` it checks no scalars; use it for graphs that a JSON reader just made.

    Raises:
        NotLossless: a container contains itself.
    """
    try:
        return _freeze(value, 0)
    except (_Unfit, RecursionError):
        return _DeepCopy(checked=False, logged=False).run(value)


class _Unfit(Exception):
    """A fast walk met something that the precise walk must look at."""


def _take(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind is str or value is None or kind is bool or kind is int:
        return value
    if kind is FrozenDict or kind is FrozenList:
        return value
    if depth > _FAST_DEPTH:
        raise _Unfit
    if kind is dict:
        members = FrozenDict(value)
        for key, item in members.items():
            if type(key) is not str:
                raise _Unfit
            if type(item) is not str and (taken := _take(item, depth + 1)) is not item:
                _set_member(members, key, taken)
        return members
    if kind is list:
        return FrozenList([_take(item, depth + 1) for item in value])
    if kind is float and isfinite(value):
        return value
    raise _Unfit


def _take_logged(value: Any, depth: int) -> Any:
    # This runs for every event of every log. Text and numbers are dealt with by the container
    # that holds them, which spares most of the calls.
    kind = type(value)
    if kind is dict or kind is FrozenDict:
        return _take_logged_members(value, kind is FrozenDict, depth)
    if kind is list or kind is FrozenList:
        return _take_logged_items(value, kind is FrozenList, depth)
    if value is None or kind is bool:
        return value
    if kind is str:
        return value if value.isascii() else _whole_characters(value)
    if kind is int:
        if -_MAX_SAFE <= value <= _MAX_SAFE:
            return value
    elif kind is float and isfinite(value) and not _is_negative_zero(value):
        return value
    raise _Unfit


def _take_logged_members(source: Any, frozen: bool, depth: int) -> FrozenDict:
    if depth > _FAST_DEPTH:
        raise _Unfit
    members: FrozenDict = source if frozen else FrozenDict(source)
    for key, item in members.items():
        if type(key) is not str or not (key.isascii() or _is_whole(key)):
            raise _Unfit
        kind = type(item)
        if kind is str:
            if item.isascii():
                continue
        elif kind is int and -_MAX_SAFE <= item <= _MAX_SAFE:
            continue
        if (taken := _take_logged(item, depth + 1)) is not item:
            if members is source:
                members = FrozenDict(source)
            _set_member(members, key, taken)
    return members


def _take_logged_items(source: Any, frozen: bool, depth: int) -> FrozenList:
    if depth > _FAST_DEPTH:
        raise _Unfit
    items: FrozenList = source if frozen else FrozenList(source)
    for index, item in enumerate(items):
        if (taken := _take_logged(item, depth + 1)) is not item:
            if items is source:
                items = FrozenList(source)
            _set_item(items, index, taken)
    return items


def _freeze(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind is not dict and kind is not list:
        return value
    if depth > _FAST_DEPTH:
        raise _Unfit
    if kind is dict:
        return FrozenDict({key: _freeze(item, depth + 1) for key, item in value.items()})
    return FrozenList([_freeze(item, depth + 1) for item in value])


def _whole_characters(text: str) -> str:
    """Join surrogates that make a pair; lone ones stay."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    return text


def _is_whole(text: str) -> bool:
    return _whole_characters(text) == text


def _is_negative_zero(number: float) -> bool:
    return number == 0 and copysign(1, number) < 0


class _Frame:
    """One container that is being copied, and how far that got."""

    __slots__ = ("at", "is_object", "items", "source", "taken")

    def __init__(self, source: Any) -> None:
        kind = type(source)
        self.source = source
        self.is_object = kind is dict or kind is FrozenDict
        self.taken = source if kind is FrozenDict or kind is FrozenList else self._copied()
        self.items: Iterator[tuple[Any, Any]] = iter(
            self.taken.items() if self.is_object else enumerate(self.taken)
        )
        self.at: Any = None

    def put(self, item: Any) -> None:
        """Replace the item that was reached."""
        if self.taken is self.source:
            self.taken = self._copied()
        (_set_member if self.is_object else _set_item)(self.taken, self.at, item)

    def _copied(self) -> Any:
        return FrozenDict(self.source) if self.is_object else FrozenList(self.source)


class _DeepCopy:
    """The precise walk: without recursion, and with a path for what it refuses.

    Args:
        checked: Refuse what is not JSON.
        logged: Refuse what may not be logged, and look into frozen containers.
    """

    def __init__(self, *, checked: bool, logged: bool) -> None:
        self._checked = checked
        self._logged = logged
        self._entered = {dict, list, FrozenDict, FrozenList} if logged else {dict, list}
        self._frames: list[_Frame] = []
        self._open: set[int] = set()

    def run(self, value: object) -> Any:
        """Return the copy."""
        self._frames.append(_Frame([value]))
        while True:
            frame = self._frames[-1]
            container = self._next_container(frame)
            if container is not None:
                self._enter(container)
            elif len(self._frames) == 1:
                return frame.taken[0]
            else:
                self._leave(frame)

    def _next_container(self, frame: _Frame) -> Any:
        """Deal with the scalars up to the next container, and return that."""
        for at, item in frame.items:
            frame.at = at
            if self._checked and frame.is_object:
                self._check_key(at)
            if type(item) in self._entered:
                return item
            if self._checked and (taken := self._scalar(item)) is not item:
                frame.put(taken)
        return None

    def _enter(self, container: Any) -> None:
        if id(container) in self._open:
            raise NotLossless(self._path(self._frames), "it contains itself")
        self._open.add(id(container))
        self._frames.append(_Frame(container))

    def _leave(self, frame: _Frame) -> None:
        self._frames.pop()
        self._open.discard(id(frame.source))
        if frame.taken is not frame.source:
            self._frames[-1].put(frame.taken)

    def _check_key(self, key: object) -> None:
        problem = None
        if type(key) is not str:
            problem = "is not text"
        elif self._logged and not _is_whole(key):
            problem = "has a surrogate pair in two characters"
        if problem is not None:
            raise NotLossless(self._path(self._frames[:-1]), f"the key {key!r} {problem}")

    def _scalar(self, value: Any) -> Any:
        kind = type(value)
        if kind is str:
            return _whole_characters(value) if self._logged else value
        if value is None or kind in (bool, FrozenDict, FrozenList):
            return value
        if kind is int:
            problem = f"the integer {value} is beyond 2**53 - 1"
            fits = not self._logged or -_MAX_SAFE <= value <= _MAX_SAFE
        elif kind is not float:
            fits, problem = False, f"{kind.__name__} is not a JSON type"
        elif not isfinite(value):
            fits, problem = False, f"{value} is not a JSON number"
        else:
            problem = "-0.0 is not kept by every reader"
            fits = not (self._logged and _is_negative_zero(value))
        if fits:
            return value
        raise NotLossless(self._path(self._frames), problem)

    def _path(self, frames: list[_Frame]) -> str:
        parts = (f".{step.at}" if step.is_object else f"[{step.at}]" for step in frames[1:])
        return "$" + "".join(parts)
