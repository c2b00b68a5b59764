"""Compares adapters with the stores of their frameworks: sessions to which one event after the other is appended.

python bench/adapters_side_by_side.py [--only NAME] [--events N] [--bytes N] [--rounds N] [--postgres]

It prints a table. Each round has a session on either side, and rounds alternate which side goes first: machines are noisy. A ratio is that of a round. Turnstone runs
as a server of its own, and syncs each commit. The other side is durable as the framework sets it up, which the table says. Contents are random words: all stores
that compress find as little in them as in prose. With --postgres both sides have a database of one server, which this program starts.
"""

import argparse
import asyncio
import json
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from agent_framework import FileHistoryProvider, HistoryProvider
from agent_framework import Message as FrameworkMessage
from agents.memory import SessionABC, SQLiteSession
from google.adk.events.event import Event
from google.adk.sessions import BaseSessionService, DatabaseSessionService
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from llama_index.core.bridge.pydantic import Field
from llama_index.core.llms import ChatMessage
from llama_index.core.storage.chat_store import SimpleChatStore
from strands.session.file_session_manager import FileSessionManager
from strands.session.session_repository import SessionRepository
from strands.types.session import Session, SessionAgent, SessionMessage, SessionType

from turnstonedb import AsyncClient, Client
from turnstonedb import _server as server
from turnstonedb.adk import TurnstoneSessions
from turnstonedb.agent_framework import TurnstoneHistory
from turnstonedb.agents import TurnstoneSession
from turnstonedb.claude_agent import TurnstoneSessionStore
from turnstonedb.langgraph import TurnstoneSaver
from turnstonedb.llama_index import TurnstoneChatStore
from turnstonedb.strands import TurnstoneRepository

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import private_postgres
from serving import serving

LONG = 3000  # events of 360 bytes in a long session
LARGE = 300  # events of 36,000 bytes in one: some stores take more than two minutes for 3,000
LAST = 10  # events of a read of the last ones
READS = 5  # of a session in a round, of which the median counts


class Place(NamedTuple):
    """Where both sides store."""

    ours: str  # the address of a server of Turnstone
    theirs: str  # a directory, or the URL of a database
    sizes: Callable[[], tuple[int, int]]  # ends the server, and returns how many bytes theirs and ours take


def size(d: str) -> int:
    """Returns how many bytes of the disk a directory takes."""
    return sum(os.stat(os.path.join(at, f)).st_blocks * 512 for at, _, names in os.walk(d) for f in names)


@contextmanager
def on_files() -> Iterator[Place]:
    """Makes a directory for each side, and serves ours. Ours is vacuumed before its size is taken."""
    with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b, ExitStack() as serves:
        serves.enter_context(serving(f"{b}/store", f"unix:{b}/socket"))

        def sizes() -> tuple[int, int]:
            serves.close()
            subprocess.run([server.command(), "vacuum", "--store", f"{b}/store"], check=True, stdout=subprocess.DEVNULL)
            return size(a), size(f"{b}/store")

        yield Place(f"unix:{b}/socket", a, sizes)


@contextmanager
def on_postgres() -> Iterator[Place]:
    """Makes a database for each side, and serves ours. Both are vacuumed in full before their sizes are taken, without that of an empty one."""
    with private_postgres.running(durable=True) as d, tempfile.TemporaryDirectory() as b, ExitStack() as serves:
        with psycopg.connect(f"postgres://test@/postgres?host={d}", autocommit=True) as admin:
            for name in ("theirs", "ours", "empty"):
                admin.execute(f"create database {name}")
        url = f"postgres://test@/ours?host={d}"
        serves.enter_context(serving(url, f"unix:{b}/socket"))

        def sizes() -> tuple[int, int]:
            serves.close()
            subprocess.run([server.command(), "vacuum", "--store", url], check=True, stdout=subprocess.DEVNULL)
            found = {}
            for name in ("theirs", "ours", "empty"):
                with psycopg.connect(f"postgres://test@/{name}?host={d}", autocommit=True) as c:
                    c.execute("vacuum full")
                    found[name] = sum(n for (n,) in c.execute("select pg_database_size(current_database())"))
            return found["theirs"] - found["empty"], found["ours"] - found["empty"]

        yield Place(f"unix:{b}/socket", f"postgresql://test@/theirs?host={d}", sizes)


class Side:
    """A store as its framework uses it, with one session at a time."""

    async def begin(self, id: str) -> None:
        """Makes a session that is the one from now on."""
        raise NotImplementedError

    async def append(self, n: int, text: str) -> None:
        """Appends event n, and is back when it is stored."""
        raise NotImplementedError

    async def read(self) -> list[Any]:
        """Returns all events."""
        raise NotImplementedError

    async def last(self) -> list[Any] | None:
        """Returns the last events, or None if the framework has no such read."""
        return None


