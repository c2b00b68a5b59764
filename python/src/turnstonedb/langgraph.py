"""A checkpointer for LangGraph.

    from turnstonedb import Client
    from turnstonedb.langgraph import TurnstoneSaver

    with Client.open("./data") as db:
        graph = builder.compile(checkpointer=TurnstoneSaver(db))

Each namespace of a thread is a session. A checkpoint is one commit: the values of channels that it changes are parts of the session's checkpoint,
which the store keeps as differences from their last versions, so a list that grows costs what was added. Pending writes are records.

`AsyncTurnstoneSaver` is the same for an AsyncClient. Threads and processes may share a store.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from asyncio import to_thread
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import quote

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from . import _calls
from ._filter import at
from ._steps import Steps, adrive, drive, from_thread, listing, loop_of_caller, short
from ._sync import Client
from .errors import ConflictError, Error, InvalidError, NotFoundError, RecordConflictError
from .types import Commit, Info, NewNode, Record, RecordChange, Ref

if TYPE_CHECKING:
    from ._async import AsyncClient

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

_GROUP = "langgraph"
_BODY = ".checkpoint"  # the part that is no channel: the checkpoint without its values, and its metadata
_CHECKPOINT, _WRITE, _LATEST = "c/", "w/", "latest"  # keys of records, or their beginnings
_MAX_NAME = 180  # of a thread or a namespace within a session's id; a longer one is hashed
_MAX_PART = 60  # of a channel's name as the name of a part
_MAX_ID = 200  # of the id of a checkpoint, or of a task, within a record's key; a longer one is hashed
_MAX_RECORD = 60 << 10  # of a write within a record; a larger one is a node
_KEPT = "latest"  # the name that keeps the revision of the latest checkpoint, whatever is pruned
_GONE = ("session-not-found", "session-deleted", "record-not-found", "revision-pruned")  # kinds of errors
_REPEATS = 3  # of a change that may be made more than once
_MAX_RECORDS, _MAX_BYTES = 200, 1 << 20  # changed at once, and bytes of their values
_MAX_NODES, _MAX_PAYLOADS = 200, 64 << 20  # committed at once, and bytes of their payloads, unless one alone has more
_MAX_PAGE = 50  # checkpoints that are read at once
_MAX_METADATA = 2000  # characters of metadata, as JSON, in the record of a checkpoint
_MAX_SEEN, _MAX_SEEN_BYTES = 64, 1 << 20  # sessions whose last checkpoint is remembered, and bytes of each
_MAX_KNOWN = 10_000  # sessions and checkpoints of which a saver remembers a few words


def _group(thread: str) -> str:
    return f"{_GROUP}/{short(quote(thread, safe=''), _MAX_NAME)}"


def _session(thread: str, ns: str) -> str:
    return f"{_group(thread)}/{short(quote(ns, safe=''), _MAX_NAME)}"


def _part(channel: str) -> str:
    """Returns the name of the part that has a channel's value."""
    return "=" + short(channel, _MAX_PART)


def _pack(kind: str, value: bytes) -> bytes:
    return kind.encode() + b"\0" + value


def _unpack(b: bytes) -> tuple[str, bytes]:
    kind, _, value = b.partition(b"\0")
    return kind.decode(), value


