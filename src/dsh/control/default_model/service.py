"""The seam of the default model: which route a new agent takes when nobody says otherwise."""

from __future__ import annotations

from abc import ABC, abstractmethod

from dsh.base.values import value
from dsh.kernel import Service


@value
class ModelSelection:
    """A model route, with an effort when one was chosen."""

    provider: str
    model: str
    reasoning_effort: str | None = None


class AgentDefaultModel(Service, ABC):
    """Knows the selection for agents that bring none."""

    name = "agent_default_model"

    @abstractmethod
    def current_selection(self) -> ModelSelection:
        """The selection now; not checked against any catalogue."""

    @abstractmethod
    async def save_selection(self, selection: ModelSelection) -> None:
        """Make a selection the user's default; without a settings store nothing happens."""
