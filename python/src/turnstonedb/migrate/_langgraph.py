"""Migrations from LangGraph's savers."""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from .. import _calls, adapter
from .._steps import Steps, drive
from .._sync import Client
from ..errors import ConflictError, InvalidError, NotFoundError, RecordConflictError
from ..types import RecordChange
from ._report import NOTE, Report, sqlite

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver, ChannelVersions, Checkpoint, CheckpointMetadata, CheckpointTuple, DeltaChannelHistory

_BY_HOST = "brought"  # the value of that record since a MigratingSaver has taken it over: what it has changed or deleted since, stays so
_MAX_KNOWN = 10_000  # threads that a MigratingSaver remembers
_GONE = "langgraph-migration"  # the session whose records name threads that were deleted, and are not to be brought again

Place = tuple[str, str]
"""A thread and a namespace."""


def _stand(source: Any) -> Iterator[tuple[Place, str]]:
    """Yields the places of a saver, and where each stands: the number and the last id of its checkpoints, the number of writes, and those that may be replaced."""
    import langgraph.checkpoint.sqlite
    from langgraph.checkpoint.base import WRITES_IDX_MAP

    try:
        from langgraph.checkpoint.postgres import PostgresSaver
    except ImportError:
        PostgresSaver = ()  # type: ignore[assignment, misc]

    if isinstance(source, langgraph.checkpoint.sqlite.SqliteSaver):
        writes, value, rows = "writes", "value", source.conn.execute
        if rows("SELECT count(*) FROM sqlite_master WHERE name IN ('checkpoints', 'writes')").fetchone()[0] < 2:
            return  # It makes its tables when it is first used.
    elif isinstance(source, PostgresSaver):
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
        yield from ((place, f"{len(ids)} {_digest(ids)}") for place, ids in seen.items())
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
    from ..langgraph import TurnstoneSaver

    report = Report()

    def target() -> TurnstoneSaver:
        return TurnstoneSaver(client, serde=source.serde)

    def bring(place: Place, stands: str) -> None:
        if _is_gone(client, place[0]) or _noted(client, place)[0] in (stands, _BY_HOST):
            report.add(unchanged=1)
        elif dry_run:
            report.add(brought=int(stands.split(maxsplit=1)[0]))
        else:
            brought = set[str]()
            try:
                different = _thread(source, target, client, place, stands, brought)
            except InvalidError as e:  # what the store refuses
                different = f"thread {adapter.cut(repr(place[0]), 200)}: {e}"
            report.add(brought=len(brought), different=different)
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


def _noted(client: Client, place: Place) -> tuple[str, str]:
    """Returns how a place stood when it was brought last, and the version of the record that says so."""
    from ..langgraph import _session

    try:
        r = drive(client._run, _record(_session(*place), NOTE))
        return bytes(r.value).decode(), r.version
    except NotFoundError:
        return "", "none"


def _thread(source: Any, target: Callable[[], Any], client: Client, place: Place, stands: str, brought: set[str]) -> str:
    """Brings the checkpoints of a place that are not there, verifies all, and notes how the place stood. Adds the ids of those to brought, and returns what differs.

    Each attempt has a saver of its own: one that remembers a thread that was deleted meanwhile refuses what goes on from that.
    """
    while True:
        note, version = _noted(client, place)
        if note in (stands, _BY_HOST) or _is_gone(client, place[0]):
            return ""
        # Another process may bring the place meanwhile, or delete it: then it is brought again, unless a host has deleted the thread.
        with suppress(ConflictError, NotFoundError, RecordConflictError):
            different = _attempt(source, target(), client, place, stands, version, brought)
            if not different or _noted(client, place)[1] == version:
                return different


