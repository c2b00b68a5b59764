"""What adapters share."""

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from turnstonedb import AsyncClient, Info, Page, RecordConflictError, _steps, adapter
from turnstonedb._steps import listing


def test_ids_of_names_are_those_of_go_and_javascript() -> None:
    id = adapter.short(adapter.join("r", "é" * 300))
    assert adapter.short(id) != id
    assert len(adapter.short(id)) <= 512
    assert id.startswith("r/éé")
    assert id.endswith("~a2acea681c8e86884d62ce42c970c71ee74bc3a0177c6466fb73dec691b28762")
    assert len(id.encode()) <= 512
    for names in (["a"], ["a/b"], ["a%2Fb", "%"], ["", ""]):
        assert adapter.names(adapter.join("root", *names)) == names


def test_text_is_cut_between_characters() -> None:
    assert [adapter.cut("aé€", most) for most in (0, 1, 2, 3, 5, 6, 9)] == ["", "a", "a", "aé", "aé", "aé€", "aé€"]
    assert adapter.cut("\ud800b", 2) == "?b"


def test_values_keep_their_types() -> None:
    for value in (None, True, 1, 1.0, -0.5, 1e300, 2**70, "é\u2028", [], [1, [2.0]], {}, {"a": {"$type": "x"}}, {"$type": "int", "value": 1}, {"$type": 1}):
        again = adapter.unmarshal(adapter.marshal(value))
        assert again == value
        assert type(again) is type(value)
    assert adapter.marshal({"b": 1, "a": [1.0]}) == b'{"a":[1.0],"b":1}'
    assert adapter.unmarshal(b'{"$type":"time.Duration","value":5}') == 5  # as Go has it
    loop: list[Any] = []
    loop.append(loop)
    for bad, error in ((float("nan"), ValueError), ({1: 2}, TypeError), (b"x", TypeError), (loop, ValueError), (object(), TypeError)):
        with pytest.raises(error):
            adapter.marshal(bad)


@pytest.mark.asyncio
async def test_states_are_whole_whoever_changes_them(tmp_path: Path) -> None:
    async with await AsyncClient.open(tmp_path, idle=2) as db:
        states = [adapter.States(db, "group") for _ in range(3)]
        assert await states[0].read("state/a") == {}
        large = [bytes([i]) * (70_000 * i) for i in range(4)]

        async def change(i: int) -> None:
            for n in range(6):
                await states[i].commit({"state/a": {"x": large[(i + n) % 4], "y": large[(i + n) % 4], f"own{i}": b"%d" % n}})

        async def watch() -> None:
            for _ in range(20):
                values = await states[0].read("state/a")
                assert values.get("x") == values.get("y")
                await asyncio.sleep(0.01)

        await asyncio.gather(change(0), change(1), change(2), watch())
        values = await states[0].read("state/a")
        assert {k: v for k, v in values.items() if k.startswith("own")} == {f"own{i}": b"5" for i in range(3)}
        await states[1].commit({"state/a": {"x": None, "y": None}})
        assert set(await states[2].read("state/a")) == {"own0", "own1", "own2"}
        assert (await (await db.session("state/a")).records("part/")).records == ()
        await db.delete("state/a")
        await states[0].commit({"state/a": {"z": b"new"}})
        assert await states[1].read("state/a") == {"z": b"new"}
        for bad in ({"k" * 507: b""}, {"k": b"x" * (200 << 16 | 1)}, {str(i): b"" for i in range(300)}):
            with pytest.raises(ValueError):
                await states[0].commit({"state/a": bad})
        assert await states[1].read("state/a") == {"z": b"new"}


@pytest.mark.asyncio
async def test_so_many_states_are_remembered_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "_MAX_KNOWN", 2)
    async with await AsyncClient.open(tmp_path, idle=2) as db:
        states = adapter.States(db, "group")
        for n in range(2):
            for id in "abc":
                await states.commit({id: {"n": b"%d" % n}})
                assert len(states._known) <= 2
        await states.commit({id: {"n": b"all"} for id in "abc"})  # at once
        assert [await states.read(id) for id in "abc"] == [{"n": b"all"}] * 3


