"""A store for LangGraph: what agents remember across threads.

    from turnstonedb import Client
    from turnstonedb.langgraph_store import TurnstoneStore

    with Client.open("./data") as db:
        graph = builder.compile(store=TurnstoneStore(db))

Items are records of one session, which retains all revisions, so that nothing prunes or deletes it. Of two puts of one item at once the later one counts.
A batch that changes up to 200 records and has up to 1 MiB is stored whole or not at all: an item is one record, and one more for each 60 KiB if it does not
fit, and those that it replaces count. A value is JSON: a map with keys that are text, without NaN, dates and other objects.

`search` and `list_namespaces` read all items below the prefix that they are given. A filter's name may lead into a map: `user.name`.

With `index=`, a store embeds the texts of the items that are put, and `search` with a `query` returns the nearest first: it compares the query's vector with
that of each item below the prefix. Without it, a query is refused. All that put into a session need the same index: an item that was put without one, or
with other dimensions, has no score and comes last. There is no time to live: `ttl` is refused.

`AsyncTurnstoneStore` is the same for an AsyncClient. Threads and processes may share a store.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from asyncio import to_thread
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote
from weakref import WeakKeyDictionary

from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
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
from ._filter import has_all
from ._index import Index, Vectors, by_score
from ._steps import Steps, adrive, drive, from_thread, loop_of_caller, short
from ._sync import Client
from .errors import Error, InvalidError, NotFoundError, RecordConflictError
from .types import Record, RecordChange

if TYPE_CHECKING:
    from ._async import AsyncClient

_ITEM, _REST = "i/", "r/"  # beginnings of the keys of records: of an item, and of the value of a large one
_MAX_LABEL, _MAX_NAMESPACE, _MAX_KEY = 60, 250, 200  # bytes within a record's key; a longer label or key is hashed
_MAX_RECORD = 60 << 10
_MAX_REST = 100  # records that have the value of a large item
_MAX_CHANGES, _MAX_BYTES = 200, 1 << 20  # records changed at once, and bytes of their items, unless it is one item
_MAX_NAMES = 8 << 10  # bytes of namespace and key together, as JSON

Place = tuple[tuple[str, ...], str]
ItemT = TypeVar("ItemT", bound=Item)


def _check_labels(labels: tuple[str, ...]) -> None:
    """Raises InvalidNamespaceError for what `put` of LangGraph's stores refuses."""
    for label in labels:
        if not isinstance(label, str) or not label or "." in label:
            raise InvalidNamespaceError(f"the label {label!r} in {labels}: want text that is not empty and has no period")


def _prefix(namespace: tuple[str, ...]) -> str:
    """Returns how the keys of the records of a namespace, and of those below it, begin."""
    _check_labels(namespace)
    text = "".join(short(quote(label, safe=""), _MAX_LABEL) + "/" for label in namespace)
    if len(text) > _MAX_NAMESPACE:
        raise InvalidNamespaceError(f"{namespace} takes {len(text)} bytes as a record's key: at most {_MAX_NAMESPACE} are allowed, and a long label counts {_MAX_LABEL}")
    return _ITEM + text


def _key(place: Place) -> str:
    # No label is empty, so a slash more ends the namespace.
    return f"{_prefix(place[0])}/{short(quote(place[1], safe=''), _MAX_KEY)}"


class _Stored:
    """An item as its record has it: a line of JSON, and behind it the content, or nothing if other records have it. Behind the value's line it has vectors."""

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
        self.dims: int = head.get("dims", 0)  # of the vectors

    def item(self, kind: Callable[..., ItemT]) -> ItemT:
        created, updated = datetime.fromisoformat(self.created), datetime.fromisoformat(self.updated)
        return kind(value=json.loads(self.content.partition(b"\n")[0]), key=self.key, namespace=self.namespace, created_at=created, updated_at=updated)

    def vectors(self) -> bytes:
        return self.content.partition(b"\n")[2]

    def rest_keys(self) -> list[str]:
        return [f"{self.rest_prefix}{i:04}" for i in range(self.rest_count)]


