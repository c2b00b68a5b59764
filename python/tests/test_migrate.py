"""Migrations from the stores of frameworks."""

import asyncio
import itertools
import json
import operator
import os
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from agents import SQLiteSession
from agents.extensions.memory import SQLAlchemySession
from google.adk.events import Event, EventActions
from google.adk.sessions import DatabaseSessionService, InMemorySessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from turnstonedb import AsyncClient, Client, NewNode, RecordChange, _calls
from turnstonedb import _server as server
from turnstonedb.adapter import States
from turnstonedb.adk import TurnstoneSessions
from turnstonedb.agents import TurnstoneSession
from turnstonedb.errors import InvalidError, NotFoundError, UnavailableError
from turnstonedb.langgraph import TurnstoneSaver
from turnstonedb.migrate import MigratingSaver, adk, agents, langgraph
from turnstonedb.migrate import _langgraph as migrate_langgraph
from turnstonedb.migrate.__main__ import main


class State(TypedDict):
    said: Annotated[list[str], operator.add]
    n: int


def ask(state: State) -> Any:
    return {"said": [f"step {len(state['said'])} {interrupt('and then?')}"], "n": len(state["said"])}


def graph(saver: Any) -> Any:
    return StateGraph(State).add_node("ask", ask).add_edge(START, "ask").compile(checkpointer=saver)


@contextmanager
def sqlite(path: Path) -> Iterator[SqliteSaver]:
    with closing(sqlite3.connect(path, check_same_thread=False)) as conn:
        saver = SqliteSaver(conn)
        saver.setup()
        yield saver


def fill(saver: Any, threads: range, seed: int = 0) -> None:
    """Makes threads of a graph that was interrupted, and one checkpoint with what a database may have."""
    r = random.Random(seed)
    for i in threads:
        config = {"configurable": {"thread_id": f"t/{i} é"}}
        graph(saver).invoke({"said": ["begin"], "n": 0}, config)
        for _ in range(r.randrange(3)):
            graph(saver).invoke(Command(resume=f"answer {r.random()}"), config)
            graph(saver).invoke({"said": ["more"], "n": 1}, config)


def odd(saver: Any) -> None:
    """Puts checkpoints with values of all kinds, in a namespace, one with a parent that is gone."""
    for cid, parent in (("1f000000-0000-6000-8000-000000000001", None), ("1f000000-0000-6000-8000-000000000002", "1f000000-0000-6000-8000-000000000000")):
        c = empty_checkpoint()
        c["id"] = cid
        c["channel_values"] = {"bytes": b"\xff\x00", "set": {1, 2}, "none": None, "big": "x" * 100_000}
        c["channel_versions"] = dict.fromkeys(c["channel_values"], f"{1:032}.1") | {"empty": f"{2:032}.2"}
        config: Any = {"configurable": {"thread_id": "odd", "checkpoint_ns": "sub:1|x", **({"checkpoint_id": parent} if parent else {})}}
        at = saver.put(config, c, {"source": "loop", "step": 1, "writes": {}}, c["channel_versions"])
        saver.put_writes(at, [("a", b"\x00"), ("b", {"k": (1, 2)})], "task-1")
        saver.put_writes(at, [("__error__", "failed"), ("c", None)], "task-2")


def held(saver: Any) -> list[Any]:
    """Returns all that a saver has, by its own calls."""
    out = []
    for t in saver.list(None):
        at, c = t.config["configurable"], t.checkpoint
        parent = t.parent_config and t.parent_config["configurable"]["checkpoint_id"]
        values = sorted(map(repr, c["channel_values"].items()))
        writes = sorted(map(repr, t.pending_writes or ()))
        out.append((at["thread_id"], at.get("checkpoint_ns", ""), c["id"], values, c["channel_versions"], c["versions_seen"], dict(t.metadata), parent, writes))
    return sorted(out, key=lambda o: o[:3])


@contextmanager
def store(path: Path) -> Iterator[Client]:
    with Client.open(path, idle=2) as client:
        yield client


def test_a_migration_is_what_the_source_has_and_can_be_made_again(tmp_path: Path) -> None:
    with sqlite(tmp_path / "db") as source, store(tmp_path / "s") as client:
        fill(source, range(8))
        odd(source)
        target = TurnstoneSaver(client)
        planned = langgraph(source, client, dry_run=True)
        assert (planned.found, planned.unchanged, held(target)) == (9, 0, [])
        report = langgraph(source, client)
        assert (report.found, report.brought, report.different) == (9, planned.brought, [])
        assert held(target) == held(source)
        again = langgraph(source, client)
        assert (again.found, again.unchanged, again.brought) == (9, 9, 0)
        graph(source).invoke(Command(resume="later"), {"configurable": {"thread_id": "t/3 é"}})
        fill(source, range(8, 10))
        more = langgraph(source, client)
        assert (more.found, more.unchanged, more.different) == (11, 8, [])
        assert held(target) == held(source)
        for i in range(10):  # Hosts go on alike.
            config = {"configurable": {"thread_id": f"t/{i} é"}}
            results = [graph(s).invoke(Command(resume="the same"), config) for s in (source, target)]
            assert results[0] == results[1]


def test_threads_come_from_postgres(tmp_path: Path, postgres: str, capsys: pytest.CaptureFixture[str]) -> None:
    with PostgresSaver.from_conn_string(postgres) as source:
        source.setup()
        fill(source, range(4))
        odd(source)
        arguments = ["langgraph", postgres, "--store", str(tmp_path / "s")]
        for expected in ("5 found, 0 unchanged", "5 found, 5 unchanged, 0 checkpoints brought"):
            assert main(arguments) == 0
            assert expected in capsys.readouterr().out
        graph(source).invoke(Command(resume="later"), {"configurable": {"thread_id": "t/3 é"}})
        assert main(arguments) == 0
        with store(tmp_path / "s") as client:
            assert held(TurnstoneSaver(client)) == held(source)


