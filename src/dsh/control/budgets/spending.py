"""What a session has used, a fold of its log; and what that costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from dsh.base.values import record
from dsh.control.budgets.events import BUDGET_LIMIT, BUDGET_SPENT
from dsh.control.budgets.usage import SETTLING, AttemptUsage
from dsh.state.session.log import without_settled_chunks

if TYPE_CHECKING:
    from dsh.control.budgets.events import BudgetScope, BudgetSpent, LimitName, RouteTokens
    from dsh.state.session.session import Session

_COUNTS: Final = ("inputTokens", "cacheReadTokens", "cacheWriteTokens", "outputTokens")
_MISSHAPED: Final = (LookupError, TypeError, AttributeError)
"""What reading a log raises that was written elsewhere and is not shaped as declared."""
_PRICED_TOKENS: Final = 1_000_000
Prices: TypeAlias = Mapping[str, Mapping[str, float]]
"""By route, as the configuration has them: what a million tokens cost."""


@record
class Tokens:
    """Tokens of one route, in disjoint counts."""

    input: int = 0
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0

    @classmethod
    def of(cls, usage: Mapping[str, Any]) -> Tokens:
        """Take a usage report as the provider's adapter made it."""
        return cls(*(_whole(usage.get(name)) for name in _COUNTS))

    @property
    def total(self) -> int:
        """All of them; a cached token counts like any other."""
        return self.input + self.cache_read + self.cache_write + self.output

    def add(self, more: Tokens, sign: int = 1) -> None:
        """Add what another holds, or take it away."""
        self.input += sign * more.input
        self.cache_read += sign * more.cache_read
        self.cache_write += sign * more.cache_write
        self.output += sign * more.output


@record
class Spent:
    """What adds up over the sessions of a tree."""

    turns: int = 0
    steps: int = 0
    tokens: int = 0
    routes: dict[str, Tokens] = field(default_factory=dict)

    def use(self, route: str, tokens: Tokens, sign: int = 1) -> None:
        """Count the tokens of a model call."""
        held = self.routes.get(route)
        if held is None:
            held = self.routes[route] = Tokens()
        held.add(tokens, sign)
        self.tokens += sign * tokens.total

    def add(self, other: Spent, sign: int = 1) -> None:
        """Add what another has used, or take it away."""
        self.turns += sign * other.turns
        self.steps += sign * other.steps
        for route, tokens in other.routes.items():
            self.use(route, tokens, sign)

    def copy(self) -> Spent:
        """Return one that does not change with this one."""
        twin = Spent()
        twin.add(self)
        return twin

    def tokens_by_route(self) -> list[RouteTokens]:
        """Return the tokens as the log keeps them."""
        return [
            {
                "route": route,
                "input": held.input,
                "cacheRead": held.cache_read,
                "cacheWrite": held.cache_write,
                "output": held.output,
            }
            for route, held in self.routes.items()
        ]


def spent_of(data: BudgetSpent) -> Spent:
    """Read what a logged event says that a session has used."""
    spent = Spent(data["turns"], data["steps"])
    for each in data["tokens"]:
        tokens = Tokens(each["input"], each["cacheRead"], each["cacheWrite"], each["output"])
        spent.use(each["route"], tokens)
    return spent


