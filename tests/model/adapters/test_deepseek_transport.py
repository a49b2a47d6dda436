"""The transport of the adapter against servers that send chosen bytes."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from byte_server import CHUNKED, CODED, SIZED, Server, answer, client, serving
from hypothesis import given
from hypothesis import strategies as st

from dsh.model.adapters.deepseek.chunked import ChunkedDecoder
from dsh.model.adapters.deepseek.client import HttpPool
from dsh.model.failures import LlmError
from dsh.testing.provider import start_provider


@given(st.lists(st.binary(max_size=40), max_size=6), st.data())
def test_chunks_are_joined_wherever_reads_are_cut(parts: list[bytes], data: st.DataObject) -> None:
    coded = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part) + b"0\r\n\r\n"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(coded)), max_size=8)))
    decoder = ChunkedDecoder()
    reads = [coded[a:b] for a, b in zip([0, *cuts], [*cuts, len(coded)], strict=True)]

    assert b"".join(decoder.feed(read) for read in reads) == b"".join(parts)
    assert decoder.complete


@pytest.mark.parametrize(
    "coded", [b"zz\r\n", b"+5\r\nhello\r\n", b"\r\n", b"2\r\nabc\r\n", b"1" * 20_000]
)
def test_a_broken_coding_is_refused(coded: bytes) -> None:
    with pytest.raises(ValueError, match="chunk"):
        ChunkedDecoder().feed(coded)


@pytest.mark.parametrize(
    ("sent", "body", "close"),
    [
        (SIZED, b"hello", False),
        (CHUNKED, b"hello", False),
        (answer(b"hello"), b"hello", True),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + SIZED, b"hello", False),
        (b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", b"", False),
        (b"HTTP/1.0 204 No Content\r\n\r\n", b"", False),
        (b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", b"hello", False),
        (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nX: y\r\n\r\n" + SIZED,
            b"hello",
            False,
        ),
        (answer(b"hello", b"Content-Length: 5, 5"), b"hello", False),
        (answer(CODED, b"Transfer-Encoding: Chunked", b"Content-Length: 3"), b"hello", False),
    ],
)
async def test_bodies_of_every_framing_are_read(sent: bytes, body: bytes, close: bool) -> None:
    server = Server(sent, close=close)
    async with serving(server) as url, client() as http:
        response = await http.post(url, content=b"")
    assert response.content == body
    assert server.requests[0].startswith(b"POST /x?q=1 HTTP/1.1\r\nHost: 127.0.0.1")


async def test_a_connection_is_used_again_when_its_answer_was_read_to_the_end() -> None:
    server = Server(SIZED, CHUNKED, SIZED)
    async with serving(server) as url, client() as http:
        for _ in range(3):
            assert (await http.get(url)).content == b"hello"
    assert server.connections == 1


async def test_a_connection_is_not_used_again_when_the_answer_was_left() -> None:
    server = Server(SIZED, SIZED)
    async with serving(server) as url, client() as http:
        async with http.stream("GET", url):
            pass
        assert (await http.get(url)).content == b"hello"
    assert server.connections == 2


@pytest.mark.parametrize("how", ["header", "closed"])
async def test_a_connection_that_the_server_ends_is_not_used_again(how: str) -> None:
    header = b"Connection: close" if how == "header" else b"X: y"
    server = Server(answer(b"hello", header, b"Content-Length: 5"), SIZED, close=how == "closed")
    async with serving(server) as url, client() as http:
        await http.get(url)
        if how == "closed":
            await server.closed.wait()
            await asyncio.sleep(0.01)
        assert (await http.get(url)).content == b"hello"
    assert server.connections == 2


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (b"", "no answer"),
        (b"HTTP/1.1 200 OK\r\nContent", "incomplete answer"),
        (b"SSH-2.0-x\r\n\r\n", "no HTTP answer"),
        (b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "no header"),
        (answer(b"", b"Content-Length: many"), "no length"),
        (answer(b"hel", b"Content-Length: 5"), "in mid-answer"),
        (answer(b"5\r\nhel", b"Transfer-Encoding: chunked"), "in mid-answer"),
        (answer(b"xyz\r\n", b"Transfer-Encoding: chunked"), "no size"),
        (answer(b"x", b"Content-Length: " + b"1" * 5000), "no length"),
        (answer(b"x", b"Content-Length: -1"), "no length"),
        (answer(b"x", b"Content-Length: 1", b"Content-Length: 2"), "several lengths"),
        (answer(CODED, b"Transfer-Encoding: gzip, chunked"), "transfer coding"),
        (answer(CODED, b"Transfer-Encoding: xchunked"), "transfer coding"),
        (answer(b"x", b"Content-Length : 1"), "no header"),
        (answer(b"x", b"X: a", b" folded: b"), "no header"),
        (answer(b"x", b"X: a\rContent-Length: 1"), "no header"),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "another protocol"),
        (b"HTTP/2 200 OK\r\n\r\n", "no HTTP answer"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 70_000, "does not end"),
        (answer(b"0\r\n" + b"T: u\r\n" * 20_000, b"Transfer-Encoding: chunked"), "trailers"),
    ],
)
async def test_an_answer_that_is_broken_is_a_protocol_error(sent: bytes, says: str) -> None:
    server = Server(sent, close=True)
    async with serving(server) as url, client() as http:
        with pytest.raises(httpx.RemoteProtocolError, match=says):
            await http.get(url)


async def test_a_header_with_a_line_break_is_not_sent() -> None:
    server = Server(SIZED)
    async with serving(server) as url, client() as http:
        with pytest.raises(httpx.LocalProtocolError):
            await http.get(url, headers={"x-session": "a\r\nx-other: b"})
    assert server.requests == []


async def test_a_port_where_nobody_listens_is_a_connect_error() -> None:
    server = Server()
    async with serving(server) as url:
        pass
    async with client() as http:
        with pytest.raises(httpx.ConnectError):
            await http.get(url)


async def test_a_connection_that_takes_too_long_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(*args: Any, **more: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", never)
    async with client() as http:
        with pytest.raises(httpx.ConnectTimeout):
            await http.get("http://127.0.0.1:9/", timeout=0.01)


def certificate(folder: Path) -> tuple[Path, Path]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl command to make a certificate")
    key, cert = folder / "key.pem", folder / "cert.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run(
        [*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True
    )
    return key, cert


async def test_tls_is_spoken_and_certificates_are_checked(tmp_path: Path) -> None:
    key, cert = certificate(tmp_path)
    theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    theirs.load_cert_chain(cert, key)
    trusting = ssl.create_default_context(cafile=str(cert))
    server = Server(CHUNKED, SIZED)
    async with serving(server, theirs) as url:
        async with client(ssl.create_default_context()) as http:
            with pytest.raises(httpx.ConnectError, match=r"(?i)certificate"):
                await http.get(url)
        async with client(trusting) as http:
            for _ in range(2):
                assert (await http.get(url)).content == b"hello"
    assert server.connections == 1


async def test_without_tls_an_https_address_is_refused() -> None:
    async with client() as http:
        with pytest.raises(httpx.UnsupportedProtocol):
            await http.get("https://127.0.0.1:9/")


async def test_a_proxy_of_the_environment_is_used_but_not_for_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    via_proxy = Server(SIZED)
    async with serving(via_proxy) as proxy:
        monkeypatch.setenv("http_proxy", proxy.removesuffix("/x?q=1"))
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        pool = HttpPool()
        http = await pool.client(secure=False)
        with start_provider({"replies": [{"text": "x"}]}) as provider:
            assert (await http.get(f"{provider.url}/models")).status_code == 200
        assert (await http.get("http://gateway.test/a")).content == b"hello"
        await pool.aclose()
    assert via_proxy.requests[0].startswith(b"GET http://gateway.test/a HTTP/1.1")


async def test_a_closed_pool_makes_no_client() -> None:
    pool = HttpPool()
    await pool.client(secure=False)
    await pool.aclose()
    with pytest.raises(LlmError, match="unloaded"):
        await pool.client(secure=False)


async def test_the_next_address_of_a_host_is_tried_when_one_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    connect = loop.sock_connect
    server = Server(SIZED)
    async with serving(server) as url:
        port = int(url.rpartition(":")[2].partition("/")[0])

        def at(host: str) -> tuple[Any, ...]:
            return (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))

        async def resolve(*args: Any, **more: Any) -> list[Any]:
            return [at("127.0.0.2"), at("127.0.0.3"), at("127.0.0.1")]

        async def swallow_the_second(sock: socket.socket, place: tuple[str, int]) -> None:
            if place[0] == "127.0.0.3":
                await asyncio.Event().wait()
            await connect(sock, place)

        monkeypatch.setattr(loop, "getaddrinfo", resolve)
        monkeypatch.setattr(loop, "sock_connect", swallow_the_second)
        async with client() as http:
            assert (await http.get("http://many.test/x")).content == b"hello"


async def test_a_host_of_which_no_address_answers_is_a_connect_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def resolve(*args: Any, **more: Any) -> list[Any]:
        hosts = ("127.0.0.2", "127.0.0.3")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 9)) for host in hosts]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    async with client() as http:
        with pytest.raises(httpx.ConnectError, match=r"127\.0\.0\.2.*127\.0\.0\.3"):
            await http.get("http://many.test/x")


@pytest.mark.parametrize(
    ("name", "value"),
    [("http_proxy", "nonsense://user:secret@x"), ("SSL_CERT_FILE", "/nowhere/cert.pem")],
)
async def test_an_unusable_environment_is_told_and_no_secret_of_it(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    pool = HttpPool()
    with pytest.raises(LlmError, match="environment") as caught:
        await pool.client(secure=True)
    await pool.aclose()
    assert caught.value.code == "INVALID_REQUEST"
    assert "secret" not in str(caught.value)