def test_what_is_there_already_and_differs_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with sqlite(tmp_path / "db") as source:
        odd(source)
        with store(tmp_path / "s") as client:
            c = empty_checkpoint()
            c["id"] = "1f000000-0000-6000-8000-000000000001"
            TurnstoneSaver(client).put({"configurable": {"thread_id": "odd", "checkpoint_ns": "sub:1|x"}}, c, {}, {})
            before = held(TurnstoneSaver(client))[0]
        assert main(["langgraph", f"sqlite:{tmp_path / 'db'}", "--store", str(tmp_path / "s")]) == 1
        out = capsys.readouterr()
        assert "is another one" in out.err
        with store(tmp_path / "s") as client:
            assert held(TurnstoneSaver(client))[0][:5] == before[:5]


def test_a_migration_that_is_killed_goes_on(tmp_path: Path) -> None:
    """TURNSTONE_THREADS says how many threads it has."""
    threads = int(os.environ.get("TURNSTONE_THREADS", "150"))
    with sqlite(tmp_path / "db") as source:
        fill(source, range(threads))
        odd(source)
        command = [sys.executable, "-m", "turnstonedb.migrate", "langgraph", f"sqlite:{tmp_path / 'db'}", "--store", str(tmp_path / "s")]
        r = random.Random(7)
        killed = 0
        for _ in range(10):
            child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            time.sleep(0.9 + r.random() * threads / 190)
            killed += child.poll() is None
            child.kill()
            child.wait()
        assert killed > 2, "the test kills nothing"
        began = time.monotonic()
        assert subprocess.run(command, capture_output=True, check=True).stdout.decode().startswith(f"{threads + 1} found")
        print(f"the last run took {time.monotonic() - began:.1f} s")
        with store(tmp_path / "s") as client:
            assert held(TurnstoneSaver(client)) == held(source)
            client.vacuum()
        sizes = [sum(f.stat().st_blocks * 512 for f in files) for files in (tmp_path.glob("db*"), (tmp_path / "s").rglob("*.*"))]
        print(f"{killed} kills; on disk {sizes[0]} bytes of SQLite, {sizes[1]} of the store")


