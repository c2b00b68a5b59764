"""Sessions of Strands Agents."""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from strands.session.file_session_manager import FileSessionManager
from strands.types.exceptions import SessionException
from strands.types.session import Session, SessionAgent, SessionMessage, SessionType

from turnstonedb import Client, NewNode
from turnstonedb.strands import TurnstoneRepository
from turnstonedb.testing import alike

TIME = "2026-11-28T12:00:00+00:00"


class Multi:
    """Is a multi-agent as far as a repository sees one."""

    def __init__(self, id: str, n: int) -> None:
        self.id, self.n = id, n

    def serialize_state(self) -> dict[str, Any]:
        return {"id": self.id, "n": self.n}


def place(r: random.Random) -> tuple[str, str]:
    return r.choice(["s1", "s 2 é%2F"]), r.choice(["a", "b"])


def message(r: random.Random) -> SessionMessage:
    content: Any = [{"text": f"é {r.random()}"}, {"image": {"format": "png", "source": {"bytes": b"\xff\x00"}}}]
    return SessionMessage({"role": r.choice(["user", "assistant"]), "content": content}, r.randrange(6), created_at=TIME, updated_at=str(r.random()))


async def create(s: Any, r: random.Random) -> Any:
    session, agent = place(r)
    if s.read_session(session) is None:
        s.create_session(Session(session, SessionType.AGENT, TIME, TIME))
    s.create_agent(session, SessionAgent(agent, {"n": r.random()}, {}, created_at=TIME, updated_at=TIME))


async def put(s: Any, r: random.Random) -> Any:
    at = place(r)
    if s.read_agent(*at):  # Files take messages of an agent that there is not.
        s.create_message(*at, message(r))


async def update(s: Any, r: random.Random) -> Any:
    at = place(r)
    m = message(r)
    m.created_at = str(r.random())  # That of the first one stays.
    m.redact_message = r.choice([None, {"role": "user", "content": [{"text": "redacted"}]}])
    s.update_message(*at, m)


async def read(s: Any, r: random.Random) -> Any:
    session, agent = place(r)
    return s.read_session(session), s.read_agent(session, agent), s.read_message(session, agent, r.randrange(6))


async def listed(s: Any, r: random.Random) -> Any:
    return s.list_messages(*place(r), limit=r.choice([None, 2]), offset=r.randrange(3))


async def change(s: Any, r: random.Random) -> Any:
    session, agent = place(r)
    s.update_agent(session, SessionAgent(agent, {"n": r.random()}, {"x": [1]}, updated_at=TIME))


async def multi(s: Any, r: random.Random) -> Any:
    session, agent = place(r)
    if s.read_session(session):
        (s.create_multi_agent if r.random() < 0.5 else s.update_multi_agent)(session, Multi(agent, r.randrange(9)))
        return s.read_multi_agent(session, agent)
    return None


async def delete(s: Any, r: random.Random) -> Any:
    s.delete_session(place(r)[0])


@pytest.mark.asyncio
async def test_it_does_what_the_files_of_strands_do(tmp_path: Path) -> None:
    with Client.open(tmp_path / "s", idle=2) as db:
        calls = [create, create, put, put, put, update, read, read, listed, listed, change, multi, delete]
        await alike([TurnstoneRepository(db), FileSessionManager("own", str(tmp_path / "files"))], calls, steps=400)


def test_what_is_redacted_is_gone(tmp_path: Path) -> None:
    with Client.open(tmp_path / "s", idle=2) as db:
        repository = TurnstoneRepository(db)
        repository.create_session(Session("a/b", SessionType.AGENT))
        with pytest.raises(SessionException):
            repository.create_session(Session("a/b", SessionType.AGENT))
        repository.create_agent("a/b", SessionAgent("agent", {}, {}))
        for i, text in enumerate(["hello", "qzsecret", "bye"]):
            repository.create_message("a/b", "agent", SessionMessage({"role": "user", "content": [{"text": text}]}, i))
        m = repository.read_message("a/b", "agent", 1)
        assert m
        m.message = m.redact_message = {"role": "user", "content": [{"text": "redacted"}]}
        repository.update_message("a/b", "agent", m)
        stored = db.session("strands/a%2Fb/agent")
        assert not [n for n in stored.load(full=True).nodes if b"qzsecret" in n.payload]
        assert [json.loads(json.dumps(x.to_message()))["content"][0]["text"] for x in repository.list_messages("a/b", "agent")] == ["hello", "redacted", "bye"]
        repository.create_message("a/b", "agent", SessionMessage({"role": "user", "content": [{"text": "more"}]}, 3))
        assert len(repository.list_messages("a/b", "agent", offset=2)) == 2


def test_what_somebody_else_has_stored_is_no_message(tmp_path: Path) -> None:
    with Client.open(tmp_path / "s", idle=2) as db:
        repository = TurnstoneRepository(db)
        repository.create_session(Session("s", SessionType.AGENT))
        repository.create_agent("s", SessionAgent("a", {"text": "\ud800"}, {}))
        agent = repository.read_agent("s", "a")
        assert agent and agent.state == {"text": "\ud800"}
        db.session("strands/s/a").commit([NewNode("note", b"theirs"), NewNode("note", b"theirs", "a key")], expected="any", turn="t")
        for n in (0, 1):
            repository.create_message("s", "a", SessionMessage({"role": "é" * 64, "content": []}, n))  # type: ignore[typeddict-item]
        repository.create_message("s", "a", SessionMessage({"role": "user", "content": []}, 1))  # in place of it
        assert [m.message["role"] for m in repository.list_messages("s", "a")] == ["é" * 64, "user"]


def test_messages_that_threads_replace_at_once_are_one_node_each(tmp_path: Path) -> None:
    with Client.open(tmp_path / "s", idle=2) as db:
        repository = TurnstoneRepository(db)
        repository.create_session(Session("s", SessionType.AGENT))
        repository.create_agent("s", SessionAgent("a", {}, {}))
        with ThreadPoolExecutor(8) as threads:
            for done in [threads.submit(repository.create_message, "s", "a", SessionMessage({"role": "user", "content": []}, i % 2)) for i in range(32)]:
                done.result()
            assert sorted(n.key.partition("~")[0] for n in db.session("strands/s/a").load().nodes) == ["0", "1"]
            for role in ("user", "assistant"):  # Messages of other numbers do not hold each other up.
                for done in [threads.submit(repository.create_message, "s", "a", SessionMessage({"role": role, "content": []}, i)) for i in range(16)]:
                    done.result()
        assert [m.message["role"] for m in repository.list_messages("s", "a")] == ["assistant"] * 16
