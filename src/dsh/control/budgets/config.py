"""The configuration of the row ``budgets``, which is also the settings section of that name.

Limits and prices are checked by hand: nearly nobody has any, and a model of pydantic for each costs
every start a millisecond.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from pydantic import BaseModel, ConfigDict, model_validator

if TYPE_CHECKING:
    from typing import Self

    from dsh.control.budgets.events import BudgetScope, LimitName

__all__ = ["LIMITS", "Config", "is_limit"]

LIMITS: Final[dict[BudgetScope, tuple[LimitName, ...]]] = {
    "session": ("turns", "steps", "tokens", "money", "wallMs"),
    "tree": ("turns", "steps", "tokens", "money", "wallMs", "agents", "depth"),
}
"""What can be limited, by scope."""

_MOST: Final = 2**53 - 1
"""The greatest whole number that a log takes."""
_PRICES: Final = ("input", "cachedInput", "cacheWrite", "output")
_NUMBER: Final = {"type": "number", "minimum": 0}


def is_limit(limit: str, most: object) -> TypeGuard[float]:
    """Whether something can be a limit of this kind."""
    if not _is_number(most) or most > _MOST:
        return False
    if limit == "money":
        return most > 0
    return most == int(most) and most >= (0 if limit == "depth" else 1)


def _say_what_is_inside(schema: dict[str, Any]) -> None:
    """Complete the schema that a settings editor shows."""
    fields = schema["properties"]
    for scope, names in LIMITS.items():
        fields[scope] |= {"properties": dict.fromkeys(names, _NUMBER)}
    price = {"properties": dict.fromkeys(_PRICES, _NUMBER), "required": ["input", "output"]}
    fields["prices"] |= {"additionalProperties": {"type": "object"} | price}


class Config(BaseModel):
    """Limits and prices; without any, use is counted and nothing is stopped."""

    # A Field for each would cost every start a fifth of a millisecond.
    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=_say_what_is_inside)

    session: dict[str, Any] = {}
    """For each session by itself: how much of what it may use; null lifts a limit."""
    tree: dict[str, Any] = {}
    """For each agent that nobody owns, with all below it."""
    prices: dict[str, dict[str, Any]] = {}
    """What a million tokens of a route cost: ``provider/model``, or ``provider/*`` for all other
    models of a provider."""
    currency: str = "USD"
    """The label of all amounts, of at most 8 characters; nothing is converted."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_limits("session", self.session)
        _check_limits("tree", self.tree)
        for route, price in self.prices.items():
            _check_price(route, price)
        if not 0 < len(self.currency) <= 8:
            raise ValueError(f"currency is a label of 1 to 8 characters, not {self.currency!r}")
        return self


def _check_limits(scope: BudgetScope, given: Mapping[str, Any]) -> None:
    names: tuple[str, ...] = LIMITS[scope]
    for name, most in given.items():
        if name not in names:
            raise ValueError(f"{scope} has no limit {name!r}; there are {', '.join(names)}")
        if most is not None and not is_limit(name, most):
            raise ValueError(f"{most!r:.40} is no limit {scope}.{name}; {_wanted(name)}")


def _check_price(route: str, price: Mapping[str, Any]) -> None:
    for name, number in price.items():
        if name not in _PRICES:
            raise ValueError(f"{route!r} has no price {name!r}; there are {', '.join(_PRICES)}")
        if not (_is_number(number) and number >= 0):
            raise ValueError(f"{number!r} is no price, {name} of {route!r}; give 0 or more")
    for name in ("input", "output"):
        if name not in price:
            raise ValueError(f"{route!r} has no price of {name}; give 0 if it costs nothing")


def _wanted(limit: str) -> str:
    if limit == "money":
        return "give an amount above 0, or none"
    return f"give a whole number from {0 if limit == 'depth' else 1} on, or none"


def _is_number(given: object) -> TypeGuard[float]:
    # A whole number may be too great for `isfinite`, which takes floats.
    return type(given) is int or (type(given) is float and isfinite(given))