@pytest.mark.parametrize("own_tables", [True, False])
def test_writes_that_are_added_and_replaced_are_brought(tmp_path: Path, own_tables: bool) -> None:
    with sqlite(tmp_path / "db") as made, store(tmp_path / "s") as client:
        source = made if own_tables else InMemorySaver()
        c = empty_checkpoint()
        at = source.put({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, c, {}, {})
        for channel, value in (("a", 1), ("__interrupt__", "first"), ("__interrupt__", "other"), ("__resume__", 2)):
            source.put_writes(at, [(channel, value)], "task")
            assert not langgraph(source, client).different
            assert held(TurnstoneSaver(client)) == held(source)
        assert langgraph(source, client).unchanged == 1


def test_threads_with_long_names_are_deleted_one_by_one(tmp_path: Path) -> None:
    with sqlite(tmp_path / "db") as old, store(tmp_path / "s") as client:
        names = ["é" * 100 + end for end in ("a", "b")]
        for name in names:
            old.put({"configurable": {"thread_id": name, "checkpoint_ns": ""}}, empty_checkpoint(), {}, {})
        saver = MigratingSaver(client, old)
        saver.delete_thread(names[0])
        assert [saver.get_tuple({"configurable": {"thread_id": n}}) is None for n in names] == [True, False]


def test_what_changes_threads_brings_them_first(tmp_path: Path) -> None:
    with sqlite(tmp_path / "db") as old, store(tmp_path / "s") as client:
        fill(old, range(4))
        configs: list[Any] = [{"configurable": {"thread_id": f"t/{i} é"}} for i in range(4)]
        of = [len(list(old.list(c))) for c in configs]
        saver = MigratingSaver(client, old)
        saver.copy_thread("t/0 é", "copy")
        assert len(list(saver.list({"configurable": {"thread_id": "copy"}}))) == of[0]
        saver.prune(["t/1 é"])
        asyncio.run(saver.aprune(["t/2 é"], strategy="delete"))
        assert len(list(saver.list(configs[1]))) == 1
        other = MigratingSaver(client, old)
        assert other.get_tuple(configs[2]) is None
        assert len(list(other.list(configs[3]))) == of[3]
        langgraph(old, client)
        assert [len(list(TurnstoneSaver(client).list(c))) for c in configs] == [of[0], 1, 0, of[3]]


def test_a_host_that_goes_over_has_what_came_since_the_migration(tmp_path: Path) -> None:
    with sqlite(tmp_path / "db") as old, store(tmp_path / "s") as client:
        fill(old, range(2))
        langgraph(old, client)
        config = {"configurable": {"thread_id": "t/1 é"}}
        graph(old).invoke(Command(resume="since"), config)
        assert MigratingSaver(client, old).get_tuple(config) == old.get_tuple(config)


def test_a_host_goes_over_without_a_pause(tmp_path: Path) -> None:
    with sqlite(tmp_path / "db") as old, store(tmp_path / "s") as client:
        fill(old, range(5))
        saver = MigratingSaver(client, old)
        config = {"configurable": {"thread_id": "t/1 é"}}
        before = old.get_tuple(config)
        assert before
        result = graph(saver).invoke(Command(resume="new"), config)
        assert "new" in result["said"][-1]
        assert len(list(saver.list(config))) > len(list(old.list(config)))
        assert old.get_tuple(config) == before  # Nobody writes to the old one.
        other = MigratingSaver(client, old)  # another process
        assert asyncio.run(other.aget_tuple(config)) == saver.get_tuple(config)
        saver.delete_thread("t/2 é")
        assert other.get_tuple({"configurable": {"thread_id": "t/2 é"}}) is None
        langgraph(old, client)
        assert {t.config["configurable"]["thread_id"] for t in TurnstoneSaver(client).list(None)} == {f"t/{i} é" for i in (0, 1, 3, 4)}
        assert len(list(saver.list(None))) > 4


@pytest.mark.parametrize("deletes", ["", "deletes", "makes it anew"])
def test_what_a_host_does_beside_a_migration_stays(tmp_path: Path, deletes: str) -> None:
    config: Any = {"configurable": {"thread_id": "t/0 é"}}
    with sqlite(tmp_path / "db") as old, store(tmp_path / "s") as client:
        fill(old, range(1))

        class Slow(SqliteSaver):
            def list(self, *args: Any, **kwargs: Any) -> Any:
                yield from super().list(*args, **kwargs)
                # The host comes while the migration has read the thread.
                if deletes:
                    saver.delete_thread("t/0 é")
                if deletes == "makes it anew":
                    graph(saver).invoke({"said": ["anew"], "n": 0}, config)
                elif not deletes:
                    graph(saver).invoke(Command(resume="the host's"), config)

        saver = MigratingSaver(client, old)
        slow = Slow(old.conn)
        slow.is_setup = True
        assert langgraph(slow, client).different == []
        other = MigratingSaver(client, old)
        found = other.get_tuple(config)
        assert (found is None) == (deletes == "deletes")
        if found:
            assert found == saver.get_tuple(config)
        if not deletes:
            assert len(list(other.list(config))) > len(list(old.list(config)))


def test_a_thread_that_the_store_refuses_is_named_and_the_others_come(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with sqlite(tmp_path / "db") as old:
        fill(old, range(2))
        old.put({"configurable": {"thread_id": "x" * 5000, "checkpoint_ns": ""}}, empty_checkpoint(), {}, {})
    assert main(["langgraph", f"sqlite:{tmp_path / 'db'}", "--store", str(tmp_path / "s")]) == 1
    out = capsys.readouterr()
    assert out.out.startswith("3 found, 0 unchanged")
    assert out.err.startswith("thread 'xxx")
    with store(tmp_path / "s") as client:
        assert {t.config["configurable"]["thread_id"] for t in TurnstoneSaver(client).list(None)} == {"t/0 é", "t/1 é"}


def test_what_was_brought_of_a_thread_before_the_store_refuses_it_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = TurnstoneSaver.put

    def refuses(self: Any, config: Any, checkpoint: Any, *args: Any) -> Any:
        if checkpoint["id"] == "2":
            raise InvalidError("too large")
        return put(self, config, checkpoint, *args)

    monkeypatch.setattr(TurnstoneSaver, "put", refuses)
    old = InMemorySaver()
    for id in ("1", "2"):
        c: Any = {**empty_checkpoint(), "id": id}
        old.put({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, c, {}, {})
    with store(tmp_path / "s") as client:
        report = langgraph(old, client)
    assert (report.found, report.brought, report.different) == (1, 1, ["thread 't': too large"])


def test_what_nobody_has_used_for_long_is_not_brought_again(tmp_path: Path) -> None:
    with sqlite(tmp_path / "db") as old, store(tmp_path / "s") as client:
        fill(old, range(3))
        saver = MigratingSaver(client, old)
        config = {"configurable": {"thread_id": "t/1 é"}}
        assert saver.get_tuple(config)
        time.sleep(3.1)
        assert saver.get_tuple({"configurable": {"thread_id": "t/0 é"}})
        assert saver.delete_idle(timedelta(seconds=2)) == ["t/1 é"]
        other = MigratingSaver(client, old)
        assert other.get_tuple(config) is None
        langgraph(old, client)
        assert {t.config["configurable"]["thread_id"] for t in other.list(None)} == {"t/0 é", "t/2 é"}


def test_a_thread_that_is_used_while_idle_ones_are_deleted_is_all_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config: Any = {"configurable": {"thread_id": "t/0 é", "checkpoint_ns": ""}}
    with sqlite(tmp_path / "db") as old, store(tmp_path / "s") as client:
        fill(old, range(2))
        langgraph(old, client)
        host = MigratingSaver(client, old)
        assert host.get_tuple(config)
        time.sleep(2.1)
        prune, session = _calls.prune, Client.session

        def beside(target: Any, group: str, *rest: Any) -> Any:
            if "t%2F0" in group:
                host.put({"configurable": {"thread_id": "t/0 é", "checkpoint_ns": "new"}}, empty_checkpoint(), {}, {})
                assert not client.records("gone/t%2F0").records
            return prune(target, group, *rest)

        with monkeypatch.context() as m:
            m.setattr(_calls, "prune", beside)
            assert MigratingSaver(client, old).delete_idle(timedelta(seconds=2)) == ["t/1 é"]
        pruned = []

        def just_pruned(self: Client, id: str) -> Any:
            if not pruned:
                pruned.append(id)
                session(self, id).delete("keep")
            return session(self, id)

        with monkeypatch.context() as m:  # What was pruned while somebody brought it is brought again.
            m.setattr(Client, "session", just_pruned)
            langgraph(old, client)
        assert pruned
        assert MigratingSaver(client, old).get_tuple(config).checkpoint == old.get_tuple(config).checkpoint
        assert MigratingSaver(client, old).get_tuple({"configurable": {"thread_id": "t/0 é", "checkpoint_ns": "new"}})
        assert MigratingSaver(client, old).get_tuple({"configurable": {"thread_id": "t/1 é"}}) is None


@pytest.mark.parametrize("cut_off", [False, True])
def test_a_thread_that_is_used_in_the_old_store_is_not_idle(tmp_path: Path, cut_off: bool) -> None:
    config: Any = {"configurable": {"thread_id": "t/0 é"}}
    with sqlite(tmp_path / "db") as old, store(tmp_path / "s") as client:
        fill(old, range(2))
        langgraph(old, client)
        if cut_off:  # before it was noted
            (note,) = [r for r in client.records("migrated").records if r.session.startswith("langgraph/t%2F0")]
            client.session(note.session).change_records(RecordChange.delete("migrated"))
        time.sleep(3.1)
        graph(old).invoke(Command(resume="just now"), config)  # A host that has not come over yet.
        failing = MigratingSaver(client, old)
        with pytest.MonkeyPatch.context() as m:
            m.setattr(migrate_langgraph, "_thread", lambda *_: "another one")
            assert failing.delete_idle(timedelta(days=1)) == []
            assert failing.delete_idle(timedelta(seconds=2)) == ["t/1 é"]
        assert MigratingSaver(client, old).delete_idle(timedelta(seconds=2)) == []
        assert MigratingSaver(client, old).get_tuple(config).checkpoint == old.get_tuple(config).checkpoint
        MigratingSaver(client, old).delete_thread("t/0 é")
        assert MigratingSaver(client, old).get_tuple(config) is None


def test_a_migration_ends_when_a_thread_is_deleted_of_which_a_checkpoint_sorts_before_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, ids = InMemorySaver(), [("5", None), ("3", "5")]  # The clock of a host was behind.
    for id, parent in ids:
        c: Any = {**empty_checkpoint(), "id": id}
        old.put(
            {"configurable": {"thread_id": "t", "checkpoint_ns": "", **({"checkpoint_id": parent} if parent else {})}},
            c,
            {"source": "loop", "step": 1, "parents": {}},
            {},
        )
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    attempt, attempts, put = migrate_langgraph._attempt, itertools.count(), TurnstoneSaver.put

    def bounded(*args: Any) -> Any:
        assert next(attempts) < 10, "the migration does not end"
        return attempt(*args)

    monkeypatch.setattr(migrate_langgraph, "_attempt", bounded)
    monkeypatch.setattr(migrate_langgraph, "_MAX_KNOWN", 1)
    with store(tmp_path / "s") as client:
        deleted = []

        def meanwhile(self: Any, config: Any, checkpoint: Any, *args: Any) -> Any:
            made = put(self, config, checkpoint, *args)
            if checkpoint["id"] == "5" and not deleted:
                deleted.append(client.delete("langgraph/t/"))
            return made

        with monkeypatch.context() as m:
            m.setattr(TurnstoneSaver, "put", meanwhile)
            report = langgraph(old, client)
        assert (len(deleted), report.brought, report.different) == (1, 2, [])
        assert [t.checkpoint["id"] for t in TurnstoneSaver(client).list(config)] == ["5", "3"]
    with store(tmp_path / "other") as client:  # What a saver has forgotten that it has brought comes again.
        saver = MigratingSaver(client, old)
        for _ in range(2):
            assert saver.get_tuple(config).checkpoint["id"] == "5"
            client.delete("langgraph/t/")
            assert saver.get_tuple({"configurable": {"thread_id": "another"}}) is None


def test_a_migration_goes_on_when_a_host_deletes_a_thread_of_it(tmp_path: Path) -> None:
    with sqlite(tmp_path / "db") as old, store(tmp_path / "s") as client:
        fill(old, range(3))
        saver, put, deleted = MigratingSaver(client, old), TurnstoneSaver.put, []

        def slow(self: Any, config: Any, *args: Any) -> Any:
            at = put(self, config, *args)
            if config["configurable"]["thread_id"] == "t/1 é" and not deleted:
                deleted.append(True)
                saver.delete_thread("t/1 é")
            return at

        with pytest.MonkeyPatch.context() as m:
            m.setattr(TurnstoneSaver, "put", slow)
            report = langgraph(old, client, threads=1)
        assert (report.found, report.different, deleted) == (3, [], [True])
        assert {t.config["configurable"]["thread_id"] for t in TurnstoneSaver(client).list(None)} == {"t/0 é", "t/2 é"}


def test_a_saver_remembers_so_many_threads_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate_langgraph, "_MAX_KNOWN", 2)
    with sqlite(tmp_path / "db") as old, store(tmp_path / "s") as client:
        fill(old, range(4))
        saver = MigratingSaver(client, old)
        for i in (0, 1, 2, 3, 0):
            config: Any = {"configurable": {"thread_id": f"t/{i} é"}}
            assert saver.get_tuple(config).checkpoint == old.get_tuple(config).checkpoint
            assert len(saver._known) <= 2


def test_threads_of_thousands_of_checkpoints_come_from_any_saver(tmp_path: Path) -> None:
    old = InMemorySaver()
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    for _ in range(1000):
        config = old.put(config, empty_checkpoint(), {}, {})
    with store(tmp_path / "s") as client:
        assert (langgraph(old, client, dry_run=True)).brought == 1000
        report = langgraph(old, client)
        assert (report.brought, report.different) == (1000, [])
        assert langgraph(old, client).unchanged == 1


def test_a_saver_that_has_made_no_tables_yet_has_nothing_to_bring(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "db", check_same_thread=False)) as conn, store(tmp_path / "s") as client:
        saver = MigratingSaver(client, SqliteSaver(conn))
        assert list(saver.list(None)) == []
        fill(saver, range(1))
        assert len(list(saver.list(None))) > 0


def test_sessions_of_the_agents_sdk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def add(id: str, *texts: str) -> None:
        session = SQLiteSession(id, tmp_path / "db")
        await session.add_items([{"role": "user", "content": t} for t in texts])
        session.close()

    asyncio.run(add("a/b", "one", "two é"))
    asyncio.run(add("c", *map(str, range(2500))))
    arguments = ["agents", f"sqlite:{tmp_path / 'db'}", "--store", str(tmp_path / "s")]
    for made in (False, True):
        if made:
            (tmp_path / "s").mkdir()
        assert main([*arguments, "--dry-run"]) == 0
        assert "2 found, 0 unchanged, 2502 items to bring" in capsys.readouterr().out
        assert made == (tmp_path / "s").exists()
        assert list(tmp_path.glob("s/*")) == []
    command = subprocess.run([server.command(), "migrate", *arguments], env={**os.environ, "TURNSTONE_PYTHON": sys.executable}, capture_output=True, check=True)
    assert command.stdout == b"2 found, 0 unchanged, 2502 items brought\n"
    assert main(arguments) == 0
    assert "2 found, 2 unchanged, 0 items brought" in capsys.readouterr().out
    asyncio.run(add("a/b", "three"))
    assert main([*arguments, "--dry-run"]) == 0
    assert "2 found, 1 unchanged, 1 items to bring" in capsys.readouterr().out
    assert main(arguments) == 0
    with store(tmp_path / "s") as client, closing(sqlite3.connect(tmp_path / "db")) as source:
        assert [n.payload for n in client.session("a/b").load().nodes] == [f'{{"role": "user", "content": "{t}"}}'.encode() for t in ("one", "two é", "three")]
        client.session("c").commit([NewNode("user", b'{"role":"user","content":"ours"}')], expected="any")
        assert agents(source, client).different == []  # A host goes on there.
        with closing(sqlite3.connect(tmp_path / "db")) as more:
            more.execute("INSERT INTO agent_messages (session_id, message_data) VALUES ('c', '{}')")
            more.execute("INSERT INTO agent_sessions (session_id) VALUES ('bad')")
            more.execute("INSERT INTO agent_messages (session_id, message_data) VALUES ('bad', '{')")
            more.commit()
        asyncio.run(add("d", "after a bad one", "x" * 5_000_000, "y" * 5_000_000))
        report = agents(source, client)
        assert [d[:13] for d in report.different] == ["session 'bad'", "session 'c': "]
        assert (report.found, report.brought) == (4, 3)


def test_what_a_host_has_removed_does_not_come_again(tmp_path: Path) -> None:
    async def hosts(*, source: bool) -> None:
        if source:
            for id, texts in (("popped", ["one", "two"]), ("cleared", ["three"])):
                session = SQLiteSession(id, tmp_path / "db")
                await session.add_items([{"role": "user", "content": t} for t in texts])
                session.close()
            return
        async with await AsyncClient.open(tmp_path / "s", idle=2) as client:
            await TurnstoneSession("popped", client).pop_item()
            await TurnstoneSession("cleared", client).clear_session()

    asyncio.run(hosts(source=True))
    with store(tmp_path / "s") as client, closing(sqlite3.connect(tmp_path / "db")) as source:
        assert agents(source, client).brought == 3
        asyncio.run(hosts(source=False))
        for dry_run in (True, False):
            report = agents(source, client, dry_run=dry_run)
            assert (report.found, report.unchanged, report.brought) == (2, 1, 0)
            assert report.different == ["session 'popped': its items are others"]
        assert [n.payload for n in client.session("popped").load().nodes] == [b'{"role": "user", "content": "one"}']


@pytest.mark.parametrize("at", [2, 3])
def test_an_item_that_a_host_pops_while_it_is_migrated_does_not_come_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """The host pops it before the second commit; or after that, when the migration was cut off."""

    async def fill() -> None:
        session = SQLiteSession("s", tmp_path / "db")
        await session.add_items([{"role": "user", "content": f"{i}"} for i in range(250)])
        session.close()

    asyncio.run(fill())
    with store(tmp_path / "s") as client, closing(sqlite3.connect(tmp_path / "db")) as source:
        commit_all, calls = client.commit_all, itertools.count(1)

        def pop() -> None:
            session = client.session("s")
            state = session.load(last=1)
            session.commit(expected=state.revision, leaf=state.nodes[0].parent or "none", tombstone=[state.nodes[0].id])

        def meanwhile(*commits: Any) -> Any:
            if (call := next(calls)) == 2 == at:
                pop()
            results = commit_all(*commits)
            if call == 2 != at:
                raise UnavailableError("cut off")
            return results

        monkeypatch.setattr(client, "commit_all", meanwhile)
        with suppress(UnavailableError):
            agents(source, client)
        if at == 3:
            pop()
        there = [n.id for n in client.session("s").load().nodes]
        assert len(there) == (199 if at == 2 else 249)
        for _ in range(2):
            assert agents(source, client).different == ["session 's': its items are others"]
        assert [n.id for n in client.session("s").load().nodes] == there


def test_of_two_migrations_of_agents_at_once_neither_brings_what_a_host_clears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = SQLiteSession("s", tmp_path / "db")
    asyncio.run(session.add_items([{"role": "user", "content": "one"}]))
    session.close()
    with store(tmp_path / "s") as client, closing(sqlite3.connect(tmp_path / "db")) as source:
        commit_all = client.commit_all

        def meanwhile(*commits: Any) -> Any:
            monkeypatch.setattr(client, "commit_all", commit_all)
            assert agents(source, client).brought == 1
            client.delete("s")
            return commit_all(*commits)

        monkeypatch.setattr(client, "commit_all", meanwhile)
        report = agents(source, client)
        assert (report.unchanged, report.brought, report.different) == (1, 0, [])
        with pytest.raises(NotFoundError):
            client.session("s").load()


@pytest.mark.parametrize("deletes", [False, True])
def test_whichever_call_of_a_migration_of_agents_fails_the_next_one_brings_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deletes: bool) -> None:
    """Whenever a host clears a session that was brought, it stays away, and the others come."""
    texts = [f"{i} é" for i in range(250)]

    async def fill() -> None:
        for at in range(1, 4):
            session = SQLiteSession(f"s{at}", tmp_path / "db")
            await session.add_items([{"role": "user", "content": t} for t in texts])
            session.close()

    asyncio.run(fill())
    with store(tmp_path / "s") as client, closing(sqlite3.connect(tmp_path / "db")) as source:
        commit_all = client.commit_all
        for at in range(1, 4):
            source.execute("DELETE FROM agent_sessions WHERE session_id != ?", (f"s{at}",))
            calls = itertools.count(1)

            def meanwhile(*commits: Any, at: int = at, calls: Iterator[int] = calls) -> Any:
                if (call := next(calls)) == at and deletes:
                    client.delete(f"s{at}")
                elif call == at:
                    raise UnavailableError("cut off")
                return commit_all(*commits)

            monkeypatch.setattr(client, "commit_all", meanwhile)
            for _ in range(3):
                with suppress(UnavailableError):
                    report = agents(source, client)
                    assert report.different == []
            assert (report.found, report.unchanged, report.brought) == (1, 1, 0)
            monkeypatch.setattr(client, "commit_all", commit_all)
            left = []
            with suppress(NotFoundError):
                left = [json.loads(n.payload)["content"] for n in client.session(f"s{at}").load().nodes]
            assert left == ([] if deletes and at == 2 else texts)  # The first call makes it, the second adds the rest.
            source.rollback()


