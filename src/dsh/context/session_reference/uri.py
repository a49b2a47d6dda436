"""How a prompt mentions a session: as a link, or as the bare address."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final, NamedTuple

from dsh.base.json import dumps, loads
from dsh.context.session_reference.service import SessionReference, SessionReferenceError

SCHEME: Final = "dsh-session:"

# Whatever begins like a link is taken as far as it goes, so that no text is looked at twice.
_LINK: Final = (
    r"@\[(?P<label>(?:\\.|[^\\\]])*+)(?:\](?:\((?P<link>dsh-session:[^)]*+)(?P<closed>\)?))?)?"
)
_BARE: Final = r"(?<![\w:/.+-])(?P<bare>dsh-session:[A-Za-z0-9_-]+)"
_MENTION: Final = re.compile(f"{_LINK}|{_BARE}", re.DOTALL)
_BARE_ONLY: Final = re.compile(_BARE)


class ParsedText(NamedTuple):
    """A text with labels in the place of mentions, and what it mentioned, in order."""

    text: str
    references: tuple[SessionReference, ...]


def encode_session_reference_uri(session_id: str) -> str:
    """Return the address of a session."""
    return SCHEME + base64.urlsafe_b64encode(dumps(session_id)).decode().rstrip("=")


def decode_session_reference_uri(uri: str) -> str:
    """Return the id of the session that an address is of.

    Raises:
        SessionReferenceError: ``INVALID_REFERENCE``; each session has exactly one address.
    """
    payload = uri.removeprefix(SCHEME)
    try:
        raw = base64.b64decode(payload + "=" * (-len(payload) % 4), altchars=b"-_", validate=True)
        session_id = loads(raw)
    except (ValueError, binascii.Error):
        session_id = None
    if not isinstance(session_id, str) or encode_session_reference_uri(session_id) != uri:
        raise SessionReferenceError(
            "SESSION_REFERENCE_INVALID_REFERENCE",
            f"{uri[:120]!r} is no address of a session; choose the session anew",
        )
    return session_id


def format_session_reference_mention(session_id: str, label: str) -> str:
    """Return the link that mentions a session in a prompt."""
    escaped = label.replace("\\", "\\\\").replace("]", "\\]")
    return f"@[{escaped}]({encode_session_reference_uri(session_id)})"


def parse_session_reference_text(text: str) -> ParsedText:
    """Find the mentions in a text.

    A bare address counts only when it is one; anything else that looks like it is text.

    Raises:
        SessionReferenceError: ``INVALID_REFERENCE``, when the address of a link is wrong.
    """
    if SCHEME not in text:
        return ParsedText(text, ())
    found: list[SessionReference] = []

    def replace(match: re.Match[str]) -> str:
        if match["bare"] is None and not match["closed"]:
            return _BARE_ONLY.sub(replace_bare, match[0])
        return noted(match, _link(match) if match["bare"] is None else _bare(match))

    def replace_bare(match: re.Match[str]) -> str:
        return noted(match, _bare(match))

    def noted(match: re.Match[str], reference: SessionReference | None) -> str:
        if reference is None:
            return match[0]
        found.append(reference)
        return f"@{reference.label}"

    return ParsedText(_MENTION.sub(replace, text), tuple(found))


def _link(match: re.Match[str]) -> SessionReference:
    session_id = decode_session_reference_uri(match["link"])
    label = re.sub(r"\\(.)", r"\1", match["label"], flags=re.DOTALL)
    return SessionReference(session_id, " ".join(label.split()) or session_id)


def _bare(match: re.Match[str]) -> SessionReference | None:
    try:
        session_id = decode_session_reference_uri(match["bare"])
    except SessionReferenceError:
        return None
    return SessionReference(session_id, session_id)