class _Steps:
    """What the stores share."""

    _session: str
    _index: Index | None

    def _read(self, plan: _Plan, vectors: Vectors, found: Mapping[Place, _Stored], below: Mapping[str, list[_Stored]]) -> Steps[list[Result]]:
        """Returns the results of operations. found has the items that they get, and below those that they search, by the beginnings of their keys."""
        results: list[Result] = []
        for op in plan.ops:
            result: Result = None
            if isinstance(op, GetOp):
                whole = yield from self._whole(found.get((op.namespace, op.key)))
                result = whole.item(Item) if whole else None
            elif isinstance(op, SearchOp):
                result = yield from self._search(op, vectors, below[_prefix(op.namespace_prefix)])
            elif isinstance(op, ListNamespacesOp):
                result = _namespaces(op, below[_common(op)])
            results.append(result)
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

    def _below(self, prefix: str) -> Steps[list[_Stored]]:
        """Returns the items whose keys begin so, without the values that other records have."""
        return [_Stored(r) for r in (yield from self._records(prefix))]

    def _search(self, op: SearchOp, vectors: Vectors, below: list[_Stored]) -> Steps[list[SearchItem]]:
        found: list[tuple[float | None, SearchItem]] = []
        for stored in sorted(below, key=lambda s: s.updated, reverse=True):
            if not op.query and 0 <= op.offset + op.limit <= len(found):
                break
            if whole := (yield from self._whole(stored)):
                item = whole.item(SearchItem)
                if has_all(item.value, op.filter):
                    item.score = self._index.score(vectors[True, op.query], whole.dims, whole.vectors()) if self._index and op.query else None
                    found.append((item.score, item))
        return [item for _, item in by_score(found)[op.offset : op.offset + op.limit]]

    # Writing

    def _put(self, contents: Mapping[Place, _Content | None]) -> Steps[None]:
        keys = {_key(place): place for place in contents}
        old = yield from self._found(list(contents))
        waiting = list(contents)
        while waiting:
            some = size = 0
            changes: list[RecordChange] = []
            for place in waiting:
                content = contents[place]
                size += len(content.bytes) if content else 0
                more = _changes(place, content, old.get(place))
                if some and (len(changes) + len(more) > _MAX_CHANGES or size > _MAX_BYTES):
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