async def speak(service: Any, app: str, user: str, id: str, r: random.Random, n: int) -> None:
    """Adds events, some of which change the state of the session, the user and the app."""
    session = await service.get_session(app_name=app, user_id=user, session_id=id)
    if session is None:
        session = await service.create_session(
            app_name=app, user_id=user, session_id=id, state={"first": r.randrange(100), "user:name": "Ann é", "user:u": 0, "app:n": 1}
        )
    for i in range(n):
        part = types.Part.from_bytes(data=bytes([i % 256, 255]), mime_type="image/png") if r.random() < 0.3 else types.Part(text=f"Say {i}. é")
        delta = {k: r.choice([i, 1.5, "text", None, {"a": [1, 2.0]}]) for k in ("own", "user:u", "app:a") if r.random() < 0.4}
        content = types.Content(role="user", parts=[part])
        e = Event(invocation_id="i", author=r.choice(["user", "agent"]), content=content, actions=EventActions(state_delta=delta, artifact_delta={"f": 1}))
        await service.append_event(session, e)


async def told(service: Any, apps: tuple[str, ...]) -> list[Any]:
    """Returns all that a session service has, by its own calls."""
    out = []
    for app in apps:
        for s in (await service.list_sessions(app_name=app)).sessions:
            whole = await service.get_session(app_name=app, user_id=s.user_id, session_id=s.id)
            out.append((app, s.user_id, s.id, whole.state, [e.model_dump(mode="json", exclude_none=True) for e in whole.events]))
    return sorted(out, key=lambda o: o[:3])


