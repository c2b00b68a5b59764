"""Sessions, artifacts and memory of Google's Agent Development Kit."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from google.adk.artifacts import InMemoryArtifactService
from google.adk.errors import StaleSessionError, already_exists_error, session_not_found_error
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.memory import InMemoryMemoryService
from google.adk.sessions import InMemorySessionService
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types

from turnstonedb import AsyncClient, RecordChange
from turnstonedb.adk import TurnstoneArtifacts, TurnstoneMemory, TurnstoneSessions, _usage, event_of
from turnstonedb.errors import TurnConflictError
from turnstonedb.testing import alike

GO = Path(__file__).parents[2] / "adapters" / "adk" / "testdata"


@asynccontextmanager
async def opened(place: Path) -> AsyncIterator[AsyncClient]:
    async with await AsyncClient.open(place, idle=2) as db:
        yield db


def said(author: str, text: str, at: float, **delta: Any) -> Event:
    content = types.Content(role="user" if author == "user" else "model", parts=[types.Part(text=text)])
    return Event(author=author, invocation_id="i", timestamp=at, content=content, actions=EventActions(state_delta={k.replace("__", ":"): v for k, v in delta.items()}))


def rich() -> Event:
    """Returns an event with what the two languages write differently."""
    parts = [
        types.Part(text="é \u2028"),
        types.Part(inline_data=types.Blob(data=b"\xff\xfe\xfb\x00", mime_type="image/png")),
        types.Part(text="Let me see.", thought=True, thought_signature=b"\xfb\xff\xbf"),
        types.Part(function_call=types.FunctionCall(id="c1", name="find", args={"n": 1, "deep": [{"x": 1.5}]})),
    ]
    return Event(
        id="e1", author="agent", invocation_id="i1", branch="a.b", timestamp=1795899580.4922082, content=types.Content(role="model", parts=parts),
        actions=EventActions(state_delta={"n": 1, "f": 2.0, "user:name": "Ann"}, artifact_delta={"report": 2}, transfer_to_agent="other"), long_running_tool_ids={"c1"},
        usage_metadata=types.GenerateContentResponseUsageMetadata(prompt_token_count=10, candidates_token_count=3, thoughts_token_count=2, cached_content_token_count=4),
        model_version="model-1", custom_metadata={"k": {"data": "a-b_c", "mimeType": "x"}},
    )  # fmt: skip


def shown(s: Any) -> Any:
    """What a session has, but for the time of its last update if it has no events."""
    if s is None:
        return None
    return (s.app_name, s.user_id, s.id, s.state, [e.model_dump() for e in s.events], s.last_update_time if s.events else None)


@pytest.mark.asyncio
async def test_sessions_do_what_those_in_memory_do(tmp_path: Path) -> None:
    r = random.Random(49)
    apps, users, ids = ["trips", "a/b"], ["ann", "bob%2F"], ["s1", "s/2", "é" * 50]
    async with opened(tmp_path) as db:
        services = [TurnstoneSessions(db), InMemorySessionService()]
        at = 1_795_000_000.0
        held: dict[Any, list[Any]] = {}
        for step in range(150):
            app, user, id = r.choice(apps), r.choice(users), r.choice(ids)
            key = (app, user, id)
            at += r.random()
            match r.randrange(8):
                case 0:
                    state = {"own": step, "user:u": [step, None], "app:a": {"x": 1.0}, "temp:t": 1} if r.random() < 0.7 else None
                    made = [await _or_error(s.create_session(app_name=app, user_id=user, session_id=id, state=state)) for s in services]
                    if isinstance(made[0], Exception) or isinstance(made[1], Exception):
                        assert type(made[0]) is type(made[1]), made
                    else:
                        assert made[0].state == {k: v for k, v in made[1].state.items() if not k.startswith("temp:")}
                        held[key] = made
                case 1:
                    for s in services:
                        await s.delete_session(app_name=app, user_id=user, session_id=id)
                    held.pop(key, None)
                case 2 | 3:
                    configs = [None, GetSessionConfig(num_recent_events=r.randrange(4)), GetSessionConfig(after_timestamp=at - r.random() * 5)]
                    config = r.choice(configs)
                    got = [await s.get_session(app_name=app, user_id=user, session_id=id, config=config) for s in services]
                    states = [shown(g)[3:5] if g else None for g in got]
                    assert states[0] == states[1], (step, config)
                    if got[0] and not config:
                        held[key] = got
                case 4:
                    lists = [(await s.list_sessions(app_name=app, user_id=r.choice([user]))).sessions for s in services]
                    assert sorted((s.id, json.dumps(s.state, sort_keys=True)) for s in lists[0]) == sorted((s.id, json.dumps(s.state, sort_keys=True)) for s in lists[1])
                    every = [(await s.list_sessions(app_name=app)).sessions for s in services]
                    assert sorted((s.user_id, s.id) for s in every[0]) == sorted((s.user_id, s.id) for s in every[1])
                case _:
                    if key not in held:
                        continue
                    event = said(
                        r.choice(["user", "agent"]), f"Say {step}.", at, **r.choice([{}, {"own": step}, {"user__u": step, "temp__t": 2}, {"app__a": "x", "gone": None}])
                    )
                    for s, session in zip(services, held[key], strict=True):
                        await s.append_event(session, event.model_copy(deep=True))
                    assert {k: v for k, v in held[key][0].state.items()} == held[key][1].state
        for app in apps:
            for user in users:
                assert await services[0].get_user_state(app_name=app, user_id=user) == await services[1].get_user_state(app_name=app, user_id=user)


async def _or_error(call: Any) -> Any:
    try:
        return await call
    except already_exists_error.AlreadyExistsError as e:
        return e


@pytest.mark.asyncio
async def test_events_come_back_as_they_were_and_as_go_and_javascript_have_them(tmp_path: Path) -> None:
    event = rich()
    async with opened(tmp_path) as db:
        service = TurnstoneSessions(db)
        session = await service.create_session(app_name="a", user_id="u", session_id="s")
        await service.append_event(session, event)
        got = await service.get_session(app_name="a", user_id="u", session_id="s")
        assert got is not None
        assert got.events == [event]
        assert got.last_update_time == event.timestamp
        stored = await db.session("adk/a/u/s")
        info = await stored.info()
        assert [(u.model, u.input, u.output, u.cached_input, u.reasoning) for u in info.usage] == [("model-1", 10, 5, 4, 2)]
        node = (await stored.load()).nodes[0]
    # The adapter for Go has a test that reads this payload, and one that writes the other.
    assert json.loads(node.payload) == json.loads((GO / "python.json").read_text())
    of_go = event_of((GO / "go.json").read_bytes())
    assert of_go == event
    of_js = event_of((GO / "js.json").read_bytes())
    event.timestamp, event.actions.state_delta["f"] = 1795899580.492, 2.5  # JavaScript has milliseconds, and no 2.0.
    assert of_js == event


async def read(service: TurnstoneSessions, id: str) -> Any:
    found = await service.get_session(app_name="a", user_id="u", session_id=id)
    assert found is not None
    return found


@pytest.mark.asyncio
async def test_a_session_that_others_have_appended_to_is_stale(tmp_path: Path) -> None:
    async with opened(tmp_path) as db:
        service, other = TurnstoneSessions(db), TurnstoneSessions(db)
        session = await service.create_session(app_name="a", user_id="u")
        theirs = await other.get_session(app_name="a", user_id="u", session_id=session.id)
        assert theirs is not None
        first = said("user", "one", 1_795_000_000.0, own=1)
        await service.append_event(session, first)
        await service.append_event(session, first.model_copy(deep=True))  # once
        with pytest.raises(StaleSessionError):
            await other.append_event(theirs, said("user", "two", 1_795_000_001.0, user__x=1))
        again = await other.get_session(app_name="a", user_id="u", session_id=session.id)
        assert again is not None
        # An answer was lost, and others have changed the state: the event is stored once all the same.
        await other.append_event(again, said("user", "theirs", 1_795_000_001.0, other=1))
        await service.append_event(await read(service, session.id), first.model_copy(deep=True))
        with pytest.raises(TurnConflictError):
            await service.append_event(await read(service, session.id), first.model_copy(update={"author": "another"}))
        await service.append_event(await read(service, session.id), said("user", "end", 1_795_000_002.0, other=None))
        again = await read(service, session.id)
        assert [e.id for e in again.events[:1]] == [first.id]
        assert len(again.events) == 3
        assert again.state == {"own": 1, "other": None}  # Nothing of the refused one is stored.
        await service.delete_session(app_name="a", user_id="u", session_id=session.id)
        with pytest.raises(session_not_found_error.SessionNotFoundError):
            await service.append_event(session, said("user", "three", 1_795_000_002.0))
        with pytest.raises(ValueError, match="JSON has no number"):
            await service.create_session(app_name="a", user_id="u", session_id="nan", state={"x": float("inf")})
        assert await service.get_session(app_name="a", user_id="u", session_id="nan") is None


@pytest.mark.asyncio
async def test_an_event_that_a_rewind_took_away_is_refused_if_it_comes_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as db:
        service = TurnstoneSessions(db)
        session = await service.create_session(app_name="a", user_id="u", session_id="s")
        events = [said("user", text, 1_795_000_000.0 + i, **({"own": i} if i else {})) for i, text in enumerate(("one", "two", "three"))]
        before = []
        for e in events:
            before.append(await read(service, "s"))
            await service.append_event(session, e)
        handle = await db.session("adk/a/u/s")
        await handle.commit(leaf=(await handle.load()).nodes[0].id, expected="any")
        await service.append_event(await read(service, "s"), said("user", "else", 1_795_000_009.0, own=9))
        await service.append_event(await read(service, "s"), events[0].model_copy(deep=True))  # is there
        for e, then in zip(events[1:], before[1:], strict=True):
            for s in (await read(service, "s"), then):
                with pytest.raises(TurnConflictError):
                    await service.append_event(s, e.model_copy(deep=True))
        assert len((await read(service, "s")).events) == 2


@pytest.mark.asyncio
async def test_state_may_be_large_and_many_change_it_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as db:
        services = [TurnstoneSessions(db) for _ in range(4)]
        large = "x" * 300_000
        sessions = [await s.create_session(app_name="a", user_id="u", state={"user:large": large}) for s in services]

        async def work(i: int) -> None:
            for n in range(5):
                delta = {f"user:{i}": n, "app:n": n, "user:large": f"{i} {n} " + large if n % 2 else "small"}
                event = Event(author="agent", invocation_id="i", actions=EventActions(state_delta=delta))
                await services[i].append_event(sessions[i], event)

        await asyncio.gather(*(work(i) for i in range(4)))
        state = await services[0].get_user_state(app_name="a", user_id="u")
        assert {k: v for k, v in state.items() if k != "large"} == {str(i): 4 for i in range(4)}
        assert state["large"] == "small"


def _place(r: random.Random) -> dict[str, Any]:
    return {"app_name": "app", "user_id": r.choice(["u", "v/w"]), "filename": r.choice(["a", "a/b", "a/b/7fff", "user:c"]), "session_id": r.choice(["s", "t"])}


async def _save(s: Any, r: random.Random) -> Any:
    parts = [types.Part(text="text é"), types.Part(inline_data=types.Blob(data=bytes(range(256)) * 300, mime_type="image/png")), types.Part(text="")]
    return await s.save_artifact(**_place(r), artifact=r.choice(parts), custom_metadata={"n": r.randrange(9)})


async def _load(s: Any, r: random.Random) -> Any:
    part = await s.load_artifact(**_place(r), version=r.choice([None, 0, 1, 2]))
    return part and (part.text or None, part.inline_data)


async def _listed(s: Any, r: random.Random) -> Any:
    where = _place(r)
    described = [(v.version, v.custom_metadata, v.mime_type) for v in await s.list_artifact_versions(**where)]
    versions = await s.list_versions(**where)
    del where["filename"]
    return described, versions, sorted(await s.list_artifact_keys(**where))


async def _deleted(s: Any, r: random.Random) -> Any:
    return await s.delete_artifact(**_place(r))


@pytest.mark.asyncio
async def test_artifacts_do_what_those_in_memory_do(tmp_path: Path) -> None:
    async with opened(tmp_path) as db:
        await alike([TurnstoneArtifacts(db), InMemoryArtifactService()], [_save, _save, _save, _load, _load, _listed, _listed, _deleted], steps=200)


@pytest.mark.asyncio
async def test_memory_finds_what_that_in_memory_finds(tmp_path: Path) -> None:
    async with opened(tmp_path) as db:
        ours, theirs = TurnstoneMemory(db), InMemoryMemoryService()
        sessions = InMemorySessionService()
        words = ["kyoto", "museum", "train", "rain", "paper", "stone", "bread", "私はPythonを使う", "今天天气很好", "cafe\u0301", "Hauptübersicht", "погода"]
        r = random.Random(51)
        for n in range(6):
            session = await sessions.create_session(app_name="a", user_id="u", session_id=f"s{n}")
            for i in range(5):
                await sessions.append_event(session, said("user", " ".join(r.sample(words, 3)), 1_795_000_000.0 + n * 10 + i))
            session = await sessions.get_session(app_name="a", user_id="u", session_id=f"s{n}") or session
            for m in (ours, theirs):
                await m.add_session_to_memory(session)
                await m.add_session_to_memory(session)  # once
        for query in ("kyoto", "Museum bread", "python", "天气", "café rain", "über", "погод", "thon", "nothing", ""):
            found = [(await m.search_memory(app_name="a", user_id="u", query=query)).memories for m in (ours, theirs)]
            texts = [[m.content.parts[0].text for m in f] for f in found]
            assert texts[0] == texts[1], query
        assert (await ours.search_memory(app_name="a", user_id="other", query="kyoto")).memories == []
        for m in (ours, theirs):
            for user, id in (("u", session.events[1].id), ("u", "none"), ("other", "none"), ("u", None)):
                await m.delete_memory(app_name="a", user_id=user, memory_id=id)
            await m.add_session_to_memory(session)
            await m.add_events_to_memory(app_name="a", user_id="u", events=session.events, session_id="another")
        found = [(await m.search_memory(app_name="a", user_id="u", query="kyoto museum train rain paper")).memories for m in (ours, theirs)]
        assert [m.id for m in found[0]] == [m.id for m in found[1]]
        assert session.events[1].id not in [m.id for m in (await TurnstoneMemory(db, most=100).search_memory(app_name="a", user_id="u", query=" ".join(words))).memories]


@pytest.mark.asyncio
async def test_memory_of_events_with_images_is_stored_in_several_commits(tmp_path: Path) -> None:
    image = types.Part.from_bytes(data=bytes(3 << 20), mime_type="image/png")
    events = [Event(author="user", content=types.Content(role="user", parts=[types.Part(text=f"picture {i}"), image])) for i in range(40)]
    async with await AsyncClient.open(tmp_path / "s", idle=2) as db:
        memory = TurnstoneMemory(db)
        await memory.add_events_to_memory(app_name="a", user_id="u", events=events)
        assert len((await memory.search_memory(app_name="a", user_id="u", query="picture")).memories) == 10
        assert (await (await db.session("adk-memory/a/u")).info()).nodes == 40


@pytest.mark.asyncio
async def test_a_session_that_was_made_again_is_another(tmp_path: Path) -> None:
    async with opened(tmp_path) as db:
        a, b = TurnstoneSessions(db), TurnstoneSessions(db)
        of = {"app_name": "a", "user_id": "u"}
        for delta in ({}, {"k": 1}):
            read = await a.create_session(session_id="s", **of)
            await b.delete_session(session_id="s", **of)
            await b.create_session(session_id="s", **of)
            with pytest.raises(StaleSessionError):
                await a.append_event(read, said("user", "late", 1.0, **delta))
            there = await a.get_session(session_id="s", **of)
            assert there is not None and not there.events and not there.state
            await a.append_event(there, said("user", "now", 2.0, **delta))
            await a.delete_session(session_id=" s ", **of)
            assert await a.get_session(session_id="s", **of) is None


@pytest.mark.asyncio
async def test_state_keeps_the_types_that_go_has_stored(tmp_path: Path) -> None:
    async with opened(tmp_path) as db:
        sessions = TurnstoneSessions(db)
        s = await sessions.create_session(app_name="a", user_id="u", session_id="s")
        typed = {"k": {"$type": "int64", "value": 5}, "big": 12345678901234567890123}
        handle = await db.session("adk/a/u/s")
        await handle.commit([], expected=1, turn="t", checkpoint={"state": json.dumps(typed).encode()})
        s = await sessions.get_session(app_name="a", user_id="u", session_id="s")  # type: ignore[assignment]
        await sessions.append_event(s, said("user", "text", 1.0, other=1.5))
        stored = await (await db.session("adk/a/u/s")).checkpoint()
        assert json.loads(stored["state"]) == {**typed, "other": 1.5}


@pytest.mark.asyncio
async def test_an_artifact_belongs_to_a_session_or_a_user(tmp_path: Path) -> None:
    async with opened(tmp_path) as db:
        artifacts = TurnstoneArtifacts(db)
        with pytest.raises(ValueError, match="no session"):
            await artifacts.save_artifact(app_name="a", user_id="u", filename="f", artifact=types.Part(text="x"))
        assert await artifacts.save_artifact(app_name="a", user_id="u", filename="user:f", artifact=types.Part(text="x")) == 0


@pytest.mark.asyncio
async def test_versions_that_are_saved_at_once_have_numbers_of_their_own_and_all_of_them_are_deleted(tmp_path: Path) -> None:
    async with opened(tmp_path) as db:
        services, of = [TurnstoneArtifacts(db), TurnstoneArtifacts(db)], {"app_name": "a", "user_id": "u", "filename": "f", "session_id": "s"}
        saved = await asyncio.gather(*(services[i % 2].save_artifact(**of, artifact=types.Part(text=str(i))) for i in range(8)))
        assert sorted(saved) == list(range(8))
        handle = await db.session("adk-artifacts/a/u/s")
        await handle.change_records(*(RecordChange.set(f"version/f/{i:016x}", b'{"node":"none"}') for i in range(205)))
        await services[0].delete_artifact(**of)
        assert (await handle.records()).records == ()
        assert [n async for n in handle.nodes(full=True)] == []  # So a vacuum removes the contents.


@pytest.mark.asyncio
async def test_no_prune_deletes_artifacts_and_memory_and_their_session_does_its_own(tmp_path: Path) -> None:
    async with opened(tmp_path) as db:
        artifacts, memory, of = TurnstoneArtifacts(db), TurnstoneMemory(db, most=300), {"app_name": "a", "user_id": "u"}
        await artifacts.save_artifact(**of, filename="user:f", artifact=types.Part(text="x"))
        events = [said("user", f"word {i}", 1.0 + i) for i in range(250)]
        await asyncio.gather(*(memory.add_events_to_memory(**of, events=events, session_id="s") for _ in range(2)))
        await memory.add_events_to_memory(**of, events=events[:1], session_id="fork")
        await db.create("another")
        await asyncio.sleep(1.1)
        assert (await db.prune(inactive=1)).counts["deleted"] == ["another"]
        await TurnstoneSessions(db).create_session(**of, session_id="s")
        await artifacts.save_artifact(**of, filename="f", session_id="s", artifact=types.Part(text="x"))
        await TurnstoneSessions(db).delete_session(**of, session_id="s")
        assert await artifacts.list_artifact_keys(**of, session_id="s") == ["user:f"]
        assert len((await memory.search_memory(**of, query="word")).memories) == 251


@pytest.mark.asyncio
async def test_events_of_a_clock_that_is_ahead_are_found_by_their_times(tmp_path: Path) -> None:
    async with opened(tmp_path) as db:
        service, of = TurnstoneSessions(db), {"app_name": "a", "user_id": "u"}
        session, ahead = await service.create_session(**of, session_id="s"), time.time() + 7200
        for i in range(3):
            await service.append_event(session, said("user", str(i), ahead + i))
        found = await service.get_session(**of, session_id="s", config=GetSessionConfig(after_timestamp=ahead))
        assert found and found.events == session.events
        await db.create("adk/b/u/s", group="adk/a/u")  # by somebody else
        assert [s.id for s in (await service.list_sessions(**of)).sessions] == ["s"]


def test_what_tools_of_the_model_have_given_it_counts_as_input() -> None:
    used = types.GenerateContentResponseUsageMetadata(prompt_token_count=7, tool_use_prompt_token_count=3)
    assert [(u.model, u.input) for u in _usage(Event(author="agent", model_version="m", usage_metadata=used))] == [("m", 10)]
