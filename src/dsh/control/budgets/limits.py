"""The limits in force, what was used of them, and the timers of wall time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

from dsh.base.clock import SYSTEM_CLOCK
from dsh.control.budgets.service import AgentCapReached
from dsh.control.budgets.spending import cost_of_routes, price_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from dsh.control.budgets.config import Config
    from dsh.control.budgets.events import BudgetScope, LimitName
    from dsh.control.budgets.reached import Reached
    from dsh.control.budgets.tree import Member

__all__ = ["BEFORE_REQUEST", "BEFORE_STEP", "BEFORE_TURN", "Limits", "WallTimers"]

_LATE_S: Final = 0.002
"""A timer may be early by the grain of the clock, and would then be due again and again."""
_SCOPES: Final[tuple[BudgetScope, ...]] = ("session", "tree")
BEFORE_REQUEST: Final[frozenset[LimitName]] = frozenset({"tokens", "money"})
"""What a further attempt at a request could go over; its step is counted already."""
_WALL: Final[frozenset[LimitName]] = frozenset({"wallMs"})
BEFORE_STEP: Final[frozenset[LimitName]] = frozenset({"steps", "tokens", "money", "wallMs"})
BEFORE_TURN: Final[frozenset[LimitName]] = frozenset({*BEFORE_STEP, "turns"})


class Limits:
    """What the configuration allows, under what somebody set for a session or its tree.

    Attributes:
        config: What is in force; `replace` changes it.
        configured: The limits of it, by scope.
    """

    __slots__ = ("_any_configured", "config", "configured")

    def __init__(self, config: Config) -> None:
        self.replace(config)

    def replace(self, config: Config) -> None:
        """Take another configuration from now on."""
        self.config = config
        self.configured: dict[BudgetScope, Mapping[LimitName, float]] = {
            "session": _given(config.session),
            "tree": _given(config.tree),
        }
        self._any_configured = any(self.configured.values())

    def concern(self, member: Member) -> bool:
        """Whether there is anything to look at for an agent; nearly always there is not."""
        own, root = member.spending.limits, member.tree.root.spending.limits
        return self._any_configured or bool(own or root)

    def most(self, member: Member, scope: BudgetScope) -> Mapping[LimitName, float]:
        """Return the limits in force for an agent's session, or for its tree."""
        base = self.configured[scope]
        holder = member if scope == "session" else member.tree.root
        if not holder.spending.limits:
            return base
        own = {name: most for (of, name), most in holder.spending.limits.items() if of == scope}
        return {name: most for name, most in {**base, **own}.items() if most is not None}

    def reached(self, member: Member, looked_at: frozenset[LimitName]) -> Reached | None:
        """Return the first limit that is used up, or whose use cannot be told."""
        for scope in _SCOPES:
            for limit, most in self.most(member, scope).items():
                if limit not in looked_at:
                    continue
                used, unpriced = self._used(member, scope, limit)
                if unpriced is not None or used >= most:
                    return self._facts(member, scope, limit, most, used, unpriced)
        return None

    def unpriced(self, member: Member, route: str) -> Reached | None:
        """Return the limit of money that cannot be kept on a route: nobody knows what it costs."""
        if price_of(self.config.prices, route) is not None:
            return None
        for scope in _SCOPES:
            if (most := self.most(member, scope).get("money")) is not None:
                return self._facts(member, scope, "money", most, 0, route)
        return None

    def wall_left_ms(self, member: Member) -> float | None:
        """Return how long an agent may work from now on; None for as long as it wants."""
        left = [
            most - self._used(member, scope, "wallMs")[0]
            for scope in _SCOPES
            if (most := self.most(member, scope).get("wallMs")) is not None
        ]
        return min(left, default=None)

    def check_caps(self, member: Member) -> None:
        """Refuse an agent that its tree has no place for.

        Raises:
            AgentCapReached: names the limit and the root.
        """
        tree = member.tree
        caps = self.most(member, "tree")
        for limit, would_be in (("depth", member.depth), ("agents", len(tree.members) + 1)):
            most = caps.get(limit)  # type: ignore[call-overload]  # two of the names
            if most is not None and would_be > most:
                raise AgentCapReached(limit, most, tree.root.agent.id)  # type: ignore[arg-type]

    def _used(
        self, member: Member, scope: BudgetScope, limit: LimitName
    ) -> tuple[float, str | None]:
        """Return what was used, and the route without a price when that is why it is unknown."""
        if limit == "wallMs":
            holder = member.spending if scope == "session" else member.tree
            return holder.wall_ms(SYSTEM_CLOCK.now_ms()), None
        spent = member.spending.own if scope == "session" else member.tree.total
        if limit == "money":
            return cost_of_routes(self.config.prices, spent.routes)
        return getattr(spent, limit), None

    def _facts(
        self,
        member: Member,
        scope: BudgetScope,
        limit: LimitName,
        most: float,
        used: float,
        unpriced: str | None,
    ) -> Reached:
        from dsh.control.budgets.reached import Reached

        return Reached(
            scope=scope,
            limit=limit,
            most=most,
            used=used,
            unpriced=unpriced,
            currency=self.config.currency,
            root=member.tree.root.agent.id,
        )


def _given(limits: Mapping[str, Any]) -> Mapping[LimitName, float]:
    given = {name: most for name, most in limits.items() if most is not None}
    return cast("dict[LimitName, float]", given)


class WallTimers:
    """One timer for each agent that works under a limit of wall time.

    Args:
        limits: Where the time that is left comes from.
        end: Called for an agent whose time is over.
    """

    def __init__(self, limits: Limits, end: Callable[[Member, Reached], object]) -> None:
        self._limits = limits
        self._end = end

    def start(self, member: Member) -> None:
        """See to it that an agent's turn ends in time, if it has not all the time it wants."""
        if member.timer is not None or (left := self._limits.wall_left_ms(member)) is None:
            return
        delay_s = max(left, 0) / 1000 + _LATE_S
        member.timer = asyncio.get_running_loop().call_later(delay_s, self._ring, member)

    def stop(self, member: Member) -> None:
        """Let an agent's time run."""
        if member.timer is not None:
            member.timer.cancel()
            member.timer = None

    def renew(self, members: Iterable[Member]) -> None:
        """Heed limits that are others now."""
        for member in members:
            self.stop(member)
            if member.running:
                self.start(member)

    def _ring(self, member: Member) -> None:
        member.timer = None
        reached = self._limits.reached(member, _WALL)
        if reached is None:
            self.start(member)
        else:
            self._end(member, reached)
