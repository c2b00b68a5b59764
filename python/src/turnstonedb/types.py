"""What sessions have and take. The Go documentation of package turnstone says more of each field; names are the same, in snake case."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ._wire import Document, Object

Revision = int | Literal["any", "zero"]
"""How many commits a session had. "any" expects whatever the head is; "zero" is the state before the first commit."""


def _drop_empty(o: Object) -> Object:
    return {k: v for k, v in o.items() if v not in (None, "", (), [], {}, False) or k in ("payload", "content", "value")}


@dataclass(frozen=True, slots=True)
class Attachment:
    """A reference to a blob, as `put_attachment` returns it."""

    id: str
    size: int
    media_type: str = ""
    name: str = ""

    @classmethod
    def _of(cls, o: Object) -> Attachment:
        return cls(o["id"], o["size"], o.get("mediaType", ""), o.get("name", ""))

    def _wire(self) -> Object:
        return {"id": self.id, "size": self.size, "mediaType": self.media_type, "name": self.name}


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one model, and what they cost.

    `input` and `output` are all tokens there were; the other three say how many of them were of a sort. `cost` is in
    billionths of a US dollar, and 0 if the provider did not say.
    """

    model: str
    input: int = 0
    output: int = 0
    cached_input: int = 0
    cache_write: int = 0
    reasoning: int = 0
    cost: int = 0

    @classmethod
    def _of(cls, o: Object) -> Usage:
        g = o.get
        return cls(o["model"], g("input", 0), g("output", 0), g("cachedInput", 0), g("cacheWrite", 0), g("reasoning", 0), g("cost", 0))

    def _wire(self) -> Object:
        return {
            "model": self.model, "input": self.input, "output": self.output,
            "cachedInput": self.cached_input, "cacheWrite": self.cache_write, "reasoning": self.reasoning, "cost": self.cost,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class NewNode:
    """A node to append. `parent` is the id of a node, the index of a new one, "none", or None for the one before."""

    kind: str
    payload: bytes | str = b""
    key: str = ""
    parent: str | int | None = None
    attachments: Sequence[Attachment] = ()

    def _wire(self) -> Object:
        payload = self.payload.encode() if isinstance(self.payload, str) else self.payload
        o: Object = _drop_empty({"kind": self.kind, "key": self.key, "payload": payload})
        if self.parent is not None:
            o["parent"] = self.parent
        if self.attachments:
            o["attachments"] = [a._wire() for a in self.attachments]
        return o


@dataclass(frozen=True, slots=True)
class Node:
    """A node as it is read."""

    id: str
    kind: str
    payload: bytes
    revision: int
    time: str
    parent: str = ""
    key: str = ""
    attachments: tuple[Attachment, ...] = ()
    inherited: bool = False

    @classmethod
    def _of(cls, o: Object, d: Document) -> Node:
        return cls(
            o["id"], o["kind"], d.bytes(o["payload"]), o["revision"], o["time"], o.get("parent", ""), o.get("key", ""),
            tuple(Attachment._of(a) for a in o.get("attachments") or ()), o.get("inherited", False),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a checkpoint, without its content."""

    name: str
    blob: str
    size: int
    set: int
    whole: int

    @classmethod
    def _of(cls, o: Object) -> Part:
        return cls(o["name"], o["blob"], o["size"], o["set"], o["whole"])


@dataclass(frozen=True, slots=True)
class Info:
    """What is known of a session without reading its history."""

    id: str
    incarnation: str
    revision: int
    created: str
    updated: str
    name: str = ""
    model: str = ""
    cwd: str = ""
    group: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    retention: int | Literal["all"] = 0
    custom: Any = None
    host_created: str = ""
    host_updated: str = ""
    summary: bool = False
    parent: str = ""
    fork_node: str = ""
    detached: bool = False
    leaf: str = ""
    commit: str = ""
    messages: int = 0
    nodes: int = 0
    bytes: int = 0
    usage: tuple[Usage, ...] = ()

    @classmethod
    def _of(cls, o: Object) -> Info:
        g = o.get
        return cls(
            o["id"], o["incarnation"], o["revision"], o["created"], o["updated"], g("name", ""), g("model", ""), g("cwd", ""), g("group", ""),
            g("labels") or {}, g("retention", 0), g("custom"), g("hostCreated", ""), g("hostUpdated", ""), g("summary", False), g("parent", ""),
            g("forkNode", ""), g("detached", False), g("leaf", ""), g("commit", ""), g("messages", 0),
            g("nodes", 0), g("bytes", 0), tuple(Usage._of(u) for u in g("usage") or ()),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list of sessions. `next` is `after` of the next page, or empty."""

    sessions: tuple[Info, ...]
    next: str

    @classmethod
    def _of(cls, o: Object) -> Page:
        return cls(tuple(Info._of(i) for i in o.get("sessions") or ()), o.get("next", ""))


@dataclass(frozen=True, slots=True)
class Record:
    """A record. Its version is "none" if there is none of the key."""

    session: str
    key: str
    value: bytes
    version: str
    time: str

    @classmethod
    def _of(cls, o: Object, d: Document) -> Record:
        return cls(o["session"], o["key"], d.bytes(o["value"]), o["version"], o["time"])


@dataclass(frozen=True, slots=True)
class Ref:
    """A record that names a revision, the checkpoint parts of that, and the records beside it. parts is None if the caller knows them."""

    record: Record
    parts: dict[str, bytes] | None
    beside: list[Record]


@dataclass(frozen=True, slots=True)
class Attached:
    """An attachment that a session has, with its first node and when that was committed, or until when it waits for a commit."""

    attachment: Attachment
    node: str = ""
    revision: int = 0
    inherited: bool = False
    time: str = ""
    expires: str = ""

    @classmethod
    def _of(cls, o: Object) -> Attached:
        g = o.get
        return cls(Attachment._of(o), g("node", ""), g("revision", 0), g("inherited", False), g("time", ""), g("expires", ""))


@dataclass(frozen=True, slots=True)
class Message:
    """One entry of a whole history. `id` is the node that holds it; a save ignores it."""

    kind: str
    payload: bytes | str = b""
    attachments: Sequence[Attachment] = ()
    id: str = field(default="", compare=False)

    def _wire(self) -> Object:
        return NewNode(self.kind, self.payload, attachments=self.attachments)._wire()


@dataclass(frozen=True, slots=True)
class Saved:
    """What a save did: the revision is the `base` of the next one; so many messages were kept, and so many written."""

    revision: int
    kept: int
    added: int

    @classmethod
    def _of(cls, o: Object) -> Saved:
        return cls(o["revision"], o["kept"], o["added"])


@dataclass(frozen=True, slots=True)
class History:
    """A whole history: what a save takes. Payloads are bytes."""

    info: Info
    messages: tuple[Message, ...]
    state: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class RecordUpdate:
    """What a watch of records has seen: records that were set, as they stand now, and deleted ones, with the version "none"."""

    records: tuple[Record, ...]
    anew: bool
    """The watch begins with this value, or had to begin again: what came before is void."""
    more: bool
    """The rest comes with the next value."""

    @classmethod
    def _of(cls, o: Object) -> RecordUpdate:
        records = (Record(r["session"], r["key"], b64decode(r["value"] or ""), r["version"], r["time"]) for r in o.get("records") or ())
        return cls(tuple(records), o.get("anew", False), o.get("more", False))


@dataclass(frozen=True, slots=True)
class RecordPage:
    """A part of a list of records. `next` is `after` of the next page, or empty."""

    records: tuple[Record, ...]
    next: str
    revision: int

    @classmethod
    def _of(cls, o: Object, d: Document) -> RecordPage:
        return cls(tuple(Record._of(r, d) for r in o.get("records") or ()), o.get("next", ""), o.get("revision", 0))


@dataclass(frozen=True, slots=True)
class RecordChange:
    """A change of a record. `expect` is the version that it must have, "none" for one that must not exist, or empty for any."""

    key: str
    action: Literal["set", "delete", "check"]
    value: bytes = b""
    expect: str = ""

    @classmethod
    def set(cls, key: str, value: bytes, expect: str = "") -> RecordChange:
        return cls(key, "set", value, expect)

    @classmethod
    def delete(cls, key: str, expect: str = "") -> RecordChange:
        return cls(key, "delete", b"", expect)

    @classmethod
    def check(cls, key: str, expect: str) -> RecordChange:
        return cls(key, "check", b"", expect)

    def _wire(self) -> Object:
        o: Object = {"key": self.key, "action": self.action}
        if self.value:
            o["value"] = self.value
        if self.expect:
            o["expect"] = self.expect
        return o


@dataclass(frozen=True, slots=True)
class State:
    """A session's history, or a part of it, at one revision."""

    revision: int
    commit: str
    leaf: str
    time: str
    nodes: tuple[Node, ...]
    parts: tuple[Part, ...]
    usage: tuple[Usage, ...]
    contents: Mapping[str, bytes]
    records: Mapping[str, Record]

    @classmethod
    def _of(cls, o: Object, d: Document, nodes: Sequence[Node]) -> State:
        return cls(
            o["revision"], o.get("commit", ""), o.get("leaf", ""), o["time"], tuple(nodes),
            tuple(Part._of(p) for p in o.get("parts") or ()), tuple(Usage._of(u) for u in o.get("usage") or ()),
            {p["name"]: d.bytes(p["content"]) for p in o.get("contents") or ()},
            {r["key"]: Record._of(r, d) for r in o.get("records") or ()},
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    """Where a commit stands."""

    revision: int
    commit: str
    leaf: str
    nodes: tuple[str, ...]
    records: tuple[str, ...]
    replayed: bool
    created: bool

    @classmethod
    def _of(cls, o: Object) -> Result:
        g = o.get
        return cls(
            o["revision"], g("commit", ""), g("leaf", ""), tuple(g("nodes") or ()), tuple(g("records") or ()),
            g("replayed", False), g("created", False),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One commit, as the log of its session tells of it."""

    revision: int
    commit: str
    time: str
    turn: str
    leaf: str
    nodes: int
    parts: tuple[Part, ...]
    usage: tuple[Usage, ...]
    labels: Mapping[str, str]
    pruned: bool

    @classmethod
    def _of(cls, o: Object) -> LogEntry:
        g = o.get
        return cls(
            o["revision"], o["commit"], o["time"], g("turn", ""), g("leaf", ""), g("nodes", 0), tuple(Part._of(p) for p in g("parts") or ()),
            tuple(Usage._of(u) for u in g("usage") or ()), g("labels") or {}, g("pruned", False),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a session, as the feed tells of it."""

    kind: str
    session: str
    incarnation: str
    cursor: str
    time: str
    revision: int
    to: str
    record: str
    """Of a change of a record: its key."""

    @classmethod
    def _of(cls, o: Object) -> Change:
        g = o.get
        return cls(
            o["kind"], g("session", ""), o["incarnation"], o["cursor"], o["time"], g("revision", 0), g("to", ""), g("record", "")
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Feed:
    """What the feed of changes has."""

    begin: str
    end: str
    keep_seconds: float
    records: bool
    """Whether it has the changes of records, too."""
    switches: int
    """How often it was turned on or off, or told of more."""

    @classmethod
    def _of(cls, o: Object) -> Feed:
        return cls(o["begin"], o["end"], o["keepNanoseconds"] / 1e9, o.get("records", False), o["switches"])


@dataclass(frozen=True, slots=True)
class Bundled:
    """A session to write to a bundle: all of it, or what came since a revision that the other store has."""

    id: str
    since: int | Literal["zero"] = 0
    """"zero" is before the first revision; 0 is all of it."""


@dataclass(frozen=True, slots=True)
class Unbundled:
    """A session that came in a bundle: where it stood before, and where it stands."""

    id: str
    created: bool
    begin: int
    end: int
    changed: bool
    """Whether it was made, or something of it has changed."""
    branch: int = 0
    """The revision that is kept for what has diverged, if `branch` was said."""

    @classmethod
    def _of(cls, o: Object) -> Unbundled:
        return cls(o["id"], o.get("created", False), o["from"], o["to"], o.get("changed", False), o.get("branch", 0))


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a session stands, to compare it with where it does in another store."""

    id: str
    incarnation: str
    """The session itself, another one in each store."""
    genesis: str
    """The same in all stores that the session was brought to."""
    revision: int
    commit: str
    """Before the first one, the genesis."""
    parent: str
    rest: str
    """Stands for metadata, records, tombstones and kept revisions: where they are the same, it is."""
    at: tuple[str, ...]
    """The commits at the revisions that were asked for; empty beyond the head."""

    @classmethod
    def _of(cls, o: Object) -> Standing:
        return cls(o["id"], o["incarnation"], o["genesis"], o["revision"], o["commit"], o.get("parent", ""), o["rest"], tuple(o.get("at") or ()))


@dataclass(frozen=True, slots=True)
class PushReport:
    """What a push did: the sessions that came, and how many had all already."""

    sessions: tuple[Unbundled, ...]
    same: int


@dataclass(frozen=True, slots=True)
class Commit:
    """One turn: all of it is stored, or nothing. A node that it refers to is its id, the index of a new one, or "none"."""

    expected: Revision = 0
    nodes: Sequence[NewNode] = ()
    turn: str = ""
    on_path: str = ""
    leaf: str | int | None = None
    checkpoint: Mapping[str, bytes] = field(default_factory=dict)
    drop: Sequence[str] = ()
    usage: Sequence[Usage] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    tombstone: Sequence[str] = ()
    keep: str = ""
    records: Sequence[RecordChange] = ()
    stored: Mapping[str, str] = field(default_factory=dict)
    """Parts that are set to the content of an attachment that is stored already: its id, by the part."""

    def _wire(self) -> Object:
        o: Object = _drop_empty({
            "onPath": self.on_path, "turn": self.turn, "nodes": [n._wire() for n in self.nodes],
            "checkpoint": [{"name": k, "content": bytes(v)} for k, v in self.checkpoint.items()], "drop": list(self.drop),
            "usage": [u._wire() for u in self.usage], "labels": dict(self.labels), "tombstone": list(self.tombstone), "keep": self.keep,
            "records": [r._wire() for r in self.records], "stored": dict(self.stored),
        })  # fmt: skip
        o["expected"] = self.expected
        if self.leaf is not None:
            o["leaf"] = self.leaf
        return o


@dataclass(frozen=True, slots=True)
class Report:
    """What an operation of maintenance did or found: what the server tells, by name."""

    counts: Mapping[str, Any]