def role(n: int) -> Any:
    """Returns who says event n."""
    return "assistant" if n % 2 else "user"


class ADK(Side):
    def __init__(self, service: BaseSessionService) -> None:
        self.service = service

    async def begin(self, id: str) -> None:
        self.session = await self.service.create_session(app_name="app", user_id="user", session_id=id)

    async def append(self, n: int, text: str) -> None:
        content = types.Content(role="model" if n % 2 else "user", parts=[types.Part(text=text)])
        await self.service.append_event(self.session, Event(author=role(n), invocation_id=f"i{n // 2}", content=content))

    async def read(self, config: GetSessionConfig | None = None) -> list[Any]:
        found = await self.service.get_session(app_name="app", user_id="user", session_id=self.session.id, config=config)
        assert found is not None
        return found.events

    async def last(self) -> list[Any]:
        return await self.read(GetSessionConfig(num_recent_events=LAST))


class AgentsSDK(Side):
    def __init__(self, opened: Callable[[str], SessionABC]) -> None:
        self.opened = opened

    async def begin(self, id: str) -> None:
        self.session = self.opened(id)

    async def append(self, n: int, text: str) -> None:
        await self.session.add_items([{"role": role(n), "content": text}])

    async def read(self) -> list[Any]:
        return await self.session.get_items()

    async def last(self) -> list[Any]:
        return await self.session.get_items(LAST)


class Strands(Side):
    def __init__(self, repository: SessionRepository) -> None:
        self.repository = repository

    async def begin(self, id: str) -> None:
        self.id, self.count = id, 0
        self.repository.create_session(Session(id, SessionType.AGENT))
        self.repository.create_agent(id, SessionAgent("agent", {}, {}))

    async def append(self, n: int, text: str) -> None:
        self.repository.create_message(self.id, "agent", SessionMessage({"role": role(n), "content": [{"text": text}]}, n))
        self.count = n + 1

    async def read(self) -> list[Any]:
        return self.repository.list_messages(self.id, "agent")

    async def last(self) -> list[Any]:
        return self.repository.list_messages(self.id, "agent", offset=max(0, self.count - LAST))


class SimpleStore(SimpleChatStore):
    """SimpleChatStore without its serializer of messages: with it, version 0.14.25 can't write a file under pydantic 2.14."""

    store: dict[str, list[ChatMessage]] = Field(default_factory=dict)


class LlamaIndex(Side):
    """Without a client it has the store in memory, written to a file after each message."""

    def __init__(self, place: str, client: Client | None) -> None:
        self.place, self.client = place, client

    async def begin(self, id: str) -> None:
        self.id, self.file = id, f"{self.place}/{id}.json"
        self.store = TurnstoneChatStore(client=self.client) if self.client else SimpleStore()

    async def append(self, n: int, text: str) -> None:
        self.store.add_message(self.id, ChatMessage(role=role(n), content=text))
        if isinstance(self.store, SimpleStore):
            self.store.persist(self.file)

    async def read(self) -> list[Any]:
        store = SimpleStore.from_persist_path(self.file) if isinstance(self.store, SimpleStore) else self.store
        return store.get_messages(self.id)


class AgentFramework(Side):
    def __init__(self, history: HistoryProvider) -> None:
        self.history = history

    async def begin(self, id: str) -> None:
        self.id = id

    async def append(self, n: int, text: str) -> None:
        await self.history.save_messages(self.id, [FrameworkMessage(role(n), [text])])

    async def read(self) -> list[Any]:
        return await self.history.get_messages(self.id)


class LangGraph(Side):
    """An event is a checkpoint, whose list has one message more. What is read is the last one, by a saver that remembers none."""

    def __init__(self, saver: BaseCheckpointSaver[str], reader: Callable[[], BaseCheckpointSaver[str]]) -> None:
        self.saver, self.reader = saver, reader

    async def begin(self, id: str) -> None:
        self.place: Any = {"configurable": {"thread_id": id, "checkpoint_ns": ""}}
        self.config: Any = self.place
        self.messages, self.version = list[Any](), ""

    async def append(self, n: int, text: str) -> None:
        self.messages.append({"role": role(n), "content": text})
        self.version = self.saver.get_next_version(self.version or None, None)
        c = empty_checkpoint()
        c["channel_values"], c["channel_versions"] = {"messages": self.messages}, {"messages": self.version}
        self.config = self.saver.put(self.config, c, {"step": n, "source": "loop"}, {"messages": self.version})

    async def read(self) -> list[Any]:
        found = self.reader().get_tuple(self.place)
        assert found is not None
        return list(found.checkpoint["channel_values"]["messages"])


