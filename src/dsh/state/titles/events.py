"""What the log keeps of titles; the model of the session never sees any of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NotRequired, TypedDict

from dsh.state.session.events import EventType

__all__ = [
    "SESSION_TITLE",
    "SESSION_TITLE_LLM_REQUEST",
    "SessionTitleData",
    "SessionTitleLlmRequest",
    "TitleModel",
    "TitleSource",
]


class TitleModel(TypedDict):
    """The model that wrote a title."""

    provider: str
    model: str


class TitleSource(TypedDict):
    """Who made a title: ``kind`` is ``fallback``, ``provider`` or ``user``."""

    kind: str
    provider: NotRequired[str]
    model: NotRequired[TitleModel]


class SessionTitleData(TypedDict):
    """The title from here on; the last one counts.

    ``messageSeqs`` are the messages it was made from: none when the user gave it.
    """

    title: str
    messageSeqs: Sequence[int]
    source: TitleSource


class SessionTitleLlmRequest(TypedDict):
    """A model is about to be asked for a title."""

    titleProvider: str
    messageSeqs: Sequence[int]
    route: TitleModel
    system: str
    messages: Sequence[Mapping[str, object]]
    maxTokens: int


SESSION_TITLE: Final = EventType("session/title", SessionTitleData)
"""A title was made or given."""
SESSION_TITLE_LLM_REQUEST: Final = EventType("session/title-llm-request", SessionTitleLlmRequest)
"""Before the call of the model, so that its cost is accounted for."""
