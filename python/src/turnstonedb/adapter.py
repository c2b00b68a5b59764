"""What the stores of several frameworks share: ids that are joined of names, lists that miss nothing, and state that belongs to a user or an app.

docs/adapters.md tells how to write an adapter with it. Package adapter is the same for Go: both read what the other has written.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from . import _steps
from ._async import AsyncClient, AsyncSession
from ._steps import listing
from ._sync import Client
from ._wire import Object
from .errors import Error, NotFoundError, RecordConflictError
from .types import Commit, Info, Record, RecordChange, Result

T = TypeVar("T")

_MAX_BYTES = 4 << 20  # of the events of a commit

MAX_ID = 512
"""How many bytes the id of a session has at most."""


MAX_PAGE = _steps.MAX_PAGE
"""How many sessions or records a page has at most."""


def join(root: str, *names: str) -> str:
    """Returns the id of a session or a group: a root, and names of any content. The store refuses one that is longer than MAX_ID."""
    return "/".join((root, *(n.replace("%", "%25").replace("/", "%2F") for n in names)))


def short(text: str, most: int = MAX_ID) -> str:
    """Returns text that has `most` bytes at most: the same, or its beginning and a hash.

    It is for names of any length; what was shortened has to be kept elsewhere if it is to be given back.
    """
    content = text.encode("utf-8", "surrogatepass")
    if len(content) <= most and not re.search("~[0-9a-f]{64}$", text):
        return text
    return content[: max(0, most - 65)].decode(errors="ignore") + "~" + hashlib.sha256(content).hexdigest()


def cut(text: str, most: int) -> str:
    """Returns the characters at the beginning of a text that have `most` bytes at most, as of a kind, a title or a model's name."""
    return text.encode("utf-8", "replace")[:most].decode(errors="ignore")


def names(id: str) -> list[str]:
    """Returns the names that an id was joined of, without its root."""
    return [re.sub("%2F|%25", lambda m: {"%2F": "/", "%25": "%"}[m[0]], n) for n in id.split("/")[1:]]


def gone(error: BaseException) -> bool:
    """Reports whether an error says that there is no such session."""
    return isinstance(error, NotFoundError) and error.kind in ("session-not-found", "session-deleted")


async def listed(client: AsyncClient, **chosen: Any) -> list[Info]:
    """Returns the sessions of a group, of a parent or with labels, as `AsyncClient.list` chooses them, the most recently updated first.

    One that is updated meanwhile moves to the front of the store's list, so what was updated since is read again: one is missed only if it is used between two pages
    of each reading.
    """
    pages = listing(chosen)
    try:
        query = next(pages)
        while True:
            query = pages.send(await client.list(**query))
    except StopIteration as e:
        found: list[Info] = e.value
        return found


def listed_at_once(client: Client, **chosen: Any) -> list[Info]:
    """Is `listed` for a Client."""
    pages = listing(chosen)
    try:
        query = next(pages)
        while True:
            query = pages.send(client.list(**query))
    except StopIteration as e:
        found: list[Info] = e.value
        return found


def outcome_unknown(error: BaseException) -> bool:
    """Reports whether what a call was to do may or may not stand after an error. Anything but an error of the store may have come while its answer was awaited."""
    return not isinstance(error, Error) or error.outcome_unknown


# Values

_TYPE, _VALUE = "$type", "value"
_MAP = "map[string]interface {}"


def marshal(value: Any) -> bytes:
    """Returns a value of state as JSON: None, bool, int, float, str, and lists and dicts of them. `unmarshal` returns it from that, of the same type.

    A float has a fraction or an exponent, and an int has none. A value of another type is refused with a TypeError, and what JSON has no text for with a ValueError.
    """
    return json.dumps(_typed(value, 0), ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()


def _typed(value: Any, depth: int) -> Any:
    if depth > 200:
        raise ValueError("the value is deeper than 200 levels, or has itself as a part")
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"JSON has no number {value}")
        return value
    if isinstance(value, list | tuple):
        return [_typed(v, depth + 1) for v in value]
    if isinstance(value, dict):
        for k in value:
            if not isinstance(k, str):
                raise TypeError(f"the key {k!r} is no text")
        typed = {k: _typed(v, depth + 1) for k, v in value.items()}
        return {_TYPE: _MAP, _VALUE: typed} if _TYPE in typed else typed
    raise TypeError(f"a value of type {type(value).__name__} is not kept by JSON")