def _attempt(source: Any, target: Any, client: Client, place: Place, stands: str, version: str, brought: set[str]) -> str:
    from langgraph.checkpoint.base import WRITES_IDX_MAP

    from ..langgraph import _session

    config: Any = {"configurable": {"thread_id": place[0], "checkpoint_ns": place[1]}}
    there = {t.checkpoint["id"]: t for t in target.list(config)}
    kept = dict[str, Any]()
    for t in sorted(source.list(config), key=lambda t: t.checkpoint["id"]):
        id = t.checkpoint["id"]
        kept[id] = t
        if id not in there:
            parent = kept.get(t.parent_config["configurable"]["checkpoint_id"]) if t.parent_config else None
            before = parent.checkpoint["channel_versions"] if parent else {}
            changed = {c: v for c, v in t.checkpoint["channel_versions"].items() if before.get(c) != v}
            onto = {"configurable": {**config["configurable"], **({"checkpoint_id": t.parent_config["configurable"]["checkpoint_id"]} if t.parent_config else {})}}
            target.put(onto, t.checkpoint, t.metadata, changed)
            brought.add(id)
        if id not in there or _writes(there[id]) != _writes(t):
            # Writes of special channels have indexes of their own, and the others are counted without them.
            for (task, _), writes in itertools.groupby(t.pending_writes or (), key=lambda w: (w[0], w[1] in WRITES_IDX_MAP)):
                target.put_writes(t.config, [(channel, value) for _, channel, value in writes], task)
    if not kept:
        return ""  # The source has deleted it.
    made = client.session(_session(*place))
    revision = made.info().revision
    found = {t.checkpoint["id"]: t for t in target.list(config)}
    if _is_gone(client, place[0]):  # A host has deleted the thread meanwhile, and may have made it again.
        if found.keys() <= kept.keys():
            made.delete(expected=revision)
        brought.clear()
        return ""
    for id, t in kept.items():
        if id not in found or _whole(source, found[id]) != _whole(source, t):
            return f"thread {place[0]!r}, namespace {place[1]!r}: checkpoint {id} is another one"
    made.change_records(RecordChange.set(NOTE, stands.encode(), version))
    return ""


def _writes(t: CheckpointTuple) -> Counter[str]:
    return Counter(repr(w) for w in t.pending_writes or ())


def _whole(source: Any, t: CheckpointTuple) -> Any:
    """Returns what a checkpoint is, as what can be compared, whatever values it has."""
    packed = {k: source.serde.dumps_typed(v) for k, v in t.checkpoint["channel_values"].items()}
    rest = {k: v for k, v in t.checkpoint.items() if k != "channel_values"}
    parent = t.parent_config["configurable"]["checkpoint_id"] if t.parent_config else None
    return packed, rest, dict(t.metadata), parent, _writes(t)


def _thread_of(config: RunnableConfig) -> str:
    return str(config["configurable"]["thread_id"])


