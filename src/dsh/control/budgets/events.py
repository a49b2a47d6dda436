"""What the log keeps of budgets; the model never sees any of it."""

from collections.abc import Sequence
from typing import Final, Literal, NotRequired, TypeAlias, TypedDict

from dsh.state.session.events import EventType

__all__ = [
    "BUDGET_LIMIT",
    "BUDGET_REACHED",
    "BUDGET_SPENT",
    "BudgetLimit",
    "BudgetReached",
    "BudgetScope",
    "BudgetSpent",
    "LimitName",
    "RouteTokens",
]

BudgetScope: TypeAlias = Literal["session", "tree"]
"""One session, or the agent that nobody owns with all agents below it."""

LimitName: TypeAlias = Literal["turns", "steps", "tokens", "money", "wallMs", "agents", "depth"]
"""What is limited; the last two only in a tree."""


class BudgetReached(TypedDict):
    """A budget is used up; the turn ends."""

    turn: int
    scope: BudgetScope
    limit: LimitName
    used: NotRequired[float]
    """Absent when it cannot be told, for lack of a price."""
    max: float
    currency: NotRequired[str]
    unpriced: NotRequired[str]
    """The route, as ``provider/model``, that has no price."""
    root: NotRequired[str]
    """With scope ``tree``: the session whose tree it is."""


class BudgetLimit(TypedDict):
    """Somebody set a limit for this session, or for the tree below it; the last one counts."""

    scope: BudgetScope
    limit: LimitName
    max: float | None
    """None: no limit, whatever is configured."""


class RouteTokens(TypedDict):
    """The tokens of one model route."""

    route: str
    """As ``provider/model``."""
    input: int
    cacheRead: int
    cacheWrite: int
    output: int


class BudgetSpent(TypedDict):
    """All that another session of this session's tree has used so far; the last one counts."""

    session: str
    turns: int
    steps: int
    tokens: Sequence[RouteTokens]
    apartMs: int
    """How long, in all, agents of the tree have worked while this session's agent had no turn."""


BUDGET_REACHED: Final = EventType("budget/reached", BudgetReached, ignorable=True)
"""In the session whose turn ends, before its end."""
BUDGET_LIMIT: Final = EventType("budget/limit", BudgetLimit, ignorable=True)
"""A limit of a tree stands in the session of its root."""
BUDGET_SPENT: Final = EventType("budget/spent", BudgetSpent, ignorable=True)
"""In the session of a tree's root, whenever an agent below comes to rest."""
