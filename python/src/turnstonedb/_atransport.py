"""Connections of the asynchronous client: those of httpx, which only it imports."""

from __future__ import annotations

import asyncio
import os
import secrets
import ssl
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, cast
from weakref import WeakKeyDictionary

import httpx

from . import errors
from ._transport import _CALL, _CONNECT, _MAX_IDLE, _SILENCE, BrokenError, Reachable, Response, _context, _matched, _MixedError

__all__ = ["AsyncTransport", "BrokenError", "Response"]

_MAX_AT_ONCE = 32  # requests of an event loop, beside those whose answers are read bit by bit


class _AsyncStream:
    """An answer that is read bit by bit."""

    def __init__(self, response: httpx.Response) -> None:
        self._r = response
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers

    async def aread(self) -> bytes:
        return await self._r.aread()

    def aiter_bytes(self) -> AsyncGenerator[bytes, None]:
        return cast(AsyncGenerator[bytes, None], self._r.aiter_raw())

    async def aiter_lines(self) -> AsyncIterator[str]:
        rest = b""
        async for chunk in self._r.aiter_raw():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line.decode().rstrip("\r")


class AsyncTransport:
    """Connections of an asynchronous client. Tasks, event loops, threads and forked processes may share it: each event loop of each process has its own connections."""

    def __init__(self, socket: str | None, base: str, headers: Mapping[str, str], verify: bool | ssl.SSLContext) -> None:
        self._socket, self._base, self._headers = socket, base, dict(headers)
        self._context = _context(verify) if base.startswith("https:") else False
        self._closed = False
        self._reachable: Reachable | None = None  # for as long as there are connections
        self._of_parents: list[object] = []  # connections of the parents of this process: to close them would write to what they use
        self._begin()

    def _begin(self) -> None:
        self._mu = threading.Lock()
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
        self._pid = os.getpid()

    def _client(self) -> httpx.AsyncClient:
        """Returns the connections of the event loop that runs."""
        if self._pid != os.getpid():  # The connections, and perhaps the lock, are those of the parent.
            self._of_parents.append(list(self._clients.items()))
            self._begin()
        loop = asyncio.get_running_loop()
        with self._mu:
            if self._closed:
                raise errors.Error("the client is closed")
            client = self._clients.get(loop)
            if client is None:
                limits = httpx.Limits(max_connections=None, max_keepalive_connections=_MAX_IDLE)
                if self._socket and self._reachable is None:
                    self._reachable = Reachable(self._socket)
                transport = httpx.AsyncHTTPTransport(uds=self._reachable.path if self._reachable else None, verify=self._context, limits=limits)
                timeout = httpx.Timeout(_SILENCE, connect=_CONNECT, pool=None)
                client = httpx.AsyncClient(base_url=self._base, headers=self._headers, transport=transport, timeout=timeout, trust_env=False)
                self._clients[loop] = client
            return client

    async def aclose(self) -> None:
        if self._pid != os.getpid():
            self._of_parents.append(list(self._clients.items()))
            self._begin()
        with self._mu:
            self._closed = True
            clients = list(self._clients.items())
            self._clients.clear()
            if self._reachable:
                self._reachable.close()
        for loop, client in clients:
            if loop is asyncio.get_running_loop():
                await client.aclose()
            elif loop.is_running():
                with suppress(RuntimeError):  # It has ended meanwhile, and its connections with it.
                    asyncio.run_coroutine_threadsafe(client.aclose(), loop)

    @asynccontextmanager
    async def stream(self, method: str, path: str, *, headers: Mapping[str, str] | None = None, **kw: Any) -> AsyncIterator[_AsyncStream]:
        """Makes a request. The answer is read within the context; what is left of it is not."""
        id = secrets.token_hex(8)
        begun = False
        try:
            client = self._client()
        except OSError as e:  # There is no directory yet.
            raise BrokenError(e, False) from e
        try:
            async with client.stream(method, path, headers={**(headers or {}), _CALL: id}, **kw) as r:
                _matched(id, r.status_code, r.headers)
                begun = True
                yield _AsyncStream(r)
        except (httpx.TransportError, _MixedError) as e:
            sent = not isinstance(e, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
            raise BrokenError(e, sent, begun) from e

    async def request(self, method: str, path: str, **kw: Any) -> Response:
        """Makes a request. Of many at once some wait for others: what httpx does for each grows with their number."""
        async with self._turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_MAX_AT_ONCE)), self.stream(method, path, **kw) as r:
            return Response(r.status, r.headers, await r.aread())
