"""Random programs on Turnstone's saver, on LangGraph's saver in memory and on that of SQLite: all three answer the same."""

import os
import random
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver

import turnstonedb
from turnstonedb.langgraph import TurnstoneSaver

SEQUENCES = 3000 if os.environ.get("TURNSTONE_LONG") else 300
CHANNELS = ["a", "b", "long/%" * 20, "é", "list"]


class Program:
    """A sequence of calls, each of which is made on all savers."""

    def __init__(self, seed: int, db: turnstonedb.Client, sqlite: SqliteSaver) -> None:
        self.r = random.Random(seed)
        self.ours = [TurnstoneSaver(db), TurnstoneSaver(db)]
        self.memory: BaseCheckpointSaver[str] = InMemorySaver()
        self.others: list[BaseCheckpointSaver[Any]] = [self.memory, sqlite]
        self.threads = [f"{seed}", f"{seed}/2"]
        self.made: list[tuple[Any, Any]] = []  # configs, and the checkpoints that were put
        self.ids = iter(range(10**6))

    def saver(self) -> TurnstoneSaver:
        """Returns a saver that remembers what it put, or one that remembers nothing."""
        return self.r.choice([*self.ours, TurnstoneSaver(self.ours[0]._client)])

    def on_all(self, method: str, *args: Any, **kw: Any) -> list[Any]:
        found = [getattr(s, method)(*args, **kw) for s in [self.saver(), *self.others]]
        return [list(f) if method == "list" else f for f in found]

    def same(self, method: str, *args: Any, **kw: Any) -> Any:
        first, *rest = (shown(f) for f in self.on_all(method, *args, **kw))
        for other in rest:
            assert first == other, f"{method}{args}{kw}"
        return first

    def place(self) -> Any:
        return {"configurable": {"thread_id": self.r.choice(self.threads), "checkpoint_ns": self.r.choice(["", "", "sub|1"])}}

    def put(self) -> None:
        """Puts a checkpoint after any other one, or after none: what it changes has new versions."""
        r = self.r
        config, before = r.choice(self.made) if self.made and r.random() < 0.8 else (self.place(), None)
        values = dict(before["channel_values"]) if before else {}
        versions = dict(before["channel_versions"]) if before else {}
        new: dict[str, str] = {}
        for channel in r.sample(CHANNELS, r.randint(0, 3)):
            new[channel] = versions[channel] = self.memory.get_next_version(versions.get(channel), None)  # type: ignore[arg-type]
            if r.random() < 0.2:
                values.pop(channel, None)  # It was consumed.
            elif channel == "list":
                values[channel] = [*values.get(channel, []), r.random()]
            else:
                values[channel] = r.choice([None, 0, "x" * r.choice([1, 5000]), {"k": [1, {"l": None}]}, (1, 2), b"\x00\n\xff"])
        self.store(config, values, versions, new, "loop")

    def copy(self) -> None:
        """Puts a copy of a checkpoint beside it, or after it, as update_state does."""
        if self.made:
            config, before = self.r.choice(self.made)
            if self.r.random() < 0.5:
                got = self.memory.get_tuple(config)
                config = got.parent_config or {"configurable": {k: v for k, v in config["configurable"].items() if k != "checkpoint_id"}}  # type: ignore[union-attr]
            self.store(config, dict(before["channel_values"]), dict(before["channel_versions"]), {}, "fork")

    def store(self, config: Any, values: Any, versions: Any, new: Any, source: str) -> None:
        cid = f"{next(self.ids):06}" if self.r.random() < 0.9 else f"{self.r.randint(0, 10**6):06}-"  # Some are older than what is there.
        checkpoint = {"v": 2, "id": cid, "ts": "t", "channel_values": values, "channel_versions": versions, "versions_seen": {}, "updated_channels": None}
        metadata = {"source": source, "step": self.r.randint(0, 3), "run_id": str(self.r.randint(0, 2)), "tags": {"x": self.r.randint(0, 1)}}
        config = self.same("put", config, checkpoint, metadata, new)
        self.made.append((config, checkpoint))

    def put_writes(self) -> None:
        if self.made:
            r = self.r
            # LangGraph does not mix them, and its savers differ on what comes of it.
            channels = r.choices(r.choice([CHANNELS, ["__error__", "__interrupt__", "__resume__"]]), k=r.randint(1, 3))
            writes = [(c, r.choice([1, "y" * r.choice([1, 70_000])])) for c in dict.fromkeys(channels)]
            self.same("put_writes", r.choice(self.made)[0], writes, f"task{r.randint(0, 2)}", r.choice(["", "~p"]))

    def read(self) -> None:
        r = self.r
        for config in ([r.choice(self.made)[0]] if self.made else []) + [self.place()]:
            self.same("get_tuple", config)
            # Namespaces are listed one by one: the order of checkpoints of several is that of rows elsewhere.
            place = {"configurable": {k: config["configurable"][k] for k in ("thread_id", "checkpoint_ns")}}
            filter = r.choice([None, {"source": "fork"}, {"step": 1, "source": "loop"}, {"run_id": "9"}])
            before = r.choice(self.made)[0] if self.made and r.random() < 0.3 else None
            self.same("list", place, filter=filter, before=before, limit=r.choice([None, None, 1, 2]))

    def delete(self) -> None:
        thread = self.r.choice(self.threads)
        self.same("delete_thread", thread)
        self.made = [m for m in self.made if m[0]["configurable"]["thread_id"] != thread]
        for saver in self.ours:  # What goes on from what was deleted is refused, which theirs do not do.
            saver._births.clear()

    def run(self) -> None:
        steps = [self.put] * 5 + [self.copy] * 2 + [self.put_writes] * 2 + [self.read] * 3
        for _ in range(10):
            self.r.choice(steps)()
        if self.r.random() < 0.2:
            self.delete()
            for _ in range(4):
                self.r.choice(steps)()
        for config, _ in self.made:
            self.same("get_tuple", config)


def shown(found: Any) -> Any:
    """Returns an answer without what each saver has in its own order: pending writes, by their tasks."""
    if isinstance(found, list):
        return [shown(f) for f in found]
    if isinstance(found, CheckpointTuple):
        config, parent = (
            {k: c["configurable"].get(k) for k in ("thread_id", "checkpoint_ns", "checkpoint_id")} if c else None for c in (found.config, found.parent_config)
        )
        return config, parent, found.checkpoint, dict(found.metadata), sorted(found.pending_writes or [], key=repr)
    return found


@pytest.mark.parametrize("part", range(3))
def test_random_programs_are_answered_as_by_the_savers_of_langgraph(part: int, db: turnstonedb.Client) -> None:
    with SqliteSaver.from_conn_string(":memory:") as sqlite:
        for seed in range(part, SEQUENCES, 3):
            try:
                Program(seed, db, sqlite).run()
            except BaseException:
                print("seed", seed)
                raise
