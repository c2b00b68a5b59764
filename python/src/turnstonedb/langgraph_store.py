"""A store for LangGraph: what agents remember across threads.

    from turnstonedb import Client
    from turnstonedb.langgraph_store import TurnstoneStore

    with Client.open("./data") as db:
        graph = builder.compile(store=TurnstoneStore(db))

Items are records of one session, which retains all revisions, so that nothing prunes or deletes it. Of two puts of one item at once the later one counts.
A batch that changes up to 200 records is stored whole or not at all: an item is one record, and one more for each 60 KiB if it does not fit, and those
that it replaces count. A value is JSON: a map with keys that are text, without NaN, dates and other objects.

`search` and `list_namespaces` read all items below the prefix that they are given. There is no index of vectors, and no time to live: `query` and `index`
are ignored, as in LangGraph's own stores without an index, and `ttl` is refused.

`AsyncTurnstoneStore` is the same for an AsyncClient. Threads and processes may share a store.
"""

from __future__ import annotations

import json
import secrets
from asyncio import to_thread
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
)

from . import _calls
from ._steps import Steps, adrive, drive, short
from ._sync import Client
from .errors import Error, NotFoundError, RecordConflictError
from .types import Record, RecordChange

if TYPE_CHECKING:
    from ._async import AsyncClient

_ITEM, _REST = "i/", "r/"  # beginnings of the keys of records: of an item, and of the value of a large one
_MAX_LABEL, _MAX_NAMESPACE, _MAX_KEY = 60, 250, 200  # bytes within a record's key; a longer label or key is hashed
_MAX_RECORD = 60 << 10
_MAX_REST = 100  # records that have the value of a large item
_MAX_CHANGES = 200  # records changed at once, unless it is one item
_MAX_NAMES = 8 << 10  # bytes of namespace and key together, as JSON

Place = tuple[tuple[str, ...], str]


def _prefix(namespace: tuple[str, ...]) -> str:
    """Returns how the keys of the records of a namespace, and of those below it, begin."""
    for label in namespace:
        if not isinstance(label, str) or not label:
            raise InvalidNamespaceError(f"the label {label!r} in {namespace}: want text that is not empty")
    text = "".join(short(quote(label, safe=""), _MAX_LABEL) + "/" for label in namespace)
    if len(text) > _MAX_NAMESPACE:
        raise InvalidNamespaceError(f"{namespace} takes {len(text)} bytes as a record's key: at most {_MAX_NAMESPACE} are allowed, and a long label counts {_MAX_LABEL}")
    return _ITEM + text


def _key(place: Place) -> str:
    # No label is empty, so a slash more ends the namespace.
    return f"{_prefix(place[0])}/{short(quote(place[1], safe=''), _MAX_KEY)}"


class _Stored:
    """An item as its record has it: a line of JSON, and behind it the value, or nothing if other records have it."""

    def __init__(self, record: Record) -> None:
        line, _, self.content = record.value.partition(b"\n")
        head = json.loads(line)
        self.version = record.version
        self.namespace: tuple[str, ...] = tuple(head["namespace"])
        self.key: str = head["key"]
        self.created: str = head["created"]
        self.updated: str = head["updated"]
        self.rest_prefix: str = head.get("rest", "")  # of the keys of the records that have the value
        self.rest_count: int = head.get("records", 0)  # of these records

    def item(self, kind: Callable[..., Item]) -> Item:
        created, updated = datetime.fromisoformat(self.created), datetime.fromisoformat(self.updated)
        return kind(value=json.loads(self.content), key=self.key, namespace=self.namespace, created_at=created, updated_at=updated)

    def rest_keys(self) -> list[str]:
        return [f"{self.rest_prefix}{i:04}" for i in range(self.rest_count)]


