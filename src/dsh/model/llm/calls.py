"""Running one model call: the ``llm/stream`` listeners around one attempt of an adapter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import ExitStack

from dsh.base.errors import message_of
from dsh.base.values import value
from dsh.model.chunks import StreamChunk, finish_failure
from dsh.model.failures import LlmError, normalize_llm_failure
from dsh.model.llm.service import ChunkStream, GenerateOptions

__all__ = ["LazyStream", "Start", "Started", "attempt"]


class LazyStream(ChunkStream):
    """Opens a stream when its first chunk is asked for, and adds nothing to the later ones.

    Args:
        begin: Makes the stream; called at most once.
    """

    __slots__ = ("_begin", "_closed", "_next", "_source")

    def __init__(self, begin: Callable[[], Awaitable[AsyncIterator[StreamChunk]]]) -> None:
        self._begin = begin
        self._source: AsyncIterator[StreamChunk] | None = None
        self._next: Callable[[], Awaitable[StreamChunk]] | None = None
        self._closed = False

    def __aiter__(self) -> LazyStream:
        return self

    def __anext__(self) -> Awaitable[StreamChunk]:
        return self._first() if self._next is None else self._next()

    async def aclose(self) -> None:
        """See `ChunkStream.aclose`."""
        self._closed = True
        self._next = None
        source, self._source = self._source, None
        if source is not None:
            await close_iterator(source)

    async def _first(self) -> StreamChunk:
        if self._closed:
            raise StopAsyncIteration
        self._closed = True  # a call that could not begin is not made again
        self._source = await self._begin()
        self._next = aiter(self._source).__anext__
        return await self._next()


@value
class Started:
    """A call of an adapter that has begun."""

    chunks: AsyncIterator[StreamChunk]
    is_there: Callable[[], bool]
    """Whether the plugin of the adapter is still loaded."""


Start = Callable[[GenerateOptions, ExitStack], Awaitable[Started]]
"""Picks an adapter and starts it; what it enters is left when the call is over."""


async def attempt(options: GenerateOptions, start: Start) -> AsyncGenerator[StreamChunk, None]:
    """Yield the chunks of one attempt; whatever fails becomes the one ``finish`` at the end.

    Args:
        options: The request; its signal decides whether a failure counts as aborted.
        start: Picks the adapter and starts it.
    """
    started: Started | None = None
    with ExitStack() as held:
        try:
            try:
                started = await start(options, held)
                step = aiter(started.chunks).__anext__
            except (Exception, asyncio.CancelledError) as error:
                if _cancels_us(error):
                    raise
                yield _last_chunk(error, options, started)
                return
            while True:
                try:
                    chunk = await step()
                except StopAsyncIteration:
                    yield _last_chunk(_unfinished(), options, started)
                    return
                except (Exception, asyncio.CancelledError) as error:
                    if _cancels_us(error):
                        raise
                    yield _last_chunk(error, options, started)
                    return
                yield chunk
                if chunk["type"] == "finish":
                    return
        finally:
            if started is not None:
                await close_iterator(started.chunks)


async def close_iterator(source: AsyncIterator[StreamChunk]) -> None:
    """Close ``source`` if it can be closed."""
    close = getattr(source, "aclose", None)
    if close is not None:
        await close()


def _cancels_us(error: BaseException) -> bool:
    """Say whether the caller is cancelled; otherwise something the adapter waits for was."""
    task = asyncio.current_task()
    cancelling = task is None or task.cancelling() > 0
    return isinstance(error, asyncio.CancelledError) and cancelling


def _last_chunk(
    error: BaseException, options: GenerateOptions, started: Started | None
) -> StreamChunk:
    signal = options.signal
    stopped = signal is not None and signal.aborted
    if not stopped and started is not None and not started.is_there():
        error = _cut(options, error)
    failure = normalize_llm_failure(error)
    return finish_failure(failure, aborted=failure["code"] == "ABORTED" or stopped)


def _cut(options: GenerateOptions, error: BaseException) -> LlmError:
    return LlmError(
        f"the adapter of the provider {options.provider!r} was unloaded during the call "
        f"({message_of(error)})",
        code="TRANSPORT",
    )


def _unfinished() -> LlmError:
    return LlmError("the model adapter ended its stream without a finish", code="STREAM_CLOSED")
