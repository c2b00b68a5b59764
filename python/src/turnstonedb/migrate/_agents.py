"""Migrations from the sessions of the OpenAI Agents SDK."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import quote

from .. import adapter
from .._sync import Client
from ..errors import ConflictError, InvalidError, NotFoundError, RecordConflictError
from ..types import Commit, NewNode, Record, RecordChange
from ._report import Report, sqlite

_BROUGHT = "agents-migration"  # the session whose records say how many items of a session were brought: what a host has removed since does not come again


def agents(source: Any, client: Client, *, dry_run: bool = False, progress: Callable[[Report], None] | None = None) -> Report:
    """Brings all sessions of the Agents SDK's SQLiteSession, or of its SQLAlchemySession. They keep their ids. The source is a connection of sqlite3 or psycopg."""
    sqlite = type(source).__module__ == "sqlite3"
    first = "id" if sqlite and not source.execute("SELECT 1 FROM pragma_table_info('agent_messages') WHERE name='created_at'").fetchone() else "created_at, id"
    items_of = f"SELECT message_data FROM agent_messages WHERE session_id={'?' if sqlite else '%s'} ORDER BY {first}"

    report = Report()
    for (id,) in source.execute("SELECT session_id FROM agent_sessions ORDER BY session_id").fetchall():
        brought = list[int]()
        try:
            items = [json.loads(data) for (data,) in source.execute(items_of, (id,)).fetchall()]
            different = _session(client, id, items, dry_run, brought)
        except (ValueError, InvalidError) as e:  # an item that is damaged, or what the store refuses
            different = f"session {adapter.cut(repr(id), 200)}: {e}"
        report.add(unchanged=not sum(brought) and not different, brought=sum(brought), different=different)
        if progress:
            progress(report)
    return report


def _session(client: Client, id: str, items: list[Any], dry_run: bool, brought: list[int]) -> str:
    """Brings the items of a session that are not there. Returns what differs, and adds to brought how many a commit has brought, or in a dry run would bring."""
    while True:
        try:
            return _once(client, id, items, dry_run, brought)
        except (ConflictError, RecordConflictError, NotFoundError) as e:  # Somebody else has added items, or removed some, or deleted it.
            if e.outcome_unknown or (isinstance(e, NotFoundError) and not adapter.gone(e)):
                raise


def _once(client: Client, id: str, items: list[Any], dry_run: bool, brought: list[int]) -> str:
    """Does this, or raises an error if somebody else changes the session or its note meanwhile. Returns what differs."""
    from ..agents import _kind

    key = "brought/" + adapter.short(quote(id, safe="", errors="surrogatepass"), 400)
    note = _noted(client, key)
    had = int(note.value) if note else 0
    handle, revision, has = None, 0, list[Any]()
    try:
        handle = client.session(id)
        state = handle.load()
        revision, has = state.revision, [json.loads(n.payload) for n in state.nodes]
    except NotFoundError as e:
        if not adapter.gone(e):
            raise
        handle = None
    if handle is None and (note or not items):
        return ""  # A host has cleared it, or there is nothing.
    new, others = items[len(has) :], f"session {id!r}: its items are others"
    if has[: len(items)] != items[: len(has)] or len(has) < had:
        return others
    if dry_run:
        brought.append(len(new))
        return ""
    if note and had >= len(items):
        return ""
    side, _ = client.create(_BROUGHT, retention="all")

    def noted(n: int) -> RecordChange:
        return RecordChange.set(key, str(max(had, n)).encode(), note.version if note else "none")  # The number never falls.

    nodes, there = [NewNode(_kind(i), json.dumps(i, ensure_ascii=False).encode("utf-8", "surrogatepass")) for i in new], len(has)
    for some in adapter.in_commits(nodes, lambda n: len(n.payload)):
        there += len(some)
        commit = Commit(revision, some, secrets.token_hex(16))
        turn = handle.turn(commit) if handle else client.first_turn(id, commit)
        revision = client.commit_all(turn, side.turn(Commit(0, records=[noted(there)]), records_only=True))[0].revision
        brought.append(len(some))
        handle, note, had = handle or client.session(id), side.record(key), there
    assert handle is not None
    if not nodes:
        side.change_records(noted(len(items)))
    return "" if [json.loads(n.payload) for n in handle.load().nodes][: len(items)] == items else others


def _noted(client: Client, key: str) -> Record | None:
    """Returns the record that says how many items of a session were brought, or None if it was not."""
    try:
        return client.session(_BROUGHT).record(key)
    except NotFoundError as e:
        if not adapter.gone(e):
            raise
        return None


@contextmanager
def opened(url: str) -> Iterator[Any]:
    """Opens a database with such sessions, to be read."""
    if url.startswith(("postgres:", "postgresql:")):
        import psycopg

        with psycopg.connect(url, autocommit=True) as postgres:
            yield postgres
        return
    with closing(sqlite(url)) as conn:
        yield conn
