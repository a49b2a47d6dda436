"""Row ``budgets``: counts what sessions and trees of agents use, and ends turns at their limits.

A limit is looked at before each step and before each attempt at a request, so what is in flight
may go over it by one reply. Wall time has a timer beside that, which aborts what runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from dsh.base.clock import SYSTEM_CLOCK
from dsh.control.budgets.config import LIMITS, Config, is_limit
from dsh.control.budgets.events import BUDGET_LIMIT, BUDGET_REACHED, BUDGET_SPENT, BudgetLimit
from dsh.control.budgets.limits import BEFORE_REQUEST, BEFORE_STEP, BEFORE_TURN, Limits, WallTimers
from dsh.control.budgets.service import Budgets, BudgetUsage
from dsh.control.budgets.spending import (
    Spending,
    Spent,
    Tokens,
    cost_of,
    cost_of_routes,
    price_of,
)
from dsh.control.budgets.tree import Member
from dsh.control.commands.service import CommandRuntime
from dsh.execution.agent.events import (
    AGENT_CREATED,
    AGENT_DISPOSED,
    AGENT_PRE_STEP,
    AGENT_REQUEST,
    AGENT_STATUS,
    AgentCreated,
    AgentDisposed,
    AgentPreStep,
    AgentRequest,
    AgentStatusChanged,
    PreStepDecision,
    Reject,
)
from dsh.execution.agent.service import AgentRegistry
from dsh.state.session.service import SessionStore
from dsh.state.settings.service import LiveSection

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from dsh.control.budgets.events import BudgetScope, LimitName
    from dsh.control.budgets.reached import Reached
    from dsh.execution.agent.service import Agent
    from dsh.kernel import Context, Next
    from dsh.model.chunks import TokenUsage
    from dsh.model.llm.service import LlmCallConfig
    from dsh.model.messages import SessionId
    from dsh.state.session.session import Session

__all__ = ["BudgetKeeper", "Config", "plugin"]


class BudgetKeeper(Budgets):
    """Follows every live agent of this process."""

    inject: ClassVar[Any] = (AgentRegistry, SessionStore)
    Config: ClassVar[Any] = Config

    def __init__(self, ctx: Context, config: Config) -> None:
        super().__init__(ctx, config)
        self._agents = ctx.require(AgentRegistry)
        self._members: dict[SessionId, Member] = {}
        row = config.model_dump(exclude_unset=True)
        self._settings = LiveSection(ctx, "budgets", Config, row=row, on_change=self._changed)
        self._limits = Limits(self._settings.get())
        self._timers = WallTimers(self._limits, self._end_turn)

    def start(self) -> None:
        """Follow all agents until this plugin unloads."""
        ctx = self.ctx
        sessions = ctx.require(SessionStore)
        for declared in (BUDGET_LIMIT, BUDGET_REACHED, BUDGET_SPENT):
            sessions.declare(declared)
        ctx.defer(self._stop_timers, "budgets.timers")
        for agent in self._agents.all():
            self._join(agent, check=False)
        # Whoever works has no step before it that would start its timer.
        for member in self._members.values():
            member.spending.catch_up()
        self._timers.renew(self._members.values())
        ctx.on(AGENT_CREATED, self._created)
        ctx.on(AGENT_DISPOSED, self._disposed)
        ctx.on(AGENT_STATUS, self._status)
        # Outermost: the last word on the route, and the first on whether there is a step at all.
        ctx.on(AGENT_PRE_STEP, self._before_step, prepend=True)
        ctx.on(AGENT_REQUEST, self._before_request, prepend=True)
        ctx.inject([CommandRuntime], self._offer_command)

    # what was used

    @property
    def currency(self) -> str:
        """See `Budgets.currency`."""
        return self._limits.config.currency

    def cost_of(self, provider: str, model: str, usage: TokenUsage) -> float | None:
        """See `Budgets.cost_of`."""
        price = price_of(self._limits.config.prices, f"{provider}/{model}")
        return None if price is None else cost_of(price, Tokens.of(usage))

    def usage_of(self, session: Session) -> BudgetUsage:
        """See `Budgets.usage_of`."""
        member = self._members.get(session.id)
        if member is None or member.agent.session is not session:
            spending = Spending(session)
            spending.catch_up()
            return self._usage(spending.own, spending.wall_ms(None))
        member.spending.catch_up()
        return self._usage(member.spending.own, member.spending.wall_ms(SYSTEM_CLOCK.now_ms()))

    def usage_of_tree(self, agent: Agent) -> BudgetUsage:
        """See `Budgets.usage_of_tree`."""
        tree = self._member(agent).tree
        for member in tree.members.values():
            member.spending.catch_up()
        return self._usage(tree.total, tree.wall_ms(SYSTEM_CLOCK.now_ms()))

    def _usage(self, spent: Spent, wall_ms: int) -> BudgetUsage:
        config = self._limits.config
        cost, unpriced = cost_of_routes(config.prices, spent.routes)
        return BudgetUsage(
            turns=spent.turns,
            steps=spent.steps,
            tokens=spent.tokens,
            cost=cost if unpriced is None else None,
            currency=config.currency,
            wall_ms=wall_ms,
            unpriced=unpriced,
        )

    # what is allowed

    def limits_of(self, agent: Agent, scope: BudgetScope) -> Mapping[LimitName, float]:
        """See `Budgets.limits_of`."""
        member = self._member(agent)
        member.spending.catch_up()
        member.tree.root.spending.catch_up()
        return dict(self._limits.most(member, scope))

    def set_limit(
        self, agent: Agent, scope: BudgetScope, limit: LimitName, most: float | None
    ) -> int:
        """See `Budgets.set_limit`."""
        if limit not in LIMITS[scope]:
            raise ValueError(f"a {scope} has no limit {limit!r}; it has {', '.join(LIMITS[scope])}")
        if most is not None and not is_limit(limit, most):
            raise ValueError(f"{most!r} is no limit of {limit}; give a positive number, or none")
        member = self._member(agent)
        holder = member if scope == "session" else member.tree.root
        data = BudgetLimit(scope=scope, limit=limit, max=most)
        event = holder.agent.session.append(BUDGET_LIMIT, data)
        holder.spending.catch_up()
        self._timers.renew(self._members.values())
        return event["seq"]

    def _changed(self, now: Config, before: Config) -> None:
        self._limits.replace(now)
        self._timers.renew(self._members.values())

    # who is there

    def _member(self, agent: Agent) -> Member:
        member = self._members.get(agent.id)
        if member is None or member.agent is not agent:
            member = self._join(agent, check=False)
        return member

    def _join(self, agent: Agent, *, check: bool) -> Member:
        owner = self._agents.owner_of(agent.id)
        member = Member(agent, None if owner is None else self._member(owner))
        if owner is not None:
            member.tree.root.spending.catch_up()  # the limits of a tree stand in its root's log
            if check:
                self._limits.check_caps(member)
        if self._agents.get(agent.id) is not agent:
            return member  # it is gone, and nobody would tell when to forget it
        self._members[agent.id] = member
        member.tree.join(member)
        member.tree.notice(member, agent.status == "running", SYSTEM_CLOCK.now_ms())
        return member

    def _created(self, event: AgentCreated) -> None:
        self._join(event.agent, check=True)

    def _disposed(self, event: AgentDisposed) -> None:
        member = self._members.get(event.agent.id)
        if member is not None and member.agent is event.agent:
            del self._members[event.agent.id]
            self._timers.stop(member)
            member.tree.leave(member, SYSTEM_CLOCK.now_ms())

    def _status(self, event: AgentStatusChanged) -> None:
        member = self._members.get(event.agent.id)
        if member is None or member.agent is not event.agent:
            return
        tree, now_ms = member.tree, SYSTEM_CLOCK.now_ms()
        tree.notice(member, event.status == "running", now_ms)
        if member.running:
            return
        self._timers.stop(member)
        if member is not tree.root:
            _ = tree.total  # what the root's log says of earlier times is read before it grows
            member.spending.catch_up()
            tree.keep(member, now_ms)

    # the limits

    def _before_step(
        self, event: AgentPreStep, next: Next[PreStepDecision]
    ) -> Awaitable[PreStepDecision] | PreStepDecision:
        member = self._member(event.agent)
        if event.signal.aborted or (member.known and not self._limits.concern(member)):
            return next()
        member.known = True
        member.spending.catch_up()
        reached = self._limits.reached(member, BEFORE_TURN if event.step == 1 else BEFORE_STEP)
        if reached is None:
            self._timers.start(member)
            return next()
        # What was claimed for this step has not been read by anybody; it waits for the next one.
        _put_back(event)
        self._end_turn(member, reached)
        return Reject()

    def _before_request(
        self, event: AgentRequest, next: Next[LlmCallConfig]
    ) -> Awaitable[LlmCallConfig]:
        member = self._member(event.agent)
        return self._check_request(event, member, next) if self._limits.concern(member) else next()

    async def _check_request(
        self, event: AgentRequest, member: Member, next: Next[LlmCallConfig]
    ) -> LlmCallConfig:
        config = await next()
        if event.signal.aborted or not isinstance(config, Mapping):
            return config
        member.spending.catch_up()
        reached = self._limits.reached(member, BEFORE_REQUEST)
        if reached is None:
            reached = self._limits.unpriced(
                member, f"{config.get('provider')}/{config.get('model')}"
            )
        if reached is not None:
            self._end_turn(member, reached)
        return config

    def _end_turn(self, member: Member, reached: Reached) -> None:
        agent = member.agent
        try:
            agent.session.append(BUDGET_REACHED, reached.event(member.spending.turn))
        finally:
            agent.cancel(reached.cause(), keep_inbox=True)

    def _stop_timers(self) -> None:
        for member in self._members.values():
            self._timers.stop(member)

    # the command

    def _offer_command(self, ctx: Context) -> None:
        from dsh.control.budgets.command import budget_command

        ctx.require(CommandRuntime).register(budget_command(self))


def _put_back(event: AgentPreStep) -> None:
    inbox = event.agent.inbox
    waiting = {message["id"] for message in (*inbox.next_turn, *inbox.next_step)}
    unread = [message for message in event.messages if message["id"] not in waiting]
    inbox.splice("next-step", 0, 0, unread)


plugin = BudgetKeeper
