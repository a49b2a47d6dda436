"""The configuration of the turn loop."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator


class ConfiguredAgent(BaseModel):
    """An agent that starts with the loop."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    id: str
    """Label of this row; a part of fresh session ids."""
    session_id: str | None = Field(None, alias="sessionId", min_length=1)
    """The exact session: resumed when it is stored, else made."""
    resume_session_id: str | None = Field(None, alias="resumeSessionId")
    """A stored session that must be there."""
    provider: str | None = None
    """Where its requests go."""
    model: str | None = None
    """Which model they ask."""
    max_tokens: PositiveInt | None = Field(None, alias="maxTokens", le=2**53 - 1)
    """Upper bound of one reply in tokens."""
    cwd: str | None = None
    """Working directory of a fresh session; absolute."""

    @model_validator(mode="after")
    def _has_one_identity(self) -> ConfiguredAgent:
        if self.session_id is not None and self.resume_session_id:
            raise ValueError(
                f"agent {self.id!r} sets both sessionId and resumeSessionId; keep one of them"
            )
        return self

    @property
    def identity(self) -> str | None:
        """The exact session it asks for, if any."""
        return self.session_id or self.resume_session_id or None


class Config(BaseModel):
    """How the loop runs tools, and which agents it starts."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    max_parallel_tool_calls: PositiveInt = Field(10, alias="maxParallelToolCalls")
    """How many tool bodies of one step may run at once; 1 runs them one after the other."""
    grace_ms: float = Field(2000, alias="graceMs", ge=0, allow_inf_nan=False)
    """Milliseconds that listeners and the model may take to stop after an abort, before they are
    cancelled. Bodies of tools have the ``graceMs`` of the row ``tools``."""
    agents: list[ConfiguredAgent] = Field(default_factory=list)
    """Agents that start with the loop."""


class LoopSettings(BaseModel):
    """What a user may set of the loop."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, frozen=True)

    max_parallel_tool_calls: PositiveInt = Field(10, alias="maxParallelToolCalls")
    """How many tool bodies of one step may run at once; 1 runs them one after the other."""


def refuse_shared_identities(agents: Sequence[ConfiguredAgent]) -> None:
    """Refuse two configured agents that ask for one session.

    Raises:
        ValueError: names both rows and the session.
    """
    seen: dict[str, str] = {}
    for agent in agents:
        identity = agent.identity
        if identity is None:
            continue
        if identity in seen:
            raise ValueError(
                f"agents {seen[identity]!r} and {agent.id!r} both ask for session {identity!r}"
            )
        seen[identity] = agent.id
