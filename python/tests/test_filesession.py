"""A host of which a session is saved at once and on every change: docs/hosts.md has its class, which this is."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from turnstonedb import Client, Message


# The class begins here.
@dataclass(kw_only=True)
class StoredSession:
    db: Client
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    created_at: datetime = field(default_factory=datetime.now)
    messages: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.save()

    def save(self) -> None:
        self.db.save(self.id, [Message(m["role"], json.dumps(m)) for m in self.messages], host_created=self.created_at)

    def add_message(self, role: str, content: str) -> None:
        self.messages.append({"role": role, "content": content})
        self.save()

    def set_messages(self, messages: list[dict[str, Any]]) -> None:
        self.messages = messages
        self.save()

    @classmethod
    def load(cls, db: Client, id: str) -> StoredSession:
        history = db.history(id)
        if history is None:
            raise FileNotFoundError(f"there is no session {id}")
        created = datetime.fromisoformat(history.info.host_created).astimezone().replace(tzinfo=None)
        return cls(db=db, id=id, created_at=created, messages=[json.loads(m.payload) for m in history.messages])

    def delete(self) -> None:
        self.db.delete(self.id)


# The class ends here.


def test_the_class_is_that_of_the_page() -> None:
    def between(text: str, begin: str, end: str) -> str:
        return text[text.index(begin) + len(begin) : text.index(end)].strip()

    page = (Path(__file__).parents[2] / "docs" / "hosts.md").read_text()
    (shown,) = re.findall(r"```python\n(@dataclass.*?)```", page, re.DOTALL)
    assert shown.strip() == between(Path(__file__).read_text(), "# The class begins here.\n", "\n# The class ends here.\n")


def test_filesession(store: str) -> None:
    with Client.open(store, idle=5) as db:
        s = StoredSession(db=db)
        assert len(s.id) == 36
        assert StoredSession.load(db, s.id).messages == []  # It was saved at once.
        s.add_message("user", "How is the weather? \U0001f324")
        s.add_message("assistant", "sunny")
        loaded = StoredSession.load(db, s.id)
        assert loaded == s  # created_at included
        with pytest.raises(FileNotFoundError):
            StoredSession.load(db, "missing")
        # A second process goes on, and a crash loses nothing that was acknowledged.
        program = (
            "import os, signal, sys\n"
            f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
            "from test_filesession import Client, StoredSession\n"
            "s = StoredSession.load(Client.open(sys.argv[1], idle=5), sys.argv[2])\n"
            "assert len(s.messages) == 2\n"
            "s.add_message('user', 'send summary')\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        assert subprocess.run([sys.executable, "-c", program, store, s.id]).returncode == -signal.SIGKILL
        before = db.session(s.id).info()
        again = StoredSession.load(db, s.id)
        assert [m["content"] for m in again.messages][1:] == ["sunny", "send summary"]
        # What is compacted is what is stored, and the list has it first.
        StoredSession(db=db, id="other")
        again.set_messages([{"role": "system", "content": "summary"}])
        assert StoredSession.load(db, s.id).messages == [{"role": "system", "content": "summary"}]
        assert [i.id for i in db.list().sessions] == [s.id, "other"]
        after = db.session(s.id).info()
        assert (after.created, after.updated > before.updated) == (before.created, True)
        shown = subprocess.run([os.environ["TURNSTONE_COMMAND"], "show", s.id, "--store", store], capture_output=True, text=True, check=True).stdout
        assert "summary" in shown
        again.delete()
        assert [i.id for i in db.list().sessions] == ["other"]
