"""The HTTP client of the adapter: imported on first use, pooled, closed with the plugin."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from dsh.base.errors import message_of
from dsh.model.failures import LlmError

if TYPE_CHECKING:
    import httpx

__all__ = ["HttpPool", "import_httpx"]

_CONNECT_TIMEOUT_S = 30.0
_KEPT_CONNECTIONS = 16
_PROXIED = ("http", "https", "all")
_THIS_MACHINE = ("127.0.0.1", "localhost", "[::1]")


class HttpPool:
    """One client for plain HTTP and one for TLS, each made when it is first needed.

    Making a client takes long (imports, certificates), so it happens in a thread.
    """

    def __init__(self) -> None:
        self._clients: dict[bool, asyncio.Task[httpx.AsyncClient]] = {}
        self._closed = False

    async def client(self, *, secure: bool) -> httpx.AsyncClient:
        """Return the client for TLS, or the one for plain HTTP.

        Raises:
            LlmError: ``TRANSPORT``, the pool is closed; ``INVALID_REQUEST``, what the environment
                says of proxies or certificates is unusable.
        """
        if self._closed:
            raise _closed_error()
        making = self._clients.get(secure)
        if making is None or (making.done() and (making.cancelled() or making.exception())):
            making = asyncio.create_task(
                asyncio.to_thread(_make_client, secure), name="llm-deepseek.http-client"
            )
            self._clients[secure] = making
        try:
            client = await asyncio.shield(making)
        except Exception as error:
            raise LlmError(
                f"no HTTP client can be made: {message_of(error)}; look at the variables of the "
                "environment that name proxies or certificates",
                code="INVALID_REQUEST",
            ) from error
        if self._closed:
            raise _closed_error()
        return client

    async def warm(self, *, secure: bool) -> None:
        """Make a client before it is needed; that it fails is told to who needs it."""
        with suppress(Exception):
            await self.client(secure=secure)

    async def aclose(self) -> None:
        """Close all connections; requests under way fail."""
        self._closed = True
        tasks, self._clients = list(self._clients.values()), {}
        for client in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(client, BaseException):
                await client.aclose()


def import_httpx() -> None:
    """Import httpx without its command line, which would pull in rich and click."""
    if "httpx" in sys.modules:
        return
    # None makes the import of this one submodule fail; httpx expects that it may be missing.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    try:
        import httpx  # noqa: F401
    finally:
        if sys.modules.get("httpx._main") is None:
            sys.modules.pop("httpx._main", None)


def _make_client(secure: bool) -> httpx.AsyncClient:
    import_httpx()
    from urllib.request import getproxies

    import httpx

    timeout = httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S)
    proxies = getproxies()
    if any(proxies.get(scheme) for scheme in _PROXIED):
        direct = {f"all://{host}": None for host in _THIS_MACHINE}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=_KEPT_CONNECTIONS)
        return httpx.AsyncClient(timeout=timeout, limits=limits, mounts=direct)

    from dsh.model.adapters.deepseek.transport import StreamTransport

    # Certificates take long to load, and plain HTTP needs none.
    tls = httpx.create_ssl_context() if secure else None
    return httpx.AsyncClient(transport=StreamTransport(tls), timeout=timeout)


def _closed_error() -> LlmError:
    return LlmError(
        "the HTTP client is closed: the plugin llm-deepseek was unloaded", code="TRANSPORT"
    )
