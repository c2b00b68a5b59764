"""Migrations of ADK and of the Agents SDK beside others, beside a source that goes on, and from an older copy of it."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("google.adk")
pytest.importorskip("agents")

from agents import SQLiteSession
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions import InMemorySessionService

from turnstonedb import AsyncClient, Client, ConflictError, InvalidError, NewNode, NotFoundError
from turnstonedb.adapter import States
from turnstonedb.adk import TurnstoneSessions
from turnstonedb.migrate import adk, agents

STATES = ("n", "user:n", "app:n")


class Counting(InMemorySessionService):
    """Has a session, of which each event sets the states n to the number of events."""

    events = 0

    async def count(self, events: int) -> None:
        session = await self.get_session(app_name="a", user_id="u", session_id="s")
        session = session or await self.create_session(app_name="a", user_id="u", session_id="s")
        for _ in range(events):
            self.events += 1
            await self.append_event(session, Event(author="user", timestamp=1.7e9 + self.events, actions=EventActions(state_delta=dict.fromkeys(STATES, self.events))))


async def has(client: AsyncClient) -> list[int]:
    """Returns how many events there are, how many a migration says to have brought, and the states n."""
    session = await TurnstoneSessions(client).get_session(app_name="a", user_id="u", session_id="s")
    note = await (await client.session("adk/a/u/s")).record("migrated")
    assert session and note
    return [len(session.events), int(note.value.split()[-1]), *(session.state[k] for k in STATES)]


@pytest.mark.asyncio
@pytest.mark.parametrize("at", range(1, 7))
async def test_two_migrations_of_adk_at_once_forget_nothing_of_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Another one brings more while one works, whichever call of it is the next. They count together what they bring."""
    source = Counting()  # type: ignore[no-untyped-call]
    await source.count(450)
    async with await AsyncClient.open(tmp_path / "s", idle=2) as client:
        commit_all, calls, others = client.commit_all, itertools.count(1), []

        async def beside(*commits: Any) -> Any:
            if next(calls) == at:
                monkeypatch.setattr(client, "commit_all", commit_all)
                await source.count(5)
                others.append(await adk(source, client, ["a"]))
            return await commit_all(*commits)

        monkeypatch.setattr(client, "commit_all", beside)
        mine, [other] = await adk(source, client, ["a"]), others
        assert (mine.brought + other.brought, mine.different + other.different) == (455, [])
        assert await has(client) == [455] * 5


@pytest.mark.asyncio
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("beside", [False, True])
async def test_the_state_of_adk_that_comes_is_as_new_as_the_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool, beside: bool) -> None:
    """The source goes on after its sessions were listed, and another migration may bring that first."""
    source = Counting()  # type: ignore[no-untyped-call]
    await source.count(5)
    async with await AsyncClient.open(tmp_path / "s", idle=2) as client:
        if known:
            await adk(source, client, ["a"])
            await source.count(1)
        get = source.get_session

        async def meanwhile(**kw: Any) -> Any:
            monkeypatch.setattr(source, "get_session", get)
            await source.count(5)
            if beside:
                assert (await adk(source, client, ["a"])).different == []
            return await get(**kw)

        monkeypatch.setattr(source, "get_session", meanwhile)
        assert (await adk(source, client, ["a"])).different == []
        assert await has(client) == [10 + known] * 5


@pytest.mark.asyncio
async def test_an_older_copy_of_adk_takes_no_event_and_no_note_back(tmp_path: Path) -> None:
    """The states of the user and of the app, of which nobody knows how old they are, are those of the copy."""
    source = Counting()  # type: ignore[no-untyped-call]
    await source.count(5)
    older = copy.deepcopy(source)
    await source.count(5)
    async with await AsyncClient.open(tmp_path / "s", idle=2) as client:
        for of, shared in ((source, 10), (older, 5), (source, 10)):
            assert (await adk(of, client, ["a"])).different == []
            assert await has(client) == [10, 10, 10, shared, shared]


