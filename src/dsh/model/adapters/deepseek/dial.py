"""Connecting to the first address of a host that answers."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

__all__ = ["dial"]

_STAGGER_S = 0.25


async def dial(host: str, port: int) -> socket.socket:
    """Return a connected socket.

    A host may have several addresses, some of which swallow what is sent to them. Each next one
    is tried when the one before failed, or took a moment too long. Unlike the race that asyncio
    has, this one leaves no socket behind when it is cancelled.

    Raises:
        OSError: no address answers; or the name is unknown.
    """
    addresses = _literal(host, port) or await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    )
    if len(addresses) == 1:
        return await _connect(addresses[0])
    waiting = _alternating(addresses)
    tried: list[asyncio.Task[socket.socket]] = []
    won: socket.socket | None = None
    try:
        while won is None:
            running = [task for task in tried if not task.done()]
            if waiting:
                task = asyncio.create_task(_connect(waiting.pop(0)), name="llm-deepseek.dial")
                tried.append(task)
                running.append(task)
            elif not running:
                raise _failure(tried)
            pause = _STAGGER_S if waiting else None
            done, _ = await asyncio.wait(
                running, timeout=pause, return_when=asyncio.FIRST_COMPLETED
            )
            won = next((task.result() for task in done if task.exception() is None), None)
        return won
    finally:
        for task in tried:
            task.cancel()
        for end in await asyncio.gather(*tried, return_exceptions=True):
            if isinstance(end, socket.socket) and end is not won:
                end.close()


async def _connect(address: Any) -> socket.socket:
    family, kind, protocol, _, place = address
    made = socket.socket(family, kind, protocol)
    try:
        made.setblocking(False)
        await asyncio.get_running_loop().sock_connect(made, place)
    except BaseException:
        made.close()
        raise
    return made


def _literal(host: str, port: int) -> list[Any]:
    """Return the address when ``host`` is one; to ask the resolver would take a thread."""
    try:
        return socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        )
    except socket.gaierror:
        return []


def _alternating(addresses: list[Any]) -> list[Any]:
    """Return the addresses with the first of each family in front."""
    firsts = {address[0]: address for address in reversed(addresses)}.values()
    return [
        *(address for address in addresses if address in firsts),
        *(address for address in addresses if address not in firsts),
    ]


def _failure(tried: list[asyncio.Task[socket.socket]]) -> OSError:
    errors = [error for task in tried if (error := task.exception()) is not None]
    said = list(dict.fromkeys(str(error) for error in errors))
    return OSError("; ".join(said))
