"""What may be logged: JSON that every reader gives back exactly as it was."""

from __future__ import annotations

from math import copysign, isfinite
from typing import Any

from dsh.base.json import FrozenDict, FrozenList, snapshot, thaw

_MAX_SAFE = 2**53 - 1


def logged(value: object) -> Any:
    """Return a detached, frozen copy of what is about to be logged.

    Parts that are frozen already are shared, but looked at all the same: whoever froze them may
    not have known that they would be logged.

    Raises:
        NotLossless: names the first value that is not lossless JSON.
    """
    frozen = snapshot(value, logged=True)
    kind = type(frozen)
    if (kind is not FrozenDict and kind is not FrozenList) or _is_sound(frozen):
        return frozen
    # Something inside is only frozen on its surface, or unfit: the copy settles which.
    return snapshot(thaw(frozen), logged=True)


def _is_sound(container: Any) -> bool:
    """Whether a frozen container holds frozen containers and lossless scalars alone."""
    work = [container]
    while work:
        item = work.pop()
        if type(item) is FrozenDict:
            for key in item:
                if type(key) is not str:
                    return False
            members = item.values()
        else:
            members = item
        for member in members:
            kind = type(member)
            if kind is str or member is None or kind is bool:
                continue
            if kind is int:
                if not -_MAX_SAFE <= member <= _MAX_SAFE:
                    return False
            elif kind is FrozenDict or kind is FrozenList:
                work.append(member)
            elif kind is not float or not isfinite(member) or _is_negative_zero(member):
                return False
    return True


def _is_negative_zero(number: float) -> bool:
    return number == 0 and copysign(1, number) < 0