@pytest.mark.asyncio
async def test_a_session_of_adk_that_can_not_be_stored_hides_no_state_and_brings_none_back(tmp_path: Path) -> None:
    source = InMemorySessionService()  # type: ignore[no-untyped-call]
    names = ("odd", "n" * 600, "\ud800")
    for user, id in itertools.product(("first", "u"), (*names, "s")):
        odd = {"odd": object()} if id == "odd" else {}
        await source.create_session(app_name="a", user_id=user, session_id=id, state={**odd, "app:n": 1, "user:n": user})
    async with await AsyncClient.open(tmp_path / "s", idle=2) as client:

        async def listed() -> list[Any]:
            report = await adk(source, client, ["a"])
            assert report.found == 8
            assert [d.split("/")[2][:3] for d in report.different] == ["odd", "nnn", "?':"] * 2
            sessions = (await TurnstoneSessions(client).list_sessions(app_name="a")).sessions
            return sorted((s.user_id, s.id, s.state) for s in sessions)

        assert await listed() == [(u, "s", {"app:n": 1, "user:n": u}) for u in ("first", "u")]
        for id in ("adk/a/u/s", "adk/a/u", "adk-migration/adk%2Fa%2Fu"):  # A host erases a user.
            await client.delete(id)
        assert await listed() == [("first", "s", {"app:n": 1, "user:n": "first"})]
        assert not await States(client, "adk-state").read("adk/a/u")


@pytest.mark.asyncio
@pytest.mark.parametrize("lists", [False, True])
async def test_state_of_adk_comes_from_a_service_that_lists_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lists: bool) -> None:
    """What it lists is enough if nothing is new."""
    source = Counting()  # type: ignore[no-untyped-call]
    await source.count(1)
    list_sessions, get_session, reads = source.list_sessions, source.get_session, itertools.count()

    async def bare(**kw: Any) -> Any:
        found = await list_sessions(**kw)
        for s in found.sessions:
            s.state = s.state if lists else {}
        return found

    async def get(**kw: Any) -> Any:
        next(reads)
        return await get_session(**kw)

    monkeypatch.setattr(source, "list_sessions", bare)
    monkeypatch.setattr(source, "get_session", get)
    async with await AsyncClient.open(tmp_path / "s", idle=2) as client:
        for _ in range(2):
            assert (await adk(source, client, ["a"])).different == []
            assert await has(client) == [1] * 5
    assert next(reads) == (3 if lists else 5)  # The session and the states with it, and then the states that are not in the list.


async def erase(client: AsyncClient, app: str = "a") -> None:
    for id in (f"adk/{app}/ann/s", f"adk/{app}/ann", f"adk-migration/adk%2F{app}%2Fann"):
        await client.delete(id)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("reads", "known", "sessions", "moments"),
    # Commits are those of sessions and notes of two users, of their states and that of the app.
    [(False, False, True, 7), (True, False, True, 5), (False, True, True, 3), (True, True, True, 3), (False, True, False, 1), (True, True, False, 1)],
)
async def test_a_user_of_adk_who_is_erased_meanwhile_stays_erased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: bool, known: bool, sessions: bool, moments: int
) -> None:
    """Whichever commit, or read of the source, is the next: what was brought of the user does not come again, also not a value of state. A part may have been brought
    before, and a host may have deleted the sessions before."""
    async with await AsyncClient.open(tmp_path / "s", idle=2) as client:
        target, states = TurnstoneSessions(client), States(client, "adk-state")
        for at in range(1, moments + 1):
            app, source, calls, came, acted = f"a{at}", InMemorySessionService(), itertools.count(1), known, False  # type: ignore[no-untyped-call]
            for user in ("ann", "bob"):
                session = await source.create_session(app_name=app, user_id=user, session_id="s", state={"user:mail": f"{user}@x", "app:n": 1})
                await source.append_event(session, Event(author="user", timestamp=1.7e9))
            if known:
                await adk(source, client, [app])
                session = await source.get_session(app_name=app, user_id="ann", session_id="s") or session
                await source.append_event(session, Event(author="user", timestamp=1.7e9 + 1, actions=EventActions(state_delta={"user:more": 1})))
            if not sessions:
                await target.delete_session(app_name=app, user_id="ann", session_id="s")

            async def act(app: str = app, at: int = at, calls: Iterator[int] = calls) -> None:
                nonlocal came, acted
                if next(calls) == at:
                    acted = True
                    with suppress(NotFoundError):
                        await client.session(f"adk/{app}/ann/s")
                        came = True
                    await erase(client, app)

            commit_all, get_session = client.commit_all, source.get_session

            async def commit(*commits: Any, commit_all: Any = commit_all, act: Any = act) -> Any:
                await act()
                return await commit_all(*commits)

            async def get(*, get_session: Any = get_session, act: Any = act, **kw: Any) -> Any:
                await act()
                return await get_session(**kw)

            with monkeypatch.context() as m:
                m.setattr(*((source, "get_session", get) if reads else (client, "commit_all", commit)))
                for _ in range(2):
                    assert (await adk(source, client, [app])).different == []
            assert acted
            listed = (await target.list_sessions(app_name=app)).sessions
            assert sorted(s.user_id for s in listed) == (["bob"] if came else ["ann", "bob"])
            assert bool(await states.read(f"adk/{app}/ann")) != came
            assert await states.read(f"adk/{app}/bob") and await states.read(f"adk/{app}")


