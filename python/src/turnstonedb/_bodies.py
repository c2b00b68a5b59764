"""Bodies of requests. A large commit is sent as its difference from the last one of its session: see docs/http.md of the project."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from . import errors
from ._calls import Call
from ._wire import encode

MAX_REQUEST = 128 << 20
LEAST_BASE = 8 << 10  # bytes that a body has at least for the next one to be sent as its difference
MAX_BASES = 64 << 20  # bytes of the bodies that a client keeps for that
_LEAST_PIECE = 1 << 10  # bytes that a piece of a body has at least to be compared with another one
_MAX_RUNS = 64  # of a piece


@dataclass(frozen=True, slots=True)
class Body:
    """What is sent for a call, in pieces. base is the id of the request from whose body it differs, or "none", or "" if the server is not to remember it."""

    id: str
    sent: Sequence[bytes]
    base: str = ""
    whole: Sequence[bytes] = ()  # what the server has then

    @property
    def content(self) -> bytes:
        return b"".join(self.sent)


class Bases:
    """The bodies of the last commits, by their sessions. Threads may share it."""

    def __init__(self, most: int = MAX_BASES) -> None:
        self._most = most
        self._begin()

    def _begin(self) -> None:
        self._mu = threading.Lock()
        self._by: dict[str, Body] = {}  # the one that was put last is the last one
        self._size = 0
        self._pid = os.getpid()

    def take(self, session: str) -> Body | None:
        """Returns the last body of a session, and forgets it: only one is the difference from another one."""
        if self._pid != os.getpid():  # The lock may be held in the parent, which goes on from these bodies.
            self._begin()
        with self._mu:
            body = self._by.pop(session, None)
            if body:
                self._size -= _size(body.whole)
            return body

    def put(self, session: str, body: Body) -> None:
        self.take(session)
        size = _size(body.whole)
        with self._mu:
            if size > self._most // 2:
                return
            self._by[session] = body
            self._size += size
            while self._size > self._most:
                self._size -= _size(self._by.pop(next(iter(self._by))).whole)


def whole(call: Call[Any], remembered: bool = True) -> Body:
    """Returns the whole body of a call. If it is large, the server remembers it for the next one to be its difference, unless remembered is False."""
    pieces = encode(call.message)
    size = _size(pieces)
    if size > MAX_REQUEST:
        text = f"{call.name} of {size} bytes: a server reads {MAX_REQUEST} at most"
        raise errors.InvalidError(text, {"type": "#too-large", "matches": ["too-large"]})
    base = "none" if remembered and call.session and size >= LEAST_BASE else ""
    return Body(call.id, pieces, base, pieces)


def difference(base: Body, body: Body, id: str) -> Body | None:
    """Returns a body as its difference from an earlier one, or None if that has not less than half of the bytes."""
    copies: list[tuple[int, int, int]] = []
    fresh: list[bytes] = []
    most = _size(body.whole) // 2
    for piece in body.whole:
        at, old = _like(piece, base.whole)
        for start, copied, new in _runs(old, piece):
            copies.append((at + start, copied, len(new)))
            fresh.append(new)
        if _size(fresh) > most:
            return None
    return Body(id, encode({"copies": copies, "fresh": b"".join(fresh)}), base.id, body.whole)


def _size(pieces: Sequence[bytes]) -> int:
    return sum(map(len, pieces))


def _like(piece: bytes, pieces: Sequence[bytes]) -> tuple[int, bytes]:
    """Returns the one of some pieces that has bytes in common with a piece, as far from the beginning or from the end, and where it begins, or nothing."""
    at = 0
    for p in pieces:
        middle = min(len(p), len(piece)) // 2
        if middle > _LEAST_PIECE // 2 and (_sample(p, middle) == _sample(piece, middle) or _sample(p, len(p) - middle) == _sample(piece, len(piece) - middle)):
            return at, p
        at += len(p)
    return 0, b""


def _sample(piece: bytes, at: int) -> bytes:
    return piece[at : at + 64]


def _runs(old: bytes, new: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yields how to make new from old: how many bytes to copy from where, and fresh ones after them.

    It finds what both have at the same offsets, as in a list that was appended to, and what both end with.
    """
    at = 0
    for _ in range(_MAX_RUNS):
        n = _common(old, new, at)
        again = _again(old, new, at + n)
        if again < 0:
            break
        yield at, n, new[at + n : again]
        at = again
    else:
        n = 0
    rest = new[at + n :]
    end = _common_end(old, rest)
    yield at, n, rest[: len(rest) - end]
    if end:
        yield len(old) - end, end, b""


def _common(old: bytes, new: bytes, at: int) -> int:
    """Returns how many bytes both have in common from an offset on."""
    begin, step = at, 64 << 10
    while at < len(new):
        chunk = new[at : at + step]
        if old.startswith(chunk, at):  # without a copy of old
            at += len(chunk)
        elif step == 1:
            break
        else:
            step = max(1, min(step, len(chunk)) // 2)
    return at - begin


def _common_end(old: bytes, new: bytes) -> int:
    """Returns how many bytes both end with in common."""
    n, step = 0, 64 << 10
    while n < len(new):
        chunk = new[max(0, len(new) - n - step) : len(new) - n]
        if old.endswith(chunk, 0, len(old) - n):
            n += len(chunk)
        elif step == 1:
            break
        else:
            step = max(1, min(step, len(chunk)) // 2)
    return n


def _again(old: bytes, new: bytes, at: int) -> int:
    """Returns an offset behind one from which on both have bytes in common again, or -1."""
    for skip in (1, 2, 3, 4, 6, 8, 16, 32, 64, 128, 256, 512, 1024):
        sample = new[at + skip : at + skip + 32]
        if len(sample) < 32:
            break
        if old.startswith(sample, at + skip):
            return at + skip
    return -1