@pytest.mark.parametrize("kind", [DatabaseSessionService, SqliteSessionService])
@pytest.mark.asyncio
async def test_sessions_of_adk(kind: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    file, apps, r = tmp_path / "adk é.db", ("trips", "a/b"), random.Random(49)
    source = kind(f"sqlite+aiosqlite:///{file}" if kind is DatabaseSessionService else str(file))
    for i in range(12):
        await speak(source, apps[i % 2], f"user {i % 3}", f"s/{i}", r, 230 if i == 2 else [0, 3, 3][i % 3])
    command = ["adk", f"sqlite:{file}", "--store", str(tmp_path / "s")]

    async def migrated(*flags: str) -> str:
        assert await asyncio.to_thread(main, [*command, *flags]) == 0
        return capsys.readouterr().out

    await speak(source, "refused", "u" * 600, "s", r, 1)
    await speak(source, "refused", "v", "s", r, 1)
    async with await AsyncClient.open(tmp_path / "refused", idle=2) as client:
        report = await adk(source, client, ["refused"])
        assert (report.found, report.brought, [d[:20] for d in report.different]) == (2, 1, ["session 'refused/uuu", "state of 'refused/uu"])
    await source.delete_session(app_name="refused", user_id="u" * 600, session_id="s")
    await source.delete_session(app_name="refused", user_id="v", session_id="s")
    assert await migrated("--dry-run") == "12 found, 0 unchanged, 251 events to bring\n"
    async with await AsyncClient.open(tmp_path / "s", idle=2) as client:
        commit_all, calls = client.commit_all, iter(range(1000))

        async def cut(*commits: Any) -> Any:
            if next(calls) % 5 == 4:
                raise UnavailableError("cut off")
            return await commit_all(*commits)

        with monkeypatch.context() as m:
            m.setattr(client, "commit_all", cut)
            for _ in range(100):
                with suppress(UnavailableError):
                    report = await adk(source, client, apps)
                    break
        assert report.different == []
        target = TurnstoneSessions(client)
        assert await told(target, apps) == await told(source, apps)
        # A host goes on there, and the source as well: what comes from the host stays.
        await speak(source, "trips", "user 0", "s/0", r, 2)
        await speak(source, "trips", "user 1", "new", r, 2)
        assert (await adk(source, client, apps)).unchanged == 11
        assert await told(target, apps) == await told(source, apps)
        await speak(target, "trips", "user 0", "s/0", r, 1)
        session = await target.get_session(app_name="trips", user_id="user 0", session_id="s/0")
        await target.append_event(session, Event(author="user", actions=EventActions(state_delta={"user:u": "the host's"})))

        def theirs(all: list[Any]) -> list[Any]:
            return [(s[2], {k: v for k, v in s[3].items() if not k.startswith("app:")}, s[4]) for s in all if s[1] == "user 0"]

        before = await told(target, apps)
        assert "state 'u' of 'trips/user 0' is another one" in (await adk(source, client, apps)).different
        await speak(source, "trips", "user 0", "s/0", r, 2)
        assert "session 'trips/user 0/s/0': its events are others" in (await adk(source, client, apps)).different
        assert theirs(await told(target, apps)) == theirs(before)


@pytest.mark.asyncio
async def test_sessions_of_adk_that_a_host_deletes_or_takes_back_do_not_come_again(tmp_path: Path) -> None:
    source, r = InMemorySessionService(), random.Random(50)  # type: ignore[no-untyped-call]
    for id in ("gone", "back"):
        await speak(source, "a", "u", id, r, 2)
    async with await AsyncClient.open(tmp_path / "s", idle=2) as client:
        await adk(source, client, ["a"])
        target = TurnstoneSessions(client)
        await target.delete_session(app_name="a", user_id="u", session_id="gone")
        rewound = await client.session("adk/a/u/back")
        await rewound.commit(leaf=(await rewound.load()).nodes[0].id, expected="any")
        for id in ("gone", "back"):
            await speak(source, "a", "u", id, r, 1)
        for dry_run in (True, False):
            report = await adk(source, client, ["a"], dry_run=dry_run)
            assert (report.unchanged, report.brought, report.different) == (1, 0, ["session 'a/u/back': its events are others"])
        assert await target.get_session(app_name="a", user_id="u", session_id="gone") is None
        assert len((await rewound.load()).nodes) == 1


@pytest.mark.asyncio
async def test_what_a_host_has_deleted_of_adk_does_not_come_into_what_it_makes_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, r = InMemorySessionService(), random.Random(51)  # type: ignore[no-untyped-call]
    for user in ("cut", "u", "w"):
        await speak(source, "a", user, "s", r, 250)
    async with await AsyncClient.open(tmp_path / "s", idle=2) as client:
        commit_all = client.commit_all

        async def cut(*commits: Any) -> Any:
            if len(commits) == 1:
                raise UnavailableError("cut off")  # The second commit to a session.
            return await commit_all(*commits)

        with monkeypatch.context() as m:
            m.setattr(client, "commit_all", cut)
            with pytest.raises(UnavailableError):
                await adk(source, client, ["a"])
        target = TurnstoneSessions(client)
        [begun] = (await target.list_sessions(app_name="a")).sessions
        handle = await client.session(f"adk/a/{begun.user_id}/s")
        note = await handle.record("migrated")  # The adapter for Go rewinds to nothing before it.
        assert note and note.value == f"begun {(await handle.info()).nodes}".encode()
        await target.delete_session(app_name="a", user_id=begun.user_id, session_id="s")
        report = await adk(source, client, ["a"])
        assert (report.found, report.unchanged, report.brought, report.different) == (3, 1, 500, [])
        users = {"cut", "u", "w"} - {begun.user_id}
        assert {s.user_id for s in (await target.list_sessions(app_name="a")).sessions} == users
        # A host deletes a session with its user's state, and then one value of another user.
        one, other = sorted(users)
        await target.delete_session(app_name="a", user_id=one, session_id="s")
        for id in (f"adk/a/{one}", f"adk-migration/adk%2Fa%2F{one}"):
            await client.delete(id)
        await States(client, "adk-state").commit({f"adk/a/{other}": {"u": None}})
        for again in (False, True):
            report = await adk(source, client, ["a"])
            assert (report.unchanged, report.brought, report.different) == (3, 0, [])
            if not again:
                assert "user:name" not in (await target.create_session(app_name="a", user_id=one, session_id="s")).state
        made = await target.get_session(app_name="a", user_id=one, session_id="s")
        assert made is not None and made.events == [] and not [k for k in made.state if k.startswith("user:")]
        kept = await target.get_session(app_name="a", user_id=other, session_id="s")
        assert kept is not None and len(kept.events) == 250 and "user:u" not in kept.state


@pytest.mark.asyncio
@pytest.mark.parametrize("deletes", [False, True])
@pytest.mark.parametrize("hosts", [False, True])
async def test_whichever_call_of_a_migration_of_adk_fails_the_next_one_brings_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deletes: bool, hosts: bool
) -> None:
    """Also into what a host has made. Whenever a host deletes a session of which an event was brought, it stays away."""
    source, r = InMemorySessionService(), random.Random(53)  # type: ignore[no-untyped-call]
    for at in range(1, 7):
        await speak(source, f"a{at}", "u", "s", r, 250)
    async with await AsyncClient.open(tmp_path / "s", idle=2) as client:
        target, commit_all = TurnstoneSessions(client), client.commit_all
        for at in range(1, 7):
            if hosts:
                made = await target.create_session(app_name=f"a{at}", user_id="u", session_id="s", state={"mine": "kept"})
                whole = await source.get_session(app_name=f"a{at}", user_id="u", session_id="s")
                assert whole is not None
                await target.append_event(made, whole.events[0].model_copy())
            calls, deleted = 0, False

            async def meanwhile(*commits: Any, at: int = at) -> Any:
                nonlocal calls, deleted
                calls += 1
                if calls == at and deletes:
                    await client.delete(f"adk/a{at}/u/s")
                    deleted = at > 1  # The first call of a migration makes it, or adds the first events.
                elif calls == at:
                    raise UnavailableError("cut off")
                return await commit_all(*commits)

            monkeypatch.setattr(client, "commit_all", meanwhile)
            for _ in range(3):
                with suppress(UnavailableError):
                    report = await adk(source, client, [f"a{at}"])
                    assert not [d for d in report.different if d.startswith("session")]  # A host has set state as well.
            assert (report.unchanged, report.brought) == (1, 0)
            monkeypatch.setattr(client, "commit_all", commit_all)
            left = await target.get_session(app_name=f"a{at}", user_id="u", session_id="s")
            assert len(left.events) == 250 if left else deleted
            assert not (left and deleted)
            assert not (left and hosts) or (deletes and at == 1) or left.state["mine"] == "kept"


