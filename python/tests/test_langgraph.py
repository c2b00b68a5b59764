import asyncio
import operator
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

import turnstonedb
from serving import serving
from turnstonedb import _calls, _steps, langgraph
from turnstonedb import _server as server
from turnstonedb.langgraph import AsyncTurnstoneSaver, TurnstoneSaver

TESTS = 81


async def conforms(open_client: Any) -> dict[str, list[str]]:
    """Runs the suite, and returns the failures by capability."""

    @checkpointer_test(name="turnstone")
    async def saver() -> AsyncIterator[BaseCheckpointSaver[str]]:
        async with await open_client() as c:
            yield AsyncTurnstoneSaver(c)

    report = await validate(saver)
    passed = sum(r.tests_passed for r in report.results.values())
    failures = {name: list(r.failures or []) for name, r in report.results.items() if r.tests_failed}
    assert passed == TESTS or failures, f"{passed} tests passed, want {TESTS}"
    return failures


@pytest.mark.parametrize("engine", ["badger", "pebble"])
def test_the_conformance_suite_passes_in_full(engine: str, store: str) -> None:
    assert asyncio.run(conforms(lambda: turnstonedb.AsyncClient.open(f"{engine}:{store}", idle=2))) == {}


def test_the_conformance_suite_passes_in_full_on_postgres(postgres: str) -> None:
    with tempfile.TemporaryDirectory() as d, serving(postgres, f"unix:{d}/s"):

        async def client() -> turnstonedb.AsyncClient:
            return turnstonedb.AsyncClient(f"unix:{d}/s")

        assert asyncio.run(conforms(client)) == {}


def test_the_conformance_suite_passes_in_full_in_threads(store: str) -> None:
    @checkpointer_test(name="turnstone")
    async def saver() -> AsyncIterator[BaseCheckpointSaver[str]]:
        with turnstonedb.Client.open(store, idle=2) as c:
            yield TurnstoneSaver(c)

    report = asyncio.run(validate(saver))
    assert sum(r.tests_passed for r in report.results.values()) == TESTS


