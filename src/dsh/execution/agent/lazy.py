"""Lazy objects whose every step runs under an initiator frame.

A coroutine or generator has not run a line when it is returned, and later runs in the context of
whoever drives it. These wrappers set the frame around each step and take it away again before the
driver goes on, so the body sees its own initiator and the driver keeps its own.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from dsh.execution.agent.frames import FRAME

if TYPE_CHECKING:
    from types import CodeType, FrameType, TracebackType

    from dsh.execution.agent.frames import Frame

# Looked up once: a step costs everybody, in every coroutine of every agent.
_enter = FRAME.set
_leave = FRAME.reset


class _Bound:
    """Steps of one inner object under one frame."""

    __slots__ = ("_frame", "_inner", "_run")

    def __init__(self, inner: Any, frame: Frame) -> None:
        self._inner = inner
        self._frame = frame
        self._run = frame.run

    def _step(self, advance: Callable[..., Any], *args: Any) -> Any:
        """Advance the inner object, which may be its first step."""
        if not self._run.active:
            self._admit()
        return self._under_frame(advance, *args)

    def _under_frame(self, call: Callable[..., Any], *args: Any) -> Any:
        """Call something of the inner object; an error that ends it settles the run."""
        token = _enter(self._frame)
        try:
            return call(*args)
        except BaseException:
            if self._has_ended():
                self._run.release()
            raise
        finally:
            _leave(token)

    def _admit(self) -> None:
        try:
            self._run.admit()
        except BaseException:
            self._discard()
            raise

    def _has_ended(self) -> bool:
        """Whether the object is over; one that is running already refuses a step and goes on."""
        raise NotImplementedError

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
        # Not a first step: in what never ran it is raised before the body.
        return self._under_frame(self._inner.throw, _exception(typ, val, tb))

    def close(self) -> None:
        """End the object under its frame."""
        token = _enter(self._frame)
        try:
            self._inner.close()
        finally:
            _leave(token)
            # One that refuses to end is given up, too: nobody drives it any more.
            self._run.release()

    def __del__(self) -> None:
        # What never ran warns by itself; what is in the middle must end as its own agent.
        run = self._run
        if run.active or (run.released and not self._has_ended()):
            _in_a_copied_context(self.close)
        elif not run.released:
            run.release()


class BoundCoroutine(_Stepped, Coroutine[Any, Any, Any]):
    """A coroutine that runs as work of one agent, in whatever task it is awaited.

    It is a coroutine to ``await`` and asyncio, though not to ``inspect.iscoroutine``.
    """

    __slots__ = ("_send",)

    def __init__(self, inner: Coroutine[Any, Any, Any], frame: Frame) -> None:
        self._inner = inner
        self._frame = frame
        self._run = frame.run
        self._send = inner.send

    @property
    def __name__(self) -> str:
        """What the repr of a task calls it: the body's own name."""
        inner = self._inner
        name = getattr(inner, "__qualname__", None) or getattr(inner, "__name__", "coroutine")
        return str(name)

    @property
    def cr_frame(self) -> FrameType | None:
        """Where the body stands, for tracebacks of tasks; ``None`` when it has ended."""
        return getattr(self._inner, "cr_frame", None)

    @property
    def cr_code(self) -> CodeType | None:
        """The body's code."""
        return getattr(self._inner, "cr_code", None)

    @property
    def cr_running(self) -> bool:
        """Whether the body runs now."""
        return bool(getattr(self._inner, "cr_running", False))

    @property
    def cr_await(self) -> Any:
        """What the body awaits."""
        return getattr(self._inner, "cr_await", None)

    # Being its own iterator lets the interpreter drive the steps without a generator between.
    def __await__(self) -> Generator[Any, Any, Any]:
        return self

    def __iter__(self) -> BoundCoroutine:
        return self

    def __next__(self) -> Any:
        # ``_step`` once more, without calls: every await of every agent passes here.
        run = self._run
        if not run.active:
            self._admit()
        token = _enter(self._frame)
        try:
            return self._send(None)
        except BaseException:
            if self._has_ended():
                run.release()
            raise
        finally:
            _leave(token)

    def _has_ended(self) -> bool:
        return getattr(self._inner, "cr_frame", None) is None


