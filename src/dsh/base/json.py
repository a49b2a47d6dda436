"""JSON as data: lossless snapshots, frozen containers, one encoder.

Logged data is made of `FrozenDict` and `FrozenList`: real ``dict`` and ``list`` objects, so
that every encoder and ``isinstance`` check works, whose mutators refuse.
"""

from __future__ import annotations

import json as _stdlib
from collections.abc import Callable, Iterator, Mapping
from math import copysign, isfinite
from typing import Any, NoReturn, TypeAlias, cast

from dsh.base.errors import DshError

JsonValue: TypeAlias = "bool | int | float | str | Mapping[str, JsonValue] | list[JsonValue] | None"
"""Any JSON value; containers may be frozen."""
JsonObject: TypeAlias = "Mapping[str, JsonValue]"
"""A JSON object."""

_MAX_SAFE = 2**53 - 1


class NotLossless(DshError, TypeError):
    """A value would not survive a JSON round trip."""

    code = "NOT_LOSSLESS"

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"value at {path} is not lossless JSON: {problem}")
        self.path = path
        self.problem = problem


def _refuse(self: object, *args: object, **kwargs: object) -> NoReturn:
    raise TypeError(
        f"{type(self).__name__} is read-only: logged data never changes; copy it with thaw() first"
    )


