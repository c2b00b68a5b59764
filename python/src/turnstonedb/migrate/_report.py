"""What migrations have in common."""

from __future__ import annotations

import sqlite3
import threading
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

NOTE = "migrated"  # the key of the record of a session that says up to where it was brought


@dataclass
class Report:
    """What a migration did. `different` names what can't be read or stored, and what was there already and is not what the source has: both are left alone."""

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


def sqlite(url: str) -> sqlite3.Connection:
    """Opens a database of SQLite, to be read."""
    path = url.removeprefix("sqlite:").removeprefix("///")
    return sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, check_same_thread=False)
