"""Starts `turnstone serve` on a directory."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from . import errors

COMMAND_VARIABLE = "TURNSTONE_COMMAND"
_SOCKET = "turnstone.http"


def command() -> str:
    """Returns the path of the command: that of the environment variable, of the wheel, or on the path."""
    if path := os.environ.get(COMMAND_VARIABLE):
        return path
    own = Path(__file__).parent / "bin" / ("turnstone.exe" if os.name == "nt" else "turnstone")
    if own.exists():
        return str(own)
    if path := shutil.which("turnstone"):
        return path
    raise errors.Error(f"there is no command turnstone: install a wheel for this machine, or set {COMMAND_VARIABLE} to the command that `go build ./cmd/turnstone` makes")


def directory(store: str) -> str:
    """Returns the directory of a store, or an empty string if it has none."""
    for scheme in ("badger:", "pebble:"):
        if store.startswith(scheme):
            return store.removeprefix(scheme)
    return "" if store.startswith(("postgres://", "postgresql://", "mem:")) else store


def address(store: str) -> str:
    """Returns where a server of a store is that `start` has started."""
    d = directory(store)
    if not d:
        raise ValueError(f"{store!r} has no directory: start `turnstone serve`, and connect with its address")
    return "unix:" + os.path.join(os.path.abspath(d), _SOCKET)


def start(store: str, idle: float) -> None:
    """Starts a server, unless there is one. It ends when nobody has asked it anything for so many seconds."""
    # The server outlives this process, so what it warns of goes to a file without a name.
    with tempfile.TemporaryFile() as warnings:
        p = subprocess.Popen(
            [command(), "serve", "--store", store, "--idle", f"{idle:.3f}s"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=warnings, start_new_session=True,
        )  # fmt: skip
        assert p.stdout is not None
        with p.stdout:
            if p.stdout.readline():
                _children.append(p)
                return
        p.wait()
        warnings.seek(0)
        text = warnings.read().decode(errors="replace").strip()
    if "another process serves on" not in text:
        raise errors.unavailable(text or "the server has ended")


_children: list[subprocess.Popen[bytes]] = []  # so that they are waited for