@pytest.mark.asyncio
@pytest.mark.parametrize("part", [2, 3])
async def test_a_user_of_adk_whose_state_is_erased_gets_nothing(tmp_path: Path, part: int) -> None:
    """In the order that is documented: the sessions, the state, and perhaps not yet the notes."""
    source = InMemorySessionService()  # type: ignore[no-untyped-call]
    session = await source.create_session(app_name="a", user_id="ann", session_id="s", state={"user:mail": "ann@x", "user:name": "Ann"})
    async with await AsyncClient.open(tmp_path / "s", idle=2) as client:
        await adk(source, client, ["a"])
        await source.append_event(session, Event(author="user", actions=EventActions(state_delta={"user:more": 1})))
        for id in ("adk/a/ann/s", "adk/a/ann", "adk-migration/adk%2Fa%2Fann")[:part]:
            await client.delete(id)
        assert (await adk(source, client, ["a"])).different == []
        assert not await States(client, "adk-state").read("adk/a/ann")


@pytest.mark.asyncio
@pytest.mark.parametrize("first", ["adk/a/ann", "adk-migration/adk%2Fa%2Fann"])
async def test_between_the_erasures_of_a_state_of_adk_nothing_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    """A host erases the state and the notes of a user in any order, and a migration commits between."""
    source = InMemorySessionService()  # type: ignore[no-untyped-call]
    session = await source.create_session(app_name="a", user_id="ann", session_id="s", state={"user:mail": "ann@x"})
    async with await AsyncClient.open(tmp_path / "s", idle=2) as client:
        await adk(source, client, ["a"])
        await source.append_event(session, Event(author="user", actions=EventActions(state_delta={"user:more": 1})))
        await client.delete("adk/a/ann/s")
        commit_all, calls = client.commit_all, itertools.count()

        async def commit(*commits: Any) -> Any:
            if next(calls) == 0:
                await client.delete(first)
            return await commit_all(*commits)

        monkeypatch.setattr(client, "commit_all", commit)
        assert (await adk(source, client, ["a"])).different == []
        assert next(calls) > 0 and not await States(client, "adk-state").read(first)


@pytest.mark.asyncio
async def test_many_sessions_of_adk_that_can_not_be_stored_hide_no_state(tmp_path: Path) -> None:
    """A user may have more of them than one commit can check."""
    source = InMemorySessionService()  # type: ignore[no-untyped-call]
    for i in range(260):
        await source.create_session(app_name="a", user_id="u", session_id=str(i), state={"odd": object(), "user:n": 1})
    async with await AsyncClient.open(tmp_path / "s", idle=2) as client:
        assert len((await adk(source, client, ["a"])).different) == 260
        assert await States(client, "adk-state").read("adk/a/u") == {"n": b"1"}


@pytest.mark.asyncio
async def test_an_odd_value_of_an_app_of_adk_hides_no_session(tmp_path: Path) -> None:
    """It is named, and the sessions that are shown with it come, but for one whose event has it."""
    source = InMemorySessionService()  # type: ignore[no-untyped-call]
    ann = await source.create_session(app_name="a", user_id="ann", session_id="s", state={"own": 1})
    await source.create_session(app_name="a", user_id="bob", session_id="s", state={"own": 2, "user:odd": object(), "app:odd": float("nan")})
    async with await AsyncClient.open(tmp_path / "s", idle=2) as client:
        for _ in range(2):
            assert [d[:21] for d in (await adk(source, client, ["a"])).different] == ["state 'odd' of 'a/bob", "state 'odd' of 'a' JS"]
            listed = (await TurnstoneSessions(client).list_sessions(app_name="a")).sessions
            assert sorted((s.user_id, s.state["own"]) for s in listed) == [("ann", 1), ("bob", 2)]
        await source.append_event(ann, Event(author="user", actions=EventActions(state_delta={"app:odd": float("nan")})))
        named = (await adk(source, client, ["a"])).different
        assert [d[:18] for d in named] == ["session 'a/ann/s':", "state 'odd' of 'a/", "state 'odd' of 'a'"]


