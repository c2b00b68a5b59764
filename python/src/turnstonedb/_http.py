"""How requests are made, and made again: the state of one of them, which both clients drive."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from ssl import SSLContext
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from . import errors
from ._calls import Call
from ._transport import Response
from ._wire import Decoder, Document

T = TypeVar("T")

MAX_PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class Options:
    """How a client reaches its server."""

    address: str
    token: str = ""
    namespace: str = ""
    patience: float = 10.0
    verify: bool | SSLContext = True

    def check(self) -> None:
        if not 0 < self.patience <= MAX_PATIENCE:
            raise ValueError(f"patience is {self.patience}, want up to {MAX_PATIENCE} seconds")
        if not self.address.startswith(("unix:", "http://", "https://")):
            raise ValueError(f"{self.address!r} is no address of a server: want unix:PATH, https://HOST:PORT or http://HOST:PORT")
        url = urlsplit(self.address)
        if (url.scheme == "unix" and not url.path) or (url.scheme != "unix" and (not url.hostname or url.query or url.username)):
            raise ValueError(f"{self.address!r} is no address of a server: want unix:PATH, https://HOST:PORT or http://HOST:PORT")
        if self.token and url.scheme == "http" and url.hostname not in ("localhost", "127.0.0.1", "::1"):
            raise ValueError(f"{self.address} would show the token to everybody on the way: want https")
        if not all("!" <= c <= "~" for c in self.token):
            raise ValueError("the token has characters that no token has")

    @property
    def socket(self) -> str | None:
        return os.path.abspath(self.address.removeprefix("unix:")) if self.address.startswith("unix:") else None

    @property
    def base(self) -> str:
        return "http://turnstone" if self.socket else self.address.rstrip("/")

    def headers(self) -> dict[str, str]:
        h = {}
        if self.token:
            h["Authorization"] = "Bearer " + self.token
        if self.namespace:
            h["Turnstone-Namespace"] = quote(self.namespace, safe="")
        return h


class Attempts:
    """The attempts of one request. After each that got no answer, `again` says how long to wait before the next, or raises."""

    def __init__(self, patience: float, server: str = "", id: str = "", anywhere: bool = False, base: str = "") -> None:
        self._patience = patience
        self.renew()
        self._server = "" if anywhere else server  # that has to make the write
        self._id = id
        self._base = base
        self._pause = 0.005
        self.sent = False  # a server may have begun with it

    def headers(self) -> dict[str, str]:
        h = {}
        if self._id:
            h["Turnstone-Request"] = self._id
            if self._server:
                h["Turnstone-Server"] = self._server
            if self._base:
                h["Turnstone-Base"] = self._base
        return h

    def renew(self) -> None:
        """Begins anew to count the time: something has come."""
        self._deadline = time.monotonic() + self._patience

    def last(self, error: errors.Error) -> errors.Error:
        """Returns an error as that of all attempts: of a write that a server may have made, nobody knows."""
        return errors.unknown_outcome(str(error)) if self.sent and self._id else error

    def refused(self, error: errors.Error, headers: Mapping[str, str]) -> float:
        """Raises what an answer says, unless it is that the write is for another server: then it returns how long to wait."""
        if error.kind == "restarted" and not self.sent:
            self._server = headers.get("Turnstone-Server", "")
            return self.again(error, False)
        if self._id and self.sent and headers.get("Turnstone-Request") != self._id:
            # It says nothing of the attempts before.
            raise errors.unknown_outcome(str(error)) from error
        raise error

    def again(self, error: Exception, sent: bool) -> float:
        """Notes an attempt without an answer. sent tells whether a server may have begun with it."""
        self.sent = self.sent or sent
        if time.monotonic() > self._deadline:
            text = f"no answer of the server: {error or type(error).__name__}"
            raise self.last(errors.unavailable(text)) from error
        pause, self._pause = self._pause, min(2 * self._pause, 0.5)
        return pause


class Lost(Exception):
    """The answer was cut off, or a proxy has answered: the server may have made the request."""


class Busy(Exception):
    """The server has refused the request without an effect, and is to be asked again."""


def check(response: Response) -> None:
    """Raises what an answer says that is no success."""
    content = response.content
    if response.status // 100 == 2:
        return
    if response.headers.get("Content-Type", "").startswith("application/problem+json"):
        problem = parsed(content)
        kind = str(problem.get("type", "")).rpartition("#")[2]
        if kind == "busy":
            raise Busy(problem.get("detail", ""))
        raise errors.of_problem(problem)
    text = f"the answer is {response.status}, and no problem of a server: {content[:200]!r}"
    if response.status >= 500 or response.status == 429:
        raise Lost(text)
    raise errors.Error(text)


def parsed(text: bytes | str) -> Any:
    """Returns what JSON has. Nothing else than a cut makes a server say what is none."""
    try:
        return json.loads(text)
    except ValueError as e:
        raise Lost(f"the answer is no JSON: {text[:100]!r}") from e


def read(call: Call[T], content: bytes) -> T:
    try:
        docs = list(Decoder().feed(content if content.endswith(b"\n") else content + b"\n"))
    except ValueError as e:
        raise Lost(f"the answer is no document: {e}") from e
    if call.several:
        finish(docs)
    elif not docs:
        raise Lost("the answer is cut off")
    return call.read(docs)


def finish(docs: list[Document]) -> None:
    """Raises if the last of several documents is not the end."""
    last = docs[-1].value if docs else {}
    if "problem" in last:
        raise errors.of_problem(last["problem"])
    if not last.get("end"):
        raise Lost("the answer is cut off")


class Events:
    """Reads server-sent events from lines."""

    def __init__(self) -> None:
        self._kind = self._data = ""

    def feed(self, line: str) -> dict[str, Any] | None:
        """Returns the data of the event that ends with this line. Raises the problem that an event has."""
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "event":
                self._kind = value
            elif name == "data":
                self._data = value
            return None
        kind, data, self._kind, self._data = self._kind, self._data, "", ""
        if not data:
            return None
        value = parsed(data)
        if kind == "problem":
            raise errors.of_problem(value)
        return dict(value)
