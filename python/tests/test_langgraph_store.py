import asyncio
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.store.base import BaseStore, GetOp, InvalidNamespaceError, Item, ListNamespacesOp, MatchCondition, Op, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore

import turnstonedb
from turnstonedb import RecordChange, langgraph_store
from turnstonedb import _server as server
from turnstonedb.langgraph_store import AsyncTurnstoneStore, TurnstoneStore

LABELS = ["a", "b", "c/d", "#e", "é" * 40, "long " * 20]
KEYS = ["1", "2", "", "/", "3/4", "%2F", "ü" * 300]
WORDS = ["x", "y", "z"]


@pytest.fixture
def memory(db: turnstonedb.Client) -> Iterator[TurnstoneStore]:
    yield TurnstoneStore(db)


def some_op(r: random.Random) -> Op:
    """Returns any operation."""
    namespace = tuple(r.choices(LABELS, k=r.randint(1, 3)))
    condition = r.choice(["prefix", "suffix"])
    some: list[Any] = [
        {"n": {"$gte": r.randint(0, 9)}},
        {"w": r.choice(WORDS)},
        {"w": {"$ne": "x"}},
        {"d": {"l": [1, {"$lt": 5}]}},
        {"price": {"$gt": "9"}},
        {"price": {"$lte": 10}},
        None,
        None,
    ]
    match r.randint(0, 9):
        case 0 | 1 | 2 | 3:
            value: dict[str, Any] = {
                "n": r.randint(0, 9),
                "w": r.choice(WORDS),
                "price": str(r.randint(5, 15)),
                "d": {"l": [1, r.randint(0, 9)]},
                "text": "é" * r.choice([0, 10, 70_000]),
            }
            return PutOp(namespace, r.choice(KEYS), value)
        case 4:
            return PutOp(namespace, r.choice(KEYS), None)
        case 5 | 6:
            return GetOp(namespace, r.choice(KEYS))
        case 7 | 8:
            return SearchOp(namespace[: r.randint(0, 2)], r.choice(some), limit=1000)
        case _:
            path = tuple(r.choice([label, "*"]) for label in namespace)
            conditions = r.choice([None, (MatchCondition(condition, path[:2]),)])
            return ListNamespacesOp(conditions, r.choice([None, 1, 2]), limit=1000)


def shown(result: Any) -> Any:
    """Returns a result without times and without the order of what is found."""
    if isinstance(result, Item):
        return [result.namespace, result.key, result.value]
    if isinstance(result, list):
        return sorted(map(shown, result), key=repr) if result and isinstance(result[0], Item) else result
    return result


@pytest.mark.parametrize("seed", range(3))
def test_a_store_answers_what_langgraphs_store_in_memory_does(seed: int, memory: TurnstoneStore) -> None:
    r, theirs, live = random.Random(seed), InMemoryStore(), set()
    for i in range(80):
        ops = [some_op(r) for _ in range(r.choice([1, 1, 1, 5]))]
        want, got = theirs.batch(ops), memory.batch(ops)
        live = {(n, k) for n, items in theirs._data.items() for k in items}
        for op, w, g in zip(ops, want, got, strict=True):
            if not isinstance(op, ListNamespacesOp):  # Theirs lists namespaces from which all was deleted.
                assert shown(g) == shown(w), f"step {i}: {op}"
    assert {(x.namespace, x.key) for x in memory.search((), limit=1000)} == live
    assert len(live) > 10
    for op in [some_op(r) for _ in range(300)]:
        if isinstance(op, ListNamespacesOp):
            only = InMemoryStore()
            only.batch([PutOp(n, k, {}) for n, k in live])
            assert memory.batch([op]) == only.batch([op]), op


def test_what_is_found_comes_newest_first_in_pages(memory: TurnstoneStore) -> None:
    for i in range(5):
        memory.put(("a", "b"), str(i), {"i": i})
    memory.put(("a", "b"), "1", {"i": 1})
    memory.put(("ab",), "other", {})
    assert [x.key for x in memory.search(("a",))] == ["1", "4", "3", "2", "0"]
    assert [x.key for x in memory.search(("a",), limit=2, offset=1)] == ["4", "3"]
    assert [x.key for x in memory.search(("a",), filter={"i": {"$gt": 0}}, limit=2, offset=2)] == ["3", "2"]
    assert memory.search(("a",), limit=0) == []
    assert memory.list_namespaces(limit=1, offset=1) == [("ab",)]


