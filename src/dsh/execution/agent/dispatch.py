"""Dispatch an agent's events so that subject and scope cannot differ."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, TypeVar

from dsh.execution.prompt.service import AssembleContext
from dsh.kernel import scope_target

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from dsh.base.signal import AbortSignal
    from dsh.execution.agent.service import Agent
    from dsh.kernel import Carrier, Context, Emit, Serial, Waterfall


class AgentPayload(Protocol):
    """What every ``agent/*`` payload has."""

    @property
    def agent(self) -> Agent:
        """The subject."""


P = TypeVar("P", bound=AgentPayload)
R = TypeVar("R")


class AgentEvents:
    """The dispatch methods of a context, bound to one agent."""

    __slots__ = ("_agent", "_carrier", "_ctx")

    def __init__(self, ctx: Context, agent: Agent, carrier: Carrier) -> None:
        self._ctx = ctx
        self._agent = agent
        self._carrier = carrier

    def emit(self, event: Emit[P], payload: P) -> None:
        """Tell the listeners that the agent's scope admits.

        Of a contained event nothing reaches the caller, not even a ``CancelledError`` that a
        listener raised or the veto of an invariant check: what the event tells has happened.
        """
        self._check(payload)
        try:
            self._ctx.emit(event, payload, self._carrier)
        except (Exception, asyncio.CancelledError) as error:
            if event.errors != "contain":
                raise
            self._ctx.report(error, label=f"emit {event.name}")

    async def serial(self, event: Serial[P, R], payload: P) -> R | None:
        """Ask the admitted listeners one by one."""
        self._check(payload)
        return await self._ctx.serial(event, payload, self._carrier)

    async def waterfall(
        self, event: Waterfall[P, R], payload: P, inner: Callable[[], R | Awaitable[R]]
    ) -> R:
        """Pass the admitted listeners around ``inner``."""
        self._check(payload)
        return await self._ctx.waterfall(event, payload, inner, self._carrier)

    def _check(self, payload: AgentPayload) -> None:
        if payload.agent is not self._agent:
            raise ValueError(
                f"an event about agent {payload.agent.id!r} cannot be dispatched "
                f"for agent {self._agent.id!r}"
            )


def agent_events(ctx: Context, agent: Agent, carrier: Carrier | None = None) -> AgentEvents:
    """Return the dispatch of ``agent``'s events from ``ctx``.

    Args:
        ctx: Whose filter applies beside the agent's scope.
        agent: The subject, which is also the scope key.
        carrier: A carrier made earlier for this agent, to save making another.
    """
    return AgentEvents(ctx, agent, carrier or scope_target(ctx, agent))


def assemble_context_for(agent: Agent, signal: AbortSignal | None = None) -> AssembleContext:
    """Return for whom ``agent``'s prompt is assembled: its scope and itself, together."""
    return AssembleContext(scope=agent, signal=signal, agent=agent)
