import asyncio
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

import turnstonedb
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
    with tempfile.TemporaryDirectory() as d, subprocess.Popen([server.command(), "serve", "--store", postgres, "--listen", f"unix:{d}/s"], stdout=subprocess.PIPE) as p:
        assert p.stdout is not None
        assert p.stdout.readline()

        async def client() -> turnstonedb.AsyncClient:
            return turnstonedb.AsyncClient(f"unix:{d}/s")

        try:
            assert asyncio.run(conforms(client)) == {}
        finally:
            p.terminate()


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