class FrozenDict(dict[str, Any]):
    """A ``dict`` that cannot change; ``copy.deepcopy`` gives a plain one."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return cast("dict[str, Any]", thaw(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenDict, (dict(self),))


class FrozenList(list[Any]):
    """A ``list`` that cannot change; ``copy.deepcopy`` gives a plain one."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = pop = remove = clear = sort = reverse = _refuse

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return cast("list[Any]", thaw(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenList, (list(self),))


def snapshot(value: object, *, logged: bool = False) -> Any:
    """Return a detached, frozen copy of a JSON value; each part is read once.

    A graph that is frozen already is returned as it is: nobody can change it.

    Args:
        value: Plain or frozen containers and JSON scalars.
        logged: Also refuse what readers in other languages cannot hold: ``-0.0`` and integers
            beyond 2**53 - 1.

    Raises:
        NotLossless: a value is not JSON (NaN, a tuple, a subclass, a key that is not text, a
            cycle); the path names it.
    """
    kind = type(value)
    if kind is str or value is None or kind is bool:
        return value
    try:
        return _copy_shallowly_nested(value, logged, 0)
    except RecursionError:
        return _copy_deep(value, logged)
    except _Unfit:
        return _copy_deep(value, logged)  # walks again, knowing the path, to raise with it


class _Unfit(Exception):
    """The fast walk met something that the precise walk must name."""


_FAST_DEPTH = 64


def _copy_shallowly_nested(value: Any, logged: bool, depth: int) -> Any:
    kind = type(value)
    if kind is str or value is None or kind is bool:
        return value
    if kind is int:
        if logged and not -_MAX_SAFE <= value <= _MAX_SAFE:
            raise _Unfit
        return value
    if kind is FrozenDict or kind is FrozenList:
        return value
    if depth > _FAST_DEPTH:
        raise RecursionError
    if kind is dict:
        copied = {}
        for key, item in value.items():
            if type(key) is not str:
                raise _Unfit
            copied[key] = (
                item if type(item) is str else _copy_shallowly_nested(item, logged, depth + 1)
            )
        return FrozenDict(copied)
    if kind is list:
        return FrozenList([_copy_shallowly_nested(item, logged, depth + 1) for item in value])
    if kind is float and isfinite(value) and not (logged and value == 0 and copysign(1, value) < 0):
        return value
    raise _Unfit


def _scalar_problem(value: object, logged: bool) -> str | None:
    """Say why a scalar is unfit; ``None`` when it is fit."""
    kind = type(value)
    if value is None or kind in (str, bool):
        return None
    if kind is int:
        too_big = logged and not -_MAX_SAFE <= cast("int", value) <= _MAX_SAFE
        return f"the integer {value} is beyond 2**53 - 1" if too_big else None
    if kind is float:
        number = cast("float", value)
        if not isfinite(number):
            return f"{number} is not a JSON number"
        return (
            "-0.0 is not kept by every reader"
            if logged and number == 0 and copysign(1, number) < 0
            else None
        )
    return f"{kind.__name__} is not a JSON type"


def _copy_deep(value: Any, logged: bool) -> Any:
    """Copy without recursion; raise `NotLossless` with the path of the first unfit value."""
    out: list[Any] = [None]
    open_containers: set[int] = set()
    # A frame: (source, setter, path) to enter, or (container, None, finisher) to leave.
    work: list[tuple[Any, Callable[[Any], None] | None, Any]] = [
        (value, lambda item: out.__setitem__(0, item), "$")
    ]
    while work:
        source, put, path = work.pop()
        if put is None:
            open_containers.discard(id(source))
            path()
            continue
        kind = type(source)
        if kind is FrozenDict or kind is FrozenList:
            put(source)
        elif kind is dict or kind is list:
            if id(source) in open_containers:
                raise NotLossless(path, "it contains itself")
            open_containers.add(id(source))
            _enter(source, put, path, work)
        elif (problem := _scalar_problem(source, logged)) is not None:
            raise NotLossless(path, problem)
        else:
            put(source)
    return out[0]


def _enter(
    source: Any, put: Callable[[Any], None], path: str, work: list[tuple[Any, Any, Any]]
) -> None:
    if type(source) is dict:
        items = dict(source)
        for key in items:
            if type(key) is not str:
                raise NotLossless(path, f"the key {key!r} is not text")
        work.append((source, None, lambda: put(FrozenDict(items))))
        for key, item in reversed(list(items.items())):
            work.append((item, lambda new, key=key: items.__setitem__(key, new), f"{path}.{key}"))
    else:
        copied = list(source)
        work.append((source, None, lambda: put(FrozenList(copied))))
        work.extend(
            (item, lambda new, index=index: copied.__setitem__(index, new), f"{path}[{index}]")
            for index, item in reversed(list(enumerate(copied)))
        )


def freeze(value: Any) -> Any:
    """Return a frozen view of a graph that the caller owns and nobody else holds.

    Unlike `snapshot` it validates nothing; use it for graphs that a JSON reader just made.
    """
    kind = type(value)
    if kind is dict:
        try:
            return FrozenDict({key: freeze(item) for key, item in value.items()})
        except RecursionError:
            return _copy_deep(value, logged=False)
    if kind is list:
        try:
            return FrozenList([freeze(item) for item in value])
        except RecursionError:
            return _copy_deep(value, logged=False)
    return value


def thaw(value: Any) -> Any:
    """Return a plain, detached copy of a JSON value."""
    out: list[Any] = [None]
    work: list[tuple[Any, Any, Any]] = [(value, out, 0)]
    while work:
        source, holder, place = work.pop()
        if isinstance(source, dict):
            holder[place] = copied = dict(source)
            work.extend(
                (item, copied, key)
                for key, item in source.items()
                if isinstance(item, (dict, list))
            )
        elif isinstance(source, list):
            holder[place] = items = list(source)
            work.extend(
                (item, items, index)
                for index, item in enumerate(source)
                if isinstance(item, (dict, list))
            )
        else:
            holder[place] = source
    return out[0]


def dumps(value: object) -> bytes:
    r"""Encode as compact UTF-8; a lone surrogate is written as its ``\\udXXX`` escape."""
    if _orjson_dumps is not None:
        try:
            return _orjson_dumps(value)
        except TypeError:
            pass  # a lone surrogate, a huge integer or great depth: the precise encoder decides
    return _escape(dumps_str(value))


def dumps_str(value: object) -> str:
    """Encode as compact text; the text may hold lone surrogates."""
    try:
        return _ENCODER.encode(value)
    except RecursionError:
        return "".join(_encode_deep(value))


def loads(data: bytes | str) -> Any:
    """Decode JSON text.

    Raises:
        ValueError: the text is not JSON.
    """
    if _orjson_loads is not None:
        try:
            return _orjson_loads(data)
        except ValueError:
            pass  # orjson refuses lone surrogates and huge integers; the standard decoder decides
    if isinstance(data, bytes):
        data = data.decode("utf-8", "surrogatepass")
    return _stdlib.loads(data, parse_constant=_no_constant)


def canonical(value: object) -> str:
    """Return one text per value: keys sorted, no spaces."""
    return _CANONICAL.encode(value)


def equal(left: Any, right: Any) -> bool:
    """Compare JSON values deeply; unlike ``==``, ``True`` is not ``1``."""
    work = [(left, right)]
    while work:
        one, two = work.pop()
        if one is two:
            continue
        if isinstance(one, dict) and isinstance(two, dict):
            if one.keys() != two.keys():
                return False
            work.extend((one[key], two[key]) for key in one)
        elif isinstance(one, list) and isinstance(two, list):
            if len(one) != len(two):
                return False
            work.extend(zip(one, two, strict=True))
        elif isinstance(one, bool) is not isinstance(two, bool) or one != two:
            return False
    return True


def _encode_deep(value: Any) -> Iterator[str]:
    """Encode without recursion, for graphs deeper than the interpreter's stack."""
    work: list[Any] = [value]
    while work:
        item = work.pop()
        if type(item) is _Text:
            yield item.text
        elif isinstance(item, dict):
            work.append(_Text("}"))
            for position, (key, member) in reversed(list(enumerate(item.items()))):
                work += [member, _Text(("," if position else "") + _ENCODER.encode(key) + ":")]
            work.append(_Text("{"))
        elif isinstance(item, list):
            work.append(_Text("]"))
            for position in range(len(item) - 1, -1, -1):
                work += [item[position], _Text("," if position else "")]
            work.append(_Text("["))
        else:
            yield _ENCODER.encode(item)


class _Text:
    """Punctuation on the work list of `_encode_deep`."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _escape(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return "".join(
            f"\\u{ord(char):04x}" if "\ud800" <= char <= "\udfff" else char for char in text
        ).encode("utf-8")


_ENCODER = _stdlib.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False
)
_CANONICAL = _stdlib.JSONEncoder(
    ensure_ascii=True, separators=(",", ":"), allow_nan=False, sort_keys=True
)

_orjson_dumps: Callable[[object], bytes] | None
_orjson_loads: Callable[[bytes | str], Any] | None
try:
    import orjson as _orjson
except (
    ImportError
):  # the wheel is missing on some systems; the standard library does the same, slower
    _orjson_dumps = _orjson_loads = None
else:

    def _orjson_dumps(value: object) -> bytes:
        return _orjson.dumps(
            value, option=_orjson.OPT_PASSTHROUGH_DATACLASS | _orjson.OPT_PASSTHROUGH_DATETIME
        )

    _orjson_loads = _orjson.loads
