"""Pure functions over titles: what is in a log, and what may be made of a text.

Nothing here needs the service, so listings and exporters use it on stored logs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from dsh.base.text import cut_utf8, replace_surrogates
from dsh.base.values import value

if TYPE_CHECKING:
    from dsh.state.titles.events import SessionTitleData

__all__ = [
    "TitleMessage",
    "collect_session_title_messages",
    "eligible_text",
    "fallback_session_title",
    "fold_session_title",
    "latest_session_title",
    "normalize_session_title",
    "truncate_title_utf8",
]

_SEQUENCES: Final = re.compile(
    "(?:\x1b\\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\\\|\x9c|(?=\x1b)|\\Z)"  # OSC, also without end
    "|(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI
    "|\x1b[ -/]*[0-~]"  # the other escapes
)
_CUT_ESCAPE: Final = re.compile("\x1b[ -/]*\\Z")
_CONTROLS: Final = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f]")
_INVISIBLE: Final = re.compile("[\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff]")
_FIRST_LOOK: Final = 1024
"""Characters that are read at first; titles are short."""


@value
class TitleMessage:
    """What the user wrote in one message.

    Attributes:
        seq: The event that holds it.
        text: Its text, as it was written.
    """

    seq: int
    text: str


def latest_session_title(events: Iterable[Mapping[str, Any]]) -> SessionTitleData | None:
    """Return the title that a log ends with, and who made it; ``None`` without one."""
    newest_first = reversed(events) if isinstance(events, Sequence) else reversed(list(events))
    for event in newest_first:
        if event["type"] == "session/title":
            return cast("SessionTitleData", event["data"])
    return None


def fold_session_title(events: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the text of the title that a log ends with."""
    latest = latest_session_title(events)
    title = None if latest is None else latest.get("title")
    return title if isinstance(title, str) else None


def eligible_text(event: Mapping[str, Any]) -> str | None:
    """Return what the user wrote in an event; ``None`` when that makes no title.

    Messages that others put in the user's place, and those without visible text, make none.
    """
    if event["type"] != "user/message":
        return None
    message: Any = event["data"]
    source = message.get("source")
    if not isinstance(source, Mapping) or source.get("kind") != "user":
        return None
    blocks = message["content"]
    text = "\n".join(block["text"] for block in blocks if block.get("type") == "text")
    return text if _plain(text, 1) else None


def collect_session_title_messages(
    events: Iterable[Mapping[str, Any]], through_seq: int | None = None
) -> list[TitleMessage]:
    """Return the messages that a title can be made from, oldest first.

    Args:
        events: A log from its beginning.
        through_seq: The last event that counts; all when absent.
    """
    found: list[TitleMessage] = []
    for event in events:
        if through_seq is not None and event["seq"] > through_seq:
            break
        text = eligible_text(event)
        if text is not None:
            found.append(TitleMessage(event["seq"], text))
    return found


def normalize_session_title(text: str, max_bytes: int) -> str:
    """Return a text as one visible line of at most so many bytes of UTF-8; it may be empty."""
    return truncate_title_utf8(_plain(text, max_bytes), max_bytes)


def fallback_session_title(text: str, max_words: int, max_bytes: int) -> str | None:
    """Return the first words of a text as a title; ``None`` when nothing of it fits."""
    words = _plain(text, max_bytes).split(" ")[:max_words]
    return truncate_title_utf8(" ".join(words), max_bytes) or None


def truncate_title_utf8(text: str, max_bytes: int) -> str:
    """Cut a text to so many bytes of UTF-8, between characters, without a space at its end."""
    return cut_utf8(text, max_bytes).rstrip()


def _plain(text: str, enough_bytes: int) -> str:
    """Return the beginning of a text as one line without escapes and what cannot be seen.

    It has more than so many bytes, unless the whole text has not: a pasted book is not read to
    its end for five words.
    """
    length = _FIRST_LOOK + 4 * enough_bytes
    while length < len(text):
        # The beginning of an escape must not be taken for text; the others end where a text does.
        seen = _visible(_CUT_ESCAPE.sub("", text[:length]))
        if len(seen) > enough_bytes:
            return seen
        length *= 8
    return _visible(text)


def _visible(text: str) -> str:
    text = _SEQUENCES.sub("", text)
    text = _INVISIBLE.sub("", _CONTROLS.sub("", text))
    return replace_surrogates(" ".join(text.split()))