def unmarshal(content: bytes | str) -> Any:
    """Returns the value that `marshal` was given, or any that JSON has. What Go has of another type, such as a time, is what stands for it in JSON."""
    return _untyped(json.loads(content))


def _untyped(value: Any) -> Any:
    if isinstance(value, list):
        return [_untyped(v) for v in value]
    if isinstance(value, dict):
        if len(value) == 2 and isinstance(value.get(_TYPE), str) and _VALUE in value:
            inner = value[_VALUE]
            return {k: _untyped(v) for k, v in inner.items()} if isinstance(inner, dict) else _untyped(inner)
        return {k: _untyped(v) for k, v in value.items()}
    return value


def in_commits(events: Iterable[T], size: Callable[[T], int], most: int = 200) -> list[list[T]]:
    """Returns events in groups for commits: at most `most` of them, and 4 MiB by what `size` says of each, unless one alone has more."""
    out: list[list[T]] = []
    total = 0
    for e in events:
        n = size(e)
        if not out or len(out[-1]) == most or total + n > _MAX_BYTES:
            out.append([])
            total = 0
        out[-1].append(e)
        total += n
    return out


# States

_STATE, _LARGE, _PART = "state/", "state-large", "part/"
_MAX_RECORD = 64 << 10
_MAX_RECORDS = 256
_MAX_KNOWN = 1000


class States:
    """The states of users and apps, which several sessions share. Each state is stored as the records of a session of its own, in a group.

    That session is made when the state gets its first value, and no prune deletes it. A value that is too large for one record is stored in several, and the
    directory, which is a record as well, says in how many: a value has at most 12.5 MiB, and a key 506 bytes.
    """

    def __init__(self, client: AsyncClient, group: str) -> None:
        self._client = client
        self._group = group
        self._known: dict[str, tuple[AsyncSession, Record | None]] = {}  # the sessions and their directories

    async def read(self, id: str) -> dict[str, bytes]:
        """Returns the values of a state, by their keys: none if it has none."""
        while True:
            try:
                session = await self._client.session(id)
                values = await self._values(session)
            except NotFoundError as e:
                if gone(e):
                    return {}
                raise
            if values is not None:
                return values

    async def _values(self, session: AsyncSession) -> dict[str, bytes] | None:
        """Returns the values, or None if somebody has changed large ones meanwhile."""
        found = await records(session, "state")
        out = {r.key[len(_STATE) :]: r.value for r in found if r.key.startswith(_STATE)}
        directory = next((r for r in found if r.key == _LARGE), None)
        large: dict[str, Any] = json.loads(directory.value) if directory else {}
        whole = True
        for key, at in large.items():
            parts = await records(session, f"{_PART}{at['ID']}/")
            whole = whole and len(parts) == at["Records"]
            out[key] = b"".join(r.value for r in parts)
        now = await session.record(_LARGE)
        if (now.version if now else None) != (directory.version if directory else None):
            return None
        if not whole:
            raise ValueError(f"state {session.id!r} is damaged: records of it are missing")
        return out

    async def versions(self, id: str) -> dict[str, str]:
        """Returns the version of each value of a state, by the value's key. A change of the value can expect it."""
        try:
            return {r.key[len(_STATE) :]: r.version for r in await records(await self._client.session(id), _STATE)}
        except NotFoundError as e:
            if gone(e):
                return {}
            raise

    async def commit(self, changes: Mapping[str, Mapping[str, bytes | None]], *own: Object, expected: Mapping[str, Mapping[str, str]] | None = None) -> Sequence[Result]:
        """Makes changes of states, and commits to other sessions (see `AsyncSession.turn`), in one batch. A value of None is removed. Returns the results of the commits.

        `changes` has the values by the ids of the states and by their keys, and `expected` the versions that some of them are to have, which may be "none".
        A value that is expected and not changed is checked.
        """
        expected = expected or {}
        changes = {**{id: {} for id in expected}, **changes}
        if not any(changes.values()) and not any(expected.values()) and not own:
            return ()
        again = False
        while True:
            commits = list(own)
            for id, values in changes.items():
                if values or expected.get(id):
                    session, directory = await self._state(id)
                    records = _changes(directory, values, expected.get(id, {}))
                    commits.append(session.turn(Commit(0, records=records), records_only=True))
            try:
                results = await self._client.commit_all(*commits)
            except RecordConflictError as e:
                self._forget(changes)
                if e.outcome_unknown or e.key != _LARGE:
                    raise
            except NotFoundError as e:
                self._forget(changes)
                if again or e.outcome_unknown or not gone(e):
                    raise
                again = True  # Somebody has deleted one of the states.
            else:
                self._forget(id for id, values in changes.items() if id in self._known and _is_large(self._known[id][1], values))
                return results[: len(own)]

    async def _state(self, id: str) -> tuple[AsyncSession, Record | None]:
        if id not in self._known:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            # Using a state changes nothing in this session: otherwise a prune could take it for inactive.
            session, _ = await self._client.create(id, group=self._group, retention="all")
            self._known[id] = (session, await session.record(_LARGE))
        return self._known[id]

    def _forget(self, ids: Iterable[str]) -> None:
        for id in ids:
            self._known.pop(id, None)


