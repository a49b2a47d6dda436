"""One HTTP exchange: send the request, read the events of the answer, release the connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from dsh.base.values import value
from dsh.model.adapters.deepseek.errors import (
    MAX_ERROR_BYTES,
    not_a_stream,
    status_error,
    transport_error,
    unreadable_coding,
)
from dsh.model.adapters.deepseek.sse import DONE, SseParser
from dsh.model.failures import LlmError

if TYPE_CHECKING:
    import httpx

    from dsh.model.adapters.deepseek.client import HttpPool
    from dsh.model.adapters.deepseek.endpoint import Credential, Endpoint
    from dsh.model.adapters.deepseek.guard import ReadGuard

__all__ = ["Call", "Exchange"]

_DRAIN_S = 0.05
_ERROR_BODY_S = 5.0
_CODINGS = frozenset({"", "identity", "gzip", "x-gzip", "deflate"})


@value
class Call:
    """What is sent, and the names that errors need."""

    endpoint: Endpoint
    credential: Credential
    model: str
    headers: Mapping[str, str]
    body: bytes
    now_ms: int

    def __repr__(self) -> str:  # the headers hold the key
        return f"Call({self.endpoint.shown}, {self.model!r}, {len(self.body)} bytes)"


class Exchange:
    """Sends ``call`` and reads its answer. Every wait is bounded by ``guard``.

    Failures are raised as `LlmError`; idle time and aborts as the guard raises them.
    """

    def __init__(self, pool: HttpPool, guard: ReadGuard, call: Call) -> None:
        self._pool = pool
        self._guard = guard
        self._call = call
        self._response: httpx.Response | None = None
        self._reads: AsyncIterator[bytes] | None = None
        self._ended = False

    async def open(self) -> None:
        """Send the request and wait for an answer that is an event stream."""
        call = self._call
        client = await self._guard.run(self._pool.client(secure=call.endpoint.secure))
        import httpx

        from dsh.model.adapters.deepseek.transport import ON_SEND

        try:
            request = client.build_request(
                "POST",
                call.endpoint.url,
                headers=dict(call.headers),
                content=call.body,
                extensions={ON_SEND: self._guard.watch_sending},
            )
            self._response = await self._guard.run(client.send(request, stream=True))
        except TimeoutError:  # the guard's; it is an OSError as well
            raise
        except (httpx.HTTPError, OSError) as error:
            raise self._broken(error, streaming=False) from error
        except (httpx.InvalidURL, UnicodeError) as error:
            raise LlmError(
                f"{call.endpoint.shown} is not a usable address; correct {call.endpoint.origin}",
                code="INVALID_REQUEST",
            ) from error
        response = self._response
        # Decoding costs time on every read; endpoints are asked not to compress.
        coding = response.headers.get("content-encoding", "").strip().lower()
        plain = coding in ("", "identity")
        self._reads = response.aiter_raw() if plain else response.aiter_bytes()
        await self._refuse_unless_stream(response, readable=coding in _CODINGS)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield the data of each event; the last one is `DONE`.

        Raises:
            LlmError: ``TRANSPORT``, ``STREAM_CLOSED`` (no `DONE`), ``EMPTY_RESPONSE`` (no byte)
                or ``MALFORMED_RESPONSE``.
        """
        parser = SseParser()
        silent = True
        while (data := await self._read()) is not None:
            silent = False
            for event in parser.feed(data):
                yield event
                if event is DONE:
                    return
        if rest := parser.close():
            for event in rest:
                yield event
            return
        shown = self._call.endpoint.shown
        if silent:
            raise LlmError(f"{shown} answered without a body", code="EMPTY_RESPONSE")
        raise LlmError(
            f"the reply of {shown} ended early: it lacks the closing [DONE]", code="STREAM_CLOSED"
        )

    async def release(self, *, reuse: bool) -> None:
        """Give the connection back.

        Args:
            reuse: The reply is complete, so reading its last bytes keeps the connection alive.
        """
        response = self._response
        if response is None:
            return
        try:
            if reuse and not self._ended:
                with suppress(Exception):
                    async with asyncio.timeout(_DRAIN_S):
                        while not self._ended:
                            await self._read_raw()
        finally:
            await response.aclose()

    async def _refuse_unless_stream(self, response: httpx.Response, *, readable: bool) -> None:
        call = self._call
        content_type = response.headers.get("content-type", "")
        good = 200 <= response.status_code < 300
        if good and not readable:
            raise unreadable_coding(response.headers["content-encoding"], endpoint=call.endpoint)
        if good and (not content_type or content_type.lower().startswith("text/event-stream")):
            return
        body = await self._read_some() if readable else b""
        if not good:
            raise status_error(
                response.status_code,
                response.headers,
                body,
                endpoint=call.endpoint,
                credential=call.credential,
                model=call.model,
                now_ms=call.now_ms,
            )
        raise not_a_stream(content_type, body, endpoint=call.endpoint)

    async def _read_some(self) -> bytes:
        """Read the body of an error, as far as it comes and fits."""
        body = bytearray()
        # Should the body break off or never end, the status says enough.
        with suppress(LlmError, TimeoutError):
            async with asyncio.timeout(_ERROR_BODY_S):
                while len(body) < MAX_ERROR_BYTES and (data := await self._read()) is not None:
                    body += data
        return bytes(body[:MAX_ERROR_BYTES])

    async def _read(self) -> bytes | None:
        import httpx

        try:
            return await self._guard.run(self._read_raw())
        except TimeoutError:
            self._ended = True
            raise
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            self._ended = True
            raise self._broken(error, streaming=True) from error

    async def _read_raw(self) -> bytes | None:
        assert self._reads is not None  # open() came first
        try:
            return await anext(self._reads)
        except StopAsyncIteration:
            self._ended = True
            return None

    def _broken(self, error: Exception, *, streaming: bool) -> LlmError:
        return transport_error(
            error,
            endpoint=self._call.endpoint,
            streaming=streaming,
        )