def migrating() -> Any:
    """Returns the class MigratingSaver, which needs LangGraph."""
    from ..langgraph import TurnstoneSaver

    class MigratingSaver(TurnstoneSaver):
        """A TurnstoneSaver that brings a thread from another saver when it is first used: a host goes over without a pause.

        Nobody may write to the old one any more. A thread that is deleted by such a saver is not brought again; `turnstone prune --inactive` leaves no trace of what it
        deletes. `migrate langgraph` brings the rest.
        """

        def __init__(self, client: Client, old: BaseCheckpointSaver[Any], *, keep_last: int = 0) -> None:
            super().__init__(client, serde=old.serde, keep_last=keep_last)
            self._old = old
            self._plain = lambda: TurnstoneSaver(client, serde=old.serde, keep_last=keep_last)
            self._known: set[str] = set()
            self._bringing = threading.Lock()
            self._spared = set[str]()

        # What a call does is one of the methods below, which run in the caller's thread, or in one of their own if the call is awaited.

        def _all(self) -> set[str]:
            return {place[0] for place, _ in _stand(self._old)}

        def _bring(self, *threads: str) -> None:
            for thread in map(str, threads):
                if thread in self._known:
                    continue
                with self._bringing:
                    if thread not in self._known and not _is_gone(self._client, thread):
                        for ns in sorted({t.config["configurable"].get("checkpoint_ns", "") for t in self._old.list({"configurable": {"thread_id": thread}})}):
                            if _noted(self._client, (thread, ns))[0] != _BY_HOST:
                                different = _thread(self._old, self._plain, self._client, (thread, ns), _BY_HOST, set())
                                if different:
                                    raise ValueError(different)
                    if len(self._known) >= _MAX_KNOWN:
                        self._known.clear()  # The store knows it as well.
                    self._known.add(thread)

        def _read_tuple(self, thread: str, ns: str, cid: str | None) -> Steps[CheckpointTuple | None]:
            self._bring(thread)
            return (yield from super()._read_tuple(thread, ns, cid))

        def _listed(self, config: RunnableConfig | None, before: RunnableConfig | None, filter: Mapping[str, Any] | None) -> Steps[list[Any]]:
            self._bring(*([_thread_of(config)] if config else self._all()))
            return (yield from super()._listed(config, before, filter))

        def _history(self, config: RunnableConfig, channels: Sequence[str]) -> Steps[dict[str, DeltaChannelHistory]]:
            self._bring(_thread_of(config))
            return (yield from super()._history(config, channels))

        def _put(self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions) -> Steps[RunnableConfig]:
            self._bring(_thread_of(config))
            return (yield from super()._put(config, checkpoint, metadata, new_versions))

        def _put_writes(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str) -> Steps[None]:
            self._bring(_thread_of(config))
            yield from super()._put_writes(config, writes, task_id, task_path)

        def _forget(self, thread: str) -> None:
            session, _ = self._client.create(_GONE, retention="all")
            session.change_records(RecordChange.set(_gone_key(str(thread)), b"deleted"))

        def _delete_thread(self, thread: str) -> Steps[None]:
            self._forget(thread)
            yield from super()._delete_thread(thread)

        def _delete_idle(self, idle: timedelta) -> Steps[list[str]]:
            self._spared = set[str]()
            for place, stands in _stand(self._old):
                noted = _noted(self._client, place)[0]
                if noted in (stands, _BY_HOST) or (not noted and not self._is_here(place)):
                    continue
                try:  # Hosts have used it in the old store since a migration, or one was cut off.
                    self._bring(place[0])
                except (ValueError, InvalidError):
                    self._spared.add(place[0])
            return (yield from super()._delete_idle(idle))

        def _is_here(self, place: Place) -> bool:
            from ..langgraph import _session

            try:
                self._client.session(_session(*place))
            except NotFoundError:
                return False
            return True

        def _delete_if_idle(self, thread: str, idle: timedelta) -> Steps[bool]:
            gone = thread not in self._spared and (yield from super()._delete_if_idle(thread, idle))
            if gone:  # Not before: who is bringing it now would delete it, though another one uses it.
                self._forget(thread)
            return gone

        def _delete_for_runs(self, run_ids: Sequence[str]) -> Steps[None]:
            self._bring(*self._all())
            yield from super()._delete_for_runs(run_ids)

        def _copy_thread(self, source: str, target: str) -> Steps[None]:
            self._bring(source, target)
            yield from super()._copy_thread(source, target)

        def _prune(self, thread_ids: Sequence[str], strategy: str) -> Steps[None]:
            if not isinstance(thread_ids, str) and strategy == "keep_latest":
                self._bring(*thread_ids)
            yield from super()._prune(thread_ids, strategy)

    return MigratingSaver


@contextmanager
def opened(url: str) -> Iterator[Any]:
    """Opens the saver that has its tables in a database, to be read."""
    if url.startswith(("postgres:", "postgresql:")):
        from langgraph.checkpoint.postgres import PostgresSaver

        with PostgresSaver.from_conn_string(url) as postgres:
            yield postgres
        return
    from langgraph.checkpoint.sqlite import SqliteSaver

    with closing(sqlite(url)) as conn:
        saver = SqliteSaver(conn)
        saver.is_setup = True  # It would make tables.
        yield saver