def _config(thread: str, ns: str, cid: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": cid}}


def _place(config: RunnableConfig) -> tuple[str, str]:
    c = config["configurable"]
    return str(c["thread_id"]), str(c.get("checkpoint_ns", ""))


def _id(text: str) -> str:
    """Returns the id of a checkpoint or of a task as a part of a record's key."""
    return short(_quoted(text), _MAX_ID)


def _quoted(text: str) -> str:
    """Returns text without slashes."""
    return text.replace("%", "%25").replace("/", "%2F").replace("\0", "%00")


def _as_json(metadata: Any) -> dict[str, Any]:
    """Returns metadata for the record of a checkpoint, so that a list need not read those that its filter excludes, or nothing: JSON changes some."""
    try:
        text = json.dumps(metadata)
        return {"metadata": metadata} if len(text) <= _MAX_METADATA and json.loads(text) == metadata else {}
    except (TypeError, ValueError, RecursionError):
        return {}


def _matches(metadata: Any, filter: Mapping[str, Any] | None) -> bool:
    """Reports whether metadata, if they are known, have all that a filter wants."""
    return metadata is None or all(at(metadata, k) == v for k, v in (filter or {}).items())


def _deleted(thread: str, ns: str) -> NotFoundError:
    return NotFoundError(
        f"the thread {thread!r}{f' (namespace {ns!r})' if ns else ''} was deleted after the checkpoint that this goes on from", {"type": "#session-deleted"}
    )


def _pruned(channels: Iterable[str], cid: str) -> NotFoundError:
    return NotFoundError(f"the channels {sorted(channels)} need checkpoint {cid!r}, which was pruned or deleted", {"type": "#revision-pruned"})


def _split(places: list[T], limit: int | None) -> tuple[list[T], list[T]]:
    """Returns as many places as are read at once, and the rest."""
    n = _MAX_PAGE if limit is None else min(limit, _MAX_PAGE)
    return places[:n], places[n:]


def _fitting(items: list[T], most: int, most_bytes: int, size: Callable[[T], int]) -> list[T]:
    """Returns the first ones: as many as fit one request."""
    total = 0
    for i, item in enumerate(items[:most]):
        total += size(item)
        if i > 0 and total > most_bytes:
            return items[:i]
    return items[:most]


class _Recent(dict[K, V]):
    """A map that forgets what it was given first. Threads may share it."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def give(self, key: K, value: V) -> None:
        self.pop(key, None)
        self[key] = value
        while len(self) > self._most:
            with suppress(StopIteration, RuntimeError):  # Another thread has changed it.
                self.pop(next(iter(self)), None)


class _Head:
    """The last checkpoint that was put into a session: what a put compares with."""

    def __init__(self, revision: int, id: str, parts: Iterable[str], versions: Mapping[str, Any], latest: tuple[str, str], born: str, record: str = "") -> None:
        self.revision = revision
        self.id = id
        self.record = record  # the version of the checkpoint's record, if this saver has put it
        self.parts = set(parts)
        self.versions = dict(versions)  # of the channels whose values are parts
        self.latest = latest  # id of the latest checkpoint, and version of the record that says so
        self.born = born


class _Seen:
    """The parts of the last checkpoint of a session that was put or read, by the records that lead to it and their versions: the server need not send it again."""

    def __init__(self, versions: Mapping[str, str], parts: dict[str, bytes]) -> None:
        self.versions = dict(versions)
        self.parts = parts


class _Steps:
    """What the savers share."""

    serde: SerializerProtocol
    _keep_last: int
    _heads: _Recent[str, _Head]
    _seen: _Recent[str, _Seen]
    # A namespace that is deleted and made again is born again, which its checkpoints say. What goes on from a checkpoint of before is refused.
    _births: _Recent[tuple[str, str], str]  # by session and checkpoint that the caller was given
    _latest: _Recent[str, tuple[str, str]]  # birth, and version of the record of the latest checkpoint, by session

    def _remember(self, id: str, versions: Mapping[str, str], parts: dict[str, bytes]) -> None:
        self._seen.pop(id, None)
        if sum(map(len, parts.values())) <= _MAX_SEEN_BYTES:
            self._seen.give(id, _Seen(versions, parts))

    def _given(self, id: str, entry: dict[str, Any], latest: str = "") -> None:
        """Remembers what the caller knows of a checkpoint then, and the version of the record if it is that of the latest one."""
        if born := entry.get("born", ""):
            self._births.give((id, entry["id"]), born)
            if latest:
                self._latest.give(id, (born, latest))

    # Sessions

    def _sessions(self, group: str) -> Steps[list[tuple[str, str, str]]]:
        """Returns id, thread and namespace of the sessions of a group."""
        pages, found = listing({"group": group}), list[Info]()
        try:
            query = next(pages)
            while True:
                query = pages.send((yield _calls.list_sessions(query["after"], query["limit"], "", query["group"], None, None)))
        except StopIteration as e:
            found = e.value
        out = []
        for i in found:
            with suppress(ValueError, KeyError, TypeError):  # Somebody else has put it into the group.
                place = json.loads(i.name)
                if _session(place["thread"], place["ns"]) == i.id:
                    out.append((i.id, place["thread"], place["ns"]))
        return out

    def _namespaces(self, thread: str) -> Steps[list[tuple[str, str]]]:
        """Returns id and namespace of the sessions of a thread."""
        found = yield from self._sessions(_group(str(thread)))
        return [(id, ns) for id, of, ns in found if of == str(thread)]

    def _made(self, thread: str, ns: str) -> dict[str, Any]:
        """Returns the request that makes the session of a namespace."""
        made: dict[str, Any] = {"id": _session(thread, ns), "group": _group(thread), "name": json.dumps({"thread": thread, "ns": ns}, ensure_ascii=False)}
        return {**made, "retention": self._keep_last} if self._keep_last else made

    # Reading

    def _read_tuple(self, thread: str, ns: str, cid: str | None) -> Steps[CheckpointTuple | None]:
        found = yield from self._tuples(thread, ns, [_CHECKPOINT + _id(cid) if cid else _LATEST])
        if cid and not found:
            self._births.pop((_session(thread, ns), cid), None)  # The caller knows now that it is gone.
        return found[0] if found else None

    def _tuples(self, thread: str, ns: str, keys: list[str]) -> Steps[list[CheckpointTuple]]:
        """Returns the checkpoints that records of a namespace lead to. One that was deleted meanwhile, or pruned, is left out."""
        id = _session(thread, ns)
        seen = self._seen.get(id)
        known = seen.versions if seen else {}
        try:
            refs: list[Ref] = yield _calls.refs({"session": id}, [(key, known.get(key, "none")) for key in keys])
        except NotFoundError as e:
            if e.kind in _GONE:
                return []
            raise
        out = []
        for ref in refs:
            parts = ref.parts
            if parts is None:
                parts = cast(_Seen, seen).parts
            elif len(keys) == 1:
                self._remember(id, {ref.record.key: ref.record.version}, parts)
            self._given(id, json.loads(ref.record.value), ref.record.version if ref.record.key == _LATEST else "")
            try:
                out.append((yield from self._tuple(thread, ns, ref, parts)))
            except NotFoundError as e:
                if e.kind not in (*_GONE, "node-not-found"):
                    raise
        return out

    def _tuple(self, thread: str, ns: str, ref: Ref, parts: dict[str, bytes]) -> Steps[CheckpointTuple]:
        entry = json.loads(ref.record.value)
        cid = entry["id"]
        body, metadata = self.serde.loads_typed(_unpack(parts[_BODY]))
        values = dict(body.get("channel_values", {}))
        for channel in body["channel_versions"]:
            content = parts.get(_part(channel))
            if content is not None:
                values[channel] = self.serde.loads_typed(_unpack(content))
        writes = yield from self._writes({"session": _session(thread, ns)}, ref.beside)
        parent = entry.get("parent")
        return CheckpointTuple(
            _config(thread, ns, cid),
            cast(Checkpoint, {**body, "channel_values": values}),
            metadata,
            _config(thread, ns, parent) if parent else None,
            writes,
        )

    def _all_records(self, target: dict[str, str], prefix: str) -> Steps[list[Record]]:
        out: list[Record] = []
        after = ""
        while True:
            page = yield _calls.records(target, prefix, after, 1000)
            out += page.records
            after = page.next
            if not after:
                return out

    def _writes(self, target: dict[str, str], records: Iterable[Record]) -> Steps[list[tuple[str, str, Any]]]:
        found = []
        for r in records:
            line, _, content = r.value.partition(b"\n")
            w = json.loads(line)
            if "node" in w:
                content = (yield _calls.node(target, "", w["node"])).payload
            found.append(((w["path"], w["task"], w["index"]), (w["task"], w["channel"], self.serde.loads_typed((w["kind"], content)))))
        return [w for _, w in sorted(found, key=lambda f: f[0])]

    def _entries(self, target: dict[str, str]) -> Steps[list[dict[str, Any]]]:
        """Returns what the records of checkpoints say, the newest first."""
        try:
            found = yield from self._all_records(target, _CHECKPOINT)
        except NotFoundError:
            return []
        return sorted((json.loads(r.value) for r in found), key=lambda e: cast(str, e["id"]), reverse=True)

    def _listed(self, config: RunnableConfig | None, before: RunnableConfig | None, filter: Mapping[str, Any] | None) -> Steps[list[tuple[str, str, dict[str, Any]]]]:
        """Returns thread, namespace and entry of the checkpoints to list."""
        only = get_checkpoint_id(config) if config else None
        upto = get_checkpoint_id(before) if before else None
        if config is None:
            places = [(thread, ns) for _, thread, ns in (yield from self._sessions(_GROUP))]
        elif "checkpoint_ns" in config["configurable"]:
            places = [_place(config)]
        else:
            thread = _place(config)[0]
            places = [(thread, ns) for _, ns in (yield from self._namespaces(thread))]
        out = []
        for thread, ns in places:
            for entry in (yield from self._entries({"session": _session(thread, ns)})):
                if (not only or entry["id"] == only) and (not upto or entry["id"] < upto) and _matches(entry.get("metadata"), filter):
                    out.append((thread, ns, entry))
        return sorted(out, key=lambda o: cast(str, o[2]["id"]), reverse=True)

    def _page(self, places: list[tuple[str, str, dict[str, Any]]]) -> Steps[list[CheckpointTuple]]:
        """Returns the checkpoints of some places, in their order, with a request for each namespace."""
        keys: dict[tuple[str, str], list[str]] = {}
        for thread, ns, entry in places:
            keys.setdefault((thread, ns), []).append(_CHECKPOINT + _id(entry["id"]))
        found = {}
        for (thread, ns), of in keys.items():
            for t in (yield from self._tuples(thread, ns, of)):
                found[thread, ns, t.checkpoint["id"]] = t
        return [found[place] for thread, ns, entry in places if (place := (thread, ns, entry["id"])) in found]

    def _history(self, config: RunnableConfig, channels: Sequence[str]) -> Steps[dict[str, DeltaChannelHistory]]:
        """Walks from the parent of a checkpoint to the nearest one that has a value of each channel, and collects the writes on the way. Without one
        of them, the channels would have less than they had."""
        thread, ns = _place(config)
        entries = {e["id"]: e for e in (yield from self._entries({"session": _session(thread, ns)}))}
        chain: list[dict[str, Any]] = []
        passed = set()
        cid = get_checkpoint_id(config) or next(iter(entries), None)
        while (e := entries.get(cid)) and cid not in passed:  # A checkpoint that was put again may have one of its own descendants as its parent.
            passed.add(cid)
            chain.append(e)
            cid = e["parent"]
        gone = cid if cid and cid not in entries else None  # the parent of the last one
        out: dict[str, DeltaChannelHistory] = {channel: {"writes": []} for channel in channels}
        rest, i, n = set(channels), 1, 1
        while rest and i < len(chain):
            found = {t.checkpoint["id"]: t for t in (yield from self._page([(thread, ns, e) for e in chain[i : i + n]]))}
            for e in chain[i : i + n]:
                t = found.get(e["id"])
                if not rest:
                    break
                if not t:
                    raise _pruned(rest, e["id"])
                for write in reversed(t.pending_writes or []):
                    if write[1] in rest:
                        out[write[1]]["writes"].append(write)
                for channel in rest & t.checkpoint["channel_values"].keys():
                    out[channel]["seed"] = t.checkpoint["channel_values"][channel]
                    rest.discard(channel)
            i, n = i + n, min(2 * n, _MAX_PAGE)
        if rest and gone:
            raise _pruned(rest, gone)
        for h in out.values():
            h["writes"].reverse()
        return out

    # Writing

    def _head(self, id: str) -> Steps[_Head | None]:
        """Returns the head of a session, or None if there is no session."""
        try:
            st = yield _calls.load({"session": id}, 0, "", False, 1, 0, False, [_BODY], [_LATEST])
        except NotFoundError:
            return None
        body: dict[str, Any] = {"id": "", "channel_versions": {}}
        if _BODY in st.contents:
            body, _ = self.serde.loads_typed(_unpack(st.contents[_BODY]))
        record = st.records[_LATEST]
        latest = json.loads(record.value) if record.value else {"id": ""}
        return _Head(st.revision, body["id"], (p.name for p in st.parts), body["channel_versions"], (latest["id"], record.version), latest.get("born", ""))

    def _put(self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions) -> Steps[RunnableConfig]:
        thread, ns = _place(config)
        parent = get_checkpoint_id(config)
        body = dict(checkpoint)
        values = cast(dict[str, Any], body.pop("channel_values"))
        if unversioned := {channel: value for channel, value in values.items() if channel not in checkpoint["channel_versions"]}:
            body["channel_values"] = unversioned
        whole = get_checkpoint_metadata(config, metadata)
        packed_body = _pack(*self.serde.dumps_typed([body, whole]))
        packed: dict[str, bytes] = {}
        entry = {"id": checkpoint["id"], "parent": parent, **_as_json(whole)}
        born = self._births.get((_session(thread, ns), parent or ""))
        if born is not None:  # Of its writes as well, which may come when it was refused.
            self._births.give((_session(thread, ns), checkpoint["id"]), born)
        yield from self._commit_checkpoint(thread, ns, entry, packed_body, checkpoint["channel_versions"], values, new_versions, packed, born)
        return _config(thread, ns, checkpoint["id"])

    def _ground(self, thread: str, ns: str, born: str | None) -> Steps[tuple[_Head, bool, bool]]:
        """Returns the head on top of which a checkpoint of a birth is put, whether its session is new, and whether this saver has put it."""
        id = _session(thread, ns)
        head = self._heads.get(id)
        if head and born in (None, head.born):
            return head, False, True
        head = yield from self._head(id)
        # A session without a birth has no checkpoints left.
        if born is not None and (head is None or head.born not in ("", born)):
            raise _deleted(thread, ns)
        new = head is None
        head = head or _Head(0, "", (), {}, ("", "none"), "")
        head.born = head.born or secrets.token_hex(8)
        return head, new, False

    def _commit_checkpoint(
        self,
        thread: str,
        ns: str,
        entry: dict[str, Any],
        body: bytes,
        versions: Mapping[str, Any],
        values: Mapping[str, Any],
        changed: Mapping[str, Any],
        packed: dict[str, bytes],
        born: str | None = None,
    ) -> Steps[None]:
        """Commits a checkpoint: the parts that are not those of the head already, and its record. born is the birth of what it goes on from, if that is known."""
        id = _session(thread, ns)
        before: tuple[dict[str, bytes], Mapping[str, Any]] | None = None  # the parent's parts and versions
        while True:
            head, new, known = yield from self._ground(thread, ns, born)
            entry["born"] = head.born
            parts, keep = {_BODY: body}, {_BODY}
            for channel, version in versions.items():
                name = _part(channel)
                unchanged = head.id == entry["parent"] and head.versions.get(channel) == version and channel not in changed
                # Of a head that this saver has not put, nobody knows whether it has the value that the caller has.
                if unchanged and name in head.parts and (known or channel not in values):
                    keep.add(name)
                    continue
                if channel not in packed and channel in values:
                    packed[channel] = _pack(*self.serde.dumps_typed(values[channel]))
                elif channel not in packed and entry["parent"] and channel not in changed and not unchanged:
                    # The value, if there is one, is that of the parent, and the head has gone on since. A value of another version is none.
                    if before is None:
                        before = yield from self._parts_of(id, entry["parent"])
                    if name in before[0] and before[1].get(channel) == version:
                        packed[channel] = before[0][name]
                if channel in packed:
                    parts[name] = packed[channel]
                    keep.add(name)
            try:
                latest, lead = yield from self._apply(thread, ns, entry, head, new, parts, head.parts - keep)
            except (ConflictError, RecordConflictError):
                self._heads.pop(id, None)
                continue
            except NotFoundError:  # The thread was deleted since this saver saw it.
                if id not in self._heads:
                    raise
                self._heads.pop(id)
                continue
            before_it = self._seen.get(id)
            if before_it and head.record and before_it.versions.get(_CHECKPOINT + _id(head.id)) == head.record:
                parts = {**{name: before_it.parts[name] for name in keep & before_it.parts.keys()}, **parts}
            if keep == parts.keys():
                self._remember(id, lead, parts)
            else:
                self._seen.pop(id, None)
            self._heads.give(id, _Head(head.revision + 1, entry["id"], keep, versions, latest, entry["born"], lead[_CHECKPOINT + _id(entry["id"])]))
            self._given(id, entry, latest[1])
            return

    def _apply(
        self, thread: str, ns: str, entry: dict[str, Any], head: _Head, new: bool, parts: dict[str, bytes], drop: set[str]
    ) -> Steps[tuple[tuple[str, str], dict[str, str]]]:
        """Commits a checkpoint on top of a head, and returns what is the latest one then, and the versions of the records that lead to this one."""
        target = {"session": _session(thread, ns)}
        text = json.dumps({**entry, "revision": head.revision + 1, "beside": f"{_WRITE}{_id(entry['id'])}/"}).encode()
        key = _CHECKPOINT + _id(entry["id"])
        records = [RecordChange.set(key, text)]
        id, version = head.latest
        newest = id <= entry["id"]
        records.append(RecordChange.set(_LATEST, text, version) if newest else RecordChange.check(_LATEST, version))
        commit = Commit(head.revision, checkpoint=parts, drop=sorted(drop), records=records, keep=_KEPT if newest else "")
        try:
            if new:
                result = (yield _calls.commit_all([_calls.session_commit({}, self._made(thread, ns), commit, False)]))[0]
            else:
                result = yield _calls.commit(target, commit)
        except Error as e:
            if not e.outcome_unknown:
                raise
            stands = latest = None
            with suppress(NotFoundError):
                stands = yield from self._record(target, key)
                latest = yield from self._record(target, _LATEST)
            if stands is None or stands.value != text or latest is None:
                raise
            return (json.loads(latest.value)["id"], latest.version), {key: stands.version}
        lead = {key: result.records[0], _LATEST: result.records[1]} if newest else {key: result.records[0]}
        return (max(id, entry["id"]), result.records[1]), lead

    def _record(self, target: dict[str, str], key: str) -> Steps[Record | None]:
        try:
            return cast(Record, (yield _calls.record(target, key)))
        except NotFoundError as e:
            if e.kind != "record-not-found":
                raise
            return None

    def _parts_of(self, id: str, cid: str) -> Steps[tuple[dict[str, bytes], Mapping[str, Any]]]:
        """Returns the parts of a checkpoint, and the versions of its channels."""
        try:
            entry = yield _calls.record({"session": id}, _CHECKPOINT + _id(cid))
        except NotFoundError:
            return {}, {}
        try:
            parts = cast("dict[str, bytes]", (yield _calls.checkpoint({"session": id}, json.loads(entry.value)["revision"])))
        except NotFoundError as e:
            if e.kind != "revision-pruned":
                raise
            return {}, {}
        body, _ = self.serde.loads_typed(_unpack(parts[_BODY]))
        return parts, body["channel_versions"]

    def _put_writes(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str) -> Steps[None]:
        thread, ns = _place(config)
        cid = config["configurable"]["checkpoint_id"]
        changes: dict[str, RecordChange] = {}
        nodes = []
        for i, (channel, value) in enumerate(writes):
            index = WRITES_IDX_MAP.get(channel, i)
            kind, content = self.serde.dumps_typed(value)
            key = f"{_WRITE}{_id(cid)}/{_id(task_id)}/{index}"
            w: dict[str, Any] = {"task": task_id, "path": task_path, "index": index, "channel": channel, "kind": kind}
            if len(json.dumps(w)) + len(content) > _MAX_RECORD:
                w["node"] = f"{short(key, 400)} {hashlib.sha256(content).hexdigest()[:32]}"
                nodes.append(NewNode("write", content, w["node"]))
                content = b""
            # A write of a task that has an index stays as it was first; one of a special channel is replaced.
            changes[key] = RecordChange.set(key, json.dumps(w).encode() + b"\n" + content, "none" if index >= 0 else "")
        yield from self._apply_writes(thread, ns, nodes, list(changes.values()), self._births.get((_session(thread, ns), cid)))

    def _guard(self, thread: str, ns: str, born: str) -> Steps[list[RecordChange]]:
        """Returns what refuses a change if a namespace has been deleted since a birth. Raises NotFoundError if it has been already."""
        id = _session(thread, ns)
        latest = self._latest.get(id)
        if not latest or latest[0] != born:
            record, gone = None, True
            with suppress(NotFoundError):
                record = yield from self._record({"session": id}, _LATEST)
                gone = record is not None and json.loads(record.value).get("born") != born
            if gone:
                raise _deleted(thread, ns)
            latest = born, record.version if record else "none"
            self._latest.give(id, latest)
        return [RecordChange.check(_LATEST, latest[1])]

    def _absent(self, target: dict[str, str], nodes: list[NewNode]) -> Steps[list[NewNode]]:
        """Returns those of some nodes that are not stored yet, each once."""
        try:
            present = yield _calls.nodes_by_key(target, [n.key for n in nodes])
        except NotFoundError:
            present = {}
        return list({n.key: n for n in nodes if n.key not in present}.values())

    def _apply_writes(self, thread: str, ns: str, nodes: list[NewNode], changes: list[RecordChange], born: str | None = None) -> Steps[None]:
        id = _session(thread, ns)
        target = {"session": id}
        fresh = (yield from self._absent(target, nodes)) if nodes else []
        repeats = 0
        while fresh or changes:
            guard = (yield from self._guard(thread, ns, born)) if born is not None else []
            some = _fitting(changes, _MAX_RECORDS, _MAX_BYTES, lambda c: len(c.value or b""))
            try:
                if fresh:
                    first = _fitting(fresh, _MAX_NODES, _MAX_PAYLOADS, lambda n: len(n.payload))
                    commit = Commit("any", first, turn=secrets.token_hex(16), records=guard)
                    yield _calls.commit_all([_calls.session_commit({}, self._made(thread, ns), commit, False)])
                    self._heads.pop(id, None)
                    fresh = fresh[len(first) :]
                else:
                    yield _calls.change_records(target, guard + some)
                    changes = changes[len(some) :]
            except RecordConflictError as e:
                if e.key == _LATEST:
                    self._latest.pop(id, None)
                changes = [c for c in changes if c.key != e.key]
            except InvalidError:
                still = yield from self._absent(target, fresh)
                if len(still) == len(fresh):  # Nobody has stored one of them since.
                    raise
                fresh = still
            except NotFoundError:
                if born is not None:
                    self._latest.pop(id, None)
                    raise _deleted(thread, ns) from None
                made = self._made(thread, ns)
                yield _calls.create(made.pop("id"), made)
            except Error as e:
                repeats += 1
                if not e.outcome_unknown or repeats > _REPEATS:
                    raise

    # Deleting

    def _delete_thread(self, thread: str) -> Steps[None]:
        for id, _ in (yield from self._namespaces(thread)):
            self._heads.pop(id, None)
            self._seen.pop(id, None)
            self._latest.pop(id, None)
            with suppress(NotFoundError):
                yield _calls.delete({"session": id}, "keep")

    def _delete_idle(self, idle: timedelta) -> Steps[list[str]]:
        if idle <= timedelta(0):
            raise ValueError(f"idle is {idle}: want more than nothing")
        report = yield _calls.prune({}, _GROUP, 0, 0, idle.total_seconds(), 0, True)  # The store knows of uses that Info does not tell.
        unused = set(report.counts.get("deleted", ()))
        threads: dict[str, bool] = {}  # whether all of a thread is unused
        for id, thread, _ in (yield from self._sessions(_GROUP)):
            threads[thread] = threads.get(thread, True) and id in unused
        gone = []
        for thread, whole in threads.items():
            if whole and (yield from self._delete_if_idle(thread, idle)):
                gone.append(thread)
        return gone

    def _delete_if_idle(self, thread: str, idle: timedelta) -> Steps[bool]:
        """Deletes the namespaces of a thread that nobody has used for so long, and returns whether all of it is gone."""
        yield _calls.prune({}, _group(thread), 0, 0, idle.total_seconds(), 0, False)
        return not (yield from self._namespaces(thread))

    def _remove(self, id: str, cids: set[str]) -> Steps[None]:
        """Removes checkpoints of a namespace, with their writes."""
        target = {"session": id}
        while True:
            latest = yield from self._record(target, _LATEST)
            rest = [e for e in (yield from self._entries(target)) if e["id"] not in cids]
            keys, nodes = [], []
            for cid in sorted(cids):
                for r in (yield from self._all_records(target, f"{_WRITE}{_id(cid)}/")):
                    keys.append(r.key)
                    if node := json.loads(r.value.partition(b"\n")[0]).get("node"):
                        nodes.append(node)
                keys.append(_CHECKPOINT + _id(cid))
            # What is the latest changes first, and only if nobody has put another one.
            version = latest.version if latest else "none"
            first = RecordChange.set(_LATEST, json.dumps(rest[0]).encode(), version) if rest else RecordChange.delete(_LATEST, version)
            changes = [first, *(RecordChange.delete(k) for k in keys)]
            try:
                for i in range(0, len(changes), _MAX_RECORDS):
                    yield _calls.change_records(target, changes[i : i + _MAX_RECORDS])
            except RecordConflictError:
                continue
            break
        with suppress(NotFoundError):
            yield _calls.release(target, _KEPT)
        if rest:
            with suppress(Error):  # Somebody has put another one, or the revision is pruned.
                yield _calls.keep(target, _KEPT, rest[0]["revision"])
        for i in range(0, len(nodes), 1000):
            found = yield _calls.nodes_by_key(target, nodes[i : i + 1000])
            if found:
                yield _calls.tombstone(target, [n.id for n in found.values()])

    def _delete_for_runs(self, run_ids: Sequence[str]) -> Steps[None]:
        for id, thread, ns in (yield from self._sessions(_GROUP)):
            gone = set()
            entries = yield from self._entries({"session": id})
            gone |= {e["id"] for e in entries if e.get("metadata", {}).get("run_id") in run_ids}
            rest = [(thread, ns, e) for e in entries if "metadata" not in e]
            for i in range(0, len(rest), _MAX_PAGE):
                found = yield from self._page(rest[i : i + _MAX_PAGE])
                gone |= {t.checkpoint["id"] for t in found if t.metadata.get("run_id") in run_ids}
            if gone:
                yield from self._remove(id, gone)

    def _prune(self, thread_ids: Sequence[str], strategy: str) -> Steps[None]:
        if isinstance(thread_ids, str):
            raise TypeError("thread_ids is a string: want a list of them")
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"there is no strategy {strategy!r}")
        doomed = []
        for thread in thread_ids:
            if strategy == "delete":
                yield from self._delete_thread(thread)
                continue
            for id, ns in (yield from self._namespaces(thread)):
                entries = yield from self._entries({"session": id})
                if not entries:
                    continue
                latest = yield from self._page([(thread, ns, entries[0])])
                if latest and latest[0].metadata.get("counters_since_delta_snapshot"):
                    raise NotImplementedError(f"thread {thread!r} uses a DeltaChannel, whose value is rebuilt from older checkpoints")
                doomed.append((id, {e["id"] for e in entries[1:]}))
        for id, cids in doomed:
            if cids:
                yield from self._remove(id, cids)

    def _copy_thread(self, source: str, target: str) -> Steps[None]:
        target = str(target)
        for id, ns in (yield from self._namespaces(source)):
            for entry in reversed((yield from self._entries({"session": id}))):
                try:
                    parts = yield _calls.checkpoint({"session": id}, entry["revision"])
                except NotFoundError as e:
                    if e.kind != "revision-pruned":
                        raise
                    continue  # It is not listed any more.
                body, _ = self.serde.loads_typed(_unpack(parts[_BODY]))
                versions = body["channel_versions"]
                packed = {ch: parts[_part(ch)] for ch in versions if _part(ch) in parts}
                copied = {k: entry[k] for k in ("id", "parent", "metadata") if k in entry}  # It is born with its new thread.
                yield from self._commit_checkpoint(target, ns, copied, parts[_BODY], versions, {}, versions, packed)
            nodes, changes, size = list[NewNode](), list[RecordChange](), 0
            for r in (yield from self._all_records({"session": id}, _WRITE)):
                w = json.loads(r.value.partition(b"\n")[0])
                if "node" in w:
                    nodes.append(NewNode("write", (yield _calls.node({"session": id}, "", w["node"])).payload, w["node"]))
                    size += len(nodes[-1].payload)
                changes.append(RecordChange.set(r.key, r.value))
                if size > _MAX_PAYLOADS:
                    yield from self._apply_writes(target, ns, nodes, changes)
                    nodes, changes, size = [], [], 0
            yield from self._apply_writes(target, ns, nodes, changes)


class _Saver(_Steps, BaseCheckpointSaver[str]):
    """What both savers have."""

    def __init__(self, serde: SerializerProtocol | None, keep_last: int) -> None:
        super().__init__(serde=serde)
        if keep_last < 0:
            raise ValueError(f"keep_last is {keep_last}")
        self._keep_last = keep_last
        self._heads = _Recent(_MAX_KNOWN)
        self._seen = _Recent(_MAX_SEEN)
        self._births = _Recent(_MAX_KNOWN)
        self._latest = _Recent(_MAX_KNOWN)

    def _do(self, steps: Steps[T]) -> T:
        """Makes the calls of steps."""
        raise NotImplementedError

    async def _ado(self, steps: Steps[T]) -> T:
        """Makes the calls of steps."""
        raise NotImplementedError

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Returns the version of a channel after one: a number, as text that sorts like it, and what tells it from that of another branch."""
        return f"{int(str(current or 0).partition('.')[0]) + 1:032}.{secrets.randbits(53):016}"

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Returns a checkpoint, or the latest one."""
        return self._do(self._read_tuple(*_place(config), get_checkpoint_id(config)))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yields checkpoints, the newest first."""
        places = self._do(self._listed(config, before, filter))
        while places and (limit is None or limit > 0):
            some, places = _split(places, limit)
            for t in self._do(self._page(some)):
                if _matches(t.metadata, filter):
                    limit = None if limit is None else limit - 1
                    yield t

    def put(self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions) -> RunnableConfig:
        """Stores a checkpoint, whole or not at all."""
        return self._do(self._put(config, checkpoint, metadata, new_versions))

    def put_writes(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        """Stores pending writes of a checkpoint."""
        self._do(self._put_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """Deletes a thread, with all its namespaces."""
        self._do(self._delete_thread(thread_id))

    def delete_idle(self, idle: timedelta) -> Sequence[str]:
        """Deletes the threads of which no namespace was used for so long, and returns them. A namespace that is used in the very moment stays, and then its thread is not
        returned."""
        return self._do(self._delete_idle(idle))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Deletes the checkpoints of runs, and their writes."""
        self._do(self._delete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copies all checkpoints and writes of a thread."""
        self._do(self._copy_thread(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Deletes all but the latest checkpoint of each namespace, or all. Refuses threads whose latest checkpoint counts updates of a DeltaChannel."""
        self._do(self._prune(thread_ids, strategy))

    def get_delta_channel_history(self, *, config: RunnableConfig, channels: Sequence[str]) -> Mapping[str, DeltaChannelHistory]:
        """Returns the writes of channels since their last value before a checkpoint, and that value."""
        return self._do(self._history(config, channels))

    async def aget_delta_channel_history(self, *, config: RunnableConfig, channels: Sequence[str]) -> Mapping[str, DeltaChannelHistory]:
        """Returns the writes of channels since their last value before a checkpoint, and that value."""
        return await self._ado(self._history(config, channels))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Returns a checkpoint, or the latest one."""
        return await self._ado(self._read_tuple(*_place(config), get_checkpoint_id(config)))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yields checkpoints, the newest first."""
        places = await self._ado(self._listed(config, before, filter))
        while places and (limit is None or limit > 0):
            some, places = _split(places, limit)
            for t in await self._ado(self._page(some)):
                if _matches(t.metadata, filter):
                    limit = None if limit is None else limit - 1
                    yield t

    async def aput(self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions) -> RunnableConfig:
        """Stores a checkpoint, whole or not at all."""
        return await self._ado(self._put(config, checkpoint, metadata, new_versions))

    async def aput_writes(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        """Stores pending writes of a checkpoint."""
        await self._ado(self._put_writes(config, writes, task_id, task_path))

    async def adelete_thread(self, thread_id: str) -> None:
        """Deletes a thread, with all its namespaces."""
        await self._ado(self._delete_thread(thread_id))

    async def adelete_idle(self, idle: timedelta) -> Sequence[str]:
        """Deletes the threads of which no namespace was used for so long, and returns them. A namespace that is used in the very moment stays, and then its thread is not
        returned."""
        return await self._ado(self._delete_idle(idle))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Deletes the checkpoints of runs, and their writes."""
        await self._ado(self._delete_for_runs(run_ids))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copies all checkpoints and writes of a thread."""
        await self._ado(self._copy_thread(source_thread_id, target_thread_id))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Deletes all but the latest checkpoint of each namespace, or all. Refuses threads whose latest checkpoint counts updates of a DeltaChannel."""
        await self._ado(self._prune(thread_ids, strategy))


class TurnstoneSaver(_Saver):
    """A checkpointer on a Client, for graphs that are invoked, and for those that are awaited. See the module."""

    def __init__(self, client: Client, *, serde: SerializerProtocol | None = None, keep_last: int = 0) -> None:
        """keep_last is how many commits `turnstone prune` leaves of a thread that this saver makes, in each namespace: a checkpoint is one, and so are writes of more
        than 60 KiB. With 0 it leaves as many as it is told to."""
        super().__init__(serde, keep_last)
        self._client = client

    def _do(self, steps: Steps[T]) -> T:
        return drive(self._client._run, steps)

    async def _ado(self, steps: Steps[T]) -> T:
        return await to_thread(self._do, steps)


class AsyncTurnstoneSaver(_Saver):
    """A checkpointer on an AsyncClient. Its methods that are not awaited are for other threads than that of the event loop. See the module."""

    def __init__(self, client: AsyncClient, *, serde: SerializerProtocol | None = None, keep_last: int = 0) -> None:
        """keep_last is how many commits `turnstone prune` leaves of a thread that this saver makes, in each namespace: a checkpoint is one, and so are writes of more
        than 60 KiB. With 0 it leaves as many as it is told to."""
        super().__init__(serde, keep_last)
        self._client = client
        self._loop = loop_of_caller()

    def _do(self, steps: Steps[T]) -> T:
        return from_thread(self._loop, self._ado(steps))

    async def _ado(self, steps: Steps[T]) -> T:
        return await adrive(self._client._run, steps)
