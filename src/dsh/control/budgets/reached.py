"""A budget that is used up: what is logged, and what the reason of the turn's end says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dsh.base.values import value
from dsh.control.budgets.events import BudgetReached

if TYPE_CHECKING:
    from dsh.control.budgets.events import BudgetScope, LimitName
    from dsh.execution.agent.service import AgentCancelCause

UNPRICED: Final = "BUDGET_UNPRICED"
"""Code of a turn that ended because there is a limit of money and no price."""

_WORD: Final[dict[LimitName, str]] = {"wallMs": "wall"}
"""The limits that a person calls by another name than the configuration does."""


@value(kw_only=True)
class Reached:
    """Which limit, and what was used of it."""

    scope: BudgetScope
    limit: LimitName
    most: float
    used: float
    unpriced: str | None
    """The route whose lack of a price keeps the cost from being known."""
    currency: str
    root: str

    @property
    def code(self) -> str:
        """The stable name of what happened."""
        if self.unpriced is not None:
            return UNPRICED
        return f"BUDGET_{_WORD.get(self.limit, self.limit).upper()}"

    def cause(self) -> AgentCancelCause:
        """Return with what to cancel the agent."""
        return {"kind": "hook", "reason": self._sentence(), "code": self.code}

    def event(self, turn: int) -> BudgetReached:
        """Return what to log."""
        data = BudgetReached(turn=turn, scope=self.scope, limit=self.limit, max=self.most)
        if self.unpriced is None:
            data["used"] = self.used
        else:
            data["unpriced"] = self.unpriced
        if self.limit == "money":
            data["currency"] = self.currency
        if self.scope == "tree":
            data["root"] = self.root
        return data

    def _sentence(self) -> str:
        whose = "this session" if self.scope == "session" else f"the agents of {self.root}"
        where = "" if self.scope == "session" else "tree "
        if self.unpriced is not None:
            return (
                f"{whose} may spend {amount(self.limit, self.most, self.currency)}, and the route "
                f"{self.unpriced} has no price: add it to budgets.prices of settings.yaml, or lift "
                f"the limit (at a prompt: /budget {where}money off)"
            )
        used = amount(self.limit, self.used, self.currency)
        most = amount(self.limit, self.most, self.currency)
        name = _WORD.get(self.limit, self.limit)
        return (
            f"the budget of {whose} is used up: {used} of {most}; raise "
            f"budgets.{self.scope}.{self.limit} in settings.yaml (at a prompt: /budget "
            f"{where}{name} <more>), then go on"
        )


def amount(limit: LimitName, number: float, currency: str) -> str:
    """Return an amount with its unit, for people."""
    if limit == "money":
        return f"{number:,.4f} {currency}"
    if limit == "wallMs":
        return duration(number)
    return f"{number:,.0f} {limit}"


def duration(ms: float) -> str:
    """Return milliseconds for people."""
    seconds = round(ms / 1000, 1)
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