@pytest.mark.asyncio
async def test_a_list_misses_nothing_that_is_used_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_steps, "MAX_PAGE", 3)
    async with await AsyncClient.open(tmp_path, idle=2) as db:
        sessions = [(await db.create(f"s{i}", group="g"))[0] for i in range(12)]
        listed = db.list
        calls = 0

        async def busy(**chosen: Any) -> Any:
            nonlocal calls
            calls += 1
            page = await listed(**chosen)
            if calls < 8:  # What is not listed yet moves to the front.
                await sessions[calls % 4].commit([], expected="any", turn=str(calls), labels={})
                await sessions[calls % 4].save_metadata()
            return page

        monkeypatch.setattr(db, "list", busy)
        assert {i.id for i in await adapter.listed(db, group="g")} == {f"s{i}" for i in range(12)}
        assert calls > 8


@pytest.mark.parametrize(
    "meanwhile",
    [
        lambda page: ["0", "11", "10", "9"] if page == 0 else [],
        lambda page: {2: ["0", "11", "10", "9"], 4: ["0"]}.get(page, []),
        lambda page: [str(page % 12)],
        lambda page: [f"new {page} {n}" for n in range(4)],
    ],
    ids=["one that was not read, and then what was", "one that was not read, twice", "another one each time", "new ones each time"],
)
def test_a_list_misses_nothing_that_was_there_when_it_began_and_ends(meanwhile: Any) -> None:
    now, infos = datetime(2026, 1, 1), list[Info]()

    def update(id: str) -> None:
        nonlocal now
        now += timedelta(seconds=1)
        known = next((i for i in infos if i.id == id), None)
        if known:
            infos.remove(known)
        infos.insert(0, Info(id, "", 0, known.created if known else f"{now.isoformat()}Z", f"{now.isoformat()}Z"))

    for n in range(12):
        update(str(n))
        now += timedelta(hours=1)
    pages = listing({"group": "g"})
    asked = next(pages)
    for page in range(200):
        some = [i for i in infos if not asked["after"] or i.updated < asked["after"]][:3]
        more = some and any(i.updated < some[-1].updated for i in infos)
        for id in meanwhile(page):
            update(id)
        try:
            asked = pages.send(Page(some, some[-1].updated if more else ""))
        except StopIteration as e:
            assert {i.id for i in e.value} >= {str(n) for n in range(12)}
            return
    pytest.fail("the list does not end")


def test_a_list_of_pages_of_which_none_has_a_session_that_is_wanted_is_empty() -> None:
    pages = listing({"labels": {"of": "nobody"}})
    next(pages)
    pages.send(Page([], "more"))
    with pytest.raises(StopIteration) as e:
        pages.send(Page([], ""))
    assert e.value.value == []


def test_events_are_in_commits() -> None:
    whole = 4 << 20
    for sizes, want in (([], []), ([1] * 401, [200, 200, 1]), ([whole, whole + 1, 1, whole - 1, 1], [1, 1, 2, 1])):
        got = adapter.in_commits(sizes, int)
        assert [len(some) for some in got] == want
        assert [n for some in got for n in some] == sizes


@pytest.mark.asyncio
async def test_a_change_that_may_stand_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, commit_all = 0, AsyncClient.commit_all

    async def unsure(self: AsyncClient, *commits: Any) -> Any:
        nonlocal calls
        calls += 1
        await commit_all(self, *commits)
        raise RecordConflictError("somebody was faster, or this call", {"matches": ["unknown-outcome"], "recordConflict": {"key": "state-large"}})

    monkeypatch.setattr(AsyncClient, "commit_all", unsure)
    async with await AsyncClient.open(tmp_path / "s", idle=2) as db:
        with pytest.raises(RecordConflictError):
            await adapter.States(db, "g").commit({"s": {"k": bytes(70_000)}})
        assert calls == 1


@pytest.mark.asyncio
async def test_a_value_that_is_expected_and_not_changed_is_checked(tmp_path: Path) -> None:
    """The check changes nothing, whatever the size of the value. Nothing is stored if it fails."""
    async with await AsyncClient.open(tmp_path / "s", idle=2) as db:
        states, values = adapter.States(db, "g"), {"large": b"x" * 200_000, "small": b"x"}
        await states.commit({"s": dict(values)})
        for key in values:
            versions = await states.versions("s")
            await states.commit({"s": {"other": key.encode()}}, expected={"s": {key: versions[key]}})
            await states.commit({}, expected={"s": {key: versions[key]}})
            for change in ({}, {"s": {"other": b"no"}}):
                with pytest.raises(RecordConflictError):
                    await states.commit(change, expected={"s": {key: "none"}})
            assert (await states.versions("s"))[key] == versions[key]
            assert await states.read("s") == {**values, "other": key.encode()}
