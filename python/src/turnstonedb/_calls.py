"""What a client asks a server, without how it is sent: the synchronous and the asynchronous client share it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from . import errors
from ._wire import Document, Object
from .types import (
    Attached,
    Attachment,
    Bundled,
    Commit,
    Feed,
    Info,
    LogEntry,
    Message,
    Node,
    Page,
    Record,
    RecordChange,
    RecordPage,
    Ref,
    Report,
    Result,
    Revision,
    Saved,
    Standing,
    State,
    Usage,
)  # fmt: skip

T = TypeVar("T")


Progress = Callable[[str, int], object]
"""Is called with the phase of what takes long, and how far it is in what the phase is about: sessions, uploads, blobs, records."""


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """An operation, and how to read its answer."""

    name: str
    message: Object
    read: Callable[[list[Document]], T]
    several: bool = False  # the answer is several documents
    id: str = ""  # of a write: the server remembers the write by it
    anywhere: bool = False  # of a write: any server may make it again, because it has a turn id, or that of the request
    session: str = ""  # of a commit: it may be sent as its difference from the last one of the session
    progress: Progress | None = None  # is called while the answer comes


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
        for name in ("report", "vacuum", "prune", "erasure", "verified", "stats"):
            if name in d.value:
                return Report(d.value[name])
    raise errors.Error("the answer has no report")


def _write(name: str, message: Object, read: Callable[[list[Document]], T], anywhere: bool = False, several: bool = False, progress: Progress | None = None) -> Call[T]:
    return Call(name, message, read, several, secrets.token_hex(16), anywhere, progress=progress)


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
    # The id of the request would do, but a commit that is sent whole after its difference was refused has another one.
    turn = c.turn or "turnstone/request/" + secrets.token_hex(16)
    return Call("commit", {**target, **c._wire(), "turn": turn}, _one(Result._of), False, secrets.token_hex(16), True, target["session"])


def save(id: str, messages: Sequence[Message], state: Mapping[str, bytes | str] | None, meta: Object, empty: Sequence[str], new: Object,
         touch: bool, usage: Sequence[Usage], turn: str, base: Revision) -> Call[Saved]:  # fmt: skip
    o: Object = {"new": new, "empty": list(empty), "touch": touch, "usage": [u._wire() for u in usage], "turn": turn, "base": base}
    message = {"session": id, "messages": [m._wire() for m in messages], **meta, **{k: v for k, v in o.items() if v}}
    if state is not None:
        message["state"] = [{"name": name, "content": content.encode() if isinstance(content, str) else content} for name, content in sorted(state.items())]
    # Another server might save it again, over what others have saved since.
    return Call("save", message, _one(Saved._of), False, secrets.token_hex(16), False, id)


def attachment(target: Object, id: str) -> Call[Attached]:
    return Call("stat-attachment", {**target, "id": id}, _one(Attached._of))


def attachments(target: Object) -> Call[list[Attached]]:
    return Call("attachments", target, _one(lambda o: [Attached._of(a) for a in o.get("attachments") or ()]))


def link_attachment(target: Object, source: str, id: str) -> Call[Attachment]:
    return _write("link-attachment", {**target, "from": source, "id": id}, _one(Attachment._of))


def commit_all(commits: Sequence[Object]) -> Call[list[Result]]:
    made = not all(c.get("recordsOnly") for c in commits)  # A commit has a turn id, or that of the request.
    return _write("commit-all", {"commits": list(commits)}, _one(lambda o: [Result._of(r) for r in o.get("results") or ()]), made)


def session_commit(target: Object, create: Object | None, commit: Commit, records_only: bool) -> Object:
    """Returns one of the commits of commit_all."""
    of = target if create is None else {"create": create}
    if records_only:
        return {**of, "recordsOnly": True, "records": [r._wire() for r in commit.records]}
    return {**of, **commit._wire()}


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


def refs(target: Object, wanted: Sequence[tuple[str, str]]) -> Call[list[Ref]]:
    def read(docs: list[Document]) -> list[Ref]:
        out: list[Ref] = []
        for d in docs:
            if "ref" in d.value:
                r = d.value["ref"]
                parts = None if r.get("known") else {p["name"]: d.bytes(p["content"]) for p in r.get("parts") or ()}
                out.append(Ref(Record._of(r["record"], d), parts, []))
            elif "beside" in d.value:
                out[-1].beside.extend(Record._of(x, d) for x in d.value["beside"]["records"])
        return out

    return Call("refs", {**target, "refs": [{"key": key, "known": known} for key, known in wanted]}, read, True)


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


def delete(target: Object, children: str, expected: Revision = "any") -> Call[None]:
    return _write("delete", {**target, "children": children, **({} if expected == "any" else {"expected": expected})}, _none)


def start_feed(keep_seconds: float, records: bool) -> Call[None]:
    return _write("start-feed", {"keepNanoseconds": round(keep_seconds * 1e9), "records": records}, _none)


def stop_feed() -> Call[None]:
    return _write("stop-feed", {}, _none)


def standings(of: Sequence[tuple[str, Sequence[int]]]) -> Call[list[Standing]]:
    sessions = [{"id": id, "at": list(at)} for id, at in of]
    return Call("standings", {"sessions": sessions}, _one(lambda o: [Standing._of(s) for s in o.get("sessions") or ()]))


def bundle(of: Sequence[Bundled], offset: int, before: str) -> Call[None]:
    sessions = [{"id": b.id, "since": b.since} for b in of]
    return Call("bundle", {"sessions": sessions, **({"offset": offset, "before": before} if offset else {})}, _none)


def feed() -> Call[Feed]:
    return Call("feed", {}, _one(Feed._of))


def gc(target: Object, dry_run: bool, full: bool, progress: Progress | None) -> Call[Report]:
    return _write("gc", {**target, "dryRun": dry_run, "full": full}, _report, True, True, progress)


def vacuum(target: Object, no_compaction: bool, progress: Progress | None) -> Call[Report]:
    return _write("vacuum", {**target, "noCompaction": no_compaction}, _report, True, True, progress)


def prune(target: Object, group: str, revisions: int, age: float, inactive: float, bytes: int, dry_run: bool) -> Call[Report]:
    o: Object = {"group": group, "revisions": revisions, "ageNanoseconds": int(age * 1e9), "inactiveNanoseconds": int(inactive * 1e9), "bytes": bytes, "dryRun": dry_run}
    return _write("prune", {**target, **{k: v for k, v in o.items() if v}}, _report, False, True)


def erase(id: str, children: str, progress: Progress | None) -> Call[Report]:
    return _write("erase", {"session": id, "children": children}, _report, False, True, progress)


def erase_nodes(target: Object, nodes: Sequence[str], progress: Progress | None) -> Call[Report]:
    return _write("erase-nodes", {**target, "nodes": list(nodes)}, _report, True, True, progress)


def seal(target: Object) -> Call[None]:
    return _write("seal", target, _none, True, True)


def verify(progress: Progress | None) -> Call[Report]:
    return _write("verify", {}, _report, True, True, progress)


def stats() -> Call[Report]:
    return _write("stats", {}, _report, True, True)


def upgrade() -> Call[Report]:
    return _write("upgrade", {}, _one(Report))


def metadata(
    name: str, model: str, cwd: str, group: str, labels: Mapping[str, str] | None, retention: int | str, custom: Any,
    host_created: datetime | str, host_updated: datetime | str,
) -> Object:  # fmt: skip
    o: Object = {
        "name": name, "model": model, "cwd": cwd, "group": group, "labels": dict(labels or {}), "retention": retention,
        "hostCreated": _time(host_created), "hostUpdated": _time(host_updated),
    }  # fmt: skip
    return {k: v for k, v in o.items() if v} | ({} if custom is None else {"custom": custom})


def _time(t: datetime | str) -> str:
    """A naive time is local, as everywhere in Python."""
    return t if isinstance(t, str) else t.astimezone().isoformat()


def request(meta: Object, parent: str, fork_node: str, fork_at: Revision, no_checkpoint: bool, detached: bool, summary: bool) -> Object:
    o: Object = {
        "parent": parent, "forkNode": fork_node, "forkAt": fork_at, "noCheckpoint": no_checkpoint, "detached": detached, "summary": summary,
    }  # fmt: skip
    return {**meta, **{k: v for k, v in o.items() if v}}


def progress(docs: list[Document]) -> Object:
    """Returns how far an upload has got: "offset", and "attachment" or "bundle" when all is there."""
    return docs[0].value
