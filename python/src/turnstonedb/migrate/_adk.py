"""Migrations from the session services of Google's Agent Development Kit."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from .. import adapter
from .._async import AsyncClient
from ..errors import ConflictError, InvalidError, NotFoundError, RecordConflictError
from ..types import Commit, NewNode, Record, RecordChange, Result, Usage
from ._report import NOTE, Report, sqlite

if TYPE_CHECKING:
    from google.adk.events.event import Event
    from google.adk.sessions import BaseSessionService, Session

_BY_HOST = "host "  # begins the note of a session that a host had made before
_BEGUN = "begun"  # in a note, the time of a session that is not brought whole
_RECENT = "recent"  # in a note, the time of a session that was used in the last minute: the source may have more events of the same time
_BROUGHT = "adk-migration"  # what was brought of the states of users and apps: a hash of each value


async def adk(source: BaseSessionService, client: AsyncClient, apps: Iterable[str], *, dry_run: bool = False, progress: Callable[[Report], None] | None = None) -> Report:
    """Brings all sessions of apps from a session service, with the states of their users and of the apps."""
    from google.adk.sessions import State

    report = Report()
    for app in apps:
        there, users = await _Brought.of(client, app), dict[str, _Owner]()
        whole = _Owner((app,), State.APP_PREFIX)
        for s in (await source.list_sessions(app_name=app)).sessions:
            of = _Bringing(source, client, s, there, dry_run)
            try:
                different = await of.bring()
                report.add(unchanged=not of.changed and not different, brought=of.brought, different=different)
            except (ValueError, InvalidError) as e:  # what can't be read, or what the store refuses
                report.add(brought=of.brought, different=f"session {adapter.cut('/'.join((app, s.user_id, s.id)), 200)!r}: {e}")
            whole.add(of)
            users.setdefault(s.user_id, _Owner((app, s.user_id), State.USER_PREFIX)).add(of)
            if progress:
                progress(report)
        for owner in [*users.values(), whole] if users else []:
            name = adapter.cut("/".join(owner.names), 200)
            try:
                report.different += [f"state {key!r} of {name!r} {why}" for key, why in await _bring_state(source, client, there, owner, dry_run)]
            except (ValueError, InvalidError) as e:
                report.different.append(f"state of {name!r}: {e}")
    return report


@dataclass
class _Owner:
    """An app, or a user of an app. A service shows its state with each of its sessions."""

    names: tuple[str, ...]  # of the app, and of the user
    prefix: str  # of the keys of its state
    sessions: list[Session] = field(default_factory=list)
    changed: bool = False  # The migration has changed one of them here.

    def add(self, of: _Bringing) -> None:
        self.sessions.append(of.listed)
        self.changed |= of.changed

    def shown_with(self, s: Session) -> dict[str, Any]:
        return {key.removeprefix(self.prefix): value for key, value in s.state.items() if key.startswith(self.prefix)}

    async def now(self, source: BaseSessionService) -> dict[str, Any]:
        """Returns its state as it is now. It is empty if its sessions have been deleted since they were listed."""
        unread = None
        for s in self.sessions:
            try:
                if is_now := await _current(source, s, 1):
                    return self.shown_with(is_now)
            except ValueError as e:  # Its last event can't be read.
                unread = e
        if unread:
            raise unread
        return {}

    async def stays(self, client: AsyncClient, there: _Brought) -> tuple[_Proof, bool]:
        """Returns the proof that the first session of a user that is here and was brought is still here. If no session of the user was brought, it is the proof of
        that. Returns as well whether hosts have deleted all that were brought."""
        from ..adk import _ROOT

        proof = _Proof()
        if len(self.names) == 1:
            return proof, False
        if not any(s in there for s in self.sessions):  # Perhaps another migration has brought one.
            await there.read()
        for s in self.sessions:
            try:
                handle = await client.session(adapter.join(_ROOT, s.app_name, s.user_id, s.id))
                r = await handle.record(NOTE)
            except InvalidError:
                continue  # A name that is refused is not here.
            except NotFoundError as e:
                if not adapter.gone(e):
                    raise
                continue
            if r:
                proof.sessions.append(handle.turn(Commit(0, records=[RecordChange.check(NOTE, r.version)]), records_only=True))
                return proof, False
        if any(s in there for s in self.sessions):
            return proof, True
        proof.states[there.id] = {there.key(s): "none" for s in self.sessions[:200]}  # A commit has at most 256 records.
        return proof, False


@dataclass
class _Proof:
    """What has to be so when a state is set: else nothing is stored."""

    sessions: list[Any] = field(default_factory=list)  # commits that only check
    states: dict[str, dict[str, str]] = field(default_factory=dict)  # versions of values, by the ids of the states


async def _current(source: BaseSessionService, s: Session, events: int) -> Session | None:
    """Returns a session of the source as it is now, with that many of its last events, or all if events is 0. Returns None if somebody has deleted it."""
    from google.adk.sessions.base_session_service import GetSessionConfig

    last = GetSessionConfig(num_recent_events=events) if events else None
    try:
        return await source.get_session(app_name=s.app_name, user_id=s.user_id, session_id=s.id, config=last)
    except (ConflictError, RecordConflictError, NotFoundError, InvalidError) as e:
        raise RuntimeError(f"the source: {e}") from e  # It says nothing of what is here.


class _Brought:
    """Which sessions of an app were brought: what a host has deleted since does not come again."""

    def __init__(self, states: adapter.States, id: str, known: Mapping[str, bytes]) -> None:
        self._states, self.id, self._known = states, id, set(known)

    @classmethod
    async def of(cls, client: AsyncClient, app: str) -> _Brought:
        from ..adk import _STATES

        states, id = adapter.States(client, _STATES), adapter.short(adapter.join(_BROUGHT, "sessions", app))
        return cls(states, id, await states.read(id))

    async def read(self) -> None:
        self._known |= set(await self._states.read(self.id))

    def __contains__(self, s: Session) -> bool:
        return self.key(s) in self._known

    def key(self, s: Session) -> str:
        return _digest(adapter.join("", s.user_id, s.id).encode()).decode()  # It names no user who is erased.

    async def add(self, s: Session, commit: Any) -> Result:
        """Makes a commit to a session, and notes the session with the same commit."""
        new = {} if s in self else {self.id: {self.key(s): b""}}
        try:
            result = (await self._states.commit(new, commit, expected={id: dict.fromkeys(keys, "none") for id, keys in new.items()}))[0]
        except RecordConflictError:
            await self.read()  # Perhaps another migration has noted it.
            raise
        self._known.add(self.key(s))
        return result


@dataclass(frozen=True)
class _Noted:
    """What the record of a session says that was brought: with which time of the source, the number of events that are from there, and whether a host had made
    the session. The number never falls: what a host takes back of these events does not come again."""

    hosts: bool
    at: str  # the time of the source's last update, _BEGUN or _RECENT
    events: int

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
    there: _Brought
    dry_run: bool
    brought: int = 0  # events
    changed: bool = False  # something here

    async def bring(self) -> str:
        """Brings what is not there, and verifies it. Returns what differs. It reads what is here before it reads the source, and stores only if that is still so:
        what it stores is never older than what was here."""
        while True:
            try:
                return await self._once()
            except (ConflictError, RecordConflictError, NotFoundError) as e:  # Somebody else has added events, or deleted it.
                if e.outcome_unknown or (isinstance(e, NotFoundError) and not adapter.gone(e)):
                    raise

    async def _once(self) -> str:
        """Does this, or raises an error if somebody else changes the session meanwhile."""
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
        if was.at and self.listed not in self.there:  # Another migration has brought it.
            await self.there.read()
        if was.at == repr(self.listed.last_update_time):
            return ""
        if self.listed in self.there and not was.at:
            return ""  # A host has deleted it, and may have made another one.
        if handle:
            loaded = await handle.load(parts=[_STATE])
            revision, has, state = loaded.revision, [_text(event_of(n.payload)) for n in loaded.nodes], loaded.contents.get(_STATE, b"")
        whole = await _current(self.source, self.listed, 0)
        if whole is None:
            return ""  # Somebody has deleted it since it was listed.
        stands = repr(whole.last_update_time) if time.time() - whole.last_update_time > 60 else _RECENT
        want = [_text(e) for e in whole.events]
        if len(has) < was.events or has[: len(want)] != want[: len(has)]:  # A host has gone back, or on.
            return f"session {shown}: its events are others"
        new, own = whole.events[len(has) :], _object(_deltas(whole.state)[2])
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


async def _bring_state(source: BaseSessionService, client: AsyncClient, known: _Brought, owner: _Owner, dry_run: bool) -> list[tuple[str, str]]:
    """Sets those values of a state that are new, and those that were brought and have changed in the source since. A value is new if it is not there and was never
    brought. It sets nothing of a user if hosts have deleted all that was brought, sessions and values: the user is erased. Returns the keys of the others, with what is
    wrong."""
    from ..adk import _STATES

    states, id = adapter.States(client, _STATES), adapter.join("adk", *owner.names)
    note = adapter.short(adapter.join(_BROUGHT, id))
    listed = {} if owner.changed else owner.shown_with(owner.sessions[0])
    while True:
        proof, gone = await owner.stays(client, known)  # Before all reads: it stands for them.
        noted, brought = await states.versions(note), await states.read(note)
        versions, there = await states.versions(id), await states.read(id)
        if gone:  # It is proof enough if a value is here that has a note.
            both = next((key for key in brought if key in there), None)
            if both is None:
                return []
            proof.states = {i: {both: of.get(both, "none")} for i, of in ((id, versions), (note, noted))}
        with suppress(ValueError):
            if listed and all(there.get(key) == _content(value) for key, value in listed.items()):
                return []
        values = await owner.now(source)  # After what is here, so that it is never older.
        change: dict[str, bytes] = {}
        others = list[tuple[str, str]]()
        for key, value in values.items():
            try:
                content = _content(value)
            except ValueError as e:
                others.append((key, str(e)))
                continue
            if there.get(key) == content or (key in brought and key not in there):
                continue  # It is there, or a host has deleted it.
            if key in there and brought.get(key) != _digest(there[key]):
                others.append((key, "is another one"))
            else:
                change[key] = content
        if dry_run:
            return others
        batch = _Batch(states, id, note, {id: versions, note: noted}, proof)
        try:
            for some in adapter.in_commits(change.items(), lambda of: len(of[1]), 100):
                others += await batch.set(dict(some))
        except (RecordConflictError, NotFoundError) as e:
            if e.outcome_unknown or (isinstance(e, NotFoundError) and not adapter.gone(e)):
                raise
            continue  # Somebody has set one of them meanwhile, or has deleted the session.
        return others


def _content(value: Any) -> bytes:
    """Returns a value of state as it is stored."""
    from pydantic_core import to_jsonable_python

    return adapter.marshal(to_jsonable_python(value))


@dataclass
class _Batch:
    """How values of a state are set."""

    states: adapter.States
    id: str
    note: str  # the id of the state with the notes
    versions: Mapping[str, Mapping[str, str]]  # of both states
    proof: _Proof

    async def set(self, change: Mapping[str, bytes]) -> list[tuple[str, str]]:
        """Sets values, and notes them. Returns the keys of those that the store refuses, with what is wrong."""
        changes: dict[str, Mapping[str, bytes]] = {self.id: change, self.note: {k: _digest(v) for k, v in change.items()}}
        expected = {id: dict(versions) for id, versions in self.proof.states.items()}
        for id, values in changes.items():
            expected[id] = {**expected.get(id, {}), **{k: self.versions[id].get(k, "none") for k in values}}
        try:
            await self.states.commit(changes, *self.proof.sessions, expected=expected)
        except (ValueError, InvalidError) as e:
            if len(change) == 1:
                return [(k, str(e)) for k in change]
            return [refused for k, v in change.items() for refused in await self.set({k: v})]
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
