"""What a client asks a server, without how it is sent: the synchronous and the asynchronous client share it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from . import errors
from ._wire import Document, Object
from .types import (
    Attachment,
    Commit,
    Feed,
    Info,
    LogEntry,
    Node,
    Page,
    Record,
    RecordChange,
    RecordPage,
    Report,
    Result,
    Revision,
    State,
)  # fmt: skip

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """An operation, and how to read its answer."""

    name: str
    message: Object
    read: Callable[[list[Document]], T]
    several: bool = False  # the answer is several documents
    id: str = ""  # of a write: the server remembers the write by it
    anywhere: bool = False  # of a write: any server may make it again, because it has a turn id
    session: str = ""  # of a commit: it may be sent as its difference from the last one of the session


def _one(f: Callable[[Object], T]) -> Callable[[list[Document]], T]:
    return lambda docs: f(docs[0].value)


def _nodes(docs: Iterable[Document]) -> list[Node]:
    return [Node._of(d.value["node"], d) for d in docs if "node" in d.value]


def _state(docs: list[Document]) -> State:
    return State._of(docs[0].value["state"], docs[0], _nodes(docs))


def _none(_: list[Document]) -> None:
    return None


def _report(docs: list[Document]) -> Report:
    for d in docs:
        if "problem" in d.value:
            raise errors.of_problem(d.value["problem"])
    for d in docs:
        if "report" in d.value or "vacuum" in d.value:
            return Report(d.value.get("report") or d.value["vacuum"])
    raise errors.Error("the answer has no report")


def _write(name: str, message: Object, read: Callable[[list[Document]], T], anywhere: bool = False, several: bool = False) -> Call[T]:
    return Call(name, message, read, several, secrets.token_hex(16), anywhere)


def create(id: str, options: Object) -> Call[tuple[Info, bool]]:
    return _write("create", {"id": id, **options}, _one(lambda o: (Info._of(o), bool(o["new"]))))


def info(target: Object) -> Call[Info]:
    return Call("info", target, _one(Info._of))


def list_sessions(after: str, limit: int, parent: str, group: str, labels: Mapping[str, str] | None, summary: bool | None) -> Call[Page]:
    o: Object = {"after": after, "limit": limit, "parent": parent, "group": group, "labels": dict(labels or {})}
    if summary is not None:
        o["summary"] = summary
    return Call("list", o, _one(Page._of))


def commit(target: Object, c: Commit) -> Call[Result]:
    return Call("commit", {**target, **c._wire()}, _one(Result._of), False, secrets.token_hex(16), bool(c.turn), target["session"])


def commit_all(commits: Sequence[Object]) -> Call[list[Result]]:
    turns = all(c.get("turn") or c.get("recordsOnly") for c in commits) and any(c.get("turn") for c in commits)
    return _write("commit-all", {"commits": list(commits)}, _one(lambda o: [Result._of(r) for r in o.get("results") or ()]), turns)


def session_commit(target: Object, create: Object | None, commit: Commit, records_only: bool) -> Object:
    """Returns one of the commits of commit_all."""
    if records_only:
        return {**target, "recordsOnly": True, "records": [r._wire() for r in commit.records]}
    if create is not None:
        return {"create": create, **commit._wire()}
    return {**target, **commit._wire()}


def load(target: Object, at: Revision, leaf: str, full: bool, last: int, after: int, reverse: bool, parts: Sequence[str], records: Sequence[str]) -> Call[State]:
    return Call("load", scope(target, at, leaf, full, last, after, reverse, parts, records), _state, True)


def scope(target: Object, at: Revision, leaf: str, full: bool, last: int, after: int, reverse: bool, parts: Sequence[str] = (), records: Sequence[str] = ()) -> Object:
    o: Object = {
        "at": at,
        "leaf": leaf,
        "full": full,
        "last": last,
        "after": after,
        "reverse": reverse,
        "parts": list(parts),
        "records": list(records),
    }
    return {**target, **{k: v for k, v in o.items() if v}}


def node(target: Object, id: str, key: str) -> Call[Node]:
    return Call("node", {**target, "node": id, "key": key}, lambda docs: Node._of(docs[0].value, docs[0]))


def nodes_by_key(target: Object, keys: Sequence[str]) -> Call[dict[str, Node]]:
    return Call("nodes-by-key", {**target, "keys": list(keys)}, lambda docs: {n.key: n for n in _nodes(docs)}, True)


def leaves(target: Object) -> Call[list[Node]]:
    return Call("leaves", target, _nodes, True)


def log(target: Object, after: int) -> Call[list[LogEntry]]:
    return Call("log", {**target, "after": after}, lambda docs: [LogEntry._of(d.value["entry"]) for d in docs if "entry" in d.value], True)


def kept(target: Object) -> Call[dict[str, int]]:
    return Call("kept", target, _one(lambda o: {k["name"]: k["revision"] for k in o.get("kept") or ()}))


def checkpoint(target: Object, at: Revision) -> Call[dict[str, bytes]]:
    return Call("checkpoint", {**target, "at": at}, lambda docs: {p["name"]: docs[0].bytes(p["content"]) for p in docs[0].value.get("parts") or ()})


def record(target: Object, key: str) -> Call[Record]:
    return Call("record", {**target, "key": key}, lambda docs: Record._of(docs[0].value, docs[0]))


def records(target: Object, prefix: str, after: str, limit: int) -> Call[RecordPage]:
    return Call("records", {**target, "prefix": prefix, "after": after, "limit": limit}, lambda docs: RecordPage._of(docs[0].value, docs[0]))


def change_records(target: Object, changes: Sequence[RecordChange]) -> Call[list[str]]:
    return _write("change-records", {**target, "changes": [c._wire() for c in changes]}, _one(lambda o: list(o.get("versions") or ())))


def save_metadata(target: Object, fields: Object, empty: Sequence[str]) -> Call[None]:
    return _write("save-metadata", {**target, **fields, "empty": list(empty)}, _none)


def tombstone(target: Object, nodes: Sequence[str]) -> Call[None]:
    return _write("tombstone", {**target, "nodes": list(nodes)}, _none)


def keep(target: Object, name: str, revision: Revision) -> Call[None]:
    return _write("keep", {**target, "name": name, "revision": revision}, _none)


def release(target: Object, name: str) -> Call[None]:
    return _write("release", {**target, "name": name}, _none)


def rename(target: Object, to: str) -> Call[None]:
    return _write("rename", {**target, "to": to}, _none)


def delete(target: Object, children: str) -> Call[None]:
    return _write("delete", {**target, "children": children}, _none)


def start_feed(keep_seconds: float) -> Call[None]:
    return _write("start-feed", {"keepNanoseconds": round(keep_seconds * 1e9)}, _none)


def stop_feed() -> Call[None]:
    return _write("stop-feed", {}, _none)


def feed() -> Call[Feed]:
    return Call("feed", {}, _one(Feed._of))


def gc(target: Object, dry_run: bool, full: bool) -> Call[Report]:
    return _write("gc", {**target, "dryRun": dry_run, "full": full}, _report, True, True)


def vacuum(target: Object) -> Call[Report]:
    return _write("vacuum", target, _report, True, True)


def metadata(name: str, model: str, cwd: str, group: str, labels: Mapping[str, str] | None, retention: int | str) -> Object:
    o: Object = {"name": name, "model": model, "cwd": cwd, "group": group, "labels": dict(labels or {}), "retention": retention}
    return {k: v for k, v in o.items() if v}


def request(meta: Object, parent: str, fork_node: str, fork_at: Revision, no_checkpoint: bool, detached: bool, summary: bool) -> Object:
    o: Object = {
        "parent": parent, "forkNode": fork_node, "forkAt": fork_at, "noCheckpoint": no_checkpoint, "detached": detached, "summary": summary,
    }  # fmt: skip
    return {**meta, **{k: v for k, v in o.items() if v}}


def progress(docs: list[Document]) -> tuple[int, Attachment | None]:
    o: dict[str, Any] = docs[0].value
    return o["offset"], Attachment._of(o["attachment"]) if o.get("attachment") else None