@pytest.mark.asyncio
async def test_of_two_migrations_of_adk_at_once_neither_brings_what_a_host_deletes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, r = InMemorySessionService(), random.Random(54)  # type: ignore[no-untyped-call]
    await speak(source, "a", "u", "s", r, 2)
    async with await AsyncClient.open(tmp_path / "s", idle=2) as client:
        get = source.get_session

        async def meanwhile(**kw: Any) -> Any:
            monkeypatch.setattr(source, "get_session", get)
            assert (await adk(source, client, ["a"])).brought == 2
            await TurnstoneSessions(client).delete_session(app_name="a", user_id="u", session_id="s")
            return await get(**kw)

        monkeypatch.setattr(source, "get_session", meanwhile)
        report = await adk(source, client, ["a"])
        assert (report.unchanged, report.brought, report.different) == (1, 0, [])
        assert await TurnstoneSessions(client).get_session(app_name="a", user_id="u", session_id="s") is None


@pytest.mark.asyncio
async def test_events_of_adk_of_the_time_of_the_last_one_come(tmp_path: Path) -> None:
    source, r = InMemorySessionService(), random.Random(52)  # type: ignore[no-untyped-call]
    await speak(source, "a", "u", "s", r, 2)
    async with await AsyncClient.open(tmp_path / "s", idle=2) as client:
        assert [(await adk(source, client, ["a"])).unchanged for _ in range(2)] == [0, 1]
        session = await source.get_session(app_name="a", user_id="u", session_id="s")
        assert session is not None
        await source.append_event(session, Event(author="user", timestamp=session.last_update_time))
        assert (await adk(source, client, ["a"])).brought == 1
        handle = await client.session("adk/a/u/s")
        note = await handle.record("migrated")
        assert note and note.value == b"recent 3"
        await handle.commit(checkpoint={"state": b"{}"}, expected="any")
        assert (await adk(source, client, ["a"])).unchanged == 0  # It brings the state alone, and notes then that all is there.
        again = await handle.record("migrated")
        assert again and (again.value, again.version == note.version) == (note.value, False)


