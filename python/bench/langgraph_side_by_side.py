"""Compares the checkpointer with LangGraph's own on SQLite or PostgreSQL: a list that grows for 200 steps.

python bench/langgraph_side_by_side.py [--postgres] [--writes | --graph] [--bytes N | --transcript FILE] [--threads N] [--differences]

A message has 360 bytes, or N, or is a line of a transcript, which has a JSON document on each. With --threads, so many threads have a list each, at once.
All commit durably: SQLite as its saver sets it up (a write-ahead log, synchronous=FULL), Badger and PostgreSQL with their defaults. On PostgreSQL both have a
database of one server, which this program starts.
"""

import argparse
import json
import operator
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict

import psycopg
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph

import turnstonedb
from turnstonedb import _server as server
from turnstonedb.langgraph import TurnstoneSaver

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import private_postgres
from serving import serving

STEPS = 200
Saver = BaseCheckpointSaver[str]


def made(n: int) -> list[Any]:
    """Returns messages of n bytes."""
    return [{"role": "user", "content": f"message {i} " + str(uuid.uuid4()) * (n // 36)} for i in range(STEPS)]


def of_transcript(path: str) -> list[Any]:
    """Returns the first messages of a file."""
    with open(path, encoding="utf-8") as f:
        found = [json.loads(line) for _, line in zip(range(STEPS), f, strict=False)]
    if len(found) < STEPS:
        sys.exit(f"{path} has {len(found)} lines: want {STEPS}")
    return found


def put(saver: Saver, config: Any, messages: list[Any], writes: bool) -> None:
    """Puts a checkpoint for each message."""
    version: Any = None
    for i in range(STEPS):
        c = empty_checkpoint()
        version = saver.get_next_version(version, None)
        c["channel_values"], c["channel_versions"] = {"messages": messages[: i + 1]}, {"messages": version}
        config = saver.put(config, c, {"step": i, "source": "loop"}, {"messages": version})
        if writes:
            saver.put_writes(config, [("messages", messages[i])], str(uuid.uuid4()))


class State(TypedDict):
    messages: Annotated[list[Any], operator.add]


def invoke(saver: Saver, config: Any, messages: list[Any]) -> None:
    """Runs a graph whose node adds a message until all are there."""
    builder = StateGraph(State)
    builder.add_node("add", lambda state: {"messages": [messages[len(state["messages"])]]})
    builder.add_edge(START, "add")
    builder.add_conditional_edges("add", lambda state: END if len(state["messages"]) == STEPS else "add")
    builder.compile(checkpointer=saver).invoke({"messages": []}, {**config, "recursion_limit": 2 * STEPS})


def run(saver: Saver, name: str, messages: list[Any], o: argparse.Namespace) -> tuple[float, float, float]:
    """Returns steps a second, milliseconds that the latest checkpoint takes to read, and milliseconds of this program's processor that a step takes."""

    def one(i: int) -> None:
        config: Any = {"configurable": {"thread_id": f"{name}/{i}", "checkpoint_ns": ""}}
        if o.graph:
            invoke(saver, config, messages)
        else:
            put(saver, config, messages, o.writes)

    begun, used = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(o.threads) as threads:
        list(threads.map(one, range(o.threads)))
    ended, used = time.perf_counter(), time.process_time() - used
    for _ in range(20):
        t = saver.get_tuple({"configurable": {"thread_id": f"{name}/0", "checkpoint_ns": ""}})
        assert t is not None
        assert t.checkpoint["channel_values"]["messages"] == messages
    steps = o.threads * STEPS
    return steps / (ended - begun), (time.perf_counter() - ended) / 20 * 1000, used / steps * 1000


def least(client: turnstonedb.Client) -> float:
    """Returns milliseconds that a small request takes."""
    session, _ = client.create("least")
    begun = time.perf_counter()
    for _ in range(500):
        session.info()
    return (time.perf_counter() - begun) * 2


def size(d: str) -> int:
    """Returns how many bytes of the disk a directory takes."""
    return sum(os.stat(os.path.join(at, f)).st_blocks * 512 for at, _, names in os.walk(d) for f in names)


@contextmanager
def on_files() -> Iterator[tuple[Saver, TurnstoneSaver, Callable[[], tuple[int, int]]]]:
    """Yields their saver and ours, and what returns how many bytes each has stored when they are not used any more."""
    with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as b:

        def sizes() -> tuple[int, int]:
            db.close()
            time.sleep(3)  # until the server has ended
            subprocess.run([server.command(), "vacuum", "--store", f"{b}/s"], check=True, stdout=subprocess.DEVNULL)
            return size(a), size(b)

        with SqliteSaver.from_conn_string(f"{a}/db") as sqlite, turnstonedb.Client.open(f"{b}/s", idle=1) as db:
            yield sqlite, TurnstoneSaver(db), sizes


@contextmanager
def on_postgres() -> Iterator[tuple[Saver, TurnstoneSaver, Callable[[], tuple[int, int]]]]:
    """Does the same on PostgreSQL."""
    with private_postgres.running(durable=True) as d, tempfile.TemporaryDirectory() as b:
        admin = psycopg.connect(f"postgres://test@/postgres?host={d}", autocommit=True)
        for name in ("theirs", "ours", "empty"):
            admin.execute(f"create database {name}")
        url = f"postgres://test@/ours?host={d}"

        def sizes() -> tuple[int, int]:
            db.vacuum()
            db.close()
            found = {}
            for name in ("theirs", "ours", "empty"):
                with psycopg.connect(f"postgres://test@/{name}?host={d}", autocommit=True) as c:
                    c.execute("vacuum full")
                    found[name] = c.execute(f"select pg_database_size('{name}')").fetchone()[0]
            return found["theirs"] - found["empty"], found["ours"] - found["empty"]

        with serving(url, f"unix:{b}/s"), PostgresSaver.from_conn_string(f"postgres://test@/theirs?host={d}") as theirs:
            theirs.setup()
            with turnstonedb.Client(f"unix:{b}/s") as db:
                yield theirs, TurnstoneSaver(db), sizes


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--postgres", action="store_true")
    p.add_argument("--writes", action="store_true", help="store a pending write with each checkpoint")
    p.add_argument("--graph", action="store_true", help="let a graph put them, with its pending writes, and count its steps")
    p.add_argument("--bytes", type=int, default=360, help="of a message")
    p.add_argument("--threads", type=int, default=1, help="that put at once, each its own list")
    p.add_argument("--transcript", help="file that has the messages, one on each line")
    p.add_argument("--differences", action="store_true", help="send commits as differences, as over a network")
    o = p.parse_args()
    name = "PostgreSQL" if o.postgres else "SQLite"
    messages = of_transcript(o.transcript) if o.transcript else made(o.bytes)
    print(f"{sum(len(json.dumps(m)) for m in messages) // STEPS} bytes a message")
    counted = "steps" if o.graph else "puts"
    ratios, reads, waits, uses = [], [], [], []
    with (on_postgres if o.postgres else on_files)() as (their_saver, our_saver, sizes):
        client = our_saver._client
        client._differs |= o.differences
        request, sent = client._http.request, [0]

        def counted_request(*args: Any, content: bytes, **kw: Any) -> Any:
            sent[0] += len(content)
            return request(*args, content=content, **kw)

        client._http.request = counted_request  # type: ignore[method-assign]
        for i in range(5):  # one after the other, several times: machines are noisy
            theirs, ours = (run(saver, f"t{i}", messages, o) for saver in (their_saver, our_saver))
            ratios.append(ours[0] / theirs[0])
            reads.append(ours[1] / theirs[1])
            waits.append(1000 / ours[0])
            uses.append(ours[2])
            print(f"{counted} a second: {name} {theirs[0]:.0f}, Turnstone {ours[0]:.0f} ({ratios[-1]:.2f} times); reading: {theirs[1]:.1f} ms, {ours[1]:.1f} ms")
        each = sent[0] // (5 * o.threads * STEPS)
        small = least(client)
        a, b = sizes()
        took = f"{sorted(waits)[2]:.2f} ms, {sorted(uses)[2]:.2f} of this program's processor, and sends {each} bytes"
        print(f"Turnstone: one of the {counted} takes {took}; a small request {small:.2f} ms")
        print(f"median: {sorted(ratios)[2]:.2f} times the {counted} a second, {sorted(reads)[2]:.2f} times the time to read")
        print(f"bytes: {name} {a}, Turnstone {b}: {a / b:.1f} times fewer")


main()
