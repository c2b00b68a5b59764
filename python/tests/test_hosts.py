"""Hosts of many shapes, and answers that are mixed up."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import turnstonedb
from host_shapes import SHAPES
from turnstonedb import NewNode
from turnstonedb._transport import _UnixConnection


@pytest.mark.parametrize("shape", SHAPES)
def test_a_host_of_any_shape_reads_and_writes_what_is_its_own(shape: str, store: str) -> None:
    script = Path(__file__).with_name("host_shapes.py")
    run = subprocess.run([sys.executable, script, shape, store], capture_output=True, text=True, timeout=120, check=False)
    assert (run.returncode, run.stdout) == (0, "done\n"), run.stderr


@contextmanager
def mixing(upstream: str) -> Iterator[str]:
    """Runs a proxy that gives every second request the answer of the one before."""
    last: list[tuple[int, list[tuple[str, str]], bytes]] = []
    mu = threading.Lock()
    count = 0

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            nonlocal count
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            c = _UnixConnection(upstream)
            c.request("POST", self.path, content, dict(self.headers))
            r = c.getresponse()
            fields = [(k, v) for k, v in r.getheaders() if k not in ("Transfer-Encoding", "Content-Length", "Connection", "Date")]
            answer = (r.status, fields, r.read())
            c.close()
            with mu:
                count += 1
                mixed = last[-1] if last and count % 2 == 0 else answer
                last[:] = [answer]
            status, fields, body = mixed
            self.send_response(status)
            for k, v in fields:
                self.send_header(k, v)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def mixer(db: turnstonedb.Client) -> Iterator[str]:
    """The address of a proxy that mixes answers up."""
    assert db._o.socket
    with mixing(db._o.socket) as address:
        yield address


def test_the_answer_to_another_request_is_no_answer(mixer: str) -> None:
    with turnstonedb.Client(mixer) as db:
        sessions = [db.create(f"s{n}")[0] for n in range(3)]
        for revision in range(1, 8):
            for n, s in enumerate(sessions):
                assert s.commit([NewNode("user", f"of {n}")], expected=revision - 1).revision == revision
                assert s.info().id == f"s{n}"
                assert [x.payload for x in s.load().nodes] == [f"of {n}".encode()] * revision
        with pytest.raises(turnstonedb.NotFoundError, match="nobody"):
            db.session("nobody")


def test_the_answer_to_another_request_is_no_answer_asynchronously(mixer: str) -> None:
    async def run() -> None:
        async with turnstonedb.AsyncClient(mixer) as db:
            sessions = [(await db.create(f"s{n}"))[0] for n in range(3)]

            async def one(n: int) -> None:
                s = sessions[n]
                for revision in range(1, 8):
                    assert (await s.commit([NewNode("user", f"of {n}")], expected=revision - 1)).revision == revision
                    assert [x.payload for x in (await s.load()).nodes] == [f"of {n}".encode()] * revision

            await asyncio.gather(*(one(n) for n in range(3)))

    asyncio.run(run())
