"""Frames and runs: the parts that initiator scopes and their lazy wrappers share."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from dsh.execution.agent.service import Agent


class RunCounter(Protocol):
    """Whoever counts runs in and out."""

    @property
    def store(self) -> object:
        """Whose identities they are: the same object for all doors to one store."""

    def begin(self, run: Run) -> None:
        """Count a run in, or raise because no more are taken."""

    def end(self, run: Run) -> None:
        """Count a run out."""

    def leave(self, run: Run) -> None:
        """Stop waiting for a run."""


class Run:
    """One boundary: its scope, its agent, and whether its work still counts.

    A run is *pending* (neither active nor released) while a lazy object lies unused: an object
    that nobody ever awaits must not hold up the end of its scope. A released run names its agent
    for as long as others hold it: contexts live on for as long as any task or timer made in them,
    and must not keep agents that are gone.
    """

    __slots__ = ("_agent", "_weak_agent", "active", "released", "scope", "store")

    def __init__(self, scope: RunCounter, agent: Agent | None) -> None:
        self.scope = scope
        self.store = scope.store
        self._agent = agent
        self._weak_agent: Callable[[], Agent | None] | None = None
        self.active = False
        self.released = False

    @property
    def agent(self) -> Agent | None:
        """Whose work this is; ``None`` for nobody's, and when the agent is gone."""
        return self._agent if self._weak_agent is None else self._weak_agent()

    def forget(self) -> None:
        """Name nobody any more."""
        self._agent = self._weak_agent = None

    def admit(self) -> None:
        """Let a lazy object take its first step.

        Raises:
            InitiatorScopeDisposed: the scope began to close while the object lay unused.
        """
        if not self.active and not self.released:
            self.scope.begin(self)

    def release(self) -> None:
        """Count the run as settled; later calls change nothing."""
        if self.released:
            return
        self.released = True
        self.scope.end(self)
        if self._agent is not None:
            try:
                self._weak_agent = weakref.ref(self._agent)
            except TypeError:  # an agent of some other loop, made without weak references
                return
            self._agent = None


class Frame:
    """A run as one context sees it, linked to the frames around it."""

    __slots__ = ("parent", "run")

    def __init__(self, run: Run, parent: Frame | None) -> None:
        self.run = run
        self.parent = parent


FRAME: ContextVar[Frame | None] = ContextVar("dsh_initiator", default=None)
"""The innermost frame. One variable serves all scopes: contexts keep their variables alive."""