class _Content:
    """The value of an item as it is stored, and the texts of it that are embedded."""

    def __init__(self, op: PutOp, index: Index | None) -> None:
        if op.ttl is not None:
            raise NotImplementedError(f"the item {op.key!r} in {op.namespace} has a time to live, which this store does not support")
        names = len(json.dumps([op.namespace, op.key]))
        if names > _MAX_NAMES:
            raise ValueError(f"namespace and key of an item take {names} bytes as JSON: at most {_MAX_NAMES} are allowed")
        _check_keys(op, op.value)
        self.bytes = json.dumps(dict(op.value or {}), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        self.texts = index.texts(op) if index else []
        self.dims = index.dims if index and self.texts else 0
        size = len(self.bytes) + 4 * self.dims * len(self.texts)
        if size > _MAX_RECORD * _MAX_REST:
            raise ValueError(f"the item {op.key!r} in {op.namespace} takes {size} bytes as JSON with its vectors: at most {_MAX_RECORD * _MAX_REST} are allowed")

    def embedded(self, vectors: Vectors) -> None:
        """Adds the vectors of the texts."""
        if self.texts:
            self.bytes += b"\n" + b"".join(vectors[False, text].tobytes() for text in self.texts)


class _Plan:
    """Operations that can be made: none of them is wrong in itself."""

    def __init__(self, ops: Iterable[Op], index: Index | None) -> None:
        self.ops = list(ops)
        self.contents: dict[Place, _Content | None] = {}
        self.places: list[Place] = []  # of the items to get
        self.prefixes: dict[str, None] = {}  # of the keys of the items to search
        self.queries: list[str] = []
        for op in self.ops:
            if isinstance(op, GetOp | PutOp):
                _key((op.namespace, op.key)).encode()
                if isinstance(op, PutOp):
                    self.contents[op.namespace, op.key] = None if op.value is None else _Content(op, index)
                else:
                    self.places.append((op.namespace, op.key))
            elif isinstance(op, SearchOp):
                _prefix(op.namespace_prefix).encode()
                self.prefixes[_prefix(op.namespace_prefix)] = None
                if op.query and not index:
                    raise ValueError(f"the query {op.query!r} needs an index: give the store one (index=)")
                if op.query:
                    self.queries.append(op.query)
            elif isinstance(op, ListNamespacesOp):
                for condition in op.match_conditions or ():
                    _check_labels(condition.path)
                self.prefixes[_common(op)] = None
            else:
                raise ValueError(f"{op!r} is no operation of a store")

    def wanted(self) -> tuple[list[str], list[str]]:
        """Returns the texts and the queries that have to be embedded, each once."""
        return list({text: None for c in self.contents.values() if c for text in c.texts}), list(dict.fromkeys(self.queries))

    def embedded(self, vectors: Vectors) -> None:
        for c in self.contents.values():
            if c:
                c.embedded(vectors)


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


def _common(op: ListNamespacesOp) -> str:
    """Returns how the keys begin of all items whose namespaces an operation may list."""
    prefix: tuple[str, ...] = ()
    for c in op.match_conditions or ():
        if c.match_type == "prefix" and "*" not in c.path:
            prefix = max(prefix, tuple(c.path), key=len)
    return _prefix(prefix)


def _namespaces(op: ListNamespacesOp, below: list[_Stored]) -> list[tuple[str, ...]]:
    found = {s.namespace[: op.max_depth] for s in below if all(_lies(s.namespace, c) for c in op.match_conditions or ())}
    return sorted(found)[op.offset : op.offset + op.limit]


def _changes(place: Place, new: _Content | None, old: _Stored | None) -> list[RecordChange]:
    """Returns what changes when an item takes the place of an old one."""
    key, changes = _key(place), []
    if old:
        changes += [RecordChange.delete(k) for k in old.rest_keys()]
    if new is None:
        return [*changes, RecordChange.delete(key, old.version)] if old else []
    now = datetime.now(timezone.utc).isoformat(timespec="microseconds")
    head: dict[str, Any] = {"namespace": place[0], "key": place[1], "created": old.created if old else now, "updated": now}
    content = new.bytes
    if new.dims:
        head["dims"] = new.dims
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


class TurnstoneStore(_Steps, BaseStore):
    """A store on a Client, for graphs that are invoked, and for those that are awaited. See the module."""

    def __init__(self, client: Client, *, session: str = "langgraph-store", index: IndexConfig | None = None) -> None:
        """session is the id of the session whose records are the items. Stores of different sessions are apart."""
        self._client = client
        self._session = session
        self._index = Index(index) if index else None

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Makes operations. Those that read come first, and see nothing of what the others write."""
        plan = _Plan(ops, self._index)
        return self._made(plan, self._index.embed(*plan.wanted()) if self._index else {})

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Makes operations. Those that read come first, and see nothing of what the others write."""
        plan = _Plan(ops, self._index)
        return await to_thread(self._made, plan, await self._index.aembed(*plan.wanted()) if self._index else {})

    def _made(self, plan: _Plan, vectors: Vectors) -> list[Result]:
        plan.embedded(vectors)
        run = self._client._run
        found = drive(run, self._found(plan.places))
        below = {prefix: drive(run, self._below(prefix)) for prefix in plan.prefixes}
        results = drive(run, self._read(plan, vectors, found, below))
        drive(run, self._put(plan.contents))
        return results


class AsyncTurnstoneStore(_Steps, BaseStore):
    """A store on an AsyncClient. What tasks of an event loop put, get or search at once is put, got or read together. Its methods that are not awaited are for
    other threads than that of the event loop in which it is made. See the module."""

    def __init__(self, client: AsyncClient, *, session: str = "langgraph-store", index: IndexConfig | None = None) -> None:
        """session is the id of the session whose records are the items. Stores of different sessions are apart."""
        self._client = client
        self._session = session
        self._index = Index(index) if index else None
        self._loop = loop_of_caller()
        self._rounds: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Round]] = WeakKeyDictionary()

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Makes operations from another thread than that of the event loop, in which it raises asyncio.InvalidStateError."""
        return from_thread(self._loop, self.abatch(ops))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Makes operations. Those that read come first, and see nothing of what the others write."""
        plan = _Plan(ops, self._index)
        vectors = await self._index.aembed(*plan.wanted()) if self._index else {}
        plan.embedded(vectors)
        found = await self._together("get", self._get_all, plan.places) if plan.places else {}
        below = {prefix: await self._together("below " + prefix, self._below_all, prefix) for prefix in plan.prefixes}
        results = await adrive(self._client._run, self._read(plan, vectors, found, below))
        if len(plan.contents) == 1:
            await self._together("put", self._put_all, plan.contents)
        elif plan.contents:  # All of them, or none.
            await adrive(self._client._run, self._put(plan.contents))
        return results

    async def _get_all(self, asked: list[list[Place]]) -> Any:
        return await adrive(self._client._run, self._found(list(dict.fromkeys(place for places in asked for place in places))))

    async def _below_all(self, asked: list[str]) -> Any:
        return await adrive(self._client._run, self._below(asked[0]))

    async def _put_all(self, asked: list[dict[Place, _Content | None]]) -> Any:
        """Puts items. One by one they would conflict with each other."""
        return await adrive(self._client._run, self._put({place: content for contents in asked for place, content in contents.items()}))

    async def _together(self, what: str, do: Callable[[list[Any]], Awaitable[Any]], asked: Any) -> Any:
        """Calls a function with what was asked for while it was called last, and returns its result: what was done has begun after it was asked for."""
        rounds = self._rounds.setdefault(asyncio.get_running_loop(), {})
        r = rounds.setdefault(what, _Round())
        turn = asyncio.get_running_loop().create_future()
        r.waiting.append((asked, turn))
        if r.work is None:
            r.work = asyncio.create_task(r.run(do, lambda: rounds.pop(what, None)))
        return await turn


class _Round:
    """What tasks of an event loop wait for, and the task that does it."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Any, asyncio.Future[Any]]] = []
        self.work: asyncio.Task[None] | None = None

    async def run(self, do: Callable[[list[Any]], Awaitable[Any]], end: Callable[[], object]) -> None:
        while self.waiting:
            some, self.waiting = self.waiting[:_MAX_CHANGES], self.waiting[_MAX_CHANGES:]
            try:
                await _answer(do, some)
            except InvalidError:  # One of them is too large, which is no fault of the others.
                for one in some:
                    await _answer(do, [one])
        end()


async def _answer(do: Callable[[list[Any]], Awaitable[Any]], some: list[tuple[Any, asyncio.Future[Any]]]) -> None:
    """Calls a function, and gives its result or its error to all who wait for it. Of several, none gets an InvalidError, which is raised."""
    try:
        result = await do([asked for asked, _ in some])
    except Exception as e:
        if isinstance(e, InvalidError) and len(some) > 1:
            raise
        for _, turn in some:
            if not turn.done():
                turn.set_exception(e)
    else:
        for _, turn in some:
            if not turn.done():
                turn.set_result(result)
