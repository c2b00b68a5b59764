"""Calls over connections that are cut."""

import asyncio
import io
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

import turnstonedb
from turnstonedb import NewNode, RecordChange
from turnstonedb._atransport import AsyncTransport
from turnstonedb._transport import BrokenError, Transport


class Cutter:
    """A proxy before the server of a store, which cuts each connection after some bytes of requests, or of answers."""

    def __init__(self, upstream: str, address: str, seed: int, up: int = 12_000, down: int = 2000) -> None:
        self.upstream, self.address = upstream, address
        self.cuts = 0
        self._most = up, down  # bytes of requests, or of answers
        self._random = random.Random(seed)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self.upstream)
            most_up, most_down = self._most
            up, down = self._random.choice([(self._random.randrange(most_up), 1 << 40), (1 << 40, self._random.randrange(most_down))])
            both = (client, server)
            threading.Thread(target=self._pump, args=(client, server, up, both), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, down, both), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, most: int, both: tuple[socket.socket, socket.socket]) -> None:
        with suppress(OSError):
            while content := source.recv(64 << 10):
                target.sendall(content[:most])
                most -= len(content)
                if most < 0:
                    self.cuts += 1
                    break
        for s in both:  # A close alone does not wake who waits for it.
            with suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def cutter(db: turnstonedb.Client, store: str) -> Iterator[Cutter]:
    assert db._o.socket
    c = Cutter(db._o.socket, f"{store}.cut", 1)
    yield c
    c.close()


def grown(n: int) -> bytes:
    """Returns a list of n items."""
    return b"%06d" % n + b"".join(random.Random(i).randbytes(1000) for i in range(n))


def test_a_large_attachment_goes_on_where_it_was_cut_off(db: turnstonedb.Client, store: str) -> None:
    assert db._o.socket
    c = Cutter(db._o.socket, f"{store}.large", 2, 3 << 20, 3 << 20)
    content = random.Random(1).randbytes(20 << 20)

    async def asynchronously() -> bytes:
        async with turnstonedb.AsyncClient(f"unix:{c.address}") as a:
            s = await a.session("s")
            attachment = await s.put_attachment(content[1:])
            return b"".join([chunk async for chunk in s.read_attachment(attachment.id)])

    with turnstonedb.Client(f"unix:{c.address}") as client:
        s, _ = client.create("s")
        attachment = s.put_attachment(content)
        assert b"".join(s.read_attachment(attachment.id)) == content
    assert asyncio.run(asynchronously()) == content[1:]
    assert c.cuts > 4
    c.close()


def test_what_is_written_over_connections_that_are_cut_is_written_once(db: turnstonedb.Client, cutter: Cutter) -> None:
    n = 40
    with turnstonedb.Client(f"unix:{cutter.address}", patience=30) as c:
        s, _ = c.create("s")
        for i in range(1, n + 1):
            node = NewNode("item", b"%d" % i, f"k{i}")
            r = s.commit([node], expected=i - 1, checkpoint={"list": grown(i)}, turn=f"t{i}" if i % 2 else "")
            assert r.revision == i
            s.change_records(RecordChange.set(f"r/{i}", b"%d" % i, "none"))
            if i % 10 == 0:
                assert s.checkpoint(i // 2) == {"list": grown(i // 2)}
                assert [item.payload for item in s.nodes()] == [b"%d" % j for j in range(1, i + 1)]
        attachment = s.put_attachment(io.BytesIO(grown(50)))
        assert b"".join(s.read_attachment(attachment.id)) == grown(50)
    whole = db.session("s")
    for i in range(1, n + 1):
        assert whole.checkpoint(i) == {"list": grown(i)}
    assert len(whole.load().nodes) == len(whole.records("r/", limit=1000).records) == n
    assert cutter.cuts > 15


def test_what_is_awaited_over_connections_that_are_cut_is_written_once(db: turnstonedb.Client, cutter: Cutter) -> None:
    async def commits() -> Any:
        async with turnstonedb.AsyncClient(f"unix:{cutter.address}", patience=30) as c:
            s, _ = await c.create("s")
            for i in range(1, 31):
                r = await s.commit(expected=i - 1, checkpoint={"list": grown(i)}, turn=f"t{i}" if i % 2 else "")
                assert r.revision == i
            return await s.checkpoint(15)

    assert asyncio.run(commits()) == {"list": grown(15)}
    assert db.session("s").checkpoint() == {"list": grown(30)}
    assert cutter.cuts > 5


@pytest.mark.parametrize("end", range(1, 89))
@pytest.mark.parametrize("length", [b"Content-Length: 30\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n1e\r\n"])
def test_an_answer_that_is_cut_off_is_not_taken_for_whole(store: str, length: bytes, end: int) -> None:
    content = b"HTTP/1.1 200 OK\r\nTurnstone-Server: S\r\n" + length + b"x" * 30
    assert end < len(content)
    path = store + ".sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def answer() -> None:
            for _ in range(3):
                c, _ = listener.accept()
                c.recv(1000)
                c.sendall(content[:end])
                c.close()

        threading.Thread(target=answer, daemon=True).start()
        t = Transport(path, "http://turnstone", {}, True)
        with pytest.raises(BrokenError), t.stream("GET", "/") as r:
            list(r.iter_bytes())
        with pytest.raises(BrokenError):
            t.request("GET", "/")
        t.close()

        async def awaited() -> None:
            a = AsyncTransport(path, "http://turnstone", {}, True)
            with pytest.raises(BrokenError):
                async with a.stream("GET", "/") as r:
                    [_ async for _ in r.aiter_bytes()]
            await a.aclose()

        asyncio.run(awaited())
