"""Lazy objects whose every step runs under an initiator frame.

A coroutine or generator has not run a line when it is returned, and later runs in the context of
whoever drives it. These wrappers set the frame around each step and take it away again before the
driver goes on, so the body sees its own initiator and the driver keeps its own.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any

from dsh.execution.agent.frames import FRAME

if TYPE_CHECKING:
    from types import TracebackType

    from dsh.execution.agent.frames import Frame


class _Bound:
    """Steps of one inner object under one frame."""

    __slots__ = ("_frame", "_inner", "_run")

    def __init__(self, inner: Any, frame: Frame) -> None:
        self._inner = inner
        self._frame = frame
        self._run = frame.run

    def _step(self, advance: Callable[..., Any], *args: Any) -> Any:
        run = self._run
        if not run.active:
            self._admit()
        token = FRAME.set(self._frame)
        try:
            return advance(*args)
        except BaseException:
            run.release()
            raise
        finally:
            FRAME.reset(token)

    def _admit(self) -> None:
        try:
            self._run.admit()
        except BaseException:
            self._discard()
            raise

    def _discard(self) -> None:
        """Close an inner object that never ran."""
        self._inner.close()


class _Stepped(_Bound):
    """What coroutines and generators have in common."""

    __slots__ = ()

    def send(self, value: Any) -> Any:
        """Advance by one step."""
        return self._step(self._inner.send, value)

    def throw(
        self,
        typ: Any,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
    ) -> Any:
        """Raise inside the object."""
        return self._step(self._inner.throw, _exception(typ, val, tb))

    def close(self) -> None:
        """End the object under its frame."""
        _close(self)

    def __del__(self) -> None:
        # What never ran warns by itself; what is in the middle must end as its own agent.
        if self._run.active:
            _close(self)


class BoundCoroutine(_Stepped, Coroutine[Any, Any, Any]):
    """A coroutine that runs as work of one agent, in whatever task it is awaited.

    It is a coroutine to ``await`` and asyncio, though not to ``inspect.iscoroutine``.
    """

    __slots__ = ("__name__", "__qualname__")

    def __init__(self, inner: Coroutine[Any, Any, Any], frame: Frame) -> None:
        super().__init__(inner, frame)
        self.__name__ = getattr(inner, "__name__", "coroutine")
        self.__qualname__ = getattr(inner, "__qualname__", self.__name__)

    # Being its own iterator lets the interpreter drive the steps without a generator between.
    def __await__(self) -> Generator[Any, Any, Any]:
        return self

    def __iter__(self) -> BoundCoroutine:
        return self

    def __next__(self) -> Any:
        return self._step(self._inner.send, None)


class BoundGenerator(_Stepped, Generator[Any, Any, Any]):
    """A generator whose body runs as work of one agent."""

    __slots__ = ()


class BoundAsyncGenerator(_Bound, AsyncGenerator[Any, Any]):
    """An async generator whose body runs as work of one agent; consume it under ``aclosing``."""

    __slots__ = ()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    def __anext__(self) -> Coroutine[Any, Any, Any]:
        return self.asend(None)

    def asend(self, value: Any) -> Coroutine[Any, Any, Any]:
        """Advance to the next item."""
        return _AsyncStep(self._inner.asend(value), self._frame, self)

    def athrow(
        self,
        typ: Any,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Raise inside the generator."""
        return _AsyncStep(self._inner.athrow(_exception(typ, val, tb)), self._frame, self)

    def aclose(self) -> Coroutine[Any, Any, None]:
        """End the generator under its frame."""
        return _AsyncStep(self._inner.aclose(), self._frame, self, ends=True)

    def _discard(self) -> None:
        return None

    def __del__(self) -> None:
        self._run.release()


class _AsyncStep(_Bound, Coroutine[Any, Any, Any]):
    """One ``asend``, ``athrow`` or ``aclose`` of a bound async generator."""

    __slots__ = ("_ends", "_owner")

    def __init__(
        self, inner: Any, frame: Frame, owner: BoundAsyncGenerator, *, ends: bool = False
    ) -> None:
        super().__init__(inner, frame)
        self._owner = owner
        self._ends = ends

    def _step(self, advance: Callable[..., Any], *args: Any) -> Any:
        run = self._run
        if not run.active:
            self._admit()
        token = FRAME.set(self._frame)
        try:
            return advance(*args)
        except StopIteration:
            if self._ends:
                run.release()
            raise
        except BaseException:
            run.release()
            raise
        finally:
            FRAME.reset(token)

    def send(self, value: Any) -> Any:
        return self._step(self._inner.send, value)

    def throw(
        self, typ: Any, val: BaseException | object = None, tb: TracebackType | None = None
    ) -> Any:
        return self._step(self._inner.throw, _exception(typ, val, tb))

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self

    def __iter__(self) -> _AsyncStep:
        return self

    def __next__(self) -> Any:
        return self._step(self._inner.send, None)


def _close(bound: _Bound) -> None:
    token = FRAME.set(bound._frame)
    try:
        bound._inner.close()
    finally:
        FRAME.reset(token)
        bound._run.release()


def _exception(typ: Any, val: BaseException | object, tb: TracebackType | None) -> BaseException:
    """Make one exception of the three-argument form of ``throw``."""
    error: BaseException
    if isinstance(typ, BaseException):
        error = typ
    elif isinstance(val, BaseException):
        error = val
    else:
        error = typ() if val is None else typ(val)
    return error if tb is None else error.with_traceback(tb)
