"""Connections of the adapter's transport: reuse, early answers, cancellation, closing."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from byte_server import CHUNKED, CODED, SIZED, Server, answer, client, serving

from dsh.base.signal import AbortController
from dsh.kernel import Context
from dsh.model.adapters.deepseek.guard import ReadGuard
from dsh.model.adapters.deepseek.transport import ON_SEND, StreamTransport

if TYPE_CHECKING:
    from tests.model.conftest import Model

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
EVENT_STREAM = b"Content-Type: text/event-stream"
DONE = b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


class Handmade(Server):
    """Serves each connection with a function of its own."""

    def __init__(self, *connections: Serve) -> None:
        super().__init__()
        self.rest = list(connections)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self.rest.pop(0)(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            self.closed.set()


@pytest.mark.parametrize("poison", ["same-read", "later", "after-chunks", "after-announcement"])
async def test_bytes_that_nobody_asked_for_are_never_the_next_answer(poison: str) -> None:
    wrong = answer(b"wrong", b"Content-Length: 5")
    late = asyncio.Event()

    async def first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if poison == "after-chunks":
            writer.write(CHUNKED + wrong)
        elif poison == "after-announcement":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" + SIZED + wrong)
        elif poison == "same-read":
            writer.write(SIZED + wrong)
        else:
            writer.write(SIZED)
            await late.wait()
            writer.write(wrong)
        await reader.read()

    async def second(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SIZED)
        await reader.read()

    server = Handmade(first, second)
    async with serving(server) as url, client() as http:
        assert (await http.get(url)).content == b"hello"
        late.set()
        await asyncio.sleep(0.02 if poison == "later" else 0)
        assert (await http.get(url)).content == b"hello"
    assert server.connections == 2


@pytest.mark.parametrize(
    "first",
    [
        answer(b"hello", b"Content-Length: 5", b"Connection: x, Close"),
        answer(CODED, b"Transfer-Encoding: chunked", b"Content-Length: 3"),
        SIZED.replace(b"HTTP/1.1", b"HTTP/1.0"),
    ],
)
async def test_an_answer_that_does_not_promise_more_ends_its_connection(first: bytes) -> None:
    server = Server(first, SIZED)
    async with serving(server) as url, client() as http:
        assert (await http.get(url)).content == b"hello"
        assert (await http.get(url)).content == b"hello"
    assert server.connections == 2


async def test_a_kept_connection_that_the_server_drops_is_replaced_once_unseen() -> None:
    async def first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SIZED)
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()

    async def second(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED)
        await reader.read()

    server = Handmade(first, second)
    async with serving(server) as url, client() as http:
        assert (await http.post(url, content=b"")).content == b"hello"
        assert (await http.post(url, content=b"")).content == b"hello"
    assert server.connections == 2


@pytest.mark.parametrize("sent", [b"H", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe"])
async def test_an_answer_that_began_is_never_asked_for_again(sent: bytes) -> None:
    async def only(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SIZED)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(sent)

    server = Handmade(only)
    async with serving(server) as url, client() as http:
        await http.get(url)
        with pytest.raises(httpx.RemoteProtocolError):
            await http.get(url)
    assert server.connections == 1


async def test_a_new_connection_that_is_dropped_is_an_error_at_once() -> None:
    async def only(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    server = Handmade(only)
    async with serving(server) as url, client() as http:
        with pytest.raises(httpx.RemoteProtocolError, match="no answer"):
            await http.get(url)
    assert server.connections == 1


async def test_an_answer_is_read_though_the_request_was_not_taken_to_its_end() -> None:
    async def only(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
        await writer.drain()
        await leave.wait()

    leave = asyncio.Event()
    server = Handmade(only, only)
    async with serving(server) as url, client() as http:
        for _ in range(2):
            response = await http.post(url, content=b"x" * (16 << 20))
            assert (response.status_code, response.content) == (413, b"big")
        leave.set()
    assert server.connections == 2


async def test_a_server_that_answers_while_it_reads_does_not_lock_up() -> None:
    size = 8 << 20

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        left = size
        while left:
            data = await reader.read(65536)
            left -= len(data)
            writer.write(data)
            await writer.drain()
        await reader.read()

    async with serving(Handmade(echo)) as url, client() as http:
        assert len((await http.post(url, content=b"y" * size)).content) == size


async def test_an_address_of_version_six_is_called() -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    server = Server(SIZED)
    try:
        async with serving(server, host="::1") as url, client() as http:
            assert (await http.get(url)).content == b"hello"
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    assert b"Host: [::1]:" in server.requests[0]


@pytest.mark.parametrize("where", ["head", "body"])
async def test_a_closed_client_breaks_off_what_is_under_way(where: str) -> None:
    sent = b"" if where == "head" else answer(b"he", b"Content-Length: 5")
    server = Server(sent)
    asked = asyncio.Event()
    transport = StreamTransport()

    async def call(url: str) -> None:
        async with http.stream("GET", url) as response:
            asked.set()
            await response.aread()

    async with serving(server) as url:
        http = httpx.AsyncClient(transport=transport, timeout=5)
        task = asyncio.create_task(call(url))
        if where == "body":
            await asked.wait()
        else:
            await server.asked.wait()
        await transport.aclose()
        with pytest.raises(httpx.TransportError, match="closed"):
            await task
        await server.closed.wait()
        await http.aclose()


@pytest.mark.parametrize("turns", range(12))
async def test_a_call_cancelled_at_any_await_leaves_no_socket(turns: int) -> None:
    server = Server(CHUNKED, CHUNKED)
    async with serving(server) as url, client() as http:
        task = asyncio.create_task(http.get(url))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert (await http.get(url)).content == b"hello"


async def test_a_call_cancelled_while_it_connects_leaves_no_socket() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        url = f"http://127.0.0.1:{full.getsockname()[1]}/"
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(client())
            tasks = [asyncio.create_task(http.get(url)) for _ in range(6)]
            await asyncio.sleep(0.05)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (answer(gzip.compress(DONE), EVENT_STREAM, b"Content-Encoding: gzip"), None),
        (answer(DONE, EVENT_STREAM, b"Content-Encoding: identity"), None),
        (answer(DONE + b"data: what comes after the end\n\n", EVENT_STREAM), None),
        (answer(b"data: {\n\n", EVENT_STREAM), "MALFORMED_RESPONSE"),
        (answer(b'data: {"error": "busy"}\n\n', EVENT_STREAM), "SERVER"),
        (answer(b"data: {}\n\ndata: [DONE]\n\n", EVENT_STREAM), "EMPTY_RESPONSE"),
        (answer(b"\x1b\x03", EVENT_STREAM, b"Content-Encoding: br"), "INVALID_RESPONSE"),
        (answer(b"no gzip", EVENT_STREAM, b"Content-Encoding: gzip"), "TRANSPORT"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "EMPTY_RESPONSE"),
        (answer(b"x", b"Content-Length: " + b"9" * 5000), "TRANSPORT"),
        (b"HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n", "SERVER"),
    ],
)
async def test_odd_answers_are_read_or_have_a_class(
    model: Model, sent: bytes, code: str | None
) -> None:
    server = Server(sent, close=True)
    async with serving(server) as url:
        await model.mount(url.removesuffix("/x?q=1"))
        got = await model.ask()
    assert got.code == code
    if code is None:
        assert got.text == "x"
    else:
        assert url.removesuffix("/x?q=1") in got.failure["message"]


async def test_either_header_names_the_request(model: Model) -> None:
    sent = b"HTTP/1.1 503 X\r\nX-DeepSeek-Request-Id: r-1\r\nContent-Length: 0\r\n\r\n"
    async with serving(Server(sent)) as url:
        await model.mount(url.removesuffix("/x?q=1"))
        got = await model.ask()
    assert got.failure["requestId"] == "r-1"


async def test_a_redirect_is_refused_and_never_followed(model: Model) -> None:
    thief = Server(SIZED)
    async with serving(thief) as target:
        moved = b"HTTP/1.1 307 Moved\r\nLocation: %b\r\nContent-Length: 0\r\n\r\n"
        async with serving(Server(moved % target.encode())) as url:
            await model.mount(url.removesuffix("/x?q=1"))
            got = await model.ask()
    assert thief.connections == 0
    assert got.code == "HTTP_307"
    assert target.partition("?")[0] in got.failure["message"]
    assert "not followed" in got.failure["message"]


async def test_an_unloaded_adapter_ends_the_reply_that_is_under_way(
    model: Model, root: Context
) -> None:
    first = asyncio.Event()
    server = Server(answer(DONE.partition(b"data: [DONE]")[0], EVENT_STREAM))
    async with serving(server) as url:
        await model.mount(url.removesuffix("/x?q=1"))
        task = asyncio.create_task(model.ask(on_chunk=lambda chunk: first.set()))
        await first.wait()
        await root.dispose()
        got = await task
        await server.closed.wait()
    assert (got.kind, got.code, got.text) == ("error", "TRANSPORT", "x")
    assert "closed" in got.failure["message"]


async def test_a_request_that_still_goes_out_is_no_silence() -> None:
    left = [5, 4, 3, 2, 1, 0]
    loop = asyncio.get_running_loop()
    begun = loop.time()
    with ReadGuard(None, 0.02) as guard:
        guard.watch_sending(lambda: left.pop(0) if len(left) > 1 else left[0])
        with pytest.raises(TimeoutError):
            await guard.run(asyncio.Event().wait())
    assert left == [0]
    assert loop.time() - begun > 5 * 0.02


async def test_what_is_still_to_be_sent_is_told(model: Model) -> None:
    seen: list[int] = []

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        seen.append(unsent[0]())
        await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))
        seen.append(unsent[0]())
        writer.write(SIZED)
        await reader.read()

    unsent: list[Callable[[], int]] = []
    async with serving(Handmade(slow)) as url, client() as http:
        await http.post(url, content=b"z" * (16 << 20), extensions={ON_SEND: unsent.append})
    assert seen[0] > seen[1] == 0


async def test_an_error_whose_body_never_ends_is_told_by_its_status(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsh.model.adapters.deepseek.exchange._ERROR_BODY_S", 0.05)
    server = Server(b"HTTP/1.1 401 No\r\nContent-Length: 50\r\n\r\nbad key")
    async with serving(server) as url:
        await model.mount(url.removesuffix("/x?q=1"))
        got = await model.ask()
    assert got.code == "AUTH"
    assert "bad key" in got.failure["message"]


async def test_an_abort_while_connecting_ends_the_call(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = AbortController()
    connecting = asyncio.Event()

    async def never(*args: Any, **more: Any) -> None:
        connecting.set()
        await asyncio.Event().wait()

    await model.mount("http://127.0.0.1:9")
    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", never)
    task = asyncio.create_task(model.ask(signal=controller.signal))
    await connecting.wait()
    controller.abort("enough")
    got = await task
    assert (got.kind, got.code) == ("aborted", "ABORTED")
