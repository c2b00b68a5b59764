"""The chat store for LlamaIndex."""

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.storage.chat_store import SimpleChatStore

import turnstonedb
from turnstonedb import Client
from turnstonedb.llama_index import TurnstoneChatStore
from turnstonedb.testing import alike


def key(r: random.Random) -> str:
    return r.choice(["a", "b/c%2F", "é" * 300])


def message(r: random.Random) -> ChatMessage:
    return ChatMessage(role=r.choice(["user", "assistant", "tool"]), content=f"é {r.random()}", additional_kwargs={"n": r.randrange(9)})


async def put(s: Any, r: random.Random) -> Any:
    s.set_messages(key(r), [message(r) for _ in range(r.randrange(4))])


async def add(s: Any, r: random.Random) -> Any:
    await s.async_add_message(key(r), message(r))


async def get(s: Any, r: random.Random) -> Any:
    return s.get_messages(key(r)), sorted(s.get_keys()), await s.aget_messages(key(r))


async def delete(s: Any, r: random.Random) -> Any:
    return s.delete_messages(key(r))


async def delete_one(s: Any, r: random.Random) -> Any:
    k = key(r)
    if not s.get_messages(k):
        return None  # There, the framework's own fails.
    return s.delete_message(k, r.randrange(3)) if r.random() < 0.5 else s.delete_last_message(k)


@pytest.mark.asyncio
async def test_it_does_what_the_simple_store_does(tmp_path: Path) -> None:
    with Client.open(tmp_path / "s", idle=2) as db:
        await alike([TurnstoneChatStore(db), SimpleChatStore()], [put, add, add, add, get, get, delete, delete_one, delete_one], steps=300)


def test_a_memory_goes_on_in_another_process_and_what_is_deleted_is_gone(tmp_path: Path) -> None:
    with Client.open(tmp_path / "s", idle=2) as db:
        memory = ChatMemoryBuffer.from_defaults(chat_store=TurnstoneChatStore(client=db), chat_store_key="user-1")
        memory.put_messages([ChatMessage(role="user", content=t) for t in ("hello", "qzsecret", "bye")])
    with Client.open(tmp_path / "s", idle=2) as db:
        store = TurnstoneChatStore(client=db)
        memory = ChatMemoryBuffer.from_defaults(chat_store=store, chat_store_key="user-1")
        assert [m.content for m in memory.get_all()] == ["hello", "qzsecret", "bye"]
        deleted = store.delete_message("user-1", 1)
        assert deleted
        assert deleted.content == "qzsecret"
        assert not [n for n in db.session("llama-index/user-1").load(full=True).nodes if b"qzsecret" in n.payload]

        async def many() -> None:
            await asyncio.gather(*(store.async_add_message("user-1", ChatMessage(role="user", content=str(i))) for i in range(20)))

        asyncio.run(many())
        assert sorted(str(m.content) for m in store.get_messages("user-1")) == sorted(["hello", "bye", *map(str, range(20))])
        db.create("other", group="llama-index", custom={"key": "theirs"})
        assert store.get_keys() == ["user-1"]
        with ThreadPoolExecutor(8) as threads:  # Each message is returned to one of those who delete it.
            popped = list(threads.map(store.delete_last_message, ["user-1"] * 22))
        assert len({m.content for m in popped if m}) == 22
        with ThreadPoolExecutor(8) as threads:  # So is each message of a key that is deleted while others add to it.
            taken = []
            for i in range(120):
                threads.submit(store.add_message, "user-1", ChatMessage(role="user", content=str(i)))
                if i % 3 == 0:
                    taken.append(threads.submit(store.delete_messages, "user-1"))
        had = [m.content for t in taken for m in t.result() or ()]
        with suppress(turnstonedb.NotFoundError):
            state = db.session("llama-index/user-1").load(full=True)
            assert len(state.nodes) == len(store.get_messages("user-1"))
        assert sorted(had + [m.content for m in store.get_messages("user-1")], key=str) == sorted(map(str, range(120)))
