"""What a rehearsal script consists of; ``docs/rehearsal.md`` describes it for its users."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from dsh.base.values import value

__all__ = [
    "FAULT_KINDS",
    "QUIRKS",
    "Conversation",
    "Expectation",
    "Fault",
    "FaultKind",
    "Matcher",
    "Reply",
    "Script",
    "ScriptedCall",
]

Order = Literal["arrival", "history"]
FaultKind = Literal[
    "status", "reset", "cut", "close", "stall", "malformed", "error", "empty", "body"
]
FAULT_KINDS: tuple[FaultKind, ...] = (
    "status",
    "reset",
    "cut",
    "close",
    "stall",
    "malformed",
    "error",
    "empty",
    "body",
)
QUIRKS = (
    "null_fields",
    "empty_fields",
    "repeat_fields",
    "reuse_index",
    "no_index",
    "interleave",
    "duplicate_ids",
    "usage_with_finish",
    "crlf",
    "comments",
    "no_space",
    "done_without_blank_line",
    "bom",
)
"""Ways to say the same thing in another dialect of the wire; see ``docs/rehearsal.md``."""


@value
class Matcher:
    """Conditions on a text; all of them must hold."""

    contains: tuple[str, ...] = ()
    not_contains: tuple[str, ...] = ()
    matches: re.Pattern[str] | None = None

    def problem(self, text: str) -> str | None:
        """Say which condition ``text`` fails; ``None`` when it meets all."""
        for part in self.contains:
            if part not in text:
                return f"text that contains {part!r}"
        for part in self.not_contains:
            if part in text:
                return f"text without {part!r}"
        if self.matches is not None and self.matches.search(text) is None:
            return f"text that matches {self.matches.pattern!r}"
        return None


@value
class Expectation:
    """What one tool result must be like before a reply is given."""

    place: str
    call: str | int | None = None
    """Name of the tool, number of the call from 1, or ``None``: the one at the same place."""
    text: Matcher = Matcher()
    is_error: bool | None = None


@value
class ScriptedCall:
    """A tool call of a reply."""

    name: str
    arguments: Mapping[str, Any] | None = None
    raw_arguments: str | None = None
    """Used as it is, for calls whose arguments are no JSON object."""
    id: str | None = None


@value
class Fault:
    """How an attempt goes wrong. No reply comes of it, so the next attempt gets the next reply."""

    kind: FaultKind
    after: int = 0
    """Chunks that are sent before it happens."""
    status: int = 500
    message: str | None = None
    code: str | None = None
    retry_after: str | None = None
    request_id: str | None = None
    seconds: float | None = None
    """How long a stall lasts; ``None``: until the client gives up."""
    data: str = ""
    """Body, or the malformed event."""
    content_type: str = "application/json"


@value
class Reply:
    """One answer of the scripted model."""

    place: str
    text: tuple[str, ...] = ()
    """One text, cut into chunks; or the chunks themselves."""
    reasoning: tuple[str, ...] = ()
    calls: tuple[ScriptedCall, ...] = ()
    expect: tuple[Expectation, ...] = ()
    chunk_size: int | None = None
    delay_ms: float | None = None
    first_delay_ms: float | None = None
    comment_ms: float | None = None
    """How often a comment is sent while the reply waits, to keep the connection alive."""
    usage: Mapping[str, int] | None = None
    finish: str | None = None
    """Wire word for why it ends; from the calls when absent."""
    quirks: frozenset[str] = frozenset()
    write_bytes: int | None = None
    """Size of the network writes, to cut events and characters at odd places."""
    fault: Fault | None = None
    repeat: int = 1


@value
class Conversation:
    """Replies for the requests that match."""

    place: str
    replies: tuple[Reply, ...]
    when: Matcher | None = None
    session: re.Pattern[str] | None = None


@value
class Script:
    """A whole script."""

    source: str
    conversations: tuple[Conversation, ...]
    title: str = ""
    order: Order = "arrival"
    variables: Mapping[str, str] = field(default_factory=dict)
    models: tuple[str, ...] = ()
    """Models that exist; empty: all do."""
    api_key: str | None = None
    """The one key that is accepted; ``None``: any."""
    chunk_size: int = 24
    delay_ms: float = 0.0

    @property
    def replies(self) -> int:
        """How many replies there are in all, faults included."""
        return sum(len(conversation.replies) for conversation in self.conversations)
