"""What of users and apps comes with the sessions of Google's Agent Development Kit: their states, unless they are erased."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .. import adapter
from .._async import AsyncClient
from ..errors import ConflictError, InvalidError, NotFoundError, RecordConflictError
from ..types import Commit, RecordChange, Result
from ._report import NOTE

if TYPE_CHECKING:
    from google.adk.sessions import BaseSessionService, Session

_BROUGHT = "adk-migration"  # begins the ids of states: which sessions of an app were brought, and of the state of an owner a hash of each value
_MAX_UNKNOWN = 200  # the most sessions of a user that a proof names as not brought: a commit has at most 256 records


@dataclass
class Owner:
    """An app, or a user of an app. A service shows its state with each of its sessions."""

    names: tuple[str, ...]  # of the app, and of the user
    prefix: str  # of the keys of its state
    sessions: list[Session] = field(default_factory=list)
    changed: bool = False  # The migration has changed one of them here.

    def add(self, s: Session, changed: bool) -> None:
        self.sessions.append(s)
        self.changed |= changed

    def shown_with(self, s: Session) -> dict[str, Any]:
        return {key.removeprefix(self.prefix): value for key, value in s.state.items() if key.startswith(self.prefix)}

    async def now(self, source: BaseSessionService) -> dict[str, Any]:
        """Returns its state as it is now. It is empty if its sessions have been deleted since they were listed."""
        unread = None
        for s in self.sessions:
            try:
                if is_now := await current(source, s, 1):
                    return self.shown_with(is_now)
            except ValueError as e:  # Its last event can't be read.
                unread = e
        if unread:
            raise unread
        return {}

    async def stays(self, client: AsyncClient, there: Brought) -> tuple[_Proof, bool]:
        """Returns the proof that the first session of a user that is here and was brought is still here. If no session of the user was brought, it is the proof that
        none of the first _MAX_UNKNOWN was. Returns as well whether hosts have deleted all that were brought."""
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
            except (UnicodeEncodeError, InvalidError):
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
        proof.states[there.id] = {there.key(s): "none" for s in self.sessions[:_MAX_UNKNOWN]}
        return proof, False


@dataclass
class _Proof:
    """It shows that no host has erased a user meanwhile. It holds when a state is set, or nothing is stored."""

    sessions: list[Any] = field(default_factory=list)  # commits that only check
    states: dict[str, dict[str, str]] = field(default_factory=dict)  # versions of values, by the ids of the states


async def current(source: BaseSessionService, s: Session, events: int) -> Session | None:
    """Returns a session of the source as it is now, with that many of its last events, or all if events is 0. Returns None if somebody has deleted it."""
    from google.adk.sessions.base_session_service import GetSessionConfig

    last = GetSessionConfig(num_recent_events=events) if events else None
    try:
        return await source.get_session(app_name=s.app_name, user_id=s.user_id, session_id=s.id, config=last)
    except (ConflictError, RecordConflictError, NotFoundError, InvalidError) as e:
        raise RuntimeError(f"the source: {e}") from e  # It says nothing of what is here.


class Brought:
    """Which sessions of an app were brought: what a host has deleted since does not come again."""

    def __init__(self, states: adapter.States, id: str, known: Mapping[str, bytes]) -> None:
        self._states, self.id, self._known = states, id, set(known)

    @classmethod
    async def of(cls, client: AsyncClient, app: str) -> Brought:
        from ..adk import _STATES

        states, id = adapter.States(client, _STATES), adapter.short(adapter.join(_BROUGHT, "sessions", app))
        return cls(states, id, await states.read(id))

    async def read(self) -> None:
        self._known |= set(await self._states.read(self.id))

    def __contains__(self, s: Session) -> bool:
        return self.key(s) in self._known

    def key(self, s: Session) -> str:
        return digest(adapter.join("", s.user_id, s.id).encode("utf-8", "surrogatepass")).decode()  # It names no user who is erased.

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


async def bring_state(source: BaseSessionService, client: AsyncClient, known: Brought, owner: Owner, dry_run: bool) -> list[tuple[str, str]]:
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
            if key in there and brought.get(key) != digest(there[key]):
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
        changes: dict[str, Mapping[str, bytes]] = {self.id: change, self.note: {k: digest(v) for k, v in change.items()}}
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


def digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest()[:32].encode()
