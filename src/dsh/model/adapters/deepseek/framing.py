"""Heads of HTTP/1 answers, and where their bodies end."""

from __future__ import annotations

import re

import httpx

from dsh.base.values import value

__all__ = ["Head", "find_head", "parse_head"]

_MAX_HEAD_BYTES = 1 << 16
_END = re.compile(rb"\r?\n\r?\n")
_LINE = re.compile(rb"\r?\n")
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\r\x00]*)?")
_HEADER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\r\x00]*?)[ \t]*")
_DIGITS = re.compile(rb"[0-9]{1,18}")


@value
class Head:
    """Status and headers of an answer, and what they say of its body."""

    status: int
    headers: list[tuple[bytes, bytes]]
    chunked: bool
    length: int | None
    """Bytes of a body that is not chunked; ``None`` when the connection's end ends it."""
    keep: bool
    """Whether the connection lives on after the body."""


def find_head(data: bytes) -> tuple[bytes, bytes] | None:
    """Return the head and what follows it, once ``data`` has all of it.

    Raises:
        httpx.RemoteProtocolError: it is longer than any head.
    """
    if (end := _END.search(data)) is not None:
        return data[: end.start()], data[end.end() :]
    if len(data) > _MAX_HEAD_BYTES:
        raise httpx.RemoteProtocolError("the head of the answer does not end")
    return None


def parse_head(head: bytes, method: str) -> Head | None:
    """Read a head; ``None`` for one that only announces another.

    What could be read in two ways is refused: the rest of one answer must never be taken for
    the beginning of the next.

    Raises:
        httpx.RemoteProtocolError: it is no head of HTTP/1, or its framing is not known.
    """
    first, *lines = _LINE.split(head)
    matched = _STATUS.fullmatch(first)
    if matched is None:
        shown = first[:60].decode("latin-1")
        raise httpx.RemoteProtocolError(f"{shown!r} is no HTTP answer")
    status = int(matched[2])
    if status == 101:
        raise httpx.RemoteProtocolError("the server switches to another protocol")
    if status < 200:
        return None
    headers = [_header(line) for line in lines]
    options = _tokens(headers, b"connection")
    persistent = b"close" not in options and (matched[1] == b"1" or b"keep-alive" in options)
    length = _length(headers)
    if status in (204, 304) or method == "HEAD":
        return Head(status, headers, chunked=False, length=0, keep=persistent)
    coding = _tokens(headers, b"transfer-encoding")
    if coding and coding != [b"chunked"]:
        named = b", ".join(coding[:3])[:60].decode("latin-1")
        raise httpx.RemoteProtocolError(f"the answer has the unknown transfer coding {named!r}")
    known = bool(coding) != (length is not None)
    return Head(status, headers, bool(coding), length, keep=persistent and known)


def _header(line: bytes) -> tuple[bytes, bytes]:
    matched = _HEADER.fullmatch(line)
    if matched is None:
        raise httpx.RemoteProtocolError(f"{line[:60].decode('latin-1')!r} is no header")
    return matched[1], matched[2]


def _tokens(headers: list[tuple[bytes, bytes]], wanted: bytes) -> list[bytes]:
    """Return the members of a list header, in lower case."""
    values = [value for name, value in headers if name.lower() == wanted]
    members = (member.strip().lower() for value in values for member in value.split(b","))
    return [member for member in members if member]


def _length(headers: list[tuple[bytes, bytes]]) -> int | None:
    said = [value for name, value in headers if name.lower() == b"content-length"]
    if not said:
        return None
    members = {member.strip() for value in said for member in value.split(b",")}
    if len(members) > 1:
        raise httpx.RemoteProtocolError("the answer has several lengths")
    (value,) = members
    if not _DIGITS.fullmatch(value):
        raise httpx.RemoteProtocolError(f"{value[:40].decode('latin-1')!r} is no length")
    return int(value)
