"""A session store for the Claude Agent SDK: transcripts are mirrored to a store, and resumed from it on any host.

    from claude_agent_sdk import ClaudeAgentOptions, query
    from turnstonedb import AsyncClient
    from turnstonedb.claude_agent import TurnstoneSessionStore

    async with await AsyncClient.open("./data") as db:
        options = ClaudeAgentOptions(session_store=TurnstoneSessionStore(db))
        async for message in query(prompt="Hello", options=options):
            print(message)

A transcript is a session of the store, and each of its lines is a node. `turnstone import` and `turnstone follow` take it for the one that they would make of the
file on disk: what is there, they don't store again. A transcript of a sub-agent is a child of the session.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import secrets
import time
from collections import Counter, OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from claude_agent_sdk import SessionKey, SessionListSubkeysKey, SessionStore, SessionStoreEntry, SessionStoreListEntry, SessionSummaryEntry, fold_session_summary

from . import adapter
from ._async import AsyncClient, AsyncSession
from .errors import ConflictError, Error, TurnConflictError
from .types import Info, NewNode, RecordChange, Usage

# Labels. Those with a dot are for people; by the others sessions are found.
_PROJECT = "claude.project"
_IDENTITY = "import.identity"
_FORMAT = ".import.format"
_MIRROR = {_FORMAT: "claude-code", ".import.mirror": "claude-agent-sdk"}
_MAX_SUMMARY = 64 << 10  # bytes of a record
_SUMMARY = "claude.summary/"  # and the project: the key of a record of the session
_STAMP = ".import.stamp"  # a record of a session that an import has read from its file

_AT_ONCE = 500  # lines of a commit, of 4 MiB
_MODEL = 128  # bytes of the name of a model
_BESIDE = 60.0  # seconds since the last event that an import has read, if the agent goes on while it reads
_KNOWN = 256  # transcripts that are remembered
_UUID = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class TurnstoneSessionStore(SessionStore):
    """Mirrors transcripts to a store. Tasks of one event loop may share it, and processes the store.

    Each call of `append` is stored whole or not at all if it has at most 500 entries and 4 MiB. An entry with a `uuid` that is there is not stored again. Sessions are
    made in `group`. Nothing is deleted unless somebody does it: `AsyncClient.prune` deletes what was not used for long.
    """

    def __init__(self, client: AsyncClient, *, group: str = "") -> None:
        self._client = client
        self._group = group
        self._known: OrderedDict[tuple[str, str, str], _Transcript] = OrderedDict()

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Stores entries, after those that are there."""
        if not entries:
            return
        lines = [_Line(e) for e in entries]
        t = self._transcript(key)
        async with t.lock:
            digest = hashlib.sha256(b"\n".join(line.payload for line in lines)).digest()
            stored, turn = t.failed[1:] if t.failed and t.failed[0] == digest else (0, "")
            t.failed = None
            for i, some in enumerate(adapter.in_commits(lines, lambda line: len(line.payload), _AT_ONCE)[stored:], stored):
                turn = turn or secrets.token_hex(16)
                try:
                    await self._append(t, some, turn)
                except BaseException as e:
                    unknown = adapter.outcome_unknown(e)
                    if i or unknown:
                        t.failed = (digest, i, turn if unknown else "")  # If it is appended again, it is stored once.
                    raise
                turn = ""

    async def _append(self, t: _Transcript, lines: list[_Line], turn: str) -> None:
        while True:
            try:
                if t.handle is None:
                    await self._begin(t)
                await self._commit(t, lines, turn)
                return
            except BaseException as e:
                again = (isinstance(e, ConflictError) and not e.outcome_unknown) or adapter.gone(e)
                t.forget()
                if isinstance(e, TurnConflictError):
                    return  # It is stored, with entries that are now found there.
                if again:
                    continue  # Somebody else has appended, or deleted the session: it is read again.
                raise

    async def _begin(self, t: _Transcript) -> None:
        """Finds or makes the session, and reads what it has."""
        handle, info = await self._found(t)
        if handle is None:
            handle, info = await self._made(t)
        assert info is not None
        t.handle, t.revision, t.model = handle, info.revision, info.model
        if info.revision:
            state = await handle.load(full=True)
            t.revision = state.revision
            lines = [_Line.of(n.payload) for n in state.nodes]
            t.nodes = {n.key.partition("~")[0]: n.id for n in state.nodes if n.key}
            if stamp := await handle.record(_STAMP):
                t.imported = Counter(n.payload for n in state.nodes if not n.key)
                t.beside = time.time() - _milliseconds(stamp.time) / 1000 < _BESIDE
            for line in lines:
                t.count(line)
            t.fold([line for line in lines if line.entry])
            t.title_before = t.title()

    async def _commit(self, t: _Transcript, lines: list[_Line], turn: str) -> None:
        assert t.handle is not None
        new = t.new(lines)
        if not new:
            return
        nodes, own = [], {line.uuid: i for i, line in reversed(list(enumerate(new))) if line.uuid}
        for i, line in enumerate(new):
            parent: str | int | None = None
            if line.turn and line.parent and (i == 0 or new[i - 1].uuid != line.parent):  # the user went back
                parent = own.get(line.parent, t.nodes.get(line.parent))
                parent = None if isinstance(parent, int) and parent >= i else parent
            nodes.append(NewNode(line.kind, line.payload, line.uuid, parent))
        was = t.copy()
        t.fold(new)
        usage = [u for line in new for u in t.count(line)]
        key, summary = _SUMMARY + t.project_text, json.dumps({"revision": t.revision + 1, "data": t.summary}).encode()
        # Without a summary, for example of a prompt that is too long for a record, the SDK reads the lines.
        records = [] if t.subpath else [RecordChange.set(key, summary) if len(summary) <= _MAX_SUMMARY else RecordChange.delete(key)]
        try:
            result = await t.handle.commit(nodes, expected=t.revision, turn=turn, usage=usage, records=records)
        except BaseException:
            t.restore(was)
            raise
        if result.revision != t.revision + 1:  # It was stored before, and others have gone on.
            t.forget()
            return
        t.revision = result.revision
        t.nodes.update((line.uuid, id) for line, id in zip(new, result.nodes, strict=True) if line.uuid)
        with suppress(Error, OSError):  # The lines are stored, and who is told otherwise stores them again. The next append describes it.
            await self._describe(t)

    async def _describe(self, t: _Transcript) -> None:
        """Gives the session the title and the model that the transcript has, unless people have given it others."""
        assert t.handle is not None
        title, model = t.title(), t.last_model
        if (not title or title == t.title_before) and (not model or model == t.model):
            return
        now = await t.handle.info()
        changed: dict[str, Any] = {"model": model} if model else {}
        if title and now.name in ("", t.title_before):
            changed["name"] = title
        await t.handle.save_metadata(**changed)
        t.title_before, t.model = title, model

    # Sessions

    def _transcript(self, key: SessionKey) -> _Transcript:
        k = (key["project_key"], key["session_id"], key.get("subpath", ""))
        t = self._known.setdefault(k, _Transcript(*k))
        self._known.move_to_end(k)
        for other in list(self._known):
            if len(self._known) <= _KNOWN:
                break
            if not self._known[other].lock.locked() and not self._known[other].failed:
                del self._known[other]
        return t

    async def _found(self, t: _Transcript) -> tuple[AsyncSession | None, Info | None]:
        for id in t.ids():
            try:
                handle = await self._client.session(id)
                info = await handle.info()
            except BaseException as e:
                if adapter.gone(e):
                    continue
                raise
            if t.has(info):
                return handle, info
        for info in (await self._client.list(labels={_IDENTITY: t.identity()})).sessions:  # It was renamed.
            if t.has(info):
                return await self._client.session(info.id), info
        return None, None

    async def _made(self, t: _Transcript) -> tuple[AsyncSession, Info]:
        options: dict[str, Any] = {"group": self._group, "labels": {**_MIRROR, _IDENTITY: t.identity()}}
        if t.subpath:
            main = self._transcript({"project_key": t.project, "session_id": t.session})
            parent, _ = await self._found(main)
            if parent is None:
                parent, _ = await self._made(main)
            options |= {"parent": parent.id, "detached": True, "custom": {"project": t.project, "session": t.session, "subpath": t.subpath}}
        else:
            options["labels"][_PROJECT] = t.project_text
            options["custom"] = {"session": t.session}
        for id in t.ids():
            handle, _ = await self._client.create(id, **options)
            info = await handle.info()
            if t.has(info):
                return handle, info
        raise RuntimeError(f"the ids of session {t.session!r} are taken by other sessions")

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Returns the entries of a transcript in their order, or None if there are none."""
        while True:
            handle, _ = await self._found(_Transcript(key["project_key"], key["session_id"], key.get("subpath", "")))
            if handle is None:
                return None
            try:
                nodes = [n async for n in handle.nodes(full=True)]
                layout = (await handle.checkpoint()).get("import-layout") if nodes else None
            except BaseException as e:
                if adapter.gone(e):
                    continue  # It was deleted, and may be there again.
                raise
            lines = [_Line.of(nodes[i].payload) for i in _order(len(nodes), layout)]
            entries = [line.entry for line in lines if line.entry]
            return cast("list[SessionStoreEntry]", entries) or None

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """Returns the sessions of a project."""
        return [{"session_id": _session(i), "mtime": _milliseconds(i.updated)} for i in await self._sessions(project_key)]

    async def _sessions(self, project_key: str) -> list[Info]:
        """Returns the sessions of a project. One that an import makes has no identity until it is whole."""
        return [i for i in await adapter.listed(self._client, labels={_PROJECT: _clip(project_key)}) if i.nodes and _session(i)]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """Returns the summaries of the sessions of a project."""
        sessions = {i.id: i for i in await self._sessions(project_key)}
        out: list[SessionSummaryEntry] = []
        after, key = "", _SUMMARY + _clip(project_key)
        while True:
            page = await self._client.records(key, after=after, limit=adapter.MAX_PAGE)
            for r in page.records:
                if r.key == key and (info := sessions.get(r.session)):
                    try:
                        summary = json.loads(r.value)
                        current = summary["revision"] == info.revision  # else an import has read more of the file
                        data = dict(summary["data"])
                    except (ValueError, TypeError, KeyError):
                        continue  # Somebody else has written it.
                    out.append({"session_id": _session(info), "mtime": _milliseconds(info.updated if current else r.time), "data": data})
            after = page.next
            if not after:
                return out

    async def delete(self, key: SessionKey) -> None:
        """Deletes a transcript. With that of a session, those of its sub-agents go; forks that others made of it keep what they show."""
        t = self._transcript(key)
        async with t.lock:
            t.forget()
            handle, _ = await self._found(t)
            if handle is None:
                return
            if not t.subpath:
                for info, _ in await self._children(handle.id):
                    await self._client.delete(info.id)
                for k, other in self._known.items():
                    if k[:2] == (t.project, t.session) and other is not t:
                        other.forget()
            await self._client.delete(handle.id)

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """Returns the subpaths of the transcripts of sub-agents."""
        handle, _ = await self._found(_Transcript(key["project_key"], key["session_id"], ""))
        return [] if handle is None else [subpath for info, subpath in await self._children(handle.id) if info.nodes]

    async def _children(self, id: str) -> list[tuple[Info, str]]:
        try:
            found = await adapter.listed(self._client, parent=id)
        except BaseException as e:
            if adapter.gone(e):
                return []
            raise
        out = []
        for i in found:
            identity = i.labels.get(_IDENTITY, "")
            if i.detached and i.labels.get(_FORMAT) == "claude-code":
                out.append((i, str(_custom(i).get("subpath") or "subagents/agent-" + identity.rpartition("/")[2])))
        return out


@dataclass
class _Transcript:
    """A transcript, and what is known of its session."""

    project: str
    session: str
    subpath: str
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    failed: tuple[bytes, int, str] | None = None  # the hash of a batch, how many parts of it are stored, and the turn of the next if that may be

    handle: AsyncSession | None = None  # None if nothing is known
    revision: int = 0
    nodes: dict[str, str] = field(default_factory=dict)  # by the uuids of their entries
    imported: Counter[bytes] | None = None  # lines without a uuid, if an import has read the file
    beside: bool = False  # it has read what was written a moment ago
    summary: dict[str, Any] = field(default_factory=dict)
    counted: dict[str, Usage] = field(default_factory=dict)  # by the responses
    title_before: str = ""  # which the session may have as its name
    model: str = ""
    last_model: str = ""

    def forget(self) -> None:
        fresh = _Transcript(self.project, self.session, self.subpath)
        for name in ("handle", "revision", "nodes", "imported", "beside", "summary", "counted", "title_before", "model", "last_model"):
            setattr(self, name, getattr(fresh, name))

    def copy(self) -> tuple[dict[str, Any], dict[str, Usage], str]:
        return self.summary, dict(self.counted), self.last_model

    def restore(self, was: tuple[dict[str, Any], dict[str, Usage], str]) -> None:
        self.summary, self.counted, self.last_model = was

    @property
    def project_text(self) -> str:
        return _clip(self.project)

    def agent(self) -> str:
        return self.subpath.removeprefix("subagents/agent-") if re.fullmatch("subagents/agent-[^/]+", self.subpath) else ""

    def names(self) -> list[str]:
        """Returns what stands for the subpath in ids: an agent, or anything else."""
        return [a] if (a := self.agent()) else ["", self.subpath]

    def ids(self) -> list[str]:
        """Returns the ids that the session may have."""
        apart = adapter.short(adapter.join("claude-agent", self.project, self.session))
        mains = [self.session, apart] if _UUID.fullmatch(self.session) else [apart]
        if not self.subpath:
            return mains
        return [adapter.short(adapter.join(m, *self.names())) for m in mains]

    def identity(self) -> str:
        """Returns the identity that an import of the transcript's file has."""
        of = self.session if _UUID.fullmatch(self.session) else adapter.join("sdk", self.project, self.session)
        return _clip(f"claude-code:{of}" + ("/" + "/".join(self.names()) if self.subpath else ""))

    def has(self, info: Info) -> bool:
        """Reports whether a session is the one of this transcript."""
        project = _custom(info).get("project") if self.subpath else info.labels.get(_PROJECT)
        return info.labels.get(_IDENTITY) == self.identity() and (not project or project == (self.project if self.subpath else self.project_text))

    def new(self, lines: list[_Line]) -> list[_Line]:
        """Returns the lines that are not there."""
        out, seen = [], set()
        # An import has read the first of these lines, or none of them. If the first line with a uuid is new, then the lines before it are new as well, unless the import
        # has stopped between these just now.
        if not self.beside and next((line.uuid for line in lines if line.uuid), "") not in self.nodes:
            self.imported = None
        for line in lines:
            if line.uuid:
                if line.uuid in self.nodes or line.uuid in seen:
                    continue
                seen.add(line.uuid)
            elif self.imported is not None and self.imported[line.payload]:
                self.imported[line.payload] -= 1
                continue
            self.imported = None  # What follows the first line that the import has not read, it has not read either.
            out.append(line)
        return out

    def fold(self, lines: list[_Line]) -> None:
        """Adds lines to the summary."""
        if not self.subpath:
            key: SessionKey = {"project_key": self.project, "session_id": self.session}
            before: SessionSummaryEntry | None = {"session_id": self.session, "mtime": 0, "data": self.summary} if self.summary else None
            self.summary = fold_session_summary(before, key, [cast("SessionStoreEntry", line.entry) for line in lines])["data"]

    def title(self) -> str:
        for name in ("custom_title", "ai_title", "first_prompt"):
            if isinstance(text := self.summary.get(name), str) and text.strip():
                return adapter.cut(" ".join(text.split()), 80)
        return ""

    def count(self, line: _Line) -> list[Usage]:
        """Returns the tokens that a line adds: several lines of a response have those of the whole response."""
        message = line.entry.get("message")
        given = message.get("usage") if isinstance(message, dict) and line.entry.get("type") == "assistant" else None
        if not isinstance(message, dict) or not isinstance(given, dict):
            return []
        model = adapter.cut(str(message.get("model") or ""), _MODEL)
        if model == "<synthetic>":
            model = ""
        self.last_model = model or self.last_model
        n = {k: v for k, v in given.items() if isinstance(v, int) and 0 < v < 1 << 53}
        read, written = n.get("cache_read_input_tokens", 0), n.get("cache_creation_input_tokens", 0)
        u = Usage(model or self.last_model, n.get("input_tokens", 0) + read + written, n.get("output_tokens", 0), read, written)
        response = str(message.get("id") or "")
        had = self.counted.get(response, Usage(u.model)) if response else Usage(u.model)
        fields = ("input", "output", "cached_input", "cache_write")
        if response:
            self.counted[response] = Usage(u.model, *(max(getattr(u, f), getattr(had, f)) for f in fields))
        more = Usage(u.model, *(max(0, getattr(u, f) - getattr(had, f)) for f in fields))
        return [more] if more != Usage(u.model) else []