def test_an_item_keeps_the_time_of_its_creation(memory: TurnstoneStore) -> None:
    memory.put(("a",), "k", {"v": 1})
    first = memory.get(("a",), "k")
    memory.put(("a",), "k", {"v": 2})
    second = memory.get(("a",), "k")
    assert first
    assert second
    assert first.created_at == first.updated_at == second.created_at < second.updated_at
    assert abs(second.updated_at - datetime.now(timezone.utc)) < timedelta(minutes=1)


def test_a_large_item_is_stored_and_leaves_nothing_behind(memory: TurnstoneStore, db: turnstonedb.Client) -> None:
    for size in (61_000, 300_000, 5_000_000, 100):
        memory.put(("a",), "k", {"text": "ü" + "x" * size})
        found = memory.get(("a",), "k")
        assert found
        assert found.value == {"text": "ü" + "x" * size}
        assert memory.search(("a",), filter={"text": {"$ne": ""}})[0].value == found.value
    assert [r.key for r in db.session("langgraph-store").records().records] == ["i/a//k"]
    memory.put(("a",), "k", {"text": "x" * 100_000})
    for twice in memory.batch([GetOp(("a",), "k"), GetOp(("a",), "k")]):
        assert isinstance(twice, Item)
        assert len(twice.value["text"]) == 100_000
    memory.delete(("a",), "k")
    assert db.session("langgraph-store").records().records == ()
    memory.delete(("a",), "k")


def test_a_store_that_is_only_read_makes_no_session(memory: TurnstoneStore, db: turnstonedb.Client) -> None:
    assert memory.get(("a",), "k") is None
    assert memory.search(("a",)) == []
    assert memory.list_namespaces() == []
    memory.delete(("a",), "k")
    assert db.list().sessions == ()


@pytest.mark.parametrize(
    ("op", "error", "text"),
    [
        (PutOp(("a", ""), "k", {}), InvalidNamespaceError, "not empty"),
        (PutOp(("a.b",), "k", {}), InvalidNamespaceError, "no period"),
        (ListNamespacesOp((MatchCondition("suffix", ("a.b",)),)), InvalidNamespaceError, "no period"),
        (PutOp(tuple("abcdefgh" * 20), "k", {}), InvalidNamespaceError, "at most 250"),
        (PutOp(("a",), "k", {"f": float("nan")}), ValueError, "JSON"),
        (PutOp(("a",), "k", {"f": object()}), TypeError, "JSON"),
        (PutOp(("a",), "k", {"f": "\ud800"}), UnicodeEncodeError, "surrogates"),
        (PutOp(("a",), "k", {"f": "x" * 7_000_000}), ValueError, "at most"),
        (PutOp(("a",), "k" * 70_000, {}), ValueError, "at most"),
        (PutOp(("a" * 70_000,), "k", {}), ValueError, "at most"),
        (PutOp(("a",), "k", {"l": [{"1": 2, 1: 3}]}), TypeError, "want text"),
        (PutOp(("a",), "k", {}, ttl=1), NotImplementedError, "time to live"),
        (SearchOp(("a",), {"n": {"$in": [1]}}), ValueError, r"\$in"),
    ],
)
def test_what_can_not_be_stored_is_refused_with_all_of_its_batch(op: Op, error: type[Exception], text: str, memory: TurnstoneStore) -> None:
    memory.put(("a",), "there", {"n": 1})
    with pytest.raises(error, match=text):
        memory.batch([*(PutOp(("a",), str(i), {}) for i in range(250)), op])
    assert [x.key for x in memory.search(())] == ["there"]


