"""The definition of ``ctx.session_title``: titles of live sessions, and who may write them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from dsh.base.errors import DshError
from dsh.base.values import value
from dsh.kernel import Service

if TYPE_CHECKING:
    from dsh.base.signal import AbortSignal
    from dsh.kernel import Effect
    from dsh.state.session.session import Session
    from dsh.state.titles.events import SessionTitleData, TitleModel
    from dsh.state.titles.text import TitleMessage

__all__ = [
    "SessionTitleError",
    "SessionTitleInvalidError",
    "SessionTitleProvider",
    "SessionTitleProviderTaken",
    "SessionTitleService",
    "SessionTitleSuperseded",
    "TitleRequest",
    "TitleResult",
    "TitleResultInvalid",
]


class SessionTitleError(DshError):
    """Anything about titles."""

    code = "SESSION_TITLE"


class SessionTitleInvalidError(SessionTitleError, ValueError):
    """Nothing of a given title can be shown."""

    code = "SESSION_TITLE_INVALID"

    def __init__(self) -> None:
        super().__init__("the title has no visible text; give at least one letter")


class TitleResultInvalid(SessionTitleError, ValueError):
    """What a provider returned is no title of the request."""

    code = "SESSION_TITLE_RESULT_INVALID"

    def __init__(self, provider: str, problem: str) -> None:
        super().__init__(f"the title provider {provider!r} returned no usable title: {problem}")
        self.provider, self.problem = provider, problem


class SessionTitleProviderTaken(SessionTitleError, ValueError):
    """There is a provider already, or one that still ends."""

    code = "SESSION_TITLE_PROVIDER_TAKEN"

    def __init__(self, registered: str, refused: str) -> None:
        super().__init__(
            f"the title provider {refused!r} cannot be registered beside {registered!r}: there "
            "is one at most; disable the row of the other one"
        )
        self.registered, self.refused = registered, refused


class SessionTitleSuperseded(SessionTitleError):
    """Something newer made this work on a title void."""

    code = "SESSION_TITLE_SUPERSEDED"

    def __init__(self, session_id: str, cause: str) -> None:
        super().__init__(f'the title of session "{session_id}" was not made: {cause}')
        self.session_id = session_id


@value(eq=False)
class TitleRequest:
    """A session wants a title.

    Attributes:
        session: The session; only read it, or append what the call needs for its account.
        messages: What the user wrote so far, oldest first; never empty.
        signal: Aborts when the title is not wanted any more.
    """

    session: Session
    messages: Sequence[TitleMessage]
    signal: AbortSignal


@value
class TitleResult:
    """A title.

    Attributes:
        title: Its text; it is made one line and cut to size.
        message_seqs: The messages of the request that it was made from, in order.
        model: The model that wrote it.
    """

    title: str
    message_seqs: Sequence[int]
    model: TitleModel | None = None


class SessionTitleProvider(Protocol):
    """Makes titles.

    Attributes:
        name: What the log calls it.
        automatic: When it is asked without anybody's wish: for the first message of a session
            that has no title, or for every message.
    """

    name: str
    automatic: Literal["first-prompt", "all-prompts"]

    async def make_title(self, request: TitleRequest) -> TitleResult:
        """Return a title; cancelled when its signal aborts."""
        ...


class SessionTitleService(Service, ABC):
    """Gives each session a title, and keeps the one that the user gives.

    The first words of the first message are the title until something better is known.
    """

    name: ClassVar[str] = "session_title"

    @abstractmethod
    def get(self, session: Session) -> SessionTitleData | None:
        """Return the title of a session as the log has it."""

    @abstractmethod
    def rename(self, session: Session, title: str) -> SessionTitleData:
        """Give a title that nothing automatic replaces; `regenerate` does.

        Raises:
            SessionTitleInvalidError: nothing of it can be shown.
            SessionNotLive: the session is not live.
        """

    @abstractmethod
    async def regenerate(self, session: Session) -> SessionTitleData | None:
        """Make the title anew, also one that the user gave; clients call it ``refresh``.

        Without a provider, the first words come back in the place of the user's title.

        Returns:
            The title then; ``None`` when nothing makes one.

        Raises:
            SessionNotLive: the session is not live.
            SessionTitleSuperseded: a newer message, title or request came, or the session left.
            TitleResultInvalid: the provider's answer is no title.
            Exception: what the provider raised.
        """

    @abstractmethod
    def register(self, provider: SessionTitleProvider) -> Effect:
        """Let a provider make the titles until the calling plugin unloads.

        Disposing aborts its work and waits for it; then another one may come.

        Raises:
            SessionTitleProviderTaken: there is one, or its work still ends.
        """
