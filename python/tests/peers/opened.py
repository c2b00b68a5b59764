"""Stores for the tests of others: a namespace for each, of one server."""

import asyncio
import atexit
import hashlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import turnstonedb
from turnstonedb import _server

DIRECTORY = tempfile.mkdtemp()
atexit.register(shutil.rmtree, DIRECTORY, True)


def namespace(path: str = ":memory:") -> str:
    """Returns the namespace that stands for a database."""
    return "n" + (os.urandom(10).hex() if path == ":memory:" else hashlib.sha256(path.encode()).hexdigest()[:20])


@contextmanager
def client(path: str = ":memory:") -> Iterator[turnstonedb.Client]:
    with turnstonedb.Client.open(DIRECTORY, namespace=namespace(path), idle=2) as c:
        yield c


@asynccontextmanager
async def aclient(path: str = ":memory:") -> AsyncIterator[turnstonedb.AsyncClient]:
    async with await turnstonedb.AsyncClient.open(DIRECTORY, namespace=namespace(path), idle=2) as c:
        yield c


def aclient_at_once() -> turnstonedb.AsyncClient:
    """Returns a client that connects with its first request."""

    async def start() -> bool:
        return await asyncio.to_thread(_server.start, DIRECTORY, 2)

    return turnstonedb.AsyncClient(_server.address(DIRECTORY), namespace=namespace(), _restart=start)


def from_conn_string(kind: Any) -> Any:
    """Returns the class method by which the tests of others open a saver or a store."""

    def options(index: Any) -> Any:
        return {"index": {**index, "fields": index.get("text_fields") or index.get("fields")}} if index else {}

    @contextmanager
    def opened(cls: Any, path: str, *, index: Any = None, **_: Any) -> Iterator[Any]:
        with client(path) as c:
            yield cls(c, **options(index))

    @asynccontextmanager
    async def aopened(cls: Any, path: str, *, index: Any = None, **_: Any) -> AsyncIterator[Any]:
        async with aclient(path) as c:
            yield cls(c, **options(index))

    return classmethod(aopened if kind.__name__.startswith("Async") else opened)


def nothing(self: Any, *_: Any, **__: Any) -> None:
    """Is what the tests of others call and a store of ours needs not."""


async def anothing(self: Any, *_: Any, **__: Any) -> None:
    """Is what the tests of others await and a store of ours needs not."""


def standing_in(kind: Any, **more: Any) -> Any:
    """Returns a class of ours as the tests of others open theirs."""
    done = anothing if kind.__name__.startswith("Async") else nothing
    return type(kind.__name__, (kind,), {"from_conn_string": from_conn_string(kind), "setup": done, "start_ttl_sweeper": done, "stop_ttl_sweeper": done, **more})
