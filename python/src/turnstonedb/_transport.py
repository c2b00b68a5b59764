"""Connections with a server: those of the standard library, because they are fast."""

from __future__ import annotations

import http.client
import os
import secrets
import select
import socket
import ssl
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from urllib.parse import urlencode, urlsplit

from . import errors
from ._server import MAX_SOCKET

_CHUNK = 64 << 10
_CONNECT = 10.0  # seconds
_SILENCE = 90.0  # seconds after which a peer that sends nothing is taken for gone: servers give a write a minute
_MAX_IDLE = 64  # connections


class BrokenError(Exception):
    """A request got no answer, or not all of it. sent tells whether a server may have begun with it, and begun whether some of the answer has come."""

    def __init__(self, error: Exception, sent: bool, begun: bool = False) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.sent = sent
        self.begun = begun


class _MixedError(Exception):
    """The answer is not that to the request."""


_CALL = "Turnstone-Call"


def _matched(id: str, status: int, headers: Mapping[str, str]) -> None:
    """Raises if an answer is not that to the request with an id, nor that of a proxy, which tells nothing but a failure."""
    got = headers.get(_CALL, "")
    of_proxy = not got and status // 100 != 2 and not headers.get("Content-Type", "").startswith("application/problem+json")
    if got != id and not of_proxy:
        raise _MixedError(f"the answer is not that to the request: its header {_CALL} is {got!r}")


class Response:
    """An answer."""

    def __init__(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        self.status = status
        self.headers = headers
        self.content = content


def _url(path: str, params: Mapping[str, str] | None) -> str:
    return f"{path}?{urlencode(params)}" if params else path


def _context(verify: bool | ssl.SSLContext) -> ssl.SSLContext:
    if isinstance(verify, ssl.SSLContext):
        return verify
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _readable(s: socket.socket) -> bool:
    """Reports whether there is something to read, which on an idle connection is its end."""
    if hasattr(select, "poll"):  # A tenth of the time that a selector takes, and unlike select for a descriptor of any number.
        poll = select.poll()
        poll.register(s, select.POLLIN)
        return bool(poll.poll(0))
    return bool(select.select([s], [], [], 0)[0])


class Reachable:
    """The path of a socket, and a path that leads there and that its address has room for: on Linux that of its directory, which is open."""

    def __init__(self, path: str) -> None:
        self.path, self._directory = path, -1
        if len(os.fsencode(path)) > MAX_SOCKET:
            self._directory = os.open(os.path.dirname(path), os.O_RDONLY)
            self.path = f"/proc/self/fd/{self._directory}/{os.path.basename(path)}"

    def close(self) -> None:
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("turnstone")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_CONNECT)
        with closing(Reachable(self._path)) as r:
            self.sock.connect(r.path)
        self.sock.settimeout(_SILENCE)


class _TCPConnection(http.client.HTTPConnection):
    def connect(self) -> None:
        super().connect()
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.settimeout(_SILENCE)


class _TLSConnection(http.client.HTTPSConnection):
    def connect(self) -> None:
        super().connect()
        self.sock.settimeout(_SILENCE)


class _Stream:
    """An answer that is read bit by bit."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response
        self._pid = os.getpid()
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers  # type: ignore[assignment]

    @property
    def _r(self) -> http.client.HTTPResponse:
        if self._pid != os.getpid():  # What comes is for the parent.
            raise _MixedError("the process was forked while it read an answer")
        return self._response

    def read(self) -> bytes:
        return self._r.read()

    def iter_bytes(self) -> Generator[bytes, None, None]:
        left = self._r.length
        while chunk := self._r.read1(_CHUNK):
            left = None if left is None else left - len(chunk)
            yield chunk
        if left:  # The end of the connection is no error for read1.
            raise http.client.IncompleteRead(b"", left)

    def iter_lines(self) -> Iterator[str]:
        while line := self._r.readline():
            yield line.decode().rstrip("\r\n")


class Transport:
    """Connections of a synchronous client. Threads may share it."""

    def __init__(self, socket: str | None, base: str, headers: Mapping[str, str], verify: bool | ssl.SSLContext) -> None:
        self._socket = socket
        self._url = urlsplit(base)
        self._headers = dict(headers)
        self._tls = _context(verify) if self._url.scheme == "https" else None
        self._mu = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._pid = os.getpid()
        self._closed = False

    def _own(self) -> None:
        if self._pid != os.getpid():  # The connections, and perhaps the lock, are those of the parent.
            self._mu, self._idle, self._pid = threading.Lock(), [], os.getpid()

    def close(self) -> None:
        self._own()
        with self._mu:
            self._closed = True
            for c in self._idle:
                c.close()
            self._idle.clear()

    def _take(self) -> http.client.HTTPConnection:
        self._own()
        with self._mu:
            if self._closed:
                raise errors.Error("the client is closed")
            while self._idle:
                c = self._idle.pop()
                if not _readable(c.sock):
                    return c
                c.close()  # The server has closed it.
        if self._socket:
            return _UnixConnection(self._socket)
        host, port = self._url.hostname or "", self._url.port
        if self._url.scheme == "http":
            return _TCPConnection(host, port, timeout=_CONNECT)
        return _TLSConnection(host, port, timeout=_CONNECT, context=self._tls)

    def _put(self, c: http.client.HTTPConnection) -> None:
        with self._mu:
            if not self._closed and len(self._idle) < _MAX_IDLE:
                self._idle.append(c)
                return
        c.close()

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[_Stream]:
        """Makes a request. The answer is read within the context; what is left of it is not."""
        c = self._take()
        id, pid = secrets.token_hex(8), os.getpid()
        sent = begun = whole = False
        try:
            if c.sock is None:
                c.connect()
            sent = True
            c.request(method, self._url.path + _url(path, params), content, {**self._headers, **(headers or {}), _CALL: id})
            r = c.getresponse()
            _matched(id, r.status, r.headers)  # type: ignore[arg-type]
            if r.length is None and not r.chunked:  # getresponse takes the end of the connection for that of the headers.
                raise http.client.HTTPException("an answer without its length: it may be cut off")
            begun = True
            yield _Stream(r)
            whole = r.isclosed() and not r.will_close
        except (OSError, http.client.HTTPException, _MixedError) as e:
            raise BrokenError(e, sent, begun) from e
        finally:
            if whole and pid == os.getpid():
                self._put(c)
            else:
                c.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """Makes a request."""
        with self.stream(method, path, params=params, content=content, headers=headers) as r:
            return Response(r.status, r.headers, r.read())