@pytest.mark.asyncio
@pytest.mark.parametrize("when", ["abe all", "ann some", "commit"])
async def test_what_another_migration_of_adk_has_brought_is_erased_though_the_source_is_odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """The other one brings it from another source, ahead of a read, or of the commit of the state."""
    source, others = InMemorySessionService(), InMemorySessionService()  # type: ignore[no-untyped-call]
    await others.create_session(app_name="a", user_id="ann", session_id="s", state={"user:mail": "ann@x"})
    for i, (user, own) in enumerate({"abe": 1, "ann": object()}.items()):
        session = await source.create_session(app_name="a", user_id=user, session_id="s", state={"own": own, "user:mail": user})
        await source.append_event(session, Event(author="user", timestamp=1.7e9 + i))
    async with await AsyncClient.open(tmp_path / "s", idle=2) as client:
        get_session, commit_all, calls, acted = source.get_session, client.commit_all, itertools.count(1), False

        async def act() -> None:
            nonlocal acted
            acted = True
            assert (await adk(others, client, ["a"])).found == 1
            await erase(client)

        async def get(*, config: Any = None, **kw: Any) -> Any:
            if not acted and f"{kw['user_id']} {'some' if config else 'all'}" == when:
                await act()
            return await get_session(config=config, **kw)

        async def commit(*commits: Any) -> Any:
            if not acted and next(calls) == 4 and when == "commit":
                await act()
            return await commit_all(*commits)

        monkeypatch.setattr(source, "get_session", get)
        monkeypatch.setattr(client, "commit_all", commit)
        assert len((await adk(source, client, ["a"])).different) == 1
        assert acted and not await States(client, "adk-state").read("adk/a/ann")


@pytest.mark.asyncio
async def test_large_values_of_adk_come_though_the_sessions_are_gone(tmp_path: Path) -> None:
    source, r = InMemorySessionService(), random.Random(1)  # type: ignore[no-untyped-call]
    session = await source.create_session(app_name="a", user_id="ann", session_id="s")
    async with await AsyncClient.open(tmp_path / "s", idle=2) as client:
        for i in range(3):
            value = "".join(r.choices("abcdefghijklmnopqrstuvwxyz", k=(1000 << 10) + i))
            await source.append_event(session, Event(author="user", actions=EventActions(state_delta={f"user:{i}": value})))
            assert (await adk(source, client, ["a"])).different == []
            if i == 0:
                await client.delete("adk/a/ann/s")
        values = await States(client, "adk-state").read("adk/a/ann")
        assert {key: len(value) for key, value in values.items()} == {str(i): (1000 << 10) + i + 2 for i in range(3)}


