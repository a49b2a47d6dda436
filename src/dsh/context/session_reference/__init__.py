"""Mentions of other sessions in a prompt: the definition, and the pure part."""

from dsh.context.session_reference.service import (
    PreparedReferences,
    ReferenceCandidate,
    SessionReference,
    SessionReferenceError,
    SessionReferenceResolver,
)
from dsh.context.session_reference.uri import (
    decode_session_reference_uri,
    encode_session_reference_uri,
    format_session_reference_mention,
    parse_session_reference_text,
)

__all__ = [
    "PreparedReferences",
    "ReferenceCandidate",
    "SessionReference",
    "SessionReferenceError",
    "SessionReferenceResolver",
    "decode_session_reference_uri",
    "encode_session_reference_uri",
    "format_session_reference_mention",
    "parse_session_reference_text",
]