class _Line:
    """An entry of a transcript."""

    def __init__(self, entry: Any) -> None:
        self.entry: dict[str, Any] = entry
        self.text = re.sub("[\ud800-\udfff]", lambda m: f"\\u{ord(m[0]):04x}", json.dumps(entry, ensure_ascii=False, separators=(",", ":"), allow_nan=False))
        self.payload = self.text.encode()
        uuid, parent = entry.get("uuid"), entry.get("parentUuid")
        self.uuid = uuid if isinstance(uuid, str) and "~" not in uuid and len(uuid.encode("utf-8", "replace")) <= 400 else ""
        self.parent = parent if isinstance(parent, str) else ""
        kind = str(entry.get("type") or "event")
        self.kind = "meta" if kind == "user" and entry.get("isMeta") is True else adapter.cut(kind, 64)
        self.turn = self.kind == "user" and not _has_result(entry)

    @classmethod
    def of(cls, payload: bytes) -> _Line:
        """Returns the line of a node. One that is no JSON object, as a torn line of a file, has an empty entry."""
        try:
            entry = json.loads(payload)
        except ValueError:
            entry = {}
        return cls(entry if isinstance(entry, dict) else {})


def _has_result(entry: dict[str, Any]) -> bool:
    message = entry.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    return isinstance(content, list) and any(isinstance(b, dict) and b.get("type") == "tool_result" for b in content)


def _order(n: int, layout: bytes | None) -> list[int]:
    """Returns the positions of nodes in the order of the file that an import has read, and those that have come since."""
    file = json.loads(layout) if layout else {}
    order = file.get("order")
    if not order:
        return list(range(n))
    rest = sorted({*file.get("more", ()), *range(file.get("nodes", 0), n)} - set(order))
    return [i for i in (*order, *rest) if i < n]


def _custom(info: Info) -> dict[str, Any]:
    return info.custom if isinstance(info.custom, dict) else {}


def _session(info: Info) -> str:
    """Returns the session id of a transcript."""
    return str(_custom(info).get("session") or info.labels.get(_IDENTITY, "").removeprefix("claude-code:"))


def _clip(text: str) -> str:
    """Returns a text that fits into a label."""
    content = text.encode("utf-8", "surrogatepass")
    return text if len(content) <= 256 else "sha256:" + hashlib.sha256(content).hexdigest()


def _milliseconds(at: str) -> int:
    return int(datetime.fromisoformat(re.sub(r"(\.\d{6})\d*", r"\1", at).replace("Z", "+00:00")).timestamp() * 1000)
