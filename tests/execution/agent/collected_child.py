"""Abandon coroutines of an agent, and enter boundaries while the collector finds them.

The collector may run inside of ``ContextVar.set``, where a finalizer that sets the same variable in
the same context crashes Python 3.11. Run by ``test_initiator_lazy``, for a crash ends the process.
"""

from __future__ import annotations

import contextvars
import gc
import types
from collections.abc import Iterator
from typing import Any, cast

from dsh.execution.agent.initiator import InitiatorScope

ROUNDS = 10_000


class Somebody:
    """Stands for an agent."""


@types.coroutine
def pause() -> Iterator[None]:
    yield


async def body(held: list[Any]) -> None:
    try:
        await pause()
    finally:
        # takes the place of whatever was freed just now
        _ = [bytearray(b"\xff" * size) for size in range(1, 400, 8)]


def main() -> None:
    scope, agent = InitiatorScope(), cast("Any", Somebody())
    contextvars.ContextVar[int]("other").set(1)

    def abandon() -> None:
        cycle: list[Any] = []
        made = scope.run(agent, lambda: body(cycle))
        made.send(None)
        cycle += [made, cycle]

    kept: list[list[None]] = []
    for number in range(ROUNDS):
        gc.disable()
        if number % 100 == 0:
            gc.collect()
        abandon()
        gc.enable()
        gc.set_threshold(1 + number % 40, 1, 1)
        _room: list[list[None]] = [[] for _ in range(number % 7)]
        for _ in range(8):
            scope.run(agent, bool)
        kept.append([])
        if number % 50 == 0:
            kept.clear()
    gc.collect()
    print(scope.active_runs)


main()
