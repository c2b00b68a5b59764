"""A PostgreSQL server of its own, for tests and benchmarks."""

import glob
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def command(name: str) -> str:
    """Returns the path of a command of PostgreSQL, or an empty string."""
    found = [shutil.which(name) or "", *sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"), reverse=True)]
    return next((f for f in found if f), "")


@contextmanager
def running(durable: bool = False) -> Iterator[str]:
    """Starts a server, and yields the directory of its socket. Its user is "test"."""
    initdb, control = command("initdb"), command("pg_ctl")
    # Its commands refuse to run as root.
    user: dict[str, Any] = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as d:
        if user:
            shutil.chown(d, **user)
        run = {"check": True, "stdout": subprocess.DEVNULL, "cwd": d, **user}
        subprocess.run([initdb, "-D", f"{d}/data", "-U", "test", "-A", "trust", "-N"], **run)
        options = f"-c listen_addresses= -k {d}" + ("" if durable else " -c fsync=off")
        subprocess.run([control, "-D", f"{d}/data", "-w", "-o", options, "start"], **run)
        try:
            yield d
        finally:
            subprocess.run([control, "-D", f"{d}/data", "-m", "immediate", "stop"], **run)
