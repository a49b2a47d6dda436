"""The definition of ``ctx.session_reference_resolver``: other sessions, cited in a prompt."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from dsh.base.errors import DshError
from dsh.base.values import value
from dsh.kernel import Service

if TYPE_CHECKING:
    from dsh.base.signal import AbortSignal
    from dsh.execution.agent.service import Agent
    from dsh.model.messages import ContentBlock, UserMessage

SessionReferenceCode: TypeAlias = Literal[
    "SESSION_REFERENCE_BUDGET_EXCEEDED",
    "SESSION_REFERENCE_CANCELLED",
    "SESSION_REFERENCE_INVALID_CONFIG",
    "SESSION_REFERENCE_INVALID_REFERENCE",
    "SESSION_REFERENCE_READ_FAILED",
    "SESSION_REFERENCE_SELF_REFERENCE",
    "SESSION_REFERENCE_TOO_MANY",
]
"""Every way a reference fails; the set is closed."""


class SessionReferenceError(DshError):
    """Sessions cannot be cited as asked for.

    Attributes:
        code: One of `SessionReferenceCode`.
    """

    code: str = "SESSION_REFERENCE_INVALID_REFERENCE"

    def __init__(self, code: SessionReferenceCode, message: str) -> None:
        super().__init__(message, code=code)


@value
class SessionReference:
    """A mention of a session.

    Attributes:
        session_id: The session.
        label: What the prompt calls it.
    """

    session_id: str
    label: str


@value
class ReferenceCandidate:
    """A session that can be cited."""

    session_id: str
    title: str | None
    cwd: str | None
    created_at: int


@value
class PreparedReferences:
    """A prompt as the model gets it.

    Attributes:
        content: The blocks, with labels in the place of mentions.
        recall: What the model is told of the cited sessions; ``None`` when none is.
    """

    content: Sequence[ContentBlock]
    recall: UserMessage | None


class SessionReferenceResolver(Service, ABC):
    """Turns mentions of sessions into what was said in them, at the moment of the mention.

    What the model gets is a message of its own in the log of the citing session, so that whatever
    becomes of the cited one later changes nothing there.
    """

    name: ClassVar[str] = "session_reference_resolver"

    @abstractmethod
    async def list_candidates(
        self, agent: Agent, query: str = "", limit: int | None = None
    ) -> list[ReferenceCandidate]:
        """Return the sessions that an agent's user may want to cite, the likeliest first.

        Sessions of the same working directory come first, newer ones before older ones.

        Args:
            agent: Whose session is left out.
            query: Part of the id, the title or the working directory; all when empty.
            limit: The most to return; at most, and by default, what the config says.

        Raises:
            SessionReferenceError: ``READ_FAILED``, or ``INVALID_REFERENCE`` for a wrong limit.
        """

    @abstractmethod
    async def prepare(
        self,
        agent: Agent,
        content: Sequence[ContentBlock],
        references: Sequence[SessionReference] = (),
        *,
        signal: AbortSignal | None = None,
    ) -> PreparedReferences:
        """Read the sessions that a prompt mentions.

        Args:
            agent: Who is prompted.
            content: The prompt; mentions in its text blocks count.
            references: More sessions to cite, ahead of those.
            signal: Ends the reading.

        Raises:
            SessionReferenceError: a mention is malformed or cites the agent's own session, there
                are too many, or a session cannot be read or made small enough.
        """