def test_of_puts_at_once_none_is_mixed_with_another(memory: TurnstoneStore, store: str) -> None:
    """Threads put and delete two items together, small and large; readers see none without the rest of it."""
    wrong: list[Any] = []
    stop = threading.Event()

    def write(i: int) -> None:
        for n in range(12):
            value = {"by": i, "text": str(i) * (n % 3 * 50_000 + 1)}
            memory.batch([PutOp(("a",), "k", None if n % 5 == 4 else value), PutOp(("a",), "l", value)])

    def read() -> None:
        while not stop.is_set():
            try:
                found = memory.search(("a",))
                for x in [memory.get(("a",), "k"), *found]:
                    assert not x or set(x.value["text"]) == {str(x.value["by"])}
                assert "l" in [x.key for x in found]  # It is never deleted.
            except Exception as e:
                wrong.append(e)

    memory.put(("a",), "l", {"by": 0, "text": "0"})
    writers, reader = [threading.Thread(target=write, args=(i,)) for i in range(4)], threading.Thread(target=read)
    for t in [*writers, reader]:
        t.start()
    for t in writers:
        t.join()
    stop.set()
    reader.join()
    assert wrong == []
    memory.delete(("a",), "k")
    memory.put(("a",), "l", {"by": 0})
    assert [r.key for r in memory._client.session("langgraph-store").records().records] == ["i/a//l"]


