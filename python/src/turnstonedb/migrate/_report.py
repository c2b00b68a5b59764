"""What migrations have in common."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote

T = TypeVar("T")

NOTE = "migrated"  # the key of the record of a session that says up to where it was brought


@dataclass
class Report:
    """What a migration did. `different` names what was there already, and is not what the source has, which it leaves alone, and what can't be read or stored."""

    found: int = 0  # threads with their namespaces, or sessions
    unchanged: int = 0  # of them, since they were brought
    brought: int = 0  # checkpoints, or items
    different: list[str] = field(default_factory=list)
    _mu: Any = field(default_factory=threading.Lock, repr=False)

    def add(self, *, unchanged: int = 0, brought: int = 0, different: str = "") -> None:
        with self._mu:
            self.found += 1
            self.unchanged += unchanged
            self.brought += brought
            if different:
                self.different.append(different)


_AT_ONCE = 200  # events of a commit
_BYTES_AT_ONCE = 4 << 20  # of these


def parts(events: Iterable[T], size: Callable[[T], int]) -> list[list[T]]:
    """Returns events by commits."""
    out: list[list[T]] = []
    total = 0
    for e in events:
        n = size(e)
        if not out or len(out[-1]) == _AT_ONCE or total + n > _BYTES_AT_ONCE:
            out.append([])
            total = 0
        out[-1].append(e)
        total += n
    return out


def sqlite(url: str) -> sqlite3.Connection:
    """Opens a database of SQLite, to be read."""
    path = url.removeprefix("sqlite:").removeprefix("///")
    return sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, check_same_thread=False)
