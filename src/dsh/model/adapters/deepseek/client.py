"""The HTTP client of the adapter: imported on first use, pooled, closed with the plugin."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx

__all__ = ["HttpPool", "import_httpx"]

_CONNECT_TIMEOUT_S = 30.0
_KEPT_CONNECTIONS = 16


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
            RuntimeError: the pool is closed.
        """
        making = self._clients.get(secure)
        if making is None or (making.done() and (making.cancelled() or making.exception())):
            if self._closed:
                raise RuntimeError("the HTTP client is closed: its plugin was unloaded")
            making = asyncio.create_task(
                asyncio.to_thread(_make_client, secure), name="llm-deepseek.http-client"
            )
            self._clients[secure] = making
        return await asyncio.shield(making)

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
    if getproxies():
        direct = {"http://127.0.0.1": None, "http://localhost": None, "http://[::1]": None}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=_KEPT_CONNECTIONS)
        return httpx.AsyncClient(timeout=timeout, limits=limits, mounts=direct)

    from dsh.model.adapters.deepseek.transport import StreamTransport

    # Certificates take long to load, and plain HTTP needs none.
    tls = httpx.create_ssl_context() if secure else None
    return httpx.AsyncClient(transport=StreamTransport(tls), timeout=timeout)