class _Steps:
    """What the stores share."""

    _session: str

    def _batch(self, ops: list[Op]) -> Steps[list[Result]]:
        results: list[Result] = []
        puts: dict[Place, PutOp] = {}
        got = yield from self._found([(op.namespace, op.key) for op in ops if isinstance(op, GetOp)])
        for op in ops:
            result: Result = None
            if isinstance(op, PutOp):
                puts[op.namespace, op.key] = op
            elif isinstance(op, GetOp):
                whole = yield from self._whole(got.get((op.namespace, op.key)))
                result = whole.item(Item) if whole else None
            elif isinstance(op, SearchOp):
                result = yield from self._search(op)
            elif isinstance(op, ListNamespacesOp):
                result = yield from self._namespaces(op)
            else:
                raise ValueError(f"{op!r} is no operation of a store")
            results.append(result)
        yield from self._put(puts)
        return results

    # Reading

    def _found(self, places: Sequence[Place]) -> Steps[dict[Place, _Stored]]:
        """Returns those of some items that there are, without the values that other records have."""
        out: dict[Place, _Stored] = {}
        for i in range(0, len(places), _MAX_CHANGES):
            by_key = {_key(place): place for place in places[i : i + _MAX_CHANGES]}
            try:
                state = yield _calls.load({"session": self._session}, 0, "", False, 1, 0, False, [], list(by_key))
            except NotFoundError:
                return out
            out |= {by_key[key]: _Stored(r) for key, r in state.records.items() if r.version != "none"}
        return out

    def _records(self, prefix: str) -> Steps[list[Record]]:
        out: list[Record] = []
        after = ""
        while True:
            try:
                page = yield _calls.records({"session": self._session}, prefix, after, 1000)
            except NotFoundError:
                return out
            out += page.records
            after = page.next
            if not after:
                return out

    def _whole(self, stored: _Stored | None) -> Steps[_Stored | None]:
        """Returns an item with all of its value. If somebody has replaced it meanwhile, that is another one, or None."""
        while stored and stored.rest_count and not stored.content:
            rest = yield from self._records(stored.rest_prefix)
            if len(rest) == stored.rest_count:
                stored.content = b"".join(r.value for r in rest)
                break
            before, place = stored, (stored.namespace, stored.key)
            stored = (yield from self._found([place])).get(place)
            if stored and stored.version == before.version:
                raise Error(f"the item {place[1]!r} in {place[0]} is damaged: records of it are missing")
        return stored

    def _below(self, namespace: tuple[str, ...]) -> Steps[list[_Stored]]:
        """Returns the items of a namespace and of those below it, without the values that other records have."""
        return [_Stored(r) for r in (yield from self._records(_prefix(namespace)))]

    def _search(self, op: SearchOp) -> Steps[list[SearchItem]]:
        found: list[Any] = []
        below = yield from self._below(op.namespace_prefix)
        for stored in sorted(below, key=lambda s: s.updated, reverse=True):
            if 0 <= op.offset + op.limit <= len(found):
                break
            if whole := (yield from self._whole(stored)):
                item = whole.item(SearchItem)
                if all(_matches(item.value.get(name), want) for name, want in (op.filter or {}).items()):
                    found.append(item)
        return found[op.offset : op.offset + op.limit]

    def _namespaces(self, op: ListNamespacesOp) -> Steps[list[tuple[str, ...]]]:
        conditions = op.match_conditions or ()
        prefix: tuple[str, ...] = ()
        for c in conditions:
            if c.match_type == "prefix" and "*" not in c.path:
                prefix = max(prefix, tuple(c.path), key=len)
        below = yield from self._below(prefix)
        found = {s.namespace[: op.max_depth] for s in below if all(_lies(s.namespace, c) for c in conditions)}
        return sorted(found)[op.offset : op.offset + op.limit]

    # Writing

    def _put(self, puts: Mapping[Place, PutOp]) -> Steps[None]:
        contents = {place: _content(op) for place, op in puts.items()}  # Nothing is stored if one of them can't be.
        keys = {_key(place): place for place in contents}
        old = yield from self._found(list(contents))
        waiting = list(contents)
        while waiting:
            some = 0
            changes: list[RecordChange] = []
            for place in waiting:
                more = _changes(place, contents[place], old.get(place))
                if some and len(changes) + len(more) > _MAX_CHANGES:
                    break
                some += 1
                changes += more
            try:
                if changes:
                    yield _calls.change_records({"session": self._session}, changes)
            except RecordConflictError as e:  # Somebody else has changed one of them.
                place = keys[e.key]
                old.pop(place, None)
                old |= yield from self._found([place])
                continue
            except NotFoundError:
                yield _calls.create(self._session, {"retention": "all"})
                old = {}
                continue
            waiting = waiting[some:]


