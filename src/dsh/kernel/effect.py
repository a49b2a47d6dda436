"""Effects: what a plugin did, together with how to undo it.

An effect belongs to one fiber and is undone by its owner's unload at the latest. It is
registered before its setup runs, so an unload that starts inside the setup waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from types import BuiltinMethodType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, TypeAlias

from dsh.kernel._overdue import limit_setup
from dsh.kernel._shapes import (
    Handle,
    aclose,
    being_cancelled,
    close,
    enter_into,
    is_awaitable,
    is_fiber,
    resume,
    resume_async,
)
from dsh.kernel._stack import begin_anyway, check_effect_join, enter_frame, wait_task
from dsh.kernel._stray import as_failure, is_close, told_to_stop
from dsh.kernel.disposal import SETTLED, Disposal, EffectInfo
from dsh.kernel.errors import InvalidEffect

if TYPE_CHECKING:
    from dsh.kernel.fiber import Fiber

SETUP, LIVE, UNDOING, DONE = range(4)
_CALLABLES = (FunctionType, MethodType, partial, BuiltinMethodType)


class Effect(Handle, Awaitable["Effect"]):
    """A registration that can be undone once.

    Awaiting it waits for an asynchronous setup and raises what the setup raised.

    Attributes:
        label: What ``Fiber.effects`` shows; ``anonymous`` effects are not shown.
    """

    __slots__ = (
        "__weakref__",
        "_error",
        "_fiber",
        "_serial",
        "_state",
        "_stop",
        "_task",
        "_undos",
        "label",
    )

    def __init__(self, fiber: Fiber, label: str, undo: Any = None) -> None:
        self.label = label
        self._fiber = fiber
        self._undos: list[Any] = [] if undo is None else [undo]
        self._state = LIVE
        self._stop = False
        self._task: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        kernel = fiber.kernel
        kernel.serial += 1
        self._serial = kernel.serial
        fiber._effects[self._serial] = self

    def __repr__(self) -> str:
        return f"<Effect {self.label} of {self._fiber.title}>"

    @property
    def done(self) -> bool:
        """Whether the effect is undone, or its setup failed."""
        return self._state == DONE

    @property
    def children(self) -> tuple[Effect, ...]:
        """The live effects collected into this one, oldest first."""
        found = (item for item in self._undos if isinstance(item, Effect))
        return tuple(child for child in found if not child.done)

    def __await__(self) -> Generator[Any, None, Effect]:
        return self._settle().__await__()

    async def _settle(self) -> Effect:
        if self._state == SETUP and self._task is not None:
            check_effect_join(self)
            await wait_task(self._task)
        if self._error is not None:
            raise self._error
        return self

    def dispose(self) -> Disposal:
        """Undo now; synchronous undos have run on return, the rest is joined by awaiting.

        Only the first call acts. Errors of undos are reported, not raised, and every undo runs.

        Raises:
            WrongLoop: the root belongs to another loop or thread.
        """
        if self._state >= UNDOING or (self._state == SETUP and self._stop):
            return SETTLED
        self._fiber.kernel.check_loop("the effect")
        if self._state == SETUP:
            self._end_setup()
            return Disposal(effect=self, task=self._task)
        rest = self._undo_now()
        if rest is None:
            return SETTLED
        self._start_undo(rest)
        return Disposal(effect=self, task=self._task)

    # what owners use

    def undo_for_owner(self) -> Awaitable[None] | None:
        """Undo, or join an undo that runs; ``None`` when nothing is left to wait for."""
        if self._state == LIVE:
            return self._undo_now()
        if self._state == SETUP and not self._stop:
            self._end_setup()
        return wait_task(self._task) if self._task is not None else None

    @property
    def setting_up(self) -> bool:
        """Whether the setup still runs."""
        return self._state == SETUP

    def forget(self) -> None:
        """End without undoing, because there is nothing left to undo."""
        if self._state == LIVE:
            self._undos.clear()
            self._finish()

    def info(self) -> EffectInfo:
        """Describe this effect and its labelled children."""
        shown = (child.info() for child in self.children if child.label != "anonymous")
        return EffectInfo(self.label, tuple(shown))

    def run_setup(self, setup: Callable[[], Any]) -> None:
        """Run a setup function and take what it returns as how to undo it."""
        self._state = SETUP
        try:
            result = setup()
            rest = None if result is None else self.adopt(result)
        except BaseException:
            self._roll_back()
            raise
        if rest is None:
            self._state = LIVE
            return
        try:
            self._task = self._fiber.kernel.start(
                self._finish_setup(rest), f"setup {self.label}", inherit=True
            )
            if self._stop:
                limit_setup(self, self._task)
        except BaseException:
            rest.close()
            self._roll_back()
            raise

    def adopt(self, value: Any) -> Coroutine[Any, Any, None] | None:
        """Take a setup's result; returns the asynchronous rest of it, if there is one.

        Raises:
            InvalidEffect: the value has none of the shapes of an effect.
        """
        if isinstance(value, _CALLABLES):
            self._undos.append(value)
        elif value is None:
            return None
        elif isinstance(value, Effect) or is_fiber(value):
            self._collect(value)
        elif hasattr(type(value), "__aenter__") and hasattr(type(value), "__aexit__"):
            return self._enter_async(value)
        elif hasattr(type(value), "__enter__") and hasattr(type(value), "__exit__"):
            enter_into(self._undos, value)
        elif hasattr(type(value), "__await__"):
            # a task that ``ctx.spawn`` returned has its owner already; waiting for it would hang
            if not (isinstance(value, asyncio.Task) and value in self._fiber.kernel.owned):
                return self._await_setup(value)
        elif hasattr(type(value), "__anext__"):
            return self._drain_async(value)
        elif hasattr(type(value), "__next__"):
            self._drain(value)
        elif callable(value):
            self._undos.append(value)
        else:
            raise InvalidEffect(self.label, value)
        return None

    def _drain(self, items: Iterator[Any]) -> None:
        try:
            for item in items:
                if item is None:
                    self._undos.append(partial(resume, items, self.label))
                    return
                self._collect(item)
        except BaseException:
            try:
                close(items)
            except BaseException as error:
                self._report(error)
            raise

    async def _drain_async(self, items: AsyncIterator[Any]) -> None:
        try:
            async for item in items:
                if item is None:
                    self._undos.append(partial(resume_async, items, self.label))
                    return
                self._collect(item)
                if self._stop:
                    break
        except BaseException as raised:
            if is_close(raised):
                raise
            try:
                await aclose(items)
            except BaseException as error:
                if told_to_stop(error):
                    raise
                self._report(error)
            raise
        await aclose(items)

    async def _enter_async(self, manager: AbstractAsyncContextManager[Any]) -> None:
        await manager.__aenter__()
        self._undos.append(partial(manager.__aexit__, None, None, None))

    async def _await_setup(self, value: Awaitable[Any]) -> None:
        rest = self.adopt(await value)
        if rest is not None:
            await rest

    def _collect(self, item: Any) -> None:
        if isinstance(item, Effect):
            if item._fiber is self._fiber:
                self._fiber._effects.pop(item._serial, None)
        elif is_fiber(item):
            if item.parent_fiber is self._fiber:
                self._fiber._effects.pop(item._serial, None)
        elif not callable(item):
            raise InvalidEffect(self.label, item)
        self._undos.append(item)

    async def _finish_setup(self, rest: Awaitable[None]) -> None:
        await begin_anyway()
        frame = enter_frame(self._fiber, self)
        try:
            await rest
        except BaseException as error:
            if is_close(error):
                raise
            if told_to_stop(error):
                self._error = error
            else:
                self._error = self._report(error)
            self._stop = True
        self._state = LIVE
        try:
            if self._stop:
                undo = self._undo_now()
                if undo is not None:
                    await undo
            else:
                self._task = None
        finally:
            frame.alive = False

    def _end_setup(self) -> None:
        self._stop = True
        if self._task is not None:
            limit_setup(self, self._task)

    def _roll_back(self) -> None:
        self._state = LIVE
        rest = self._undo_now()
        if rest is not None:
            self._start_undo(rest)

    def _start_undo(self, rest: Coroutine[Any, Any, None]) -> None:
        self._task = self._fiber.kernel.start(self._framed(rest), f"undo {self.label}")

    async def _framed(self, rest: Awaitable[None]) -> None:
        await begin_anyway()
        frame = enter_frame(self._fiber, self)
        try:
            await rest
        finally:
            frame.alive = False

    def _undo_now(self) -> Coroutine[Any, Any, None] | None:
        """Run undos, last first, up to the first that must be awaited; return the rest."""
        self._state = UNDOING
        undos = self._undos
        while undos:
            pending = self._undo_one(undos.pop())
            if pending is not None:
                return self._undo_rest(pending)
        self._finish()
        return None

    async def _undo_rest(self, pending: Awaitable[Any] | None) -> None:
        cancelled: asyncio.CancelledError | None = None
        undos = self._undos
        while True:
            if pending is not None:
                try:
                    await pending
                except BaseException as error:
                    if is_close(error):
                        raise
                    if isinstance(error, asyncio.CancelledError) and being_cancelled():
                        cancelled = error
                    else:
                        self._report(error)
            if not undos:
                break
            pending = self._undo_one(undos.pop())
        self._finish()
        if cancelled is not None:
            raise cancelled

    def _undo_one(self, item: Any) -> Awaitable[Any] | None:
        if isinstance(item, Effect):
            return item.undo_for_owner()
        try:
            if is_fiber(item):
                return item.undo_for_owner()  # type: ignore[no-any-return]
            result = item()
        except BaseException as error:
            self._report(error)
            return None
        if result is None:
            return None
        return result if is_awaitable(result) else None

    def _report(self, error: BaseException) -> Exception:
        failure = as_failure(error, self._fiber, self.label)
        self._fiber.kernel.report(failure, self._fiber, self.label)
        return failure

    def _finish(self) -> None:
        self._state = DONE
        self._task = None
        self._fiber._effects.pop(self._serial, None)


EffectLike: TypeAlias = (
    Callable[[], object]
    | AbstractContextManager[Any]
    | AbstractAsyncContextManager[Any]
    | Awaitable[Any]
    | Iterator[Any]
    | AsyncIterator[Any]
    | Effect
    | None
)
"""What a setup may return: how to undo it, or something that sets up and tells how to undo."""
