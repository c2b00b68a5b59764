"""Histories and workflow checkpoints of Microsoft's Agent Framework."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from agent_framework import (
    Executor,
    FileCheckpointStorage,
    FileHistoryProvider,
    InMemoryHistoryProvider,
    Message,
    WorkflowBuilder,
    WorkflowCheckpoint,
    WorkflowCheckpointException,
    WorkflowContext,
    handler,
)

from turnstonedb import AsyncClient
from turnstonedb.agent_framework import TurnstoneCheckpoints, TurnstoneHistory
from turnstonedb.testing import alike


def checkpoint(r: random.Random) -> WorkflowCheckpoint:
    at = f"2026-11-28T12:00:{r.randrange(60):02}.{r.randrange(10**6):06}+00:00"
    state = {"n": r.random(), "text": "é", "set": {1, 2}, "bytes": b"\xff"}
    return WorkflowCheckpoint(r.choice(["w", "a/b%2F"]), "hash", f"c{r.randrange(12)}", timestamp=at, state=state, iteration_count=r.randrange(5), metadata={"k": None})


async def save(s: Any, r: random.Random) -> Any:
    c = checkpoint(r)
    c.workflow_name = "w" if int(c.checkpoint_id[1:]) % 2 else "a/b%2F"  # A file has one checkpoint of an id.
    return await s.save(c)


async def load(s: Any, r: random.Random) -> Any:
    return await s.load(f"c{r.randrange(12)}")


async def listed(s: Any, r: random.Random) -> Any:
    name = r.choice(["w", "a/b%2F", "none"])
    every = sorted((await s.list_checkpoints(workflow_name=name)), key=lambda c: str(c.checkpoint_id))
    return every, await s.get_latest(workflow_name=name), sorted(await s.list_checkpoint_ids(workflow_name=name))


async def delete(s: Any, r: random.Random) -> Any:
    return await s.delete(f"c{r.randrange(12)}")


@pytest.mark.asyncio
async def test_checkpoints_do_what_files_do(tmp_path: Path) -> None:
    async with await AsyncClient.open(tmp_path / "s", idle=2) as db:
        await alike([TurnstoneCheckpoints(db), FileCheckpointStorage(tmp_path / "files")], [save, save, load, load, listed, listed, delete], steps=250)
        bad = checkpoint(random.Random(1))
        bad.state["x"] = lambda: 1
        with pytest.raises(WorkflowCheckpointException):
            await TurnstoneCheckpoints(db).save(bad)


class Step(Executor):
    @handler
    async def go(self, n: int, ctx: WorkflowContext[int, int]) -> None:
        await ctx.send_message(n + 1) if n < 5 else await ctx.yield_output(n)


def workflow(storage: Any) -> Any:
    a, b = Step(id="a"), Step(id="b")
    return WorkflowBuilder(name="steps", start_executor=a, checkpoint_storage=storage).add_edge(a, b).add_edge(b, a).build()


@pytest.mark.asyncio
async def test_a_workflow_goes_on_from_each_checkpoint(tmp_path: Path) -> None:
    async with await AsyncClient.open(tmp_path / "s", idle=2) as db:
        result = await workflow(TurnstoneCheckpoints(db)).run(0)
        assert result.get_outputs() == [5]
    async with await AsyncClient.open(tmp_path / "s", idle=2) as db:
        storage = TurnstoneCheckpoints(db)
        ids = await storage.list_checkpoint_ids(workflow_name="steps")
        assert len(ids) > 3
        for id in ids[:-1]:
            again = await workflow(storage).run(checkpoint_id=id)
            assert again.get_outputs() == [5]


@pytest.mark.asyncio
async def test_histories_are_whole_and_apart(tmp_path: Path) -> None:
    async with await AsyncClient.open(tmp_path / "s", idle=2) as db:
        ours, other, theirs = TurnstoneHistory(db), TurnstoneHistory(db, "other"), InMemoryHistoryProvider()
        state: dict[str, Any] = {}
        said = [Message(role="user", contents=["Where to? é"]), Message(role="assistant", contents=["Kyoto."])]
        for id in ("s1", "a/b"):
            await ours.save_messages(id, said)
            await ours.save_messages(id, [])
        await theirs.save_messages("s1", said, state=state)
        read = [[m.to_dict() for m in await p.get_messages("s1", state=state)] for p in (ours, theirs)]
        assert read[0] == read[1]
        assert await other.get_messages("s1") == []
        assert await ours.get_messages(None) == []
        await asyncio.gather(*(ours.save_messages(None, [Message(role="user", contents=[f"{i} a"]), Message(role="user", contents=[f"{i} b"])]) for i in range(10)))
        texts = [m.text for m in await ours.get_messages(None)]
        assert len(texts) == 20
        assert all(texts[i].split()[0] == texts[i + 1].split()[0] for i in range(0, 20, 2))  # Each call is whole.


@pytest.mark.asyncio
async def test_messages_that_are_given_again_are_stored_as_files_store_them(tmp_path: Path) -> None:
    r = random.Random(49)
    words = [Message(role=role, contents=[text]) for role in ("user", "assistant") for text in ("hi", "more")]
    async with await AsyncClient.open(tmp_path / "s", idle=2) as db:
        ours, theirs = TurnstoneHistory(db), FileHistoryProvider(tmp_path / "files")
        said = list[Message]()
        for _ in range(40):
            fresh = r.choices(words, k=r.randrange(3))
            given = [*(said if r.random() < 0.5 else said[-2:] if r.random() < 0.5 else ()), *fresh]
            for p in (ours, theirs):
                await p.save_messages("s", given)
            read = [[m.to_dict() for m in await p.get_messages("s")] for p in (ours, theirs)]
            assert read[0] == read[1]
            said = await ours.get_messages("s")
        assert len(said) > 10
        await db.delete("agent-framework/turnstone/s")
        for text in ("one", "two"):  # A session that was deleted begins anew.
            await ours.save_messages("s", [Message(role="user", contents=[text])])
        assert [m.text for m in await ours.get_messages("s")] == ["one", "two"]


@pytest.mark.asyncio
async def test_checkpoints_that_hosts_save_at_once_are_found_until_they_are_pruned(tmp_path: Path) -> None:
    def at(id: str, time: str, n: int) -> WorkflowCheckpoint:
        return WorkflowCheckpoint("w", "hash", id, timestamp=f"2026-11-28T{time}", state={"n": n})

    async with await AsyncClient.open(tmp_path / "s", idle=2) as db:
        hosts = [TurnstoneCheckpoints(db), TurnstoneCheckpoints(db)]
        made = [at("é" * 300 + str(i), f"12:00:{i:02}+00:00", i) for i in range(16)]
        await asyncio.gather(*(hosts[i % 2].save(c) for i, c in enumerate(made)))
        assert [await hosts[0].load(c.checkpoint_id) for c in made] == made
        await hosts[0].save(at("west", "11:00:00-08:00", 1))
        await hosts[0].save(at("end", "13:00:00+00:00", 2))
        latest = await hosts[1].get_latest(workflow_name="w")
        assert latest and latest.checkpoint_id == "west"
        await db.prune(revisions=1)
        assert await hosts[0].list_checkpoint_ids(workflow_name="w") == ["end"]
        latest = await hosts[1].get_latest(workflow_name="w")
        assert latest and latest.checkpoint_id == "end"
        with pytest.raises(WorkflowCheckpointException):
            await hosts[0].load("west")
        history = TurnstoneHistory(db)
        for id in ("é" * 300, "é" * 301):
            await history.save_messages(id, [Message(role="user", contents=[id])])
        assert [m.text for m in await history.get_messages("é" * 300)] == ["é" * 300]