class Lines:
    """A file of JSON lines for each session, which is synced after each append: the SDK has no durable store of its own."""

    def __init__(self, place: str) -> None:
        self.place = place

    async def append(self, key: Any, entries: Any) -> None:
        with open(f"{self.place}/{key['session_id']}", "a", encoding="utf-8") as f:
            f.writelines(json.dumps(e) + "\n" for e in entries)
            f.flush()
            os.fdatasync(f.fileno())

    async def load(self, key: Any) -> Any:
        with open(f"{self.place}/{key['session_id']}", encoding="utf-8") as f:
            return [json.loads(line) for line in f]


class ClaudeSDK(Side):
    def __init__(self, store: TurnstoneSessionStore | Lines) -> None:
        self.store = store

    async def begin(self, id: str) -> None:
        self.key: Any = {"project_key": "project", "session_id": id}

    async def append(self, n: int, text: str) -> None:
        parent = f"{self.key['session_id']}-{n - 1}" if n else None
        entry: Any = {"type": role(n), "uuid": f"{self.key['session_id']}-{n}", "parentUuid": parent, "message": {"role": role(n), "content": text}}
        await self.store.append(self.key, [entry])

    async def read(self) -> list[Any]:
        return await self.store.load(self.key) or []


# What follows yields their side and ours.


@asynccontextmanager
async def adk(place: Place) -> AsyncIterator[tuple[Side, Side]]:
    url = place.theirs.replace("postgresql:", "postgresql+asyncpg:") if "://" in place.theirs else f"sqlite+aiosqlite:///{place.theirs}/db"
    async with AsyncClient(place.ours) as db, DatabaseSessionService(url) as service:
        yield ADK(service), ADK(TurnstoneSessions(db))


@asynccontextmanager
async def agents(place: Place) -> AsyncIterator[tuple[Side, Side]]:
    async with AsyncClient(place.ours) as db:
        with ExitStack() as closing:

            def opened(id: str) -> SQLiteSession:
                session = SQLiteSession(id, f"{place.theirs}/db")
                closing.callback(session.close)
                return session

            yield AgentsSDK(opened), AgentsSDK(lambda id: TurnstoneSession(id, db))


@asynccontextmanager
async def strands(place: Place) -> AsyncIterator[tuple[Side, Side]]:
    with Client(place.ours) as db:
        yield Strands(FileSessionManager("unused", place.theirs)), Strands(TurnstoneRepository(db))


@asynccontextmanager
async def llama_index(place: Place) -> AsyncIterator[tuple[Side, Side]]:
    with Client(place.ours) as db:
        yield LlamaIndex(place.theirs, None), LlamaIndex("", db)


@asynccontextmanager
async def agent_framework(place: Place) -> AsyncIterator[tuple[Side, Side]]:
    async with AsyncClient(place.ours) as db:
        yield AgentFramework(FileHistoryProvider(place.theirs)), AgentFramework(TurnstoneHistory(db))


@asynccontextmanager
async def langgraph(place: Place) -> AsyncIterator[tuple[Side, Side]]:
    with Client(place.ours) as db, ExitStack() as closing:
        if "://" in place.theirs:
            theirs: Any = closing.enter_context(PostgresSaver.from_conn_string(place.theirs))
        else:
            theirs = closing.enter_context(SqliteSaver.from_conn_string(f"{place.theirs}/db"))
        theirs.setup()
        yield LangGraph(theirs, lambda: theirs), LangGraph(TurnstoneSaver(db), lambda: TurnstoneSaver(db))


@asynccontextmanager
async def claude(place: Place) -> AsyncIterator[tuple[Side, Side]]:
    async with AsyncClient(place.ours) as db:
        yield ClaudeSDK(Lines(place.theirs)), ClaudeSDK(TurnstoneSessionStore(db))


class Framework(NamedTuple):
    title: str
    against: str  # their store, with the durability that it has by default
    sides: Any
    on_postgres: str = ""  # their store on PostgreSQL
    long: int = LONG


WHOLE = 1000  # events of a long session where an append reads or writes the whole: its cost grows with the square of their number

FRAMEWORKS = {
    "adk": Framework("ADK for Python", "`DatabaseSessionService` on SQLite, synced (rollback journal)", adk, "`DatabaseSessionService` on PostgreSQL"),
    "agents": Framework("Agents SDK", "`SQLiteSession`, synced (write-ahead log)", agents),
    "strands": Framework("Strands", "`FileSessionManager`, not synced", strands),
    "llama-index": Framework("LlamaIndex", "`SimpleChatStore`, its file written after each message, not synced", llama_index, long=WHOLE),
    "agent-framework": Framework("Agent Framework", "`FileHistoryProvider`, which reads its file for each append, not synced", agent_framework, long=WHOLE),
    "langgraph": Framework("LangGraph, a list that grows", "`SqliteSaver`, synced (write-ahead log)", langgraph, "`PostgresSaver`", WHOLE),
    "claude": Framework("Claude Agent SDK", "a file of lines, synced", claude),
}


