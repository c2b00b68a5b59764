"""Starts `turnstone serve` on a directory."""

from __future__ import annotations

import atexit
import os
import re
import selectors
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from . import errors

COMMAND_VARIABLE = "TURNSTONE_COMMAND"
_SOCKET = "turnstone.http"
MAX_SOCKET = 103  # bytes of a path in the address of a socket
_START = 60.0  # seconds that a server may take to open its store


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


def absolute(store: str | os.PathLike[str]) -> str:
    """Returns a store that is the same from any working directory."""
    store = os.fspath(store)
    d = directory(store)
    unknown = re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+:", d)  # One letter is a drive.
    if unknown:
        raise ValueError(f"{store!r}: there is no scheme {unknown[0]!r}: want DIR, pebble:DIR or badger:DIR")
    if not d:
        raise ValueError(f"{store!r} has no directory: start `turnstone serve`, and connect with its address")
    return store[: len(store) - len(d)] + os.path.abspath(d)


def address(store: str) -> str:
    """Returns where a server of a store is that `start` has started."""
    path = os.path.join(directory(store), _SOCKET)
    if len(os.fsencode(path)) > MAX_SOCKET and sys.platform != "linux":
        raise ValueError(f"{path}: the path of a socket has {MAX_SOCKET} bytes at most. Start `turnstone serve --listen unix:PATH`, and connect with that")
    return "unix:" + path


def start(store: str, idle: float) -> bool:
    """Starts a server, unless there is one. It ends when nobody has asked it anything for so many seconds. Returns whether it was started."""
    _children[:] = [p for p in _children if p.poll() is None]
    # The server outlives this process, so what it warns of goes to a file without a name.
    with tempfile.TemporaryFile() as warnings:
        try:
            p = subprocess.Popen(
                [command(), "serve", "--store", store, "--idle", f"{idle:.3f}s"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=warnings,
                start_new_session=True,
            )
        except OSError as e:
            raise errors.Error(f"{command()}: {e}; {COMMAND_VARIABLE} says where the command is") from e
        assert p.stdout is not None
        with p.stdout, selectors.DefaultSelector() as selector:
            selector.register(p.stdout, selectors.EVENT_READ)
            if not selector.select(_START):
                p.kill()
                raise errors.unavailable(f"{command()} does not begin to serve {store} within {_START} seconds")
            if p.stdout.readline():
                _children.append(p)
                return True
        p.wait()
        warnings.seek(0)
        text = warnings.read().decode(errors="replace").strip()
    if "another process serves on" not in text:
        raise errors.unavailable(text or f"{command()} has ended, and said nothing: is it the command of Turnstone?")
    return False


_children: list[subprocess.Popen[bytes]] = []  # so that they are waited for


@atexit.register
def _let_go() -> None:
    for p in _children:
        p.returncode = 0  # It outlives this process, and Popen does not warn of that.
