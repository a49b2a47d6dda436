"""What the log keeps of searches that a model's own server makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypedDict

from dsh.state.session.events import EventType


class SearchText(TypedDict):
    """Text of a search request."""

    type: Literal["text"]
    text: str


class SearchMessage(TypedDict):
    """The one message of a search request."""

    role: Literal["user"]
    content: Sequence[SearchText]


class SearchTool(TypedDict):
    """The tool that searches, on the other side."""

    type: Literal["web_search_20250305"]
    name: Literal["web_search"]
    max_uses: int


class SearchBody(TypedDict):
    """What is sent."""

    model: str
    max_tokens: int
    messages: Sequence[SearchMessage]
    tools: Sequence[SearchTool]


class DeepSeekSearchRequest(TypedDict):
    """A request as it is about to go out, without its key."""

    endpoint: str
    apiVersion: str
    body: SearchBody


DEEPSEEK_SEARCH_REQUEST: Final = EventType("web/deepseek-search-llm-request", DeepSeekSearchRequest)
"""Before each request, so that what it said to a model is on record."""
