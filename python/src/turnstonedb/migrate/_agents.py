"""Migrations from the sessions of the OpenAI Agents SDK."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from .. import adapter
from .._sync import Client
from ..errors import ConflictError, NotFoundError
from ..types import NewNode
from ._report import Report, sqlite


def agents(source: Any, client: Client, *, dry_run: bool = False, progress: Callable[[Report], None] | None = None) -> Report:
    """Brings all sessions of the Agents SDK's SQLiteSession, or of its SQLAlchemySession. They keep their ids. The source is a connection of sqlite3 or psycopg."""
    from ..agents import _kind

    sqlite = type(source).__module__ == "sqlite3"
    first = "id" if sqlite and not source.execute("SELECT 1 FROM pragma_table_info('agent_messages') WHERE name='created_at'").fetchone() else "created_at, id"
    items_of = f"SELECT message_data FROM agent_messages WHERE session_id={'?' if sqlite else '%s'} ORDER BY {first}"

    report = Report()
    for (id,) in source.execute("SELECT session_id FROM agent_sessions ORDER BY session_id").fetchall():
        items = [json.loads(data) for (data,) in source.execute(items_of, (id,)).fetchall()]
        while True:
            try:
                session = client.session(id)
                state = session.load()
                has, revision = [json.loads(n.payload) for n in state.nodes], state.revision
            except NotFoundError as e:
                if not adapter.gone(e):
                    raise
                has, revision = [], 0
            new = items[len(has) :]
            if has != items[: len(has)]:
                report.add(different=f"session {id!r}: its items are others")
            elif not new or dry_run:
                report.add(unchanged=not new, brought=len(new))
            else:
                session, _ = client.create(id)
                nodes = [NewNode(_kind(i), json.dumps(i, ensure_ascii=False).encode("utf-8", "surrogatepass")) for i in new]
                try:
                    for i in range(0, len(nodes), 1000):
                        revision = session.commit(nodes[i : i + 1000], expected=revision, turn=secrets.token_hex(16)).revision
                except ConflictError:
                    continue  # Somebody else has added items.
                if [json.loads(n.payload) for n in session.load().nodes] != items:
                    report.add(different=f"session {id!r}: its items are others")
                else:
                    report.add(brought=len(new))
            break
        if progress:
            progress(report)
    return report


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
