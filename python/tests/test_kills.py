"""Hosts of each framework are killed, and their server, and others go on."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import turnstonedb

# Each host reads how many turns there are, and makes more: turn n has two messages. It says which it knows to be stored.
BEGIN = """
import asyncio, sys
from turnstonedb import AsyncClient, Client
place = sys.argv[1]

def acknowledged(n):
    print(n, flush=True)
"""

HOSTS = {
    "claude": """
from turnstonedb.claude_agent import TurnstoneSessionStore

async def main(more):
    async with await AsyncClient.open(place, idle=5) as db:
        store, key = TurnstoneSessionStore(db), {"project_key": "p", "session_id": "s"}
        there = [e["n"] for e in await store.load(key) or []]
        n = len(there) // 2
        while more:
            await store.append(key, [{"type": "user", "uuid": f"u{n}", "n": n}, {"type": "mode", "n": n}])
            acknowledged(n)
            n += 1
        return there
""",
    "adk": """
from google.adk.errors import StaleSessionError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from turnstonedb.adk import TurnstoneSessions

async def main(more):
    async with await AsyncClient.open(place, idle=5) as db:
        service, names = TurnstoneSessions(db), {"app_name": "a", "user_id": "u", "session_id": "s"}
        session = await service.get_session(**names) or await service.create_session(**names)
        there = [int(e.author) for e in session.events for _ in range(2)]
        assert session.state.get("n", -1) == session.state.get("user:n", -1) == len(there) // 2 - 1, session.state
        n = len(there) // 2
        while more:
            await service.append_event(session, Event(author=str(n), invocation_id="i", actions=EventActions(state_delta={"n": n, "user:n": n})))
            acknowledged(n)
            n += 1
        return there
""",
    "strands": """
from strands.types.session import Session, SessionAgent, SessionMessage, SessionType
from turnstonedb.strands import TurnstoneRepository

async def main(more):
    with Client.open(place, idle=5) as db:
        r = TurnstoneRepository(db)
        if r.read_session("s") is None:
            r.create_session(Session("s", SessionType.AGENT))
        if r.read_agent("s", "a") is None:
            r.create_agent("s", SessionAgent("a", {}, {}))
        there = [m.message["n"] for m in r.list_messages("s", "a") for _ in range(2)]
        n = len(there) // 2
        while more:
            r.create_message("s", "a", SessionMessage({"role": "user", "n": n}, n))
            acknowledged(n)
            n += 1
        return there
""",
    "llama_index": """
from llama_index.core.llms import ChatMessage
from turnstonedb.llama_index import TurnstoneChatStore

async def main(more):
    with Client.open(place, idle=5) as db:
        store = TurnstoneChatStore(client=db)
        there = [int(m.content) for m in store.get_messages("k") for _ in range(2)]
        n = len(there) // 2
        while more:
            store.add_message("k", ChatMessage(role="user", content=str(n)))
            acknowledged(n)
            n += 1
        return there
""",
    "agents": """
from turnstonedb.agents import TurnstoneSession

async def main(more):
    async with await AsyncClient.open(place, idle=5) as db:
        session = TurnstoneSession("s", db)
        there = [int(i["content"]) for i in await session.get_items()]
        n = len(there) // 2
        while more:
            await session.add_items([{"role": "user", "content": str(n)}, {"role": "assistant", "content": str(n)}])
            acknowledged(n)
            n += 1
        return there
""",
    "agent_framework": """
from agent_framework import Message
from turnstonedb.agent_framework import TurnstoneHistory

async def main(more):
    async with await AsyncClient.open(place, idle=5) as db:
        history = TurnstoneHistory(db)
        there = [int(m.text) for m in await history.get_messages("s")]
        n = len(there) // 2
        while more:
            await history.save_messages("s", [Message(role="user", contents=[str(n)]), Message(role="assistant", contents=[str(n)])])
            acknowledged(n)
            n += 1
        return there
""",
}


def servers(place: Path) -> list[int]:
    """Returns the processes that serve a store."""
    found = []
    for p in Path("/proc").glob("[0-9]*"):
        try:
            command = (p / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"serve" in command and any(str(place).encode() in c for c in command):
            found.append(int(p.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="processes are found in /proc")
@pytest.mark.parametrize("host", HOSTS)
def test_hosts_and_servers_are_killed_and_nothing_is_lost(host: str, tmp_path: Path) -> None:
    place = tmp_path / "s"
    last, killed = -1, 0
    for round in range(4):
        child = subprocess.Popen([sys.executable, "-c", BEGIN + HOSTS[host] + "\nasyncio.run(main(True))", str(place)], stdout=subprocess.PIPE, text=True)
        assert child.stdout
        goal = last + 6
        for line in child.stdout:
            last = int(line)
            if last >= goal and round % 2:
                for pid in servers(place):
                    os.kill(pid, signal.SIGKILL)  # The host goes on with the next one.
                    killed += 1
                goal += 1000
                end = time.monotonic() + 0.5
            if last >= goal or (goal > 1000 and time.monotonic() > end):
                break
        assert child.poll() is None, "the host ended by itself"
        child.kill()
        for line in child.stdout.read().split():
            last = max(last, int(line))
        child.wait()
    assert killed > 0
    is_whole(host, place, last)


def is_whole(host: str, place: Path, last: int) -> None:
    """Reads all turns in another host: none that was acknowledged is missing, and none is there twice."""
    done = subprocess.run([sys.executable, "-c", BEGIN + HOSTS[host] + "\nprint(asyncio.run(main(False)))", str(place)], capture_output=True, text=True, check=True)
    there = [int(n) for n in done.stdout.strip("[]\n").split(",")]
    assert len(there) >= 2 * (last + 1)
    assert there == [i // 2 for i in range(len(there))]


@pytest.mark.parametrize("host", HOSTS)
def test_prunes_and_erasures_beside_a_host_take_nothing_of_it(host: str, tmp_path: Path) -> None:
    place = tmp_path / "s"
    child = subprocess.Popen([sys.executable, "-c", BEGIN + HOSTS[host] + "\nasyncio.run(main(True))", str(place)], stdout=subprocess.PIPE, text=True)
    assert child.stdout
    last = int(child.stdout.readline())
    acknowledged: list[str] = []
    reading = threading.Thread(target=lambda: acknowledged.extend(child.stdout))
    reading.start()
    with turnstonedb.Client.open(place, idle=5) as db:
        end, rounds = time.monotonic() + 3, 0
        while rounds < 5 or time.monotonic() < end:
            other, _ = db.create(f"other {rounds}")
            other.commit([turnstonedb.NewNode("user", b"secret")], turn="1")
            db.prune(revisions=1, inactive=3600)
            db.erase(other.id)
            db.gc()
            db.vacuum()
            rounds += 1
        assert [i.id for i in db.list().sessions if i.id.startswith("other")] == []
        assert child.poll() is None, "the host ended by itself"
        child.kill()
        reading.join()
        last = max([last, *(int(n) for n in acknowledged if n.endswith("\n"))])
        assert last > 5
        assert db.verify().counts.get("problems", []) == []
    is_whole(host, place, last)
