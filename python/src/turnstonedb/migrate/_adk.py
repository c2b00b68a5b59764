"""Migrations from the session services of Google's Agent Development Kit."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import quote

from .. import adapter
from .._async import AsyncClient
from ..errors import ConflictError, InvalidError, NotFoundError, RecordConflictError
from ..types import Commit, NewNode, Record, RecordChange, Usage
from ._adk_states import Brought, Owner, bring_state, current
from ._report import NOTE, Report, sqlite

if TYPE_CHECKING:
    from google.adk.events.event import Event
    from google.adk.sessions import BaseSessionService, Session

_BY_HOST = "host "  # begins the note of a session that a host had made before
_BEGUN = "begun"  # in a note, the time of a session that is not brought whole
_RECENT = "recent"  # in a note, the time of a session that was used in the last minute: the source may have more events of the same time


async def adk(source: BaseSessionService, client: AsyncClient, apps: Iterable[str], *, dry_run: bool = False, progress: Callable[[Report], None] | None = None) -> Report:
    """Brings all sessions of apps from a session service, with the states of their users and of the apps."""
    from google.adk.sessions import State

    report = Report()
    for app in apps:
        there, users = await Brought.of(client, app), dict[str, Owner]()
        whole = Owner((app,), State.APP_PREFIX)
        for s in (await source.list_sessions(app_name=app)).sessions:
            of = _Bringing(source, client, s, there, dry_run)
            try:
                different = await of.bring()
                report.add(unchanged=not of.changed and not different, brought=of.brought, different=different)
            except (ValueError, InvalidError) as e:  # what can't be read, or what the store refuses
                report.add(brought=of.brought, different=f"session {adapter.cut('/'.join((app, s.user_id, s.id)), 200)!r}: {e}")
            whole.add(s, of.changed)
            users.setdefault(s.user_id, Owner((app, s.user_id), State.USER_PREFIX)).add(s, of.changed)
            if progress:
                progress(report)
        for owner in [*users.values(), whole] if users else []:
            name = adapter.cut("/".join(owner.names), 200)
            try:
                report.different += [f"state {key!r} of {name!r} {why}" for key, why in await bring_state(source, client, there, owner, dry_run)]
            except (ValueError, InvalidError) as e:
                report.different.append(f"state of {name!r}: {e}")
    return report


@dataclass(frozen=True)
class _Noted:
    """The content of the record that a migration keeps in a session. Its number of events never falls: an event that a host takes back does not come again."""

    hosts: bool  # A host had made the session.
    at: str  # the time of the source's last update, or _BEGUN or _RECENT
    events: int  # that were brought

    @classmethod
    def of(cls, r: Record | None) -> _Noted:
        value = r.value.decode() if r else ""
        at, _, events = value.removeprefix(_BY_HOST).partition(" ")
        return cls(value.startswith(_BY_HOST), at, int(events or 0))

    def instead(self, r: Record | None) -> RecordChange:
        """Notes it instead of a record, or where there is none."""
        return RecordChange.set(NOTE, f"{_BY_HOST if self.hosts else ''}{self.at} {self.events}".encode(), r.version if r else "none")


@dataclass
class _Bringing:
    """The work of a migration on a session."""

    source: BaseSessionService
    client: AsyncClient
    listed: Session
    there: Brought
    dry_run: bool
    brought: int = 0  # events
    changed: bool = False  # something here

    async def bring(self) -> str:
        """Brings what is not there, and verifies it. Returns what differs. It reads the session here first, then the source, and stores only if the session here has
        not changed meanwhile. So it replaces nothing newer."""
        while True:
            try:
                return await self._once()
            except (ConflictError, RecordConflictError, NotFoundError) as e:  # Somebody else has added events, or deleted it.
                if e.outcome_unknown or (isinstance(e, NotFoundError) and not adapter.gone(e)):
                    raise

    async def _once(self) -> str:
        """Does this, or raises an error if somebody else changes the session meanwhile."""
        from google.adk.sessions import State

        from ..adk import _LATE, _ROOT, _SKEW, _STATE, _deltas, _kind, _object, event_of

        app, user, name = self.listed.app_name, self.listed.user_id, self.listed.id
        group, shown = adapter.join(_ROOT, app, user), repr("/".join((app, user, name)))
        id = adapter.join(group, name)
        handle, r, revision, has, state = None, None, 0, list[bytes](), b""
        try:
            handle = await self.client.session(id)
            r = await handle.record(NOTE)
        except NotFoundError as e:
            if not adapter.gone(e):
                raise
            handle = None
        was = _Noted.of(r)
        if was.at == repr(self.listed.last_update_time):
            return ""
        if self.listed in self.there and not was.at:
            return ""  # A host has deleted it, and may have made another one.
        if handle:
            loaded = await handle.load(parts=[_STATE])
            revision, has, state = loaded.revision, [_text(event_of(n.payload)) for n in loaded.nodes], loaded.contents.get(_STATE, b"")
        whole = await current(self.source, self.listed, 0)
        if whole is None:
            return ""  # Somebody has deleted it since it was listed.
        stands = repr(whole.last_update_time) if time.time() - whole.last_update_time > 60 else _RECENT
        want = [_text(e) for e in whole.events]
        if len(has) < was.events or has[: len(want)] != want[: len(has)]:  # A host has gone back, or on.
            return f"session {shown}: its events are others"
        new = whole.events[len(has) :]
        shown_with_it = (State.APP_PREFIX, State.USER_PREFIX)  # bring_state brings them.
        own = _object(_deltas({k: v for k, v in whole.state.items() if not k.startswith(shown_with_it)})[2])
        late = {_LATE: b""} if any(e.timestamp > time.time() + _SKEW / 2 for e in whole.events) else {}
        now = _Noted(was.hosts or (handle is not None and not was.at), _BEGUN, was.events)
        goes_on = len(has) > len(want) or now.hosts  # A host has made it, or has gone on: the state is what the host has made of it.
        commits = list(adapter.in_commits(new, lambda e: len(_text(e)))) or ([] if goes_on or state == own else [[]])
        if self.dry_run:
            self.changed, self.brought = bool(commits), self.brought + len(new)
            return ""
        parts, count = late if goes_on else {_STATE: own, **late}, len(has)
        for some in commits:
            count += len(some)
            now = replace(now, events=max(now.events, count))
            nodes = [NewNode(_kind(e), _text(e)) for e in some]
            commit = Commit(revision, nodes, secrets.token_hex(16), checkpoint=parts, usage=_used(some), records=[now.instead(r)])
            revision = (await self.there.add(self.listed, handle.turn(commit) if handle else self.client.first_turn(id, commit, group=group))).revision
            self.changed, self.brought = True, self.brought + len(some)
            handle = handle or await self.client.session(id)
            r = await handle.record(NOTE)
            if _Noted.of(r) != now:
                return await self._once()  # Another migration has gone on.
        assert handle is not None
        loaded = await handle.load(parts=[_STATE])
        if [_text(event_of(n.payload)) for n in loaded.nodes][: len(want)] != want or (not goes_on and loaded.contents[_STATE] != own):
            return f"session {shown}: its events or its state are others"
        now = replace(now, at=stands, events=max(now.events, len(want)))
        if now != _Noted.of(r):
            await self.there.add(self.listed, handle.turn(Commit(0, records=[now.instead(r)]), records_only=True))
        return ""


def _text(event: Event) -> bytes:
    """Returns an event as it is stored."""
    from ..adk import _deltas, payload_of

    return payload_of(event, _deltas(event.actions.state_delta if event.actions else {})[3])


def _used(events: Iterable[Event]) -> list[Usage]:
    """Returns the tokens of events, by their models."""
    from ..adk import _usage

    out: dict[str, Usage] = {}
    for u in (u for e in events for u in _usage(e)):
        had = out.get(u.model, Usage(u.model))
        out[u.model] = Usage(u.model, had.input + u.input, had.output + u.output, had.cached_input + u.cached_input, had.cache_write, had.reasoning + u.reasoning)
    return list(out.values())


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[tuple[BaseSessionService, list[str]]]:
    """Opens the session service that has its tables in a database, to be read. Yields it with the names of the apps."""
    from google.adk.sessions import DatabaseSessionService
    from sqlalchemy import text

    path = url.removeprefix("sqlite:").removeprefix("///")
    if url.startswith("sqlite:"):
        with closing(sqlite(url)) as conn:
            columns = {c for (c,) in conn.execute("SELECT name FROM pragma_table_info('events')")}
            internal = conn.execute("SELECT 1 FROM sqlite_master WHERE name='adk_internal_metadata'").fetchone()
            if "event_data" in columns and not internal:
                from google.adk.sessions.sqlite_session_service import SqliteSessionService

                service = SqliteSessionService(f"sqlite:///{quote(path)}?mode=ro")
                yield service, [app for (app,) in conn.execute("SELECT DISTINCT app_name FROM sessions ORDER BY 1")]
                return
        url = f"sqlite+aiosqlite:///file:{quote(path)}?mode=ro&uri=true"
    database = DatabaseSessionService(db_url=url)
    try:
        async with database.db_engine.connect() as c:
            apps = [row[0] for row in await c.execute(text("SELECT DISTINCT app_name FROM sessions ORDER BY 1"))]
        yield database, apps
    finally:
        await database.close()