class Figures(NamedTuple):
    appends: float  # a second
    read: float  # milliseconds
    last: float | None


def contents(events: int, size: int, seed: str) -> list[str]:
    """Returns texts of random words."""
    r = random.Random(seed)
    words = ["".join(r.choices("etaoinshrdlucmfwypvbgkjqxz", k=r.randint(2, 10))) for _ in range(2000)]
    return [" ".join(r.choices(words, k=size // 3 + 1))[:size] for _ in range(events)]


async def measured(side: Side, id: str, texts: list[str]) -> Figures:
    """Appends texts to a session, and reads it."""
    await side.begin(id)
    begun = time.perf_counter()
    for n, text in enumerate(texts):
        await side.append(n, text)
    appends = len(texts) / (time.perf_counter() - begun)
    reads: dict[str, float | None] = {}
    for name, read, want in (("read", side.read, texts), ("last", side.last, texts[-LAST:])):
        took = []
        for _ in range(READS):
            begun = time.perf_counter()
            found = await read()
            took.append((time.perf_counter() - begun) * 1000)
        if found is not None:
            assert len(found) == len(want)
            assert all(text in (getattr(e, "text", "") or str(e)) for e, text in zip(found, want, strict=True))
        reads[name] = None if found is None else statistics.median(took)
    return Figures(appends, **reads)  # type: ignore[arg-type]


def short(x: float) -> str:
    """Returns a number with two digits that say something, or all before the point."""
    return f"{x:,.0f}" if x >= 10 else f"{x:.2g}"


async def compared(framework: Framework, events: int, size: int, rounds: int, postgres: bool) -> str:
    """Returns a row of the table."""
    figures: list[list[Figures]] = [[], []]
    with (on_postgres if postgres else on_files)() as place:
        async with framework.sides(place) as sides:
            for side in sides:
                await measured(side, "first", contents(1, 1, "first"))  # Connections and tables are made.
            for i in range(rounds):
                for k in (0, 1) if i % 2 == 0 else (1, 0):
                    figures[k].append(await measured(sides[k], f"s{i}", contents(events, size, f"{i}")))
                a, b = figures[0][-1], figures[1][-1]
                print(f"{framework.title}, {events} of {size} bytes: {a.appends:.0f} appends a second, Turnstone {b.appends:.0f}", file=sys.stderr)
        theirs, ours = (n / rounds / 1024 for n in place.sizes())
    ratios = [b.appends / a.appends for a, b in zip(*figures, strict=True)]
    writes = f"{short(statistics.median(ratios))} ({short(min(ratios))} to {short(max(ratios))})"

    def milliseconds(of: str) -> str:
        theirs, ours = (statistics.median(getattr(f, of) for f in side) for side in figures)
        return f"{short(ours)} ms, not {short(theirs)}"

    reads = milliseconds("read") + (f"; of the last {LAST} {milliseconds('last')}" if figures[0][0].last is not None else "")
    against = framework.on_postgres if postgres else framework.against
    return f"| {framework.title}: {events:,} of {size:,} bytes | {against} | {writes} | {ours:,.0f} KiB, not {theirs:,.0f} | {reads} |"


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--only", choices=FRAMEWORKS, help="of the frameworks")
    p.add_argument("--events", type=int, help="of a session: one case instead of all")
    p.add_argument("--bytes", type=int, help="of an event: one case instead of all")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--postgres", action="store_true", help="compare on PostgreSQL: of LangGraph, and of ADK if asyncpg is installed")
    o = p.parse_args()
    assert sqlite3.connect(":memory:").execute("pragma synchronous").fetchone() == (2,)  # FULL, as Python's SQLite is built
    print("| | against | writes a second | bytes on disk | a read of all |\n|---|---|---|---|---|")
    for name, f in FRAMEWORKS.items():
        if name != (o.only or name) or (o.postgres and not f.on_postgres):
            continue
        if o.postgres and name == "adk" and not find_spec("asyncpg"):
            print("ADK is left out: asyncpg is not installed", file=sys.stderr)
            continue
        cases = [(30, 360), (f.long, 360), (30, 36_000), (LARGE, 36_000)]
        for events, size in [(o.events or 30, o.bytes or 360)] if o.events or o.bytes else cases:
            print(asyncio.run(compared(f, events, size, o.rounds, o.postgres)), flush=True)


if __name__ == "__main__":
    main()