@pytest.mark.parametrize("mutant", ["lost write", "unordered list", "parent's values"])
def test_the_suite_finds_mutants(mutant: str, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if mutant == "lost write":
        whole = AsyncTurnstoneSaver._apply_writes
        monkeypatch.setattr(AsyncTurnstoneSaver, "_apply_writes", lambda self, t, ns, nodes, changes: whole(self, t, ns, nodes, changes[1:]))
    elif mutant == "unordered list":
        listed = AsyncTurnstoneSaver._listed

        def backwards(self: Any, config: Any, before: Any) -> Any:
            return list(reversed((yield from listed(self, config, before))))

        monkeypatch.setattr(AsyncTurnstoneSaver, "_listed", backwards)
    else:
        put = AsyncTurnstoneSaver._put
        monkeypatch.setattr(AsyncTurnstoneSaver, "_put", lambda self, c, checkpoint, m, _: put(self, c, {**checkpoint, "channel_values": {}}, m, {}))
    assert asyncio.run(conforms(lambda: turnstonedb.AsyncClient.open(store, idle=2))) != {}


class State(TypedDict):
    messages: Annotated[list[str], lambda a, b: a + b]


def graph(saver: BaseCheckpointSaver[str]) -> Any:
    def ask(_: State) -> State:
        return {"messages": ["question"]}

    def answer(_: State) -> State:
        return {"messages": [interrupt("your answer?")]}

    g = StateGraph(State)
    g.add_node("ask", ask)
    g.add_node("answer", answer)
    g.add_edge(START, "ask")
    g.add_edge("ask", "answer")
    g.add_edge("answer", END)
    return g.compile(checkpointer=saver)


def test_a_graph_goes_on_after_the_server_was_killed(store: str) -> None:
    config: Any = {"configurable": {"thread_id": "t/1"}}
    with turnstonedb.Client.open(store, idle=2) as db:
        assert graph(TurnstoneSaver(db)).invoke({"messages": ["hello"]}, config)["__interrupt__"][0].value == "your answer?"
        os.kill(server._children[-1].pid, signal.SIGKILL)
    with turnstonedb.Client.open(store, idle=2) as db:
        g = graph(TurnstoneSaver(db))
        assert g.get_state(config).next == ("answer",)
        assert g.invoke(Command(resume="yes"), config)["messages"] == ["hello", "question", "yes"]
        history = list(g.get_state_history(config))
        assert [len(s.values.get("messages", [])) for s in history] == [3, 2, 1, 0]
        # From an earlier state another history goes on, and the first one stays as it is.
        fork = g.update_state(history[1].config, {"messages": ["other"]}, as_node="answer")
        assert g.get_state(fork).values["messages"] == ["hello", "question", "other"]
        assert g.get_state(history[0].config).values["messages"] == ["hello", "question", "yes"]


def put(saver: TurnstoneSaver, config: Any, values: dict[str, Any], versions: dict[str, str], changed: dict[str, str]) -> Any:
    c = empty_checkpoint()
    c["channel_values"], c["channel_versions"] = values, versions  # type: ignore[typeddict-item]
    return saver.put(config, c, {"step": 0}, changed)


def test_branches_of_equal_versions_have_their_own_values(db: turnstonedb.Client) -> None:
    saver = TurnstoneSaver(db)
    root = put(saver, {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, {"x": 0, "y": 0}, {"x": "1", "y": "1"}, {"x": "1", "y": "1"})
    a = put(saver, root, {"x": "a", "y": 0}, {"x": "2", "y": "1"}, {"x": "2"})
    b = put(saver, root, {"x": "b", "y": 0}, {"x": "2", "y": "1"}, {"x": "2"})
    a2 = put(saver, a, {"x": "a", "y": 1}, {"x": "2", "y": "2"}, {"y": "2"})
    for config, want in ((root, {"x": 0, "y": 0}), (a, {"x": "a", "y": 0}), (b, {"x": "b", "y": 0}), (a2, {"x": "a", "y": 1})):
        t = saver.get_tuple(config)
        assert t is not None
        assert t.checkpoint["channel_values"] == want
        assert TurnstoneSaver(db).get_tuple(config) == t


def test_a_copy_has_the_values_of_its_versions_and_no_others(db: turnstonedb.Client) -> None:
    def checkpoint(id: str, values: dict[str, str], versions: dict[str, str]) -> Checkpoint:
        return {**empty_checkpoint(), "id": id, "channel_values": dict(values), "channel_versions": dict(versions)}

    for fresh in (False, True):
        s = TurnstoneSaver(db)
        start: RunnableConfig = {"configurable": {"thread_id": f"t{fresh}", "checkpoint_ns": ""}}
        one = s.put(start, checkpoint("1", {"x": "old", "y": "kept"}, {"x": "1", "y": "1"}), {}, {"x": "1", "y": "1"})
        two = s.put(one, checkpoint("2", {}, {"x": "2", "y": "1"}), {}, {"x": "2"})  # x was consumed: version 2 has no value
        if fresh:
            s = TurnstoneSaver(db)
        # A copy of 2 beside it, as update_state(as_node="__copy__") puts it, and one of 1 whose values are not given.
        three = s.put(one, checkpoint("3", {}, {"x": "2", "y": "1"}), {"source": "fork"}, {})
        four = s.put(one, checkpoint("4", {}, {"x": "1", "y": "1"}), {"source": "fork"}, {})
        values = [t.checkpoint["channel_values"] for c in (one, two, three, four) if (t := s.get_tuple(c))]
        assert values == [{"x": "old", "y": "kept"}, {"y": "kept"}, {"y": "kept"}, {"x": "old", "y": "kept"}]


def test_long_names_large_writes_and_savers_beside_each_other(db: turnstonedb.Client) -> None:
    one, other = TurnstoneSaver(db), TurnstoneSaver(db)
    config: Any = {"configurable": {"thread_id": "t" * 900, "checkpoint_ns": "n/%" * 200}}
    channel, large = "c" * 500, "x" * 200_000
    for i in range(6):
        config = put(one if i % 2 else other, config, {channel: i}, {channel: str(i)}, {channel: str(i)})
    for _ in range(2):
        one.put_writes(config, [(channel, large), ("small", 1)] * 150, "task" * 100)
    t = other.get_tuple(config)
    assert t is not None
    assert t.checkpoint["channel_values"] == {channel: 5}
    assert t.pending_writes is not None
    assert [w[2] for w in t.pending_writes] == [large, 1] * 150
    assert len(list(one.list({"configurable": {"thread_id": "t" * 900}}))) == 6
    one.delete_thread("t" * 900)
    assert other.get_tuple(config) is None
    put(other, {"configurable": {"thread_id": "t" * 900, "checkpoint_ns": "n/%" * 200}}, {channel: 9}, {channel: "9"}, {channel: "9"})


def test_large_writes_are_stored_and_copied_in_requests_of_a_size_that_a_server_takes(db: turnstonedb.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(langgraph, "_MAX_PAYLOADS", 250_000)
    sizes, session_commit = [], _calls.session_commit

    def measured(target: Any, made: Any, commit: Any, only: bool) -> Any:
        sizes.append(sum(len(n.payload) for n in commit.nodes))
        return session_commit(target, made, commit, only)

    read, node = [], _calls.node
    monkeypatch.setattr(_calls, "node", lambda *args: read.append(len(sizes)) or node(*args))
    monkeypatch.setattr(_calls, "session_commit", measured)
    saver = TurnstoneSaver(db)
    config = entry("1", saver, {"configurable": {"thread_id": "t", "checkpoint_ns": ""}})
    saver.put_writes(config, [("x", f"{i}" * 100_000) for i in range(8)], "task")
    saver.copy_thread("t", "copy")
    assert len(read) == 8
    assert len(set(read)) > 2  # It holds no more of them at once than a request may have.
    there, copied = saver.get_tuple(config), saver.get_tuple({"configurable": {"thread_id": "copy"}})
    assert there is not None
    assert copied is not None
    assert copied.pending_writes == there.pending_writes
    assert len(copied.pending_writes or ()) == 8
    assert max(sizes) < 250_000
    assert sum(sizes) == 2 * 8 * 100_005


def entry(cid: str, saver: TurnstoneSaver, config: Any) -> Any:
    c = empty_checkpoint()
    c["id"] = cid
    return saver.put(config, c, {"step": 0, "run_id": cid}, {})


def ids(saver: TurnstoneSaver, thread: Any, **kw: Any) -> list[str]:
    return [t.checkpoint["id"] for t in saver.list({"configurable": {"thread_id": thread}}, **kw)]


def test_the_latest_checkpoint_outlives_every_prune_of_the_store(store: str) -> None:
    def prune() -> None:
        subprocess.run([server.command(), "prune", "--last", "1", "--store", store], check=True, stdout=subprocess.DEVNULL)

    with turnstonedb.Client.open(store, idle=2) as db:
        saver = TurnstoneSaver(db)
        config: Any = {"configurable": {"thread_id": 7, "checkpoint_ns": ""}}  # A thread id may be anything that has a text.
        for cid in ("1", "2", "3"):
            config = entry(cid, saver, config)
        saver.put_writes(config, [("large", "x" * 200_000)], "task")  # a commit after that of the checkpoint
        prune()
        t = TurnstoneSaver(db).get_tuple({"configurable": {"thread_id": 7}})  # one that has not put it
        assert t is not None
        assert (t.checkpoint["id"], len(t.pending_writes or [])) == ("3", 1)
        assert ids(saver, 7) == ["3"]
        saver.delete_for_runs(["3"])
        assert ids(saver, 7) == []
        # What was removed leaves the files with a vacuum.
        assert db.session("langgraph/7/").load().nodes == ()
        assert db.session("langgraph/7/").records("w/").records == ()
        config = entry("4", saver, {"configurable": {"thread_id": 7, "checkpoint_ns": ""}})
        config = entry("5", saver, config)
        saver.delete_for_runs(["5"])
        prune()
        assert ids(saver, 7) == ["4"]
        saver.prune([7], strategy="delete")  # type: ignore[list-item]
        assert ids(saver, 7) == []


def test_a_saver_says_how_many_checkpoints_a_prune_leaves(db: turnstonedb.Client) -> None:
    for thread, saver in (("few", TurnstoneSaver(db, keep_last=2)), ("all", TurnstoneSaver(db))):
        config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        for cid in ("1", "2", "3", "4"):
            config = entry(cid, saver, config)
    db.prune()
    assert ids(TurnstoneSaver(db), "few") == ["4", "3"]
    assert len(ids(TurnstoneSaver(db), "all")) == 4
    with pytest.raises(ValueError, match="keep_last is -1"):
        TurnstoneSaver(db, keep_last=-1)


def test_a_thread_that_is_used_while_threads_are_listed_is_listed(db: turnstonedb.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_steps, "MAX_PAGE", 2)
    saver, listed = TurnstoneSaver(db), _calls.list_sessions
    for thread in "abcde":
        entry("1", saver, {"configurable": {"thread_id": thread, "checkpoint_ns": ""}})
    used = []

    def meanwhile(*args: Any) -> Any:
        if args[0] and not used:  # The first page is read, and a thread of the last one is used.
            used.append(entry("2", TurnstoneSaver(db), {"configurable": {"thread_id": "a", "checkpoint_ns": ""}}))
        return listed(*args)

    monkeypatch.setattr(_calls, "list_sessions", meanwhile)
    assert {t.config["configurable"]["thread_id"] for t in saver.list(None)} == set("abcde")
    assert used


def test_channels_whose_history_was_pruned_are_not_taken_for_shorter_ones(db: turnstonedb.Client) -> None:
    def extend(state: list[str] | None, writes: list[list[str]]) -> list[str]:
        return [*(state or []), *(text for w in writes for text in w)]

    class State(TypedDict):
        texts: Annotated[list[str], DeltaChannel(extend)]

    def graph() -> Any:
        builder = StateGraph(State)
        builder.add_node("answer", lambda state: {"texts": [f"answer {len(state['texts'])}"]})
        builder.add_edge(START, "answer")
        return builder.compile(checkpointer=TurnstoneSaver(db))

    config: Any = {"configurable": {"thread_id": "t"}}
    for i in range(3):
        graph().invoke({"texts": [f"question {i}"]}, config)
    assert len(graph().get_state(config).values["texts"]) == 6
    db.prune(revisions=1)
    for use in (lambda: graph().get_state(config), lambda: graph().invoke({"texts": ["more"]}, config)):
        with pytest.raises(turnstonedb.NotFoundError, match="which was pruned or deleted") as e:
            use()
        assert e.value.kind == "revision-pruned"

    saver = TurnstoneSaver(db)  # The same holds if the list does not have them any more either.
    last: Any = {"configurable": {"thread_id": "runs", "checkpoint_ns": ""}}
    for cid in ("1", "2", "3"):
        last = entry(cid, saver, last)
    assert saver.get_delta_channel_history(config=last, channels=["texts"]) == {"texts": {"writes": []}}
    saver.delete_for_runs(["1"])
    with pytest.raises(turnstonedb.NotFoundError, match="checkpoint '1', which was pruned or deleted"):
        saver.get_delta_channel_history(config=last, channels=["texts"])


def test_a_thread_of_which_checkpoints_were_pruned_is_copied(db: turnstonedb.Client) -> None:
    saver = TurnstoneSaver(db)
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    for cid in ("1", "2", "3"):
        config = entry(cid, saver, config)
    db.prune(revisions=1)
    saver.copy_thread("t", "copy")
    assert ids(saver, "copy") == ids(saver, "t") == ["3"]
    config["configurable"]["checkpoint_id"] = "2"
    entry("4", TurnstoneSaver(db), config)  # on top of one that was pruned
    assert ids(saver, "t") == ["4", "3"]


def test_threads_that_nobody_uses_are_deleted_whole(db: turnstonedb.Client) -> None:
    saver = TurnstoneSaver(db)

    def put(thread: str, ns: str, cid: str) -> None:
        entry(cid, saver, {"configurable": {"thread_id": thread, "checkpoint_ns": ns}})

    for thread in ("old/é", "half", "written", "x" * 400):
        for ns in ("", "sub|1"):
            put(thread, ns, "1")
    time.sleep(2.1)
    assert saver.delete_idle(timedelta(days=1)) == []
    put("half", "sub|1", "2")
    saver.put_writes({"configurable": {"thread_id": "written", "checkpoint_ns": "sub|1", "checkpoint_id": "1"}}, [("a", 1)], "task")
    put("new", "", "1")
    assert sorted(saver.delete_idle(timedelta(seconds=2))) == ["old/é", "x" * 400]
    assert {t.config["configurable"]["thread_id"] for t in saver.list(None)} == {"half", "written", "new"}
    assert [len(list(saver.list({"configurable": {"thread_id": t}}))) for t in ("half", "written")] == [3, 2]
    assert asyncio.run(saver.adelete_idle(timedelta(seconds=60))) == []
    with pytest.raises(ValueError, match="idle is"):
        saver.delete_idle(timedelta(0))


def test_a_put_beside_a_removal_stays_the_latest(db: turnstonedb.Client) -> None:
    saver, other = TurnstoneSaver(db), TurnstoneSaver(db)
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    for cid in ("1", "2", "3"):
        config = entry(cid, saver, config)
    entries, late = saver._entries, iter([True])

    def beside(target: Any) -> Any:
        found = yield from entries(target)
        if next(late, False):
            entry("4", other, config)
        return found

    saver._entries = beside  # type: ignore[method-assign]
    saver._do(saver._remove("langgraph/t/", {"1", "2"}))
    t = saver.get_tuple({"configurable": {"thread_id": "t"}})
    assert t is not None
    assert t.checkpoint["id"] == "4"
    assert ids(saver, "t") == ["4", "3"]


def test_lists_are_the_newest_first_over_all_namespaces(db: turnstonedb.Client) -> None:
    saver = TurnstoneSaver(db)
    for i in range(5):
        entry(f"{i}", saver, {"configurable": {"thread_id": "t", "checkpoint_ns": f"n{i % 2}"}})
    assert ids(saver, "t") == ["4", "3", "2", "1", "0"]
    assert ids(saver, "t", limit=1) == ["4"]
    assert ids(saver, "t", before={"configurable": {"checkpoint_id": "2"}}) == ["1", "0"]


def test_writes_of_odd_names_are_kept(db: turnstonedb.Client) -> None:
    saver = TurnstoneSaver(db)
    config = entry("1", saver, {"configurable": {"thread_id": "t", "checkpoint_ns": ""}})
    saver.put_writes(config, [("a", 1), ("__interrupt__", "x"), ("__interrupt__", "y")], "task/" * 200)
    saver.put_writes(config, [("a", 2), ("__interrupt__", "z")], "task/" * 200)  # A task that runs again keeps what it wrote first, but for interrupts.
    saver.put_writes(config, [("é" * 4000, "x" * 48_000)], "other", "path" * 500)
    t = saver.get_tuple(config)
    assert t is not None
    assert sorted((w[1], str(w[2])[:1]) for w in t.pending_writes or []) == [("__interrupt__", "z"), ("a", "1"), ("é" * 4000, "x")]


def test_a_head_that_is_not_that_of_the_thread_any_more_is_not_built_upon(db: turnstonedb.Client) -> None:
    a, b = TurnstoneSaver(db), TurnstoneSaver(db)

    def checkpoint(cid: str, saver: TurnstoneSaver, config: Any, values: dict[str, Any], versions: dict[str, str], changed: dict[str, str]) -> Any:
        c = empty_checkpoint()
        c["id"], c["channel_values"], c["channel_versions"] = cid, values, versions  # type: ignore[typeddict-item]
        return saver.put(config, c, {"step": 0}, changed)

    def two(saver: TurnstoneSaver, y: str) -> Any:
        first = checkpoint("1", saver, {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, {"x": 1, "y": y}, {"x": "1", "y": "1"}, {"x": "1", "y": "1"})
        return checkpoint("2", saver, first, {"x": 2, "y": y}, {"x": "2", "y": "1"}, {"x": "2"})

    last = two(a, "A")
    b.delete_thread("t")
    two(b, "B")
    assert a.get_tuple(last)  # It is that of b now, and no part of the head that a has put is built upon.
    t = b.get_tuple(checkpoint("3", a, last, {"x": 3, "y": "A"}, {"x": "3", "y": "1"}, {"x": "3"}))
    assert t is not None
    assert t.checkpoint["channel_values"] == {"x": 3, "y": "A"}


def requests(db: turnstonedb.Client, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the list to which the paths of requests are added from now on."""
    paths = []
    request = db._http.request

    def spied(method: str, path: str, **kw: Any) -> Any:
        paths.append(path)
        return request(method, path, **kw)

    monkeypatch.setattr(db._http, "request", spied)
    return paths


def test_a_put_on_top_of_the_last_one_reads_nothing(db: turnstonedb.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    class State(TypedDict):
        items: Annotated[list[str], operator.add]
        never: str

    builder = StateGraph(State)
    builder.add_node("add", lambda state: {"items": ["x"]})
    builder.add_edge(START, "add")
    builder.add_conditional_edges("add", lambda state: END if len(state["items"]) == 10 else "add")
    g = builder.compile(checkpointer=TurnstoneSaver(db))
    paths = requests(db, monkeypatch)
    g.invoke({"items": []}, {"configurable": {"thread_id": "t"}})  # type: ignore[call-overload]
    # Channels that were consumed, or never set, have versions and no values.
    assert paths.count("/v1/commit") == 11
    # Writes of tasks, which run beside puts, may come before the first checkpoint, or look what the latest one is.
    assert set(paths[paths.index("/v1/commit") :]) <= {"/v1/commit", "/v1/change-records", "/v1/create", "/v1/record"}


def test_a_put_on_top_of_an_older_one_reads_that_once(db: turnstonedb.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    saver = TurnstoneSaver(db)
    names = [f"c{i}" for i in range(5)]
    versions = dict.fromkeys(names, "1")

    def put(cid: str, config: Any, values: dict[str, Any], changed: dict[str, str]) -> Any:
        c = empty_checkpoint()
        c["id"], c["channel_values"], c["channel_versions"] = cid, values, {**versions, **changed}  # type: ignore[typeddict-item]
        return saver.put(config, c, {"step": 0}, changed)  # type: ignore[arg-type]

    first = put("1", {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, dict.fromkeys(names, "a"), versions)
    put("2", first, dict.fromkeys(names, "b"), dict.fromkeys(names, "2"))
    paths = requests(db, monkeypatch)
    fork = put("3", first, {}, {})
    assert paths.count("/v1/checkpoint") == 1
    t = saver.get_tuple(fork)
    assert t is not None
    assert t.checkpoint["channel_values"] == dict.fromkeys(names, "a")


def test_what_others_have_put_into_the_group_is_left_alone(db: turnstonedb.Client) -> None:
    saver = TurnstoneSaver(db)
    entry("1", saver, {"configurable": {"thread_id": "t", "checkpoint_ns": ""}})
    for name in ("", "no JSON", '{"thread":"t","ns":"x"}', "[]"):
        db.create(f"other {name}", group="langgraph/t", name=name)
    assert ids(saver, "t") == ["1"]
    saver.delete_thread("t")
    assert len(db.list().sessions) == 4


def test_equal_writes_at_once_are_stored_once_and_ids_are_as_long_as_they_like(db: turnstonedb.Client) -> None:
    saver = TurnstoneSaver(db)
    config = entry("%" * 5000, saver, {"configurable": {"thread_id": "t", "checkpoint_ns": ""}})
    threads = [threading.Thread(target=saver.put_writes, args=(config, [("a", "x" * 100_000), ("b", "y" * 100_000)], "task" * 1000)) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    found = saver.get_tuple(config)
    assert found is not None
    assert [w[1] for w in found.pending_writes or []] == ["a", "b"]


def test_a_checkpoint_is_one_request_and_is_not_sent_again(db: turnstonedb.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    saver, config = TurnstoneSaver(db), {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    big = "x" * 100_000

    def put(by: TurnstoneSaver, config: Any, channels: dict[str, Any], changed: dict[str, Any], step: int) -> Any:
        c = empty_checkpoint()
        c["channel_values"], c["channel_versions"] = channels, {"a": "1", **changed}
        return by.put(config, c, {"source": "loop", "step": step, "parents": {}}, changed)

    first = put(saver, config, {"a": big}, {"a": "1"}, 0)
    second = put(saver, first, {"a": big, "b": 1}, {"b": "1"}, 1)  # It has the value of the first one.
    saver.put_writes(second, [("w", "v"), ("large", big)], "task")
    paths, received = requests(db, monkeypatch), []
    request = db._http.request

    def sized(*args: Any, **kw: Any) -> Any:
        r = request(*args, **kw)
        received.append(len(r.content))
        return r

    monkeypatch.setattr(db._http, "request", sized)

    def read(by: TurnstoneSaver, config: Any) -> tuple[list[str], int, Any]:
        paths.clear()
        received.clear()
        t = by.get_tuple(config)
        return list(paths), received[0], t

    for where in (config, second):
        called, size, t = read(saver, where)
        assert called == ["/v1/refs", "/v1/node"]  # the latter for a write that is large
        assert size < 2000
        assert t.checkpoint["channel_values"] == {"a": big, "b": 1}
        assert t.pending_writes == [("task", "w", "v"), ("task", "large", big)]
        t.checkpoint["channel_values"]["b"] = "changed by the caller"
    # Another one has to read it, once; and what another one puts, or a thread that is made again, is seen.
    other = TurnstoneSaver(db)
    assert [read(other, config)[1] > 2000 for _ in range(3)] == [True, False, False]
    third = put(other, second, {"a": "new"}, {"a": "2"}, 2)
    assert read(saver, config)[2].checkpoint["channel_values"] == {"a": "new"}
    assert read(saver, second)[2].checkpoint["channel_values"] == {"a": big, "b": 1}
    assert read(saver, third)[2].parent_config == second
    saver.delete_thread("t")
    assert read(saver, config)[2] is None
    again = put(other, put(other, put(other, config, {"a": 1}, {"a": "1"}, 0), {"a": 2}, {"a": "2"}, 1), {"a": 3}, {"a": "3"}, 2)
    assert read(saver, config)[2].checkpoint["channel_values"] == {"a": 3}
    assert read(other, again)[2].checkpoint["channel_values"] == {"a": 3}


def test_a_list_is_one_request_a_page(db: turnstonedb.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    saver = TurnstoneSaver(db)
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    odd = {"n": (1, 2)}  # JSON would change it, so it is not in the record.
    for i in range(60):
        c = empty_checkpoint()
        c["channel_values"], c["channel_versions"] = {"a": i}, {"a": str(i)}
        config = saver.put(config, c, {"source": "loop", "step": i, "parents": {}, **(odd if i % 10 == 0 else {})}, {"a": str(i)})
    paths = requests(db, monkeypatch)

    def listed(**kw: Any) -> tuple[list[Any], list[str]]:
        paths.clear()
        found = [t.checkpoint["channel_values"]["a"] for t in saver.list({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, **kw)]
        return found, list(paths)

    assert listed() == (list(reversed(range(60))), ["/v1/records", "/v1/refs", "/v1/refs"])
    assert listed(limit=3) == ([59, 58, 57], ["/v1/records", "/v1/refs"])
    assert listed(limit=0) == ([], ["/v1/records"])
    assert listed(filter={"step": 41}) == ([41], ["/v1/records", "/v1/refs"])
    assert listed(filter={"n": [1, 2]}, limit=2) == ([50, 40], ["/v1/records", "/v1/refs"])


def checkpoint_of(id: str, values: dict[str, Any], versions: dict[str, Any]) -> Any:
    return {"v": 4, "id": id, "ts": "", "channel_values": values, "channel_versions": versions, "versions_seen": {}, "updated_channels": None}


def config_of(thread: str, id: str | None = None) -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": "", **({"checkpoint_id": id} if id else {})}}


def test_stale_parts_of_a_checkpoint_that_was_put_again(store: str) -> None:
    with turnstonedb.Client.open(store, idle=2) as a, turnstonedb.Client.open(store, idle=2) as b:
        one, two = TurnstoneSaver(a), TurnstoneSaver(b)
        one.put(config_of("t"), checkpoint_of("1", {"x": "old"}, {"x": "1"}), {}, {"x": "1"})
        # Another process puts the same checkpoint again, with another value.
        two.put(config_of("t"), checkpoint_of("1", {"x": "new"}, {"x": "2"}), {}, {"x": "2"})
        one.put(config_of("t", "1"), checkpoint_of("2", {}, {"x": "2"}), {}, {})
        assert two.get_tuple(config_of("t")).checkpoint["channel_values"] == {"x": "new"}
        assert one.get_tuple(config_of("t")).checkpoint["channel_values"] == {"x": "new"}


def test_stale_after_delete_and_made_again(store: str) -> None:
    with turnstonedb.Client.open(store, idle=2) as a, turnstonedb.Client.open(store, idle=2) as b:
        one, two = TurnstoneSaver(a), TurnstoneSaver(b)
        one.put(config_of("t"), checkpoint_of("1", {"x": "old"}, {"x": "1"}), {}, {"x": "1"})
        one.delete_thread("t")
        two.put(config_of("t"), checkpoint_of("1", {"x": "new"}, {"x": "1"}), {}, {"x": "1"})
        with pytest.raises(turnstonedb.NotFoundError):
            one.put(config_of("t", "1"), checkpoint_of("2", {}, {"x": "1"}), {}, {})
        assert one.get_tuple(config_of("t", "1"))
        one.put(config_of("t", "1"), checkpoint_of("2", {}, {"x": "1"}), {}, {})
        assert two.get_tuple(config_of("t")).checkpoint["channel_values"] == {"x": "new"}
        assert one.get_tuple(config_of("t")).checkpoint["channel_values"] == {"x": "new"}


@pytest.mark.parametrize("how", ["get", "list"])
def test_a_thread_is_deleted_between_two_reads(store: str, how: str) -> None:
    with turnstonedb.Client.open(store, idle=2) as a:
        s, other = TurnstoneSaver(a), TurnstoneSaver(a)
        c = s.put(config_of("t"), checkpoint_of("1", {"x": "v"}, {"x": "1"}), {}, {"x": "1"})
        s.put_writes(c, [("x", "y" * 100_000)], "task")
        real = a._run

        class Between:
            def __getattr__(self, name: str) -> Any:
                return getattr(a, name)

            def _run(self, call: Any) -> Any:
                out = real(call)
                if isinstance(out, list) and out and isinstance(out[0], turnstonedb.types.Ref):
                    other.delete_thread("t")
                return out

        s._client = Between()  # type: ignore
        if how == "get":
            assert s.get_tuple(config_of("t")) is None
        else:
            assert list(s.list(config_of("t"))) == []


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_what_goes_on_from_a_thread_that_was_deleted_is_refused(again: bool, own: bool, db: turnstonedb.Client) -> None:
    """A run that was late does not bring back what somebody deleted, whether a saver of its own or another one deleted it, nor join a thread that was made since."""
    saver, other, start = TurnstoneSaver(db), TurnstoneSaver(db), {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    config = entry("2", saver, entry("1", saver, start))
    saver.put_writes(config, [("a", 1)], "task")
    read = TurnstoneSaver(db)
    latest = read.get_tuple({"configurable": {"thread_id": "t"}})
    assert latest
    (saver if own else other).delete_thread("t")
    if again:
        entry("1", other, start)
        entry("9", other, {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "1"}})
    for late, of in ((saver, config), (read, latest.config)):
        for _ in range(2):
            with pytest.raises(turnstonedb.NotFoundError, match="was deleted after"):
                entry("3", late, of)
            with pytest.raises(turnstonedb.NotFoundError, match="was deleted after"):
                late.put_writes(of, [("a", 1)], "task")
            with pytest.raises(turnstonedb.NotFoundError, match="was deleted after"):
                late.put_writes(of, [("large", "x" * 200_000)], "task")
    assert ids(TurnstoneSaver(db), "t") == (["9", "1"] if again else [])
    # Who knows that it is gone begins anew.
    assert read.get_tuple(latest.config) is None
    entry("4", saver, start)
    assert ids(saver, "t") == (["9", "4", "1"] if again else ["4"])


def test_writes_of_a_checkpoint_that_was_refused_are_refused(db: turnstonedb.Client) -> None:
    saver = TurnstoneSaver(db)
    one = entry("1", saver, {"configurable": {"thread_id": "t", "checkpoint_ns": ""}})
    TurnstoneSaver(db).delete_thread("t")
    with pytest.raises(turnstonedb.NotFoundError):
        entry("2", saver, one)
    with pytest.raises(turnstonedb.NotFoundError):
        saver.put_writes({"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "2"}}, [("a", 1)], "task")
    assert db.list().sessions == ()


def test_a_thread_comes_back_from_its_copy_and_goes_on_when_its_runs_are_deleted(db: turnstonedb.Client) -> None:
    saver = TurnstoneSaver(db)
    two = entry("2", saver, entry("1", saver, {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}))
    saver.prune(["t"])
    saver.copy_thread("t", "copy")
    saver.delete_thread("t")
    saver.copy_thread("copy", "t")
    assert ids(saver, "t") == ["2"]
    other = entry("a", saver, {"configurable": {"thread_id": "u", "checkpoint_ns": ""}})
    saver.delete_for_runs(["a", "2"])
    saver.put_writes(other, [("a", 1)], "task")
    entry("b", saver, other)
    entry("3", saver, two)
    assert (ids(saver, "u"), ids(saver, "t")) == (["b"], ["3"])


def test_a_checkpoint_that_was_removed_can_be_gone_on_from(db: turnstonedb.Client) -> None:
    saver, start = TurnstoneSaver(db), {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    one = entry("1", saver, start)
    two = entry("2", saver, one)
    TurnstoneSaver(db).delete_for_runs(["1"])
    saver.put_writes(one, [("a", 1)], "task")
    entry("3", saver, one)
    TurnstoneSaver(db).prune(["t"])
    entry("4", saver, two)
    assert ids(saver, "t") == ["4", "3"]


def test_a_saver_of_tasks_serves_other_threads(store: str) -> None:
    """A part of a graph that is not awaited runs in another thread."""

    async def run() -> None:
        async with await turnstonedb.AsyncClient.open(store, idle=2) as c:
            saver = AsyncTurnstoneSaver(c)
            config = await asyncio.to_thread(entry, "1", saver, {"configurable": {"thread_id": "t", "checkpoint_ns": ""}})
            assert await asyncio.to_thread(ids, saver, "t") == ["1"]
            with pytest.raises(asyncio.InvalidStateError, match="another thread"):
                saver.get_tuple(config)
            assert await saver.aget_tuple(config)
        with pytest.raises(asyncio.InvalidStateError):
            await asyncio.to_thread(AsyncTurnstoneSaver.get_tuple, await asyncio.to_thread(AsyncTurnstoneSaver, c), config)

    asyncio.run(run())


def test_metadata_are_filtered_by_names_within_names(db: turnstonedb.Client) -> None:
    saver = TurnstoneSaver(db)
    for cid, of in (("1", {"user": {"access-level": "all", "id": 7}}), ("2", {"user.access-level": "none"}), ("3", {"user": "x", "big": "y" * 3000})):
        c = empty_checkpoint()
        c["id"] = cid
        saver.put({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, c, of, {})  # type: ignore[arg-type]
    for filter, want in (
        ({"user.access-level": "all"}, ["1"]),
        ({"user.access-level": "none"}, ["2"]),
        ({"user.id": 7}, ["1"]),
        ({"user.x": 1}, []),
        ({"user": "x"}, ["3"]),
    ):
        assert [t.checkpoint["id"] for t in saver.list(None, filter=filter)] == want
    assert ids(saver, "t", filter={"big": "y" * 3000}) == ["3"]


def test_the_history_of_a_channel_is_what_the_walk_of_langgraph_finds(db: turnstonedb.Client) -> None:
    """Checkpoints of any parents, some with values, some with writes, and of ids in any order."""
    r, calls = random.Random(1), []
    for thread in map(str, range(20)):
        saver = TurnstoneSaver(db)
        made: list[Any] = [{"configurable": {"thread_id": thread, "checkpoint_ns": ""}}]
        cids = r.sample(range(1000), 30)
        for cid in cids:
            c = empty_checkpoint()
            c["id"] = f"{cid:03}"
            if r.random() < 0.1:
                c["channel_values"], c["channel_versions"] = {"a": cid}, {"a": str(cid)}
            c["channel_values"] |= {"b": cid} if r.random() < 0.1 else {}  # It has no version.
            made.append(saver.put(r.choice(made), c, {}, c["channel_versions"]))
            if r.random() < 0.7:
                saver.put_writes(made[-1], [("a", cid), ("b", -cid), ("c", 0)], "task")
        for config in made:
            want = BaseCheckpointSaver.get_delta_channel_history(saver, config=config, channels=["a", "b", "none"])
            with pytest.MonkeyPatch.context() as m:
                m.setattr(saver, "_do", lambda steps, do=saver._do: calls.append(1) or do(steps))
                assert saver.get_delta_channel_history(config=config, channels=["a", "b", "none"]) == want
        root = made[1]
        c = empty_checkpoint()
        c["id"] = root["configurable"]["checkpoint_id"]
        saver.put(made[-1], c, {}, {})  # A ring, perhaps: the walk ends.
        saver.get_delta_channel_history(config=made[-1], channels=["none"])
    assert len(calls) == 20 * 31


def test_many_writes_that_do_not_compress_are_stored(db: turnstonedb.Client) -> None:
    saver = TurnstoneSaver(db)
    config = entry("1", saver, {"configurable": {"thread_id": "t", "checkpoint_ns": ""}})
    writes = [("a", random.Random(i).randbytes(50_000)) for i in range(100)]
    saver.put_writes(config, writes, "task")
    t = saver.get_tuple(config)
    assert t
    assert [w[2] for w in t.pending_writes or []] == [w[1] for w in writes]


def test_large_writes_of_another_host_and_ids_with_slashes_change_no_checkpoint(db: turnstonedb.Client) -> None:
    one, other = TurnstoneSaver(db), TurnstoneSaver(db)
    first = one.put(config_of("t"), checkpoint_of("1", {"x": "old"}, {"x": "1"}), {}, {"x": "1"})
    other.put_writes(first, [("x", "y" * 200_000)], "task")
    second = one.put(first, checkpoint_of("1/2", {"x": "new"}, {"x": "2"}), {}, {"x": "2"})
    other.put_writes(second, [("x", "z")], "task")
    for config, value, write in ((first, "old", "y" * 200_000), (second, "new", "z")):
        t = TurnstoneSaver(db).get_tuple(config)
        assert t
        assert (t.checkpoint["channel_values"], t.pending_writes) == ({"x": value}, [("task", "x", write)])