class Spending:
    """Counts what one session uses, as far as its log was read.

    Chunks of a stream are many and say nothing, but for the usage of an attempt that failed: only
    those are looked at that no message came of.

    Attributes:
        own: What the session itself has used, without what a fork inherited.
        totals: Who is told of everything that is counted from now on; ``own`` is the first.
        below: What other sessions of its tree have used, by id, as its log says.
        apart_ms: See ``BudgetSpent.apartMs``.
        limits: Limits that were set for this session and its tree.
        turn: The number of the open turn, or of the last one.
    """

    __slots__ = (
        "_attempts",
        "_closed_ms",
        "_last_time",
        "_next",
        "_session",
        "_stepped",
        "_turn_since",
        "apart_ms",
        "below",
        "limits",
        "own",
        "totals",
        "turn",
    )

    def __init__(self, session: Session) -> None:
        self._session = session
        self._next = min(session.header.get("seedLength", 0), session.seq)
        self._attempts = AttemptUsage()
        self._turn_since: int | None = None
        self._stepped = False
        self._closed_ms = self._last_time = 0
        self.own = Spent()
        self.totals = [self.own]
        self.below: dict[str, Spent] = {}
        self.apart_ms = 0
        self.limits: dict[tuple[BudgetScope, LimitName], float | None] = {}
        self.turn = 0

    def catch_up(self) -> None:
        """Read what the log has got since the last time."""
        session = self._session
        if self._next == session.seq:
            return
        event: Any
        for event in without_settled_chunks(session.events, self._next):
            if (handler := _HANDLERS.get(event["type"])) is not None:
                try:
                    handler(self, event)
                except _MISSHAPED:
                    pass  # it is not counted, and keeps nobody from working
        self._last_time = session.events[-1]["time"]
        self._next = session.seq

    def wall_ms(self, now_ms: int | None) -> int:
        """Return the milliseconds in turns.

        Args:
            now_ms: The wall clock; None for a session that nobody works on, whose open turn
                ended with its log.
        """
        if self._turn_since is None:
            return self._closed_ms
        end = self._last_time if now_ms is None else now_ms
        return self._closed_ms + max(0, end - self._turn_since)

    def _turn_start(self, event: Mapping[str, Any]) -> None:
        self.turn = event["data"]["turn"]
        self._turn_since, self._stepped = event["time"], False

    def _turn_end(self, event: Mapping[str, Any]) -> None:
        self._close_turn(event["time"])

    def _end_seed(self, event: Mapping[str, Any]) -> None:
        """What the history left open is dead since its last event."""
        if event["seq"]:
            self._close_turn(self._session.events[event["seq"] - 1]["time"])

    def _close_turn(self, time: int) -> None:
        if self._turn_since is not None:
            self._closed_ms += max(0, time - self._turn_since)
            self._turn_since = None

    def _step_start(self, event: Mapping[str, Any]) -> None:
        turns = 0 if self._stepped else 1
        self._stepped = True
        for total in self.totals:
            total.steps += 1
            total.turns += turns

    def _attempt(self, event: Mapping[str, Any]) -> None:
        self._count(self._attempts.push(event))

    def _count(self, used: tuple[str, Mapping[str, Any]] | None) -> None:
        if used is not None:
            route, tokens = used[0], Tokens.of(used[1])
            for total in self.totals:
                total.use(route, tokens)

    def _limit(self, event: Mapping[str, Any]) -> None:
        data = event["data"]
        self.limits[data["scope"], data["limit"]] = data["max"]

    def _spent(self, event: Mapping[str, Any]) -> None:
        data = event["data"]
        self.below[data["session"]] = spent_of(data)
        self.apart_ms = data["apartMs"]


_HANDLERS: Final = {
    **dict.fromkeys(SETTLING, Spending._attempt),
    "turn/start": Spending._turn_start,
    "turn/end": Spending._turn_end,
    "session/end-seed": Spending._end_seed,
    "step/start": Spending._step_start,
    BUDGET_LIMIT.name: Spending._limit,
    BUDGET_SPENT.name: Spending._spent,
}


def price_of(prices: Prices, route: str) -> Mapping[str, float] | None:
    """Return the price of a route: its own, else that of all other models of its provider."""
    price = prices.get(route)
    return price if price is not None else prices.get(f"{route.partition('/')[0]}/*")


def cost_of(price: Mapping[str, float], tokens: Tokens) -> float:
    """Return what tokens cost."""
    full = price["input"]
    amount = (
        tokens.input * full
        + tokens.cache_read * price.get("cachedInput", full)
        + tokens.cache_write * price.get("cacheWrite", full)
        + tokens.output * price["output"]
    )
    return amount / _PRICED_TOKENS


def cost_of_routes(prices: Prices, routes: Mapping[str, Tokens]) -> tuple[float, str | None]:
    """Return what the tokens of several routes cost, and the first route without a price."""
    amount, unpriced = 0.0, None
    for route, tokens in routes.items():
        if not tokens.total:
            continue
        price = price_of(prices, route)
        if price is not None:
            amount += cost_of(price, tokens)
        elif unpriced is None:
            unpriced = route
    return amount, unpriced


def _whole(count: object) -> int:
    return count if type(count) is int and count > 0 else 0
