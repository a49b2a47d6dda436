"""Exceptions that mean to end a task or the process, when plugin code raises them.

Only the host ends the process, and only who cancels a task ends that. Where plugin code is
called, anything else that it raises is a failure of that plugin, as any error is: it becomes a
``StrayExit``, so that nothing that awaits or reports it is ended by it. An interrupt by Ctrl-C
is such a failure, too, and is raised once more from the loop, so that the host gets it.
"""

from __future__ import annotations

import asyncio
from asyncio import runners
from collections.abc import Awaitable
from opcode import opmap
from typing import TYPE_CHECKING, NoReturn, TypeVar

from dsh.kernel._shapes import being_cancelled
from dsh.kernel.errors import StrayExit

if TYPE_CHECKING:
    from dsh.kernel.fiber import Fiber

T = TypeVar("T")
_RAISE = opmap["RAISE_VARARGS"]


def told_to_stop(error: BaseException) -> bool:
    """Tell whether the catching coroutine itself is being cancelled, or closed, by ``error``.

    Ask it in the ``except`` clause. Who closes a coroutine throws into its own frame; what
    called code raised comes from a frame below.
    """
    if isinstance(error, asyncio.CancelledError):
        return being_cancelled()
    return is_close(error)


def is_close(error: BaseException) -> bool:
    """Tell whether the catching coroutine is being closed, and so may not await any more."""
    if not isinstance(error, GeneratorExit):
        return False
    traceback = error.__traceback__
    return traceback is None or traceback.tb_next is None


def as_failure(error: BaseException, owner: Fiber | None, label: str) -> Exception:
    """Return what plugin code raised as something that ends nothing but what failed."""
    if isinstance(error, Exception):
        return error
    if isinstance(error, KeyboardInterrupt) and _by_signal(error):
        _interrupt(error)
    failure = StrayExit(label, owner.title if owner is not None else "root", error)
    failure.__cause__ = error
    return failure


async def guarded(work: Awaitable[T], owner: Fiber | None, label: str) -> T:
    """Await plugin code in a task of its own, whose end by it must not end the loop."""
    try:
        return await work
    except Exception:
        raise
    except BaseException as error:
        if told_to_stop(error):
            raise
        raise as_failure(error, owner, label) from error


def _by_signal(error: KeyboardInterrupt) -> bool:
    """Tell whether an interrupt came from outside: no ``raise`` of a plugin is its origin."""
    traceback = error.__traceback__
    if traceback is None:
        return True
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code
    if code.co_filename == runners.__file__:
        return True
    return code.co_code[traceback.tb_lasti] != _RAISE


def _interrupt(error: KeyboardInterrupt) -> None:
    """Let the loop raise an interrupt in whoever runs it."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise error from None

    def rethrow() -> NoReturn:
        raise error

    loop.call_soon(rethrow)
