"""The seam of budgets, ``ctx.budgets``: what was used, what that costs, what is allowed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from dsh.base.errors import DshError
from dsh.base.values import value
from dsh.kernel import Service

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsh.control.budgets.events import BudgetScope, LimitName
    from dsh.execution.agent.service import Agent
    from dsh.model.chunks import TokenUsage
    from dsh.state.session.session import Session

__all__ = ["AgentCapReached", "BudgetUsage", "Budgets"]


@value
class BudgetUsage:
    """What was used, by a session or by a tree of agents."""

    turns: int
    """Turns that came to a step."""
    steps: int
    tokens: int
    """Input, cached or not, and output."""
    cost: float | None
    """None where a route that was used has no price."""
    currency: str
    wall_ms: int
    """Milliseconds in turns; of a tree, while any of its agents had a turn."""
    unpriced: str | None = None
    """The first route without a price, as ``provider/model``."""


class Budgets(Service, ABC):
    """Keeps count of what sessions use, and ends turns at the limits."""

    name: ClassVar[str] = "budgets"

    @property
    @abstractmethod
    def currency(self) -> str:
        """The label of all amounts."""

    @abstractmethod
    def cost_of(self, provider: str, model: str, usage: TokenUsage) -> float | None:
        """Return what some tokens of a route cost; None when the route has no price."""

    @abstractmethod
    def usage_of(self, session: Session) -> BudgetUsage:
        """Return what a session has used itself.

        What a fork inherited is not counted.
        """

    @abstractmethod
    def usage_of_tree(self, agent: Agent) -> BudgetUsage:
        """Return what the tree of a live agent has used, agents that are gone included."""

    @abstractmethod
    def limits_of(self, agent: Agent, scope: BudgetScope) -> Mapping[LimitName, float]:
        """Return the limits in force for an agent's session, or for its tree."""

    @abstractmethod
    def set_limit(
        self, agent: Agent, scope: BudgetScope, limit: LimitName, most: float | None
    ) -> int:
        """Set a limit for an agent's session, or for its tree; it outlives the process.

        Args:
            agent: A live agent.
            scope: What the limit is for.
            limit: What is limited.
            most: The limit; None for none, whatever is configured.

        Returns:
            The ``seq`` of the logged event, which for a tree is in the session of its root.

        Raises:
            ValueError: there is no such limit in this scope, or the number is no limit.
        """


class AgentCapReached(DshError):
    """A tree of agents may not grow: it has as many live agents, or levels, as it may have.

    Attributes:
        limit: ``agents`` or ``depth``.
        most: The limit.
        root: The session of the tree's root.
    """

    code = "BUDGET_AGENTS"

    def __init__(self, limit: LimitName, most: float, root: str) -> None:
        what = (
            f"it has {most:g} live agents, itself included"
            if limit == "agents"
            else f"its agents are {most:g} levels deep"
        )
        super().__init__(
            f"no further agent may be made below {root!r}: {what}, which is the most; do the work "
            f"without another agent, or raise tree.{limit} (/budget tree {limit} <n>, or the "
            "settings budgets)"
        )
        self.code = f"BUDGET_{limit.upper()}"
        self.limit, self.most, self.root = limit, most, root
