"""Messages between dsh and a supervisor, over one stream socket each command.

dsh sends one request: a length, JSON, and descriptors beside its first bytes. After it dsh sends
single bytes. The supervisor answers with JSON, one line a message.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import Any, TypedDict

TERMINATE = b"T"
"""End the tree: SIGTERM, grace period, SIGKILL."""

_LENGTH = struct.Struct("!I")
MAX_PASS_FDS = 64
"""Descriptors of one request beside the three of every program."""


class Request(TypedDict):
    """What to run; strings may hold surrogate escapes for undecodable bytes."""

    argv: list[str]
    cwd: str
    env: dict[str, str]
    fds: list[int]
    """Number in the program of each descriptor that comes along; 0, 1 and 2 are always there."""
    grace_s: float
    read: list[str]
    write: list[str] | None
    """``None``: no Landlock."""
    runner: bool
    keep_descendants: bool


def encode_request(request: Request) -> bytes:
    """Return the bytes of a request."""
    body = json.dumps(request).encode("ascii")
    return _LENGTH.pack(len(body)) + body


def receive_request(link: socket.socket) -> tuple[Request, list[int]] | None:
    """Return the request and the descriptors that came with it; ``None`` on a closed link."""
    data, fds = receive_with_fds(link, 65536, MAX_PASS_FDS + 3)
    while len(data) < _LENGTH.size or len(data) < _LENGTH.size + _length(data):
        more = link.recv(1 << 20)
        if not more:
            return None
        data += more
    request: Request = json.loads(data[_LENGTH.size :])
    return request, fds


def receive_with_fds(source: socket.socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """Return some bytes and the descriptors beside them, which no program will inherit."""
    data, fds, _, _ = socket.recv_fds(source, size, most)
    for fd in fds:
        os.set_inheritable(fd, False)
    return data, fds


def encode_message(message: dict[str, Any]) -> bytes:
    """Return the line of a supervisor's message."""
    return json.dumps(message).encode("ascii") + b"\n"


def _length(data: bytes) -> int:
    size: int = _LENGTH.unpack_from(data)[0]
    return size