class BoundGenerator(_Stepped, Generator[Any, Any, Any]):
    """A generator whose body runs as work of one agent."""

    __slots__ = ()

    def _has_ended(self) -> bool:
        return getattr(self._inner, "gi_frame", None) is None


class BoundAsyncGenerator(_Bound, AsyncGenerator[Any, Any]):
    """An async generator whose body runs as work of one agent; consume it under ``aclosing``."""

    __slots__ = ()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    def __anext__(self) -> Coroutine[Any, Any, Any]:
        return _AsyncStep(self._inner.__anext__(), self)

    def asend(self, value: Any) -> Coroutine[Any, Any, Any]:
        """Advance to the next item."""
        return _AsyncStep(self._inner.asend(value), self)

    def athrow(
        self,
        typ: Any,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Raise inside the generator."""
        return _AsyncStep(self._inner.athrow(_exception(typ, val, tb)), self)

    def aclose(self) -> Coroutine[Any, Any, None]:
        """End the generator under its frame."""
        return _LastStep(self._inner.aclose(), self)

    def _has_ended(self) -> bool:
        return getattr(self._inner, "ag_frame", None) is None

    def _discard(self) -> None:
        return None

    def __del__(self) -> None:
        run = self._run
        if run.active or (run.released and not self._has_ended()):
            _in_a_copied_context(self._abandon)
        run.release()

    def _abandon(self) -> None:
        # The event loop closes what is dropped here; it copies the context of this moment.
        token = _enter(self._frame)
        try:
            self._inner = None
        finally:
            _leave(token)


class _AsyncStep(_Bound, Coroutine[Any, Any, Any]):
    """One ``asend`` or ``athrow`` of a bound async generator."""

    __slots__ = ("_owner", "_send")

    def __init__(self, inner: Any, owner: BoundAsyncGenerator) -> None:
        self._inner = inner
        self._owner = owner
        self._frame = owner._frame
        self._run = owner._run
        self._send = inner.send

    def send(self, value: Any) -> Any:
        return self._step(self._send, value)

    def __next__(self) -> Any:
        run = self._run
        if not run.active:
            self._admit()
        token = _enter(self._frame)
        try:
            return self._send(None)
        except StopIteration:
            raise  # an item, which is not the end
        except BaseException:
            if self._has_ended():
                run.release()
            raise
        finally:
            _leave(token)

    def throw(
        self, typ: Any, val: BaseException | object = None, tb: TracebackType | None = None
    ) -> Any:
        return self._under_frame(self._inner.throw, _exception(typ, val, tb))

    def close(self) -> None:
        token = _enter(self._frame)
        try:
            self._inner.close()
        finally:
            _leave(token)

    def __await__(self) -> Generator[Any, Any, Any]:
        return self

    def __iter__(self) -> _AsyncStep:
        return self

    def _has_ended(self) -> bool:
        return self._owner._has_ended()


class _LastStep(_AsyncStep):
    """The ``aclose`` of a bound async generator; one that never ran may be closed at any time."""

    __slots__ = ()

    def __next__(self) -> Any:
        return self._step(self._send, None)

    def _admit(self) -> None:
        return None

    def _has_ended(self) -> bool:
        # One that refuses to end is given up; one whose step is awaited elsewhere goes on.
        return not getattr(self._owner._inner, "ag_running", False)


def _in_a_copied_context(end: Callable[[], None]) -> None:
    """End something from a finalizer, which the collector may call in the middle of anything.

    Up to Python 3.11 that includes the middle of ``ContextVar.set``, and the interpreter crashes
    when the context that is being changed changes meanwhile.
    """
    copy_context().run(end)


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