@pytest.mark.asyncio
async def test_what_another_migration_of_adk_has_brought_is_erased_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is brought first while this one works, and then erased."""
    source = InMemorySessionService()  # type: ignore[no-untyped-call]
    for user in ("ann", "bob"):
        await source.create_session(app_name="a", user_id=user, session_id="s", state={"user:mail": user})
    async with await AsyncClient.open(tmp_path / "s", idle=2) as client:
        commit_all, get_session = client.commit_all, source.get_session

        async def beside(*commits: Any) -> Any:
            monkeypatch.setattr(client, "commit_all", commit_all)
            assert (await adk(source, client, ["a"])).found == 2
            monkeypatch.setattr(source, "get_session", get)
            return await commit_all(*commits)

        async def get(**kw: Any) -> Any:
            if kw["user_id"] == "bob":
                monkeypatch.setattr(source, "get_session", get_session)
                await erase(client)
            return await get_session(**kw)

        monkeypatch.setattr(client, "commit_all", beside)
        await adk(source, client, ["a"])
        assert await States(client, "adk-state").read("adk/a/bob") and not await States(client, "adk-state").read("adk/a/ann")


@pytest.mark.asyncio
async def test_state_of_a_user_of_adk_comes_though_the_sessions_are_others(tmp_path: Path) -> None:
    """A dry run says the same of it."""
    source = InMemorySessionService()  # type: ignore[no-untyped-call]
    session = await source.create_session(app_name="a", user_id="u", session_id="s", state={"user:mail": "ann@x", "user:name": "Ann"})
    async with await AsyncClient.open(tmp_path / "s", idle=2) as client:
        target = TurnstoneSessions(client)
        await adk(source, client, ["a"])
        await target.delete_session(app_name="a", user_id="u", session_id="s")
        await target.create_session(app_name="a", user_id="u", session_id="new", state={"user:name": "the host's"})
        await source.append_event(session, Event(author="user", actions=EventActions(state_delta={"user:mail": "anna@x", "user:more": 1, "user:name": "Anna"})))
        for dry_run in (True, False):
            assert (await adk(source, client, ["a"], dry_run=dry_run)).different == ["state 'name' of 'a/u' is another one"]
        [left] = (await target.list_sessions(app_name="a")).sessions
        assert left.state == {"user:mail": "anna@x", "user:more": 1, "user:name": "the host's"}


@pytest.mark.asyncio
async def test_an_error_of_the_source_of_adk_is_raised_but_for_a_session_that_can_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Counting()  # type: ignore[no-untyped-call]
    odd = await source.create_session(app_name="a", user_id="odd", session_id="s")
    await source.append_event(odd, Event(author="user", timestamp=1.0))  # The list has it first.
    await source.count(1)
    get_session, raised = source.get_session, cast("Exception | None", None)

    async def get(**kw: Any) -> Any:
        if raised and kw["user_id"] == "odd":
            raise raised
        return await get_session(**kw)

    monkeypatch.setattr(source, "get_session", get)
    async with await AsyncClient.open(tmp_path / "s", idle=2) as client:
        for error in (ConflictError("no", {}), NotFoundError("no", {"kind": "session-deleted"}), OSError("no")):
            raised = error
            with pytest.raises((RuntimeError, OSError), match="no"):
                await adk(source, client, ["a"])
        raised = ValueError("an odd event")
        assert (await adk(source, client, ["a"])).different == ["session 'a/odd/s': an odd event", "state of 'a/odd': an odd event"]
        assert await has(client) == [1] * 5


def say(path: Path, *texts: str) -> None:
    async def add() -> None:
        session = SQLiteSession("s", path)
        await session.add_items([{"role": "user", "content": t} for t in texts])
        session.close()

    asyncio.run(add())


def pop(client: Client) -> None:
    session = client.session("s")
    [last] = session.load(last=1).nodes
    session.commit(leaf=last.parent or "none", tombstone=[last.id], expected="any")


def items(client: Client) -> list[str]:
    return [json.loads(n.payload)["content"] for n in client.session("s").load().nodes]


def test_what_was_brought_of_agents_before_an_item_is_refused_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    say(tmp_path / "db", *map(str, range(250)))
    with Client.open(tmp_path / "s", idle=2) as client, closing(sqlite3.connect(tmp_path / "db")) as source:
        commit_all, calls = client.commit_all, itertools.count()

        def commit(*commits: Any) -> Any:
            if next(calls) == 1:
                raise InvalidError("refused")
            return commit_all(*commits)

        monkeypatch.setattr(client, "commit_all", commit)
        report = agents(source, client)
        assert len(report.different) == 1 and report.different[0].endswith(": refused")
        assert report.found == 1 and report.unchanged == 0 and 0 < report.brought == len(items(client)) < 250


@pytest.mark.parametrize("when", ["the note is read", "the items are read", "an older copy", "a host has them"])
def test_what_a_host_pops_after_two_migrations_of_agents_does_not_come_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    say(tmp_path / "db", "0", "1", "2")
    with Client.open(tmp_path / "s") as client, closing(sqlite3.connect(tmp_path / "db")) as source, closing(sqlite3.connect(tmp_path / "copy")) as older:
        source.backup(older)

        def go_on() -> None:
            say(tmp_path / "db", "3", "4")
            assert agents(source, client).different == []

        name = {"the note is read": "_noted", "the items are read": "_session"}.get(when)
        if when == "a host has them":
            client.create("s")[0].commit([NewNode("user", json.dumps({"role": "user", "content": t})) for t in "01234"], turn="1")
            go_on()
        elif not name:
            go_on()
            assert agents(older, client).different == []
        else:
            of = f"turnstonedb.migrate._agents.{name}"
            call = getattr(__import__("turnstonedb.migrate._agents", fromlist=[name]), name)
            agents(source, client)

            def meanwhile(*a: Any) -> Any:
                monkeypatch.setattr(of, call)
                if name == "_session":
                    go_on()
                    return call(*a)
                had = call(*a)
                say(tmp_path / "db", "3", "4")
                assert agents(source, client).different == []
                pop(client)
                return had

            monkeypatch.setattr(of, meanwhile)
            agents(source, client)
        if name != "_noted":
            assert items(client) == list("01234")
            pop(client)
        for _ in range(2):
            agents(source, client)
            assert items(client) == list("0123")
