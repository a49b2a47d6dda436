"""JSON values in memory: frozen containers, comparison, plain copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, TypeAlias, cast

from dsh.base.errors import DshError

JsonValue: TypeAlias = "bool | int | float | str | Mapping[str, JsonValue] | list[JsonValue] | None"
"""Any JSON value; containers may be frozen."""
JsonObject: TypeAlias = "Mapping[str, JsonValue]"
"""A JSON object."""


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