def _is_large(directory: Record | None, values: Mapping[str, bytes | None]) -> bool:
    """Reports whether values that change are or were large, so that the directory changes."""
    large = json.loads(directory.value) if directory else {}
    return any(k in large or len(v or b"") > _MAX_RECORD for k, v in values.items())


def _changes(directory: Record | None, values: Mapping[str, bytes | None], expected: Mapping[str, str]) -> list[RecordChange]:
    """Returns what changes of the records when values change."""
    large: dict[str, Any] = json.loads(directory.value) if directory else {}
    named = dict(large)
    out: list[RecordChange] = []
    for key, whole in values.items():
        value = whole
        if len(key.encode()) > 506:
            raise ValueError(f"state {key[:80]!r}: the key has more than 506 bytes")
        old = named.pop(key, None)
        n = 0
        if value is not None and len(value) > _MAX_RECORD:
            id = old["ID"] if old else secrets.token_hex(13)
            pieces = [value[i : i + _MAX_RECORD] for i in range(0, len(value), _MAX_RECORD)]
            out += [RecordChange.set(f"{_PART}{id}/{i:03d}", piece) for i, piece in enumerate(pieces)]
            n = len(pieces)
            if n > 200:
                raise ValueError(f"state {key[:80]!r}: the value has more than {200 * _MAX_RECORD} bytes")
            named[key] = {"ID": id, "Records": n}
            value = b""  # The record stays, so that a reader of all keys finds this one while the value changes its place.
        if old:
            out += [RecordChange.delete(f"{_PART}{old['ID']}/{i:03d}") for i in range(n, old["Records"])]
        expect = expected.get(key, "")
        out.append(RecordChange.delete(_STATE + key, expect) if value is None else RecordChange.set(_STATE + key, value, expect))
    out += [RecordChange.check(_STATE + key, version) for key, version in expected.items() if key not in values]
    version = directory.version if directory else "none"
    if _is_large(directory, values):
        out.append(RecordChange.set(_LARGE, json.dumps(named).encode(), version))
    else:
        out.append(RecordChange.check(_LARGE, version))
    if len(out) > _MAX_RECORDS:
        raise ValueError(f"{len(out)} values and parts of large ones change at once, at most {_MAX_RECORDS} can")
    return out


async def records(session: AsyncSession, prefix: str) -> list[Record]:
    out: list[Record] = []
    after = ""
    while True:
        page = await session.records(prefix, after=after, limit=MAX_PAGE)
        out += page.records
        after = page.next
        if not after:
            return out
