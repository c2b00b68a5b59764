"""A server that a test or a benchmark runs itself."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from turnstonedb import _server as server


@contextmanager
def serving(store: str, listen: str, *flags: str) -> Iterator[str]:
    """Runs `turnstone serve`, and yields what it says about where it listens."""
    with subprocess.Popen([server.command(), "serve", "--store", store, "--listen", listen, *flags], stdout=subprocess.PIPE, text=True) as p:
        try:
            assert p.stdout is not None
            line = p.stdout.readline()
            assert line, "the server has ended"
            yield line
        finally:
            p.terminate()