def _content(op: PutOp) -> bytes | None:
    """Returns the value of an item as it is stored, or None for one that is deleted."""
    if op.value is None:
        return None
    if op.ttl is not None:
        raise NotImplementedError(f"the item {op.key!r} in {op.namespace} has a time to live, which this store does not support")
    names = len(json.dumps([op.namespace, op.key]))
    if names > _MAX_NAMES:
        raise ValueError(f"namespace and key of an item take {names} bytes as JSON: at most {_MAX_NAMES} are allowed")
    _check_keys(op, op.value)
    content = json.dumps(dict(op.value), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    if len(content) > _MAX_RECORD * _MAX_REST:
        raise ValueError(f"the item {op.key!r} in {op.namespace} takes {len(content)} bytes as JSON: at most {_MAX_RECORD * _MAX_REST} are allowed")
    return content


def _check_keys(op: PutOp, value: Any) -> None:
    """Raises TypeError if a map in a value has a key that is no text: as JSON it would be another one."""
    if isinstance(value, Mapping):
        for key, v in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the item {op.key!r} in {op.namespace} has the key {key!r}: want text, as JSON has")
            _check_keys(op, v)
    elif isinstance(value, list | tuple):
        for v in value:
            _check_keys(op, v)


def _changes(place: Place, content: bytes | None, old: _Stored | None) -> list[RecordChange]:
    """Returns what changes when an item takes the place of an old one."""
    key, changes = _key(place), []
    if old:
        changes += [RecordChange.delete(k) for k in old.rest_keys()]
    if content is None:
        return [*changes, RecordChange.delete(key, old.version)] if old else []
    now = datetime.now(timezone.utc).isoformat(timespec="microseconds")
    head: dict[str, Any] = {"namespace": place[0], "key": place[1], "created": old.created if old else now, "updated": now}
    if len(json.dumps(head)) + len(content) > _MAX_RECORD:
        rest = [content[i : i + _MAX_RECORD] for i in range(0, len(content), _MAX_RECORD)]
        head |= {"rest": f"{_REST}{secrets.token_hex(16)}/", "records": len(rest)}
        changes += [RecordChange.set(f"{head['rest']}{i:04}", r, "none") for i, r in enumerate(rest)]
        content = b""
    return [*changes, RecordChange.set(key, json.dumps(head).encode() + b"\n" + content, old.version if old else "none")]


def _lies(namespace: tuple[str, ...], c: MatchCondition) -> bool:
    """Reports whether a namespace is one that a condition matches."""
    n = len(c.path)
    if len(namespace) < n:
        return False
    if c.match_type not in ("prefix", "suffix"):
        raise ValueError(f"there is no match of type {c.match_type!r}")
    labels = namespace[:n] if c.match_type == "prefix" else namespace[len(namespace) - n :]
    return all(want in ("*", label) for label, want in zip(labels, c.path, strict=True))


def _matches(value: Any, want: Any) -> bool:
    """Reports whether a value of an item is one that a filter wants: equal, or as its operators say."""
    if isinstance(want, Mapping):
        if any(name.startswith("$") for name in want):
            return all(_compares(value, name, other) for name, other in want.items())
        return isinstance(value, Mapping) and all(_matches(value.get(name), w) for name, w in want.items())
    if isinstance(want, list | tuple):
        return isinstance(value, list) and len(value) == len(want) and all(map(_matches, value, want))
    return bool(value == want)


def _compares(value: Any, operator: str, other: Any) -> bool:
    if isinstance(other, tuple):
        other = list(other)
    if operator == "$eq":
        return bool(value == other)
    if operator == "$ne":
        return bool(value != other)
    if operator not in ("$gt", "$gte", "$lt", "$lte"):
        raise ValueError(f"a filter has no operator {operator!r}: want $eq, $ne, $gt, $gte, $lt or $lte")
    a, b = _number(value), _number(other)
    if a is None or b is None:
        if not isinstance(value, str) or not isinstance(other, str):
            return False  # What is no number is neither less nor more.
        a, b = value, other
    if operator in ("$gt", "$gte"):
        return bool(a > b or (operator == "$gte" and a == b))
    return bool(a < b or (operator == "$lte" and a == b))


def _number(value: Any) -> Any:
    """Returns a number, also one that is written as text, or None."""
    if isinstance(value, int | float):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


class TurnstoneStore(_Steps, BaseStore):
    """A store on a Client, for graphs that are invoked, and for those that are awaited. See the module."""

    def __init__(self, client: Client, *, session: str = "langgraph-store") -> None:
        """session is the id of the session whose records are the items. Stores of different sessions are apart."""
        self._client = client
        self._session = session

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Makes operations. Those that read come first, and see nothing of what the others write."""
        return drive(self._client._run, self._batch(list(ops)))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Makes operations. Those that read come first, and see nothing of what the others write."""
        return await to_thread(self.batch, list(ops))


class AsyncTurnstoneStore(_Steps, BaseStore):
    """A store on an AsyncClient. See the module."""

    def __init__(self, client: AsyncClient, *, session: str = "langgraph-store") -> None:
        """session is the id of the session whose records are the items. Stores of different sessions are apart."""
        self._client = client
        self._session = session

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Raises NotImplementedError: this store is for graphs that are awaited."""
        raise NotImplementedError("AsyncTurnstoneStore is for graphs that are awaited: use TurnstoneStore, which is for both")

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Makes operations. Those that read come first, and see nothing of what the others write."""
        return await adrive(self._client._run, self._batch(list(ops)))
