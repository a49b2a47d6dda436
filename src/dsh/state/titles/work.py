"""One piece of work on a title: waiting for its turn, then with the provider."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsh.base.signal import AbortController, AbortSignal
from dsh.state.titles.service import (
    SessionTitleProvider,
    SessionTitleSuperseded,
    TitleRequest,
    TitleResult,
    TitleResultInvalid,
)
from dsh.state.titles.text import normalize_session_title

if TYPE_CHECKING:
    from dsh.state.session.session import Session
    from dsh.state.titles.events import SessionTitleData, TitleSource
    from dsh.state.titles.text import TitleMessage


class TitleWork:
    """A title that is to be made for a session.

    Attributes:
        session: The session.
        task: What makes it; ``None`` while it waits for the session's own request.
    """

    def __init__(
        self, session: Session, messages: Sequence[TitleMessage], provider: SessionTitleProvider
    ) -> None:
        self.session = session
        self.task: asyncio.Task[None] | None = None
        self._messages = tuple(messages)
        self._provider = provider
        self._abort = AbortController()
        self._done: asyncio.Future[SessionTitleData] | None = None

    @property
    def signal(self) -> AbortSignal:
        """Aborts when the title is not wanted any more."""
        return self._abort.signal

    @property
    def done(self) -> asyncio.Future[SessionTitleData]:
        """Becomes the title; who reads it takes over the failure, too."""
        if self._done is None:
            self._done = asyncio.get_running_loop().create_future()
        return self._done

    def abort(self, cause: str) -> None:
        """Make the work void."""
        self._abort.abort(SessionTitleSuperseded(self.session.id, cause))

    def settle(self, outcome: SessionTitleData | Exception) -> bool:
        """Tell who waits how it ended; say whether anybody does."""
        if self._done is None:
            return False
        if not self._done.done():
            if isinstance(outcome, Exception):
                self._done.set_exception(outcome)
            else:
                self._done.set_result(outcome)
        return True

    async def make(self, max_bytes: int) -> SessionTitleData:
        """Ask the provider and return what to log.

        Raises:
            SessionTitleSuperseded: the work became void; the provider has ended.
            TitleResultInvalid: the provider's answer is no title of the request.
            Exception: what the provider raised.
        """
        request = TitleRequest(self.session, self._messages, self.signal)
        result = await self.signal.run(self._provider.make_title(request))
        self.signal.throw_if_aborted()
        return self._checked(result, max_bytes)

    def _checked(self, result: TitleResult, max_bytes: int) -> SessionTitleData:
        provider = self._provider.name
        title = normalize_session_title(result.title, max_bytes)
        if not title:
            raise TitleResultInvalid(provider, "it has no visible text")
        seqs = list(result.message_seqs)
        asked = [message.seq for message in self._messages]
        if not seqs or seqs != [seq for seq in asked if seq in seqs]:
            raise TitleResultInvalid(provider, f"it cites {seqs!r} of the messages {asked!r}")
        source: TitleSource = {"kind": "provider", "provider": provider}
        if result.model is not None:
            source["model"] = {
                "provider": result.model["provider"],
                "model": result.model["model"],
            }
        return {"title": title, "messageSeqs": seqs, "source": source}