@pytest.mark.asyncio
async def test_what_the_store_refuses_of_adk_is_named_and_the_rest_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = InMemorySessionService()  # type: ignore[no-untyped-call]
    await source.create_session(app_name="a", user_id="u", session_id="s" * 600, state={"user:kept": 1})
    await source.create_session(app_name="a", user_id="v", session_id="s", state={"user:big": "x" * (14 << 20), "user:kept": 2})
    await source.create_session(app_name="b", user_id="w", session_id="s", state={"user:" + "k" * 600: 1, "user:kept": 3})
    made = await source.create_session(app_name="b", user_id="x", session_id="made", state={"by": "source", "user:color": "old"})
    await source.append_event(made, Event(author="user", content=types.Content(role="user", parts=[types.Part(text="one")])))
    async with await AsyncClient.open(tmp_path / "s", idle=2) as client:
        target = TurnstoneSessions(client)
        await target.create_session(app_name="b", user_id="x", session_id="made", state={"by": "host"})
        commit = States.commit

        async def meanwhile(self: States, changes: Any, *own: Any, **kw: Any) -> Any:
            if "adk/b/x" in changes and "expected" in kw:
                monkeypatch.setattr(States, "commit", commit)
                await target.create_session(app_name="b", user_id="x", session_id="beside", state={"user:color": "the host's"})
            return await commit(self, changes, *own, **kw)

        monkeypatch.setattr(States, "commit", meanwhile)
        report = await adk(source, client, ["a", "b"])
        assert (report.found, [d[:13] for d in report.different]) == (4, ["session 'a/u/", "state 'big' o", "state 'kkkkkk", "state 'color'"])
        await source.append_event(made, Event(author="user", content=types.Content(role="user", parts=[types.Part(text="two")])))
        await adk(source, client, ["b"])
        session = await target.get_session(app_name="b", user_id="x", session_id="made")
        assert session is not None
        assert (len(session.events), session.state) == (2, {"by": "host", "user:color": "the host's"})
        for app, user, kept in (("a", "u", 1), ("a", "v", 2), ("b", "w", 3)):
            assert (await target.create_session(app_name=app, user_id=user)).state == {"user:kept": kept}


@pytest.mark.asyncio
async def test_sessions_of_the_agents_sdk_come_from_sqlalchemy(tmp_path: Path) -> None:
    source = SQLAlchemySession.from_url("a/b", url=f"sqlite+aiosqlite:///{tmp_path / 'db'}", create_tables=True)
    await source.add_items([{"role": "user", "content": f"{i} é"} for i in range(20)])
    assert await asyncio.to_thread(main, ["agents", f"sqlite:{tmp_path / 'db'}", "--store", str(tmp_path / "s")]) == 0
    with store(tmp_path / "s") as client:
        assert [json.loads(n.payload) for n in client.session("a/b").load().nodes] == await source.get_items()
