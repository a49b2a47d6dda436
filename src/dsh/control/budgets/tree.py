"""The agents of one tree, and what they have used together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh.control.budgets.events import BUDGET_SPENT, BudgetSpent
from dsh.control.budgets.spending import Spending, Spent

if TYPE_CHECKING:
    import asyncio

    from dsh.execution.agent.service import Agent
    from dsh.model.messages import SessionId

__all__ = ["Member", "Tree"]


class Member:
    """A live agent in its tree."""

    __slots__ = ("agent", "depth", "known", "running", "spending", "timer", "told", "tree")

    def __init__(self, agent: Agent, owner: Member | None) -> None:
        self.agent = agent
        self.spending = Spending(agent.session)
        self.running = False
        self.known = False
        """Whether its log was read once, so that limits which somebody set for it are known."""
        self.timer: asyncio.TimerHandle | None = None
        """Until the wall time of its session or its tree is over."""
        self.told: tuple[int, int] = (0, 0)
        """Steps and tokens, when the root's log was last told of it."""
        self.depth: int = 0 if owner is None else owner.depth + 1
        self.tree: Tree = Tree(self) if owner is None else owner.tree


class Tree:
    """An agent that nobody owns, and all agents below it.

    The total grows with each member's own count, so that asking for it costs nothing. What agents
    used that are gone stays in it; the root's log keeps that for a later process.
    """

    __slots__ = ("_apart_ms", "_apart_since", "_gone", "_running", "_total", "members", "root")

    def __init__(self, root: Member) -> None:
        self.root = root
        self.members: dict[SessionId, Member] = {}
        self._total: Spent | None = None
        self._gone: dict[str, Spent] = {}
        self._apart_ms = 0
        self._apart_since: int | None = None
        self._running = 0

    @property
    def total(self) -> Spent:
        """What all members, live and gone, have used; built when it is first asked for."""
        if self._total is None:
            self._total = self._sum()
        return self._total

    def join(self, member: Member) -> None:
        """Take in a live agent."""
        self.members[member.agent.id] = member
        if self._total is not None:
            self._attach(member, self._total)

    def leave(self, member: Member, now_ms: int) -> None:
        """Let an agent go; what it used stays."""
        self.members.pop(member.agent.id, None)
        self.notice(member, False, now_ms)
        if self._total is None:
            return
        member.spending.catch_up()
        member.spending.totals = [member.spending.own]
        if member is not self.root:
            self._gone[member.agent.id] = member.spending.own.copy()

    def notice(self, member: Member, running: bool, now_ms: int) -> None:
        """Take note that a member has begun to work or come to rest."""
        self._running += running - member.running
        member.running = running
        self._apart_ms, self._apart_since = self._apart_until(now_ms), None
        if self._running and not self.root.running:
            self._apart_since = now_ms

    def wall_ms(self, now_ms: int) -> int:
        """Return how long the root had a turn, or any other member while the root had none."""
        _ = self.total  # with it comes what the root's log says of earlier times
        return self.root.spending.wall_ms(now_ms) + self._apart_until(now_ms)

    def keep(self, member: Member, now_ms: int) -> None:
        """Write into the root's log what a member below it has used, if that has grown."""
        own = member.spending.own
        mark = (own.steps, own.tokens)
        if member is self.root or mark == member.told:
            return
        member.told = mark
        data = BudgetSpent(
            session=member.agent.id,
            turns=own.turns,
            steps=own.steps,
            tokens=own.tokens_by_route(),
            apartMs=self._apart_until(now_ms),
        )
        session = self.root.agent.session
        session.when_published(lambda: session.append(BUDGET_SPENT, data))

    def _apart_until(self, now_ms: int) -> int:
        since = now_ms if self._apart_since is None else self._apart_since
        return self._apart_ms + max(0, now_ms - since)

    def _sum(self) -> Spent:
        total, root = Spent(), self.root.spending
        root.catch_up()
        self._apart_ms += root.apart_ms
        for session, spent in root.below.items():
            if session not in self.members:
                self._gone[session] = spent
                total.add(spent)
        for member in self.members.values():
            self._attach(member, total)
        return total

    def _attach(self, member: Member, total: Spent) -> None:
        member.spending.catch_up()
        if (counted := self._gone.pop(member.agent.id, None)) is not None:
            total.add(counted, -1)
        total.add(member.spending.own)
        member.spending.totals.append(total)
