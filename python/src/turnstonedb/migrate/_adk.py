"""Migrations from the session services of Google's Agent Development Kit."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from .. import adapter
from .._async import AsyncClient, AsyncSession
from ..errors import ConflictError, InvalidError, NotFoundError, RecordConflictError
from ..types import Commit, NewNode, RecordChange, Result, Usage
from ._report import NOTE, Report, sqlite

if TYPE_CHECKING:
    from google.adk.events.event import Event
    from google.adk.sessions import BaseSessionService, Session

_BY_HOST = b"host "  # begins the note of a session that a host had made before
_BEGUN = "begun"  # in a note, the time of a session that is not brought whole
_RECENT = "recent"  # in a note, the time of a session that was used in the last minute: the source may have more events of the same time
_BROUGHT = "adk-migration"  # what was brought of the states of users and apps: a hash of each value


async def adk(source: BaseSessionService, client: AsyncClient, apps: Iterable[str], *, dry_run: bool = False, progress: Callable[[Report], None] | None = None) -> Report:
    """Brings all sessions of apps from a session service, with the states of their users and of the apps."""
    report = Report()
    for app in apps:
        shared: dict[str, dict[str, Any]] = {adapter.join("adk", app): {}}
        there = await _Brought.of(client, app)
        for s in (await source.list_sessions(app_name=app)).sessions:
            try:
                of_app, of_user, _ = _states(s.state)
                shared[adapter.join("adk", app)].update(of_app)
                user = adapter.join("adk", app, s.user_id)
                others, shared[user] = user in shared, of_user
                changed, brought, different, gone = await _session(source, client, s, there, dry_run)
                if gone and not others:
                    del shared[user]
                report.add(unchanged=not changed, brought=brought, different=different)
            except (ValueError, InvalidError) as e:  # what the store refuses
                report.add(different=f"session {adapter.cut('/'.join((app, s.user_id, s.id)), 200)!r}: {e}")
            if progress:
                progress(report)
        if not dry_run:
            for id, values in shared.items():
                of = adapter.cut("/".join(adapter.names(id)), 200)
                try:
                    report.different += [f"state {key!r} of {of!r} {why}" for key, why in await _bring_state(client, id, values)]
                except (ValueError, InvalidError) as e:
                    report.different.append(f"state of {of!r}: {e}")
    return report


def _states(shown: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    from ..adk import _deltas

    return _deltas(shown)[:3]


class _Brought:
    """Which sessions of an app were brought: what a host has deleted since does not come again."""

    def __init__(self, states: adapter.States, id: str, known: Mapping[str, bytes]) -> None:
        self._states, self._id, self._known = states, id, set(known)

    @classmethod
    async def of(cls, client: AsyncClient, app: str) -> _Brought:
        from ..adk import _STATES

        states, id = adapter.States(client, _STATES), adapter.short(adapter.join(_BROUGHT, "sessions", app))
        return cls(states, id, await states.read(id))

    def __contains__(self, s: Session) -> bool:
        return self._key(s) in self._known

    def _key(self, s: Session) -> str:
        return _digest(adapter.join("", s.user_id, s.id).encode()).decode()  # It names no user who is erased.

    async def add(self, s: Session, commit: Any) -> Result:
        """Makes a commit to a session, and notes the session with the same commit."""
        key = self._key(s)
        try:
            if s in self:
                return (await self._states.commit({}, commit))[0]
            result = (await self._states.commit({self._id: {key: b""}}, commit, expected={self._id: {key: "none"}}))[0]
        except RecordConflictError:
            self._known.add(key)  # Another migration has noted it.
            raise
        self._known.add(key)
        return result


async def _session(source: BaseSessionService, client: AsyncClient, listed: Session, there: _Brought, dry_run: bool) -> tuple[bool, int, str, bool]:
    """Brings the events of a session that are not there, and its state, and verifies them. Returns whether there was anything to do, how many events it brought,
    what differs, and whether a host has deleted it."""
    while True:
        try:
            return await _once(source, client, listed, there, dry_run)
        except (ConflictError, RecordConflictError, NotFoundError) as e:  # Somebody else has added events, or deleted it.
            if e.outcome_unknown or (isinstance(e, NotFoundError) and not adapter.gone(e)):
                raise


async def _once(source: BaseSessionService, client: AsyncClient, listed: Session, there: _Brought, dry_run: bool) -> tuple[bool, int, str, bool]:
    """Does this, or raises an error if somebody else changes the session meanwhile."""
    from ..adk import _LATE, _ROOT, _SKEW, _STATE, _object, event_of

    app, user, name = listed.app_name, listed.user_id, listed.id
    stands, was = repr(listed.last_update_time), b""
    handle, revision, has, shown = None, 0, list[bytes](), b""
    try:
        handle = await client.session(adapter.join(_ROOT, app, user, name))
        note = await handle.record(NOTE)
        was = note.value if note else b""
    except NotFoundError as e:
        if not adapter.gone(e):
            raise
    noted, _, number = was.removeprefix(_BY_HOST).decode().partition(" ")
    if noted == stands:
        return False, 0, "", False
    if listed in there and not was:
        return False, 0, "", True  # A host has deleted it, and may have made another one.
    hosts = was.startswith(_BY_HOST) or (handle is not None and not was)
    if handle:
        state = await handle.load(parts=[_STATE])
        revision, has, shown = state.revision, [_text(event_of(n.payload)) for n in state.nodes], state.contents.get(_STATE, b"")
    whole = await source.get_session(app_name=app, user_id=user, session_id=name)
    if whole is None:
        return False, 0, "", False  # Somebody has deleted it since it was listed.
    want = [_text(e) for e in whole.events]
    if len(has) < int(number or 0) or has[: len(want)] != want[: len(has)]:  # A host has gone back, or on.
        return True, 0, f"session {'/'.join((app, user, name))!r}: its events are others", False
    new, own = whole.events[len(has) :], _object(_states(whole.state)[2])
    late = {_LATE: b""} if any(e.timestamp > time.time() + _SKEW / 2 for e in whole.events) else {}
    goes_on = len(has) > len(want) or hosts  # A host has made it, or has gone on: the state is what the host has made of it.
    commits = list(adapter.in_commits(new, lambda e: len(_text(e)))) or ([] if goes_on or shown == own else [[]])
    if dry_run:
        return bool(commits), len(new), "", False
    handle = await _add(client, listed, there, handle, revision, len(has), hosts, commits, late if goes_on else {_STATE: own, **late})
    state = await handle.load(parts=[_STATE])
    if [_text(event_of(n.payload)) for n in state.nodes][: len(want)] != want or (not goes_on and state.contents[_STATE] != own):
        return True, len(new), f"session {'/'.join((app, user, name))!r}: its events or its state are others", False
    is_now = _progress(hosts, stands if time.time() - listed.last_update_time > 60 else _RECENT, len(want))
    if commits or is_now.value != was:
        await there.add(listed, handle.turn(Commit(0, records=[is_now]), records_only=True))
    return bool(commits), len(new), "", False


async def _add(
    client: AsyncClient,
    listed: Session,
    there: _Brought,
    to: AsyncSession | None,
    at: int,
    has: int,
    hosts: bool,
    commits: Iterable[list[Event]],
    parts: Mapping[str, bytes],
) -> AsyncSession:
    """Makes commits of events to the session that is at a revision and has so many, and notes with them how far it has come. If there is none, the first one makes it."""
    from ..adk import _ROOT, _kind

    group = adapter.join(_ROOT, listed.app_name, listed.user_id)
    id = adapter.join(group, listed.id)
    for some in commits:
        has += len(some)
        nodes, note = [NewNode(_kind(e), _text(e)) for e in some], _progress(hosts, _BEGUN, has)
        commit = Commit(at, nodes, secrets.token_hex(16), checkpoint=parts, usage=_used(some), records=[note])
        at = (await there.add(listed, to.turn(commit) if to else client.first_turn(id, commit, group=group))).revision
        to = to or await client.session(id)
    assert to is not None
    return to


def _progress(hosts: bool, time_of: str, events: int) -> RecordChange:
    """Returns the note of a session: when the source updated it last, and how many events it has here then."""
    return RecordChange.set(NOTE, (_BY_HOST if hosts else b"") + f"{time_of} {events}".encode())


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


async def _bring_state(client: AsyncClient, id: str, values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Sets those values of a state that are new, and those that were brought and have changed in the source since. A value is new if it is not there and was never
    brought. Returns the keys of the others, with what is wrong."""
    from ..adk import _STATES

    states = adapter.States(client, _STATES)
    note = adapter.short(adapter.join(_BROUGHT, id))
    while True:
        versions, there, brought = await states.versions(id), await states.read(id), await states.read(note)
        change: dict[str, bytes] = {}
        others = list[tuple[str, str]]()
        for key, value in values.items():
            try:
                content = adapter.marshal(value)
            except ValueError as e:
                others.append((key, str(e)))
                continue
            if there.get(key) == content or (key in brought and key not in there):
                continue  # It is there, or a host has deleted it.
            if key in there and brought.get(key) != _digest(there[key]):
                others.append((key, "is another one"))
            else:
                change[key] = content
        try:
            for some in adapter.in_commits(change.items(), lambda of: len(of[1]), 100):
                others += await _set(states, id, note, dict(some), versions)
        except RecordConflictError as e:
            if e.outcome_unknown:
                raise
            continue  # Somebody has set one of them meanwhile.
        return others


async def _set(states: adapter.States, id: str, note: str, change: Mapping[str, bytes], versions: Mapping[str, str]) -> list[tuple[str, str]]:
    """Sets values of a state, and notes them. Returns the keys of those that the store refuses, with what is wrong."""
    expected = {id: {k: versions.get(k, "none") for k in change}}
    try:
        await states.commit({id: change, note: {k: _digest(v) for k, v in change.items()}}, expected=expected)
    except (ValueError, InvalidError) as e:
        if len(change) == 1:
            return [(k, str(e)) for k in change]
        return [refused for k, v in change.items() for refused in await _set(states, id, note, {k: v}, versions)]
    return []


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest()[:32].encode()


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
