"""Brings what a framework has in its own store to a store of Turnstone.

    python -m turnstonedb.migrate langgraph sqlite:checkpoints.db --store ./data
    python -m turnstonedb.migrate langgraph postgresql://user@host/db --store ./data
    python -m turnstonedb.migrate agents sqlite:sessions.db --store ./data

What was brought is read again, and compared with the source. A migration that was cut off goes on where it was, and one that is made again brings what has come since:
make it while the host runs, stop the host, and make it again, which is quick. The source is only read, and what it has deleted since it was brought stays in the store.
`--dry-run` says what there is to do.

A host of LangGraph need not wait for it: `MigratingSaver` brings a thread when the host first uses it.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import secrets
import sqlite3
import sys
import threading
from asyncio import to_thread
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from . import _calls, adapter
from ._steps import drive
from ._sync import Client
from .errors import ConflictError, NotFoundError
from .types import NewNode, RecordChange

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver, ChannelVersions, Checkpoint, CheckpointMetadata, CheckpointTuple, DeltaChannelHistory

_NOTE = "migrated"  # the key of the record of a session that says up to where it was brought
_BY_HOST = "brought"  # the value of that record since a MigratingSaver has taken it over: what it has changed or deleted since, stays so
_GONE = "langgraph-migration"  # the session whose records name threads that were deleted, and are not to be brought again


@dataclass
class Report:
    """What a migration did. `different` names what was there already, and is not what the source has: the migration leaves it alone."""

    found: int = 0  # threads with their namespaces, or sessions
    unchanged: int = 0  # of them, since they were brought
    brought: int = 0  # checkpoints, or items
    different: list[str] = field(default_factory=list)
    _mu: Any = field(default_factory=threading.Lock, repr=False)

    def add(self, *, unchanged: int = 0, brought: int = 0, different: str = "") -> None:
        with self._mu:
            self.found += 1
            self.unchanged += unchanged
            self.brought += brought
            if different:
                self.different.append(different)


# LangGraph

Place = tuple[str, str]
"""A thread and a namespace."""


def _stand(source: Any) -> Iterator[tuple[Place, str]]:
    """Yields the places of a saver, and where each stands: the number and the last id of its checkpoints, the number of writes, and those that may be replaced."""
    import langgraph.checkpoint.sqlite
    from langgraph.checkpoint.base import WRITES_IDX_MAP

    if isinstance(source, langgraph.checkpoint.sqlite.SqliteSaver):
        writes, value, rows = "writes", "value", source.conn.execute
    elif type(source).__module__.startswith("langgraph.checkpoint.postgres"):
        writes, value = "checkpoint_writes", "blob"

        def rows(query: str) -> Iterable[Any]:  # type: ignore[misc]
            with source._cursor() as cur:
                return [tuple(r.values()) if isinstance(r, dict) else r for r in cur.execute(query).fetchall()]
    else:
        seen: dict[Place, list[str]] = {}
        for t in source.list(None):
            c = t.config["configurable"]
            special_writes = [w for w in t.pending_writes or () if w[1] in WRITES_IDX_MAP]
            seen.setdefault((c["thread_id"], c.get("checkpoint_ns", "")), []).append(f"{c['checkpoint_id']} {len(t.pending_writes or ())} {_digest(special_writes)}")
        yield from ((place, json.dumps(ids)) for place, ids in seen.items())
        return
    counted = {(r[0], r[1]): r[2] for r in rows(f"SELECT thread_id, checkpoint_ns, count(*) FROM {writes} GROUP BY thread_id, checkpoint_ns")}
    special: dict[Place, list[Any]] = {}
    for thread, ns, *write in rows(f"SELECT thread_id, checkpoint_ns, checkpoint_id, task_id, idx, type, {value} FROM {writes} WHERE idx < 0 ORDER BY 1, 2, 3, 4, 5"):
        special.setdefault((thread, ns), []).append([bytes(v) if isinstance(v, memoryview) else v for v in write])
    for thread, ns, n, last in rows("SELECT thread_id, checkpoint_ns, count(*), max(checkpoint_id) FROM checkpoints GROUP BY thread_id, checkpoint_ns"):
        yield (thread, ns), f"{n} {last} {counted.get((thread, ns), 0)} {_digest(special.get((thread, ns), ()))}"


def _digest(values: Iterable[Any]) -> str:
    return hashlib.sha256(repr(list(values)).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def langgraph(source: BaseCheckpointSaver[Any], client: Client, *, dry_run: bool = False, threads: int = 8, progress: Callable[[Report], None] | None = None) -> Report:
    """Brings all threads of a LangGraph saver, several at once. `progress` is called now and then."""
    from .langgraph import TurnstoneSaver

    report = Report()
    target = TurnstoneSaver(client, serde=source.serde)

    def bring(place: Place, stands: str) -> None:
        if _is_gone(client, place[0]) or _noted(client, place) in (stands, _BY_HOST):
            report.add(unchanged=1)
        elif dry_run:
            report.add(brought=int(stands.split(maxsplit=1)[0]) if stands[0] != "[" else len(json.loads(stands)))
        else:
            brought, different = _thread(source, target, client, place, stands)
            report.add(brought=brought, different=different)
        if progress:
            progress(report)

    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(lambda found: bring(*found), list(_stand(source))):
            pass
    return report


def _is_gone(client: Client, thread: str) -> bool:
    try:
        return bool(drive(client._run, _record(_GONE, _gone_key(thread))))
    except NotFoundError:
        return False


def _gone_key(thread: str) -> str:
    return "gone/" + adapter.short(quote(thread, safe="", errors="surrogatepass"), 400)


def _record(session: str, key: str) -> Any:
    return (yield _calls.record({"session": session}, key))


def _noted(client: Client, place: Place) -> str:
    from .langgraph import _session

    try:
        return bytes(drive(client._run, _record(_session(*place), _NOTE)).value).decode()
    except NotFoundError:
        return ""


def _thread(source: Any, target: Any, client: Client, place: Place, stands: str) -> tuple[int, str]:
    """Brings the checkpoints of a place that are not there, verifies all, and notes how the place stood. Returns how many it brought, and what differs."""
    from langgraph.checkpoint.base import WRITES_IDX_MAP

    from .langgraph import _session

    config: Any = {"configurable": {"thread_id": place[0], "checkpoint_ns": place[1]}}
    there = {t.checkpoint["id"]: t for t in target.list(config)}
    brought, kept = 0, dict[str, Any]()
    for t in sorted(source.list(config), key=lambda t: t.checkpoint["id"]):
        id = t.checkpoint["id"]
        kept[id] = t
        if id not in there:
            parent = kept.get(t.parent_config["configurable"]["checkpoint_id"]) if t.parent_config else None
            before = parent.checkpoint["channel_versions"] if parent else {}
            changed = {c: v for c, v in t.checkpoint["channel_versions"].items() if before.get(c) != v}
            onto = {"configurable": {**config["configurable"], **({"checkpoint_id": t.parent_config["configurable"]["checkpoint_id"]} if t.parent_config else {})}}
            target.put(onto, t.checkpoint, t.metadata, changed)
            brought += 1
        if id not in there or _writes(there[id]) != _writes(t):
            # Writes of special channels have indexes of their own, and the others are counted without them.
            for (task, _), writes in itertools.groupby(t.pending_writes or (), key=lambda w: (w[0], w[1] in WRITES_IDX_MAP)):
                target.put_writes(t.config, [(channel, value) for _, channel, value in writes], task)
    found = {t.checkpoint["id"]: t for t in target.list(config)}
    for id, t in kept.items():
        if id not in found or _whole(source, found[id]) != _whole(source, t):
            return brought, f"thread {place[0]!r}, namespace {place[1]!r}: checkpoint {id} is another one"
    session = client.session(_session(*place))
    session.change_records(RecordChange.set(_NOTE, stands.encode()))
    return brought, ""


def _writes(t: CheckpointTuple) -> Counter[str]:
    return Counter(repr(w) for w in t.pending_writes or ())


def _whole(source: Any, t: CheckpointTuple) -> Any:
    """Returns what a checkpoint is, as what can be compared, whatever values it has."""
    packed = {k: source.serde.dumps_typed(v) for k, v in t.checkpoint["channel_values"].items()}
    rest = {k: v for k, v in t.checkpoint.items() if k != "channel_values"}
    parent = t.parent_config["configurable"]["checkpoint_id"] if t.parent_config else None
    return packed, rest, dict(t.metadata), parent, _writes(t)


def _migrating() -> Any:
    """Returns the class MigratingSaver, which needs LangGraph."""
    from .langgraph import TurnstoneSaver

    class MigratingSaver(TurnstoneSaver):
        """A TurnstoneSaver that brings a thread from another saver when it is first used: a host goes over without a pause.

        Nobody may write to the old one any more. A thread that is deleted is not brought again. `migrate langgraph` brings the rest.
        """

        def __init__(self, client: Client, old: BaseCheckpointSaver[Any]) -> None:
            super().__init__(client, serde=old.serde)
            self._old = old
            self._plain = TurnstoneSaver(client, serde=old.serde)
            self._known: set[str] = set()
            self._bringing = threading.Lock()

        def _bring(self, config: RunnableConfig | None) -> None:
            if config is None:
                for thread in {place[0] for place, _ in _stand(self._old)}:
                    self._bring({"configurable": {"thread_id": thread}})
                return
            thread = str(config["configurable"]["thread_id"])
            if thread in self._known:
                return
            with self._bringing:
                if thread not in self._known and not _is_gone(self._client, thread):
                    for ns in sorted({t.config["configurable"].get("checkpoint_ns", "") for t in self._old.list({"configurable": {"thread_id": thread}})}):
                        if _noted(self._client, (thread, ns)) != _BY_HOST:
                            _, different = _thread(self._old, self._plain, self._client, (thread, ns), _BY_HOST)
                            if different:
                                raise ValueError(different)
                self._known.add(thread)

        def _bring_all(self, threads: Iterable[str]) -> None:
            for thread in threads:
                self._bring({"configurable": {"thread_id": thread}})

        def _before_prune(self, threads: Sequence[str], strategy: str) -> None:
            if isinstance(threads, str):
                return  # It is refused.
            if strategy == "delete":
                self._forget(threads)
            else:
                self._bring_all(threads)

        def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
            self._bring(config)
            return super().get_tuple(config)

        def list(
            self,
            config: RunnableConfig | None,
            *,
            filter: dict[str, Any] | None = None,
            before: RunnableConfig | None = None,
            limit: int | None = None,
        ) -> Iterator[CheckpointTuple]:
            self._bring(config)
            yield from super().list(config, filter=filter, before=before, limit=limit)

        def put(self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions) -> RunnableConfig:
            self._bring(config)
            return super().put(config, checkpoint, metadata, new_versions)

        def put_writes(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
            self._bring(config)
            super().put_writes(config, writes, task_id, task_path)

        def _forget(self, threads: Sequence[str]) -> None:
            session, _ = self._client.create(_GONE, retention="all")
            for thread in threads:
                session.change_records(RecordChange.set(_gone_key(str(thread)), b"deleted"))

        def delete_thread(self, thread_id: str) -> None:
            self._forget([thread_id])
            super().delete_thread(thread_id)

        def delete_for_runs(self, run_ids: Sequence[str]) -> None:
            self._bring(None)
            super().delete_for_runs(run_ids)

        def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
            self._bring_all((source_thread_id, target_thread_id))
            super().copy_thread(source_thread_id, target_thread_id)

        def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
            self._before_prune(thread_ids, strategy)
            super().prune(thread_ids, strategy=strategy)

        def get_delta_channel_history(self, *, config: RunnableConfig, channels: Sequence[str]) -> Mapping[str, DeltaChannelHistory]:
            self._bring(config)
            return super().get_delta_channel_history(config=config, channels=channels)

        async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
            await to_thread(self._bring, config)
            return await super().aget_tuple(config)

        async def alist(
            self,
            config: RunnableConfig | None,
            *,
            filter: dict[str, Any] | None = None,
            before: RunnableConfig | None = None,
            limit: int | None = None,
        ) -> AsyncIterator[CheckpointTuple]:
            await to_thread(self._bring, config)
            async for t in super().alist(config, filter=filter, before=before, limit=limit):
                yield t

        async def aput(self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions) -> RunnableConfig:
            await to_thread(self._bring, config)
            return await super().aput(config, checkpoint, metadata, new_versions)

        async def aput_writes(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
            await to_thread(self._bring, config)
            await super().aput_writes(config, writes, task_id, task_path)

        async def adelete_thread(self, thread_id: str) -> None:
            await to_thread(self.delete_thread, thread_id)

        async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
            await to_thread(self.delete_for_runs, run_ids)

        async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
            await to_thread(self.copy_thread, source_thread_id, target_thread_id)

        async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
            await to_thread(self._before_prune, thread_ids, strategy)
            await super().aprune(thread_ids, strategy=strategy)

        async def aget_delta_channel_history(self, *, config: RunnableConfig, channels: Sequence[str]) -> Mapping[str, DeltaChannelHistory]:
            await to_thread(self._bring, config)
            return await super().aget_delta_channel_history(config=config, channels=channels)

    return MigratingSaver


def __getattr__(name: str) -> Any:
    if name == "MigratingSaver":
        return _migrating()
    raise AttributeError(name)


@contextmanager
def _langgraph_source(url: str) -> Iterator[Any]:
    """Opens the saver that has its tables in a database, to be read."""
    if url.startswith(("postgres:", "postgresql:")):
        from langgraph.checkpoint.postgres import PostgresSaver

        with PostgresSaver.from_conn_string(url) as saver:
            yield saver
        return
    from langgraph.checkpoint.sqlite import SqliteSaver

    with closing(_sqlite(url)) as conn:
        sqlite = SqliteSaver(conn)
        sqlite.is_setup = True  # It would make tables.
        yield sqlite


def _sqlite(url: str) -> sqlite3.Connection:
    """Opens a database of SQLite, to be read."""
    path = url.removeprefix("sqlite:").removeprefix("///")
    return sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, check_same_thread=False)


# The OpenAI Agents SDK


def agents(source: sqlite3.Connection, client: Client, *, dry_run: bool = False, progress: Callable[[Report], None] | None = None) -> Report:
    """Brings all sessions of the Agents SDK's SQLiteSession, or of its SQLAlchemySession on SQLite. They keep their ids."""
    from .agents import _kind

    report = Report()
    for (id,) in source.execute("SELECT session_id FROM agent_sessions ORDER BY session_id").fetchall():
        items = [json.loads(data) for (data,) in source.execute("SELECT message_data FROM agent_messages WHERE session_id=? ORDER BY id", (id,))]
        while True:
            try:
                session = client.session(id)
                state = session.load()
                has, revision = [json.loads(n.payload) for n in state.nodes], state.revision
            except NotFoundError as e:
                if not adapter.gone(e):
                    raise
                has, revision = [], 0
            new = items[len(has) :]
            if has != items[: len(has)]:
                report.add(different=f"session {id!r}: its items are others")
            elif not new or dry_run:
                report.add(unchanged=not new, brought=len(new))
            else:
                session, _ = client.create(id)
                nodes = [NewNode(_kind(i), json.dumps(i, ensure_ascii=False).encode("utf-8", "surrogatepass")) for i in new]
                try:
                    for i in range(0, len(nodes), 1000):
                        revision = session.commit(nodes[i : i + 1000], expected=revision, turn=secrets.token_hex(16)).revision
                except ConflictError:
                    continue  # Somebody else has added items.
                if [json.loads(n.payload) for n in session.load().nodes] != items:
                    report.add(different=f"session {id!r}: its items are others")
                else:
                    report.add(brought=len(new))
            break
        if progress:
            progress(report)
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """Is the command. It returns 1 if something differs."""
    p = argparse.ArgumentParser("python -m turnstonedb.migrate", description="Bring what a framework has in its own store to a store of Turnstone.")
    p.add_argument("framework", choices=["langgraph", "agents"])
    p.add_argument("source", help="sqlite:FILE, or for langgraph also postgresql://…")
    p.add_argument("--store", required=True, help="a directory, or the address of a server: https://HOST:PORT")
    p.add_argument("--token", default="", help="for a server")
    p.add_argument("--namespace", default="")
    p.add_argument("--dry-run", action="store_true", help="change nothing, say what there is to do")
    a = p.parse_args(arguments)
    connect = Client(a.store, token=a.token, namespace=a.namespace) if "://" in a.store else Client.open(a.store, namespace=a.namespace)
    with connect as client:
        if a.framework == "langgraph":
            with _langgraph_source(a.source) as saver:
                report = langgraph(saver, client, dry_run=a.dry_run)
        else:
            with closing(_sqlite(a.source)) as conn:
                report = agents(conn, client, dry_run=a.dry_run)
    verb = "to bring" if a.dry_run else "brought"
    print(f"{report.found} found, {report.unchanged} unchanged, {report.brought} {'checkpoints' if a.framework == 'langgraph' else 'items'} {verb}")
    for d in report.different:
        print(d, file=sys.stderr)
    return 1 if report.different else 0


if __name__ == "__main__":
    sys.exit(main())