@pytest.mark.parametrize("value", [{"mine": 1}, None])
def test_a_put_is_made_again_when_somebody_else_has_changed_the_item(value: Any, memory: TurnstoneStore, db: turnstonedb.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.put(("a",), "k", {"text": "x" * 100_000})
    changes, others = langgraph_store._changes, [None, 100, 1]

    def beside(*args: Any) -> list[RecordChange]:
        made = changes(*args)
        if others:
            monkeypatch.setattr(langgraph_store, "_changes", changes)
            size = others.pop()
            TurnstoneStore(db).batch([PutOp(("a",), "k", {"other": "y" * 1000 * size} if size else None)])
            monkeypatch.setattr(langgraph_store, "_changes", beside)
        return made

    monkeypatch.setattr(langgraph_store, "_changes", beside)
    memory.batch([PutOp(("a",), "k", value)])
    assert others == []
    found = memory.get(("a",), "k")
    assert (found and found.value) == value
    assert len(db.session("langgraph-store").records().records) == (1 if value else 0)


def test_items_of_all_names_are_apart(memory: TurnstoneStore) -> None:
    long = "k" * 300
    names = [*((n, "k") for n in [("a", "b"), ("a/b",), ("a%2Fb",), ("a",), ("a", "b", "k")]), *((("a",), k) for k in ["", "/k", "b/k", "\0", "%00", long, long + "k"])]
    names.append((("a",), langgraph_store.short(long, 200)))
    names.append((("a", langgraph_store.short(long, 60)), "k"))
    names.append((("a", long), "k"))
    for i, (namespace, key) in enumerate(names):
        memory.put(namespace, key, {"i": i})
    for i, (namespace, key) in enumerate(names):
        found = memory.get(namespace, key)
        assert found
        assert (found.value["i"], found.namespace, found.key) == (i, namespace, key)
    assert len(memory.search((), limit=100)) == len(names)


def test_a_filter_compares_lists_maps_numbers_and_text(memory: TurnstoneStore) -> None:
    memory.put(("a",), "k", {"l": [1, 2], "m": {"x": 1, "y": 2}, "n": 5, "t": "m", "none": None, "big": 2**53 + 1})
    for want in [
        {"l": [1, 2]},
        {"m": {"x": 1}},
        {"n": {"$gt": 4, "$lte": 5}},
        {"n": 5.0},
        {"t": {"$lt": "n", "$gte": "m"}},
        {"none": None},
        {"absent": None},
        {"l": [{"$gte": 1}, 2]},
        {"l": {"$eq": (1, 2)}},
        {"big": {"$gt": 2**53}},
        {"n": {"$lt": 10**400}},
        {"m.x": 1, "m.y": {"$gt": 1}},
    ]:
        assert memory.search(("a",), filter=want), want
    for want in [
        {"l": [1]},
        {"l": [1, 2, 3]},
        {"l": 1},
        {"m": {"z": 1}},
        {"m.z": 1},
        {"t.x": "m"},
        {"n": {"$lt": 5}},
        {"n": {"$gt": 5}},
        {"t": {"$gt": "m"}},
        {"absent": {"$lt": 1}},
        {"none": {"$ne": None}},
        {"n": {"x": 1}},
    ]:
        assert not memory.search(("a",), filter=want), want


def test_a_batch_beside_a_busy_item_is_stored(memory: TurnstoneStore, store: str) -> None:
    """The item that others change again and again does not hold up the rest."""
    stop = threading.Event()

    def busy() -> None:
        with turnstonedb.Client.open(store, idle=2) as c:
            other, n = TurnstoneStore(c), 0
            while not stop.is_set():
                n += 1
                other.put(("h",), "0", {"n": n})

    t = threading.Thread(target=busy)
    t.start()
    try:
        for _ in range(5):
            memory.batch([PutOp(("h",), str(i), {"mine": i}) for i in range(200)])
    finally:
        stop.set()
        t.join()
    assert len(memory.search(("h",), limit=1000)) == 200


def test_an_item_whose_records_are_lost_is_damaged(memory: TurnstoneStore, db: turnstonedb.Client) -> None:
    memory.put(("a",), "k", {"text": "x" * 200_000})
    s = db.session("langgraph-store")
    s.change_records(RecordChange.delete(s.records("r/").records[1].key))
    for read in (lambda: memory.get(("a",), "k"), lambda: memory.search(())):
        with pytest.raises(turnstonedb.Error, match="damaged"):
            read()
    memory.put(("a",), "k", {"text": ""})
    assert [r.key for r in s.records().records] == ["i/a//k"]


def test_nothing_prunes_what_is_remembered(memory: TurnstoneStore, db: turnstonedb.Client, store: str) -> None:
    memory.put(("a",), "k", {})
    db.create("another")
    time.sleep(1.1)
    done = subprocess.run([server.command(), "prune", "--store", store, "--inactive", "1s", "--yes"], check=True, capture_output=True, text=True)
    assert "another" in done.stdout
    assert memory.get(("a",), "k")


def test_a_batch_of_any_length_is_stored(memory: TurnstoneStore) -> None:
    memory.batch([PutOp(("a",), str(i), {"i": i}) for i in range(450)])
    assert sorted(x.value["i"] for x in memory.search(("a",), limit=1000)) == list(range(450))
    memory.batch([PutOp(("a",), str(i), None) for i in range(450)])
    assert memory.search(("a",)) == []


def test_stores_of_different_sessions_are_apart(db: turnstonedb.Client) -> None:
    a, b = TurnstoneStore(db, session="a"), TurnstoneStore(db, session="b")
    a.put(("n",), "k", {"of": "a"})
    assert b.get(("n",), "k") is None
    found = TurnstoneStore(db, session="a").get(("n",), "k")
    assert found
    assert found.value == {"of": "a"}


class Said(TypedDict):
    said: str


def test_a_graph_remembers_across_threads_and_processes(store: str) -> None:
    def node(state: Said, *, store: BaseStore) -> Said:
        before = store.search(("users", "ann"))
        store.put(("users", "ann"), "said", {"text": state["said"]})
        return {"said": before[0].value["text"] if before else "nothing"}

    async def anode(state: Said, *, store: BaseStore) -> Said:
        before = await store.aget(("users", "ann"), "said")
        await store.aput(("users", "ann"), "said", {"text": state["said"]})
        return {"said": before.value["text"] if before else "nothing"}

    def graph(f: Any, s: BaseStore) -> Any:
        return StateGraph(Said).add_node("n", f).add_edge(START, "n").add_edge("n", END).compile(store=s)

    async def awaited() -> list[Any]:
        async with await turnstonedb.AsyncClient.open(store, idle=2) as c:
            s = AsyncTurnstoneStore(c)
            with pytest.raises(asyncio.InvalidStateError):
                s.get(("a",), "k")
            return [(await graph(anode, s).ainvoke({"said": x}))["said"] for x in ("three", "four")]

    with turnstonedb.Client.open(store, idle=2) as c:
        g = graph(node, TurnstoneStore(c))
        assert [g.invoke({"said": x})["said"] for x in ("one", "two")] == ["nothing", "one"]
        assert asyncio.run(awaited()) == ["two", "three"]
        assert asyncio.run(graph(anode, TurnstoneStore(c)).ainvoke({"said": "five"}))["said"] == "four"


def nearness(texts: list[str]) -> list[list[float]]:
    """Returns vectors that count letters."""
    return [[float(t.count(c)) for c in "abcd"] for t in texts]


INDEX: Any = {"dims": 4, "embed": nearness, "fields": ["text", "tags[*].name"]}


def test_a_query_finds_the_nearest_first(db: turnstonedb.Client) -> None:
    """The order is that of LangGraph's store in memory, over small and large items, those that are not embedded, and others' dimensions."""
    theirs, ours = InMemoryStore(index=INDEX), TurnstoneStore(db, index=INDEX)
    r = random.Random(4)
    ops: list[Op] = []
    for i in range(60):
        text = "".join(r.choices("abcdx", k=r.randint(0, 30)))
        value = {"text": text, "n": i % 3, "tags": [{"name": "".join(r.choices("abcd", k=5))} for _ in range(r.randint(0, 2))], "rest": "é" * r.choice([0, 40_000])}
        ops.append(PutOp((r.choice("uv"),), str(i), value, r.choice([None, None, None, False, ["rest"]])))
    for s in (theirs, ours):
        for op in ops:
            s.batch([op])
    for query in ("a", "abcd", "ddddb"):
        for prefix in ((), ("u",)):
            for filter in (None, {"n": 1}):
                want, got = (s.search(prefix, query=query, filter=filter, limit=100) for s in (theirs, ours))
                assert [x.score for x in got if x.score is not None] == pytest.approx([x.score for x in want if x.score is not None], abs=1e-6)
                assert {x.key for x in got} == {x.key for x in want}
                assert [x.key for x in got if x.score is None] == sorted((x.key for x in want if x.score is None), key=int, reverse=True)
                assert [x.key for x in ours.search(prefix, query=query, filter=filter, limit=7, offset=3)] == [x.key for x in got[3:10]]
    ours.put(("x",), "whole", {"b": "b"}, index=["$"])
    assert [x.score for x in ours.search(("x",), query="b")] == [pytest.approx(1)]
    for dims in (3, 8):
        other = TurnstoneStore(db, index={"dims": dims, "embed": lambda texts, dims=dims: [(v + v)[:dims] for v in nearness(texts)]})
        other.put(("w",), "3", {"text": "a"})
        assert [x.score for x in ours.search(("w",), query="a")] == [None]
    assert TurnstoneStore(db).get(("w",), "3").value == {"text": "a"}  # type: ignore[union-attr]


def test_a_query_without_an_index_is_refused_and_so_are_vectors_of_other_dimensions(memory: TurnstoneStore, db: turnstonedb.Client) -> None:
    memory.put(("a",), "k", {"text": "a"}, index=["text"])
    with pytest.raises(ValueError, match="index="):
        memory.search(("a",), query="a")
    for embed, text in (
        (lambda texts: [[1.0]] * len(texts), "of 1 dimensions"),
        (lambda _: [[1.0] * 4], "1 vectors for 2 texts"),
        (lambda texts: [[float("nan")] * 4] * len(texts), "finite"),
        (lambda texts: [[1e39] * 4] * len(texts), "finite"),
    ):
        s = TurnstoneStore(db, index={"dims": 4, "embed": embed})
        with pytest.raises(ValueError, match=text):
            s.batch([PutOp(("a",), "k", {"n": 1}), PutOp(("a",), "l", {"n": 2})])
        assert s.get(("a",), "l") is None


def test_a_store_serves_several_event_loops(store: str) -> None:
    """Also one that was made where no loop runs, and while the embedding of another item takes its time."""
    with turnstonedb.Client.open(store, idle=2) as sync:
        c = turnstonedb.AsyncClient(f"unix:{sync._o.socket}")
        s = AsyncTurnstoneStore(c)

        async def put(i: int) -> None:
            await asyncio.gather(*(s.aput(("a",), f"{i}/{j}", {"i": i}) for j in range(10)))

        for i in range(3):
            asyncio.run(put(i))

        async def stalled(texts: list[str]) -> list[list[float]]:
            await asyncio.sleep(60 if "stall" in texts[0] else 0)
            return nearness(texts)

        async def beside() -> int:
            indexed = AsyncTurnstoneStore(c, index={"dims": 4, "embed": stalled})
            stuck = asyncio.create_task(indexed.aput(("b",), "stuck", {"text": "stall"}))
            await asyncio.sleep(0.01)
            await asyncio.wait_for(indexed.aput(("b",), "k", {"text": "a"}), 30)
            stuck.cancel()
            return len(await indexed.asearch((), limit=100))

        assert asyncio.run(beside()) == 31


def test_what_tasks_put_at_once_is_stored_together(store: str) -> None:
    async def run() -> None:
        async def embed(texts: list[str]) -> list[list[float]]:
            return nearness(texts)

        async with await turnstonedb.AsyncClient.open(store, idle=2) as c:
            s = AsyncTurnstoneStore(c, index={"dims": 4, "embed": embed})
            batches = 0
            made = s._put

            def counted(contents: Any) -> Any:
                nonlocal batches
                batches += 1
                return made(contents)

            s._put = counted  # type: ignore[method-assign]
            await asyncio.gather(*(s.aput(("a",), str(i % 20), {"i": i}) for i in range(500)))
            assert batches == 3  # of up to 200 items
            found = await asyncio.gather(*(s.aget(("a",), str(i)) for i in range(20)))
            assert sorted(x.value["i"] for x in found if x) == list(range(480, 500))
            # What can't be done fails its own call only.
            bad: list[Any] = [
                s.aput(("a",), "bad", {"f": float("nan")}),
                s.aget(("x" * 60,) * 6, "k"),
                s.adelete(("a",), "\ud800"),
                s.asearch(("a",), filter={"i": {"$in": [1]}}),
                AsyncTurnstoneStore(c).asearch(("a",), query="q"),
            ]
            *failed, good = await asyncio.gather(*bad, s.aput(("a",), "good", {"i": 1}), return_exceptions=True)
            assert ([isinstance(f, ValueError) for f in failed], good) == ([True] * 5, None)
            # A value that changes while it is embedded is stored as it was.
            value = {"text": "a"}
            put = asyncio.create_task(s.aput(("a",), "changed", value))
            await asyncio.sleep(0)
            value["text"] = "b"
            await put
            one, two = await asyncio.gather(s.aget(("a",), "changed"), s.aget(("a",), "changed"))
            assert one and two and one.value == {"text": "a"} and one.value is not two.value
            assert (await s.asearch(("a",), query="i", filter={"i": 1}))[0].key == "good"
            assert await asyncio.to_thread(s.get, ("a",), "good")
            with pytest.raises(asyncio.InvalidStateError):
                s.get(("a",), "good")

    asyncio.run(run())


def noise(size: int) -> str:
    """Returns text that the store does not compress."""
    return random.Random(size).randbytes(size // 2).hex()


def test_items_that_do_not_compress_are_stored_and_one_that_is_too_large_fails_alone(memory: TurnstoneStore, store: str) -> None:
    large = {"text": noise(1_500_000)}
    memory.put(("a",), "k", large)
    found = memory.get(("a",), "k")
    assert found
    assert found.value == large
    with pytest.raises(turnstonedb.InvalidError, match="bytes"):
        memory.put(("a",), "k", {"text": noise(3_000_000)})
    assert memory.get(("a",), "k") == found
    memory.batch([PutOp(("b",), str(i), {"text": noise(50_000 + i)}) for i in range(100)])
    assert len(memory.search(("b",), limit=1000)) == 100

    async def tasks() -> list[Any]:
        async with await turnstonedb.AsyncClient.open(store, idle=2) as c:
            s = AsyncTurnstoneStore(c)
            puts = [s.aput(("c",), str(i), {"text": noise(50_000 + i)}) for i in range(100)]
            return await asyncio.gather(*puts, s.aput(("c",), "large", {"text": noise(3_000_000)}), return_exceptions=True)

    *stored, failed = asyncio.run(tasks())
    assert (stored, type(failed)) == ([None] * 100, turnstonedb.InvalidError)
    assert len(memory.search(("c",), limit=1000)) == 100
