"""The session store for the Claude Agent SDK."""

import asyncio
import json
import subprocess
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import SessionKey
from claude_agent_sdk.testing import run_session_store_conformance

from turnstonedb import AsyncClient, NewNode, _steps, adapter, claude_agent
from turnstonedb._async import AsyncSession
from turnstonedb._server import command
from turnstonedb.claude_agent import TurnstoneSessionStore
from turnstonedb.errors import UnavailableError
from turnstonedb.types import RecordChange


@asynccontextmanager
async def opened(place: Path, namespace: str = "") -> AsyncIterator[AsyncClient]:
    async with await AsyncClient.open(place, namespace=namespace, idle=1) as db:
        yield db


def key(project: str = "-home-ann-trip", session: str = "", **more: Any) -> SessionKey:
    return {"project_key": project, "session_id": session or str(uuid.uuid4()), **more}  # type: ignore[typeddict-item]


def said(uid: str, parent: str | None, text: str, **more: Any) -> Any:
    return {"parentUuid": parent, "type": "user", "message": {"role": "user", "content": text}, "uuid": uid, "timestamp": "2026-11-01T10:00:00.000Z", **more}


@pytest.mark.asyncio
async def test_the_contracts_of_the_sdk_hold(tmp_path: Path) -> None:
    clients: list[AsyncClient] = []

    async def make() -> TurnstoneSessionStore:
        clients.append(await AsyncClient.open(tmp_path, namespace=f"n{len(clients)}", idle=5))
        return TurnstoneSessionStore(clients[-1])

    await run_session_store_conformance(make)
    for c in clients:
        await c.close()
    assert len(clients) == 15  # one to look at, and one for each contract


@pytest.mark.asyncio
async def test_entries_come_back_as_they_were(tmp_path: Path) -> None:
    odd = [
        {"type": "x"},
        {"type": "x"},  # twice, and without a uuid
        {"type": "y" * 100, "n": 1.5, "big": 2**53 + 1, "text": "\ud800 \u2028 é \x00 \x7f", "deep": [[[{"a": None}]]]},
        said("a~1", None, "a key with a tilde"),
        {"type": "user", "uuid": 7, "message": "no object"},
        {"type": "assistant", "uuid": "b" * 1000, "message": {"usage": {"input_tokens": -1, "output_tokens": "many"}, "content": "text"}},
        {"type": "assistant", "uuid": "m", "message": {"id": "r", "model": "é" * 100, "usage": {"input_tokens": 1, "output_tokens": 2**70}, "content": "text"}},
    ]
    async with opened(tmp_path) as db:
        store = TurnstoneSessionStore(db)
        for session in ("", "not a uuid / at all", "é" * 300):
            k = key(session=session)
            await store.append(k, odd)
            assert await store.load(k) == odd
            assert await TurnstoneSessionStore(db).load(k) == odd
            assert k["session_id"] in [s["session_id"] for s in await store.list_sessions(k["project_key"])]
        with pytest.raises(ValueError):
            await store.append(key(session="nan"), [{"type": "x", "n": float("nan")}])  # type: ignore[typeddict-unknown-key]
        assert await store.load(key(session="nan")) is None


@pytest.mark.asyncio
@pytest.mark.parametrize("answered", [False, True])
async def test_a_long_batch_that_failed_in_its_middle_is_stored_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answered: bool) -> None:
    entries: list[Any] = [{"type": "note", "n": i} if i % 3 else said(f"u{i}", None, f"message {i}") for i in range(1200)]
    commits, commit = 0, AsyncSession.commit

    async def failing(self: AsyncSession, *args: Any, **kw: Any) -> Any:
        nonlocal commits
        commits += 1
        result = None if commits == 2 and answered else await commit(self, *args, **kw)
        if commits == 2:
            raise UnavailableError("no room", {}) if answered else ConnectionResetError("no answer")
        return result

    monkeypatch.setattr(AsyncSession, "commit", failing)
    monkeypatch.setattr(claude_agent, "_KNOWN", 1)
    async with opened(tmp_path) as db:
        store, k = TurnstoneSessionStore(db), key()
        with pytest.raises((UnavailableError, ConnectionResetError)):
            await store.append(k, entries)
        await store.append(key(), entries[:1])  # A failed batch is remembered, however many transcripts there are.
        await store.append(k, entries)
        assert await store.load(k) == entries
        await store.append(k, entries[1:2])  # That is another batch.
        assert await store.load(k) == entries + entries[1:2]


@pytest.mark.asyncio
async def test_lines_that_are_stored_are_no_failure_if_the_title_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save, fails = AsyncSession.save_metadata, True

    async def failing(self: AsyncSession, **kw: Any) -> None:
        if fails:
            raise UnavailableError("no answer", {})
        await save(self, **kw)

    monkeypatch.setattr(AsyncSession, "save_metadata", failing)
    async with opened(tmp_path) as db:
        store, k = TurnstoneSessionStore(db), key()
        entries: list[Any] = [said("u1", None, "hello"), {"type": "custom-title", "customTitle": "A title"}, {"type": "note"}]
        await store.append(k, entries)
        assert await store.load(k) == entries
        fails = False
        await store.append(k, [{"type": "note", "n": 1}])
        assert [i.name for i in (await db.list()).sessions] == ["A title"]


@pytest.mark.asyncio
async def test_lines_are_stored_also_if_their_summary_is_too_long(tmp_path: Path) -> None:
    async with opened(tmp_path) as db:
        store, k = TurnstoneSessionStore(db), key()
        entries: list[Any] = [said("u1", None, "hello"), {"type": "last-prompt", "lastPrompt": "天" * 20_000}, said("u2", "u1", "more")]
        await store.append(k, entries)
        assert await store.list_session_summaries(k["project_key"]) == []
        await store.append(k, [{"type": "last-prompt", "lastPrompt": "short"}])
        assert [s["data"]["last_prompt"] for s in await store.list_session_summaries(k["project_key"])] == ["short"]
        assert await store.load(k) == [*entries, {"type": "last-prompt", "lastPrompt": "short"}]


@pytest.mark.asyncio
async def test_an_entry_is_stored_once(tmp_path: Path) -> None:
    """Also by two hosts at once, and when a batch is mirrored again."""
    async with opened(tmp_path) as db:
        a, b = TurnstoneSessionStore(db), TurnstoneSessionStore(db)
        k = key()
        entries = [said(f"u{i}", f"u{i - 1}" if i else None, f"message {i}") for i in range(40)]
        await a.append(k, entries[:10])
        await asyncio.gather(*(s.append(k, entries[i : i + 5]) for i in range(10, 40, 5) for s in (a, b)))
        await b.append(k, entries)
        loaded = await a.load(k)
        assert loaded is not None
        assert sorted(e["uuid"] for e in loaded) == sorted(e["uuid"] for e in entries)
        assert await a.load(k) == loaded


@pytest.mark.asyncio
async def test_what_was_deleted_begins_anew(tmp_path: Path) -> None:
    async with opened(tmp_path) as db:
        store, other = TurnstoneSessionStore(db), TurnstoneSessionStore(db)
        k = key()
        sub = key(session=k["session_id"], subpath="subagents/agent-7")
        odd = key(session=k["session_id"], subpath="subagents/workflows/run/agent-7")
        plain = key(session=k["session_id"], subpath="7")
        for one in (sub, odd, plain, k):  # that of the sub-agent first
            await store.append(one, [said("u1", None, one.get("subpath", "main"))])
        assert sorted(await store.list_subkeys(k)) == sorted(one["subpath"] for one in (sub, odd, plain))
        assert (await store.load(odd) or [])[0]["message"]["content"] == odd["subpath"]  # type: ignore[typeddict-item]
        await other.delete(k)
        assert [await store.load(one) for one in (k, sub, odd, plain)] == [None] * 4
        await store.append(k, [said("u2", None, "again")])
        assert await other.load(k) == [said("u2", None, "again")]
        assert await store.list_subkeys(k) == []


@pytest.mark.asyncio
async def test_a_session_has_title_model_usage_and_branches(tmp_path: Path) -> None:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 5, "output_tokens": 3}
    answer = {"id": "msg1", "model": "model-1", "role": "assistant", "content": [{"type": "text", "text": "Yes."}]}
    async with opened(tmp_path) as db:
        store = TurnstoneSessionStore(db, group="team")
        k = key()
        await store.append(k, [said("u1", None, "Where to?")])
        await store.append(k, [{"type": "assistant", "uuid": "a1", "parentUuid": "u1", "message": {**answer, "usage": {**usage, "output_tokens": 1}}}])  # type: ignore[typeddict-unknown-key]
        await TurnstoneSessionStore(db).append(k, [{"type": "assistant", "uuid": "a2", "parentUuid": "a1", "message": {**answer, "usage": usage}}])  # type: ignore[typeddict-unknown-key]
        await store.append(k, [said("u2", "a2", "And then?"), said("u3", "a2", "Or rather?")])  # the user went back
        session = await db.session(k["session_id"])
        info = await session.info()
        assert (info.name, info.model, info.group) == ("Where to?", "model-1", "team")
        assert [(u.model, u.input, u.output, u.cached_input, u.cache_write) for u in info.usage] == [("model-1", 115, 3, 100, 5)]
        assert [json.loads(n.payload)["uuid"] for n in (await session.load()).nodes] == ["u1", "a1", "a2", "u3"]
        assert [e["uuid"] for e in await store.load(k) or []] == ["u1", "a1", "a2", "u2", "u3"]
        await session.save_metadata(name="Ours")
        await store.append(k, [{"type": "custom-title", "customTitle": "Theirs"}])  # type: ignore[typeddict-unknown-key]
        assert (await session.info()).name == "Ours"


def run(*arguments: str, store: Path) -> bytes:
    """Runs the command, when the server that the client has started has ended."""
    for _ in range(100):
        done = subprocess.run([command(), *arguments, "--store", str(store)], capture_output=True)
        if not done.returncode:
            return done.stdout
        assert b"use" in done.stderr or b"lock" in done.stderr, done.stderr
        time.sleep(0.2)
    raise AssertionError(done.stderr)


@pytest.mark.asyncio
async def test_the_file_and_the_mirror_are_one_session(tmp_path: Path) -> None:
    """What the SDK mirrors and what an import reads of the file on disk is stored once, whichever comes first."""
    main = str(uuid.uuid4())
    lines: list[Any] = [{"type": "mode", "mode": "plan", "sessionId": main}]
    parent = None
    for i in range(6):
        uid = str(uuid.uuid4())
        lines.append(said(uid, parent, f"Say {i}.", sessionId=main, cwd="/home/ann/trip"))
        answer, parent = str(uuid.uuid4()), uid
        content = [{"type": "text", "text": f"Is it {i}? é"}]
        message = {"id": f"msg{i}", "model": "model-1", "role": "assistant", "content": content, "usage": {"input_tokens": 3, "output_tokens": 2}}
        lines.append({"parentUuid": parent, "type": "assistant", "message": message, "uuid": answer, "timestamp": "2026-11-01T10:00:01.000Z", "sessionId": main})
        parent = answer
        lines.append({"type": "mode", "mode": "plan", "sessionId": main})
    file = tmp_path / "-home-ann-trip" / f"{main}.jsonl"
    file.parent.mkdir()
    k = key(session=main)

    def write(n: int) -> None:
        file.write_text("".join(json.dumps(e, ensure_ascii=False, separators=(",", ":")) + "\n" for e in lines[:n]))

    for first in ("mirror", "file"):
        place = tmp_path / first
        for n in (4, 10, len(lines)):
            write(n)
            if first == "file":
                run("import", str(file), store=place)
            async with opened(place) as db:
                await TurnstoneSessionStore(db).append(k, lines[(0 if first == "file" else {4: 0, 10: 4}.get(n, 10)) : n])
            if first == "mirror":
                run("import", str(file), store=place)
        async with opened(place) as db:
            session = await db.session(main)
            info = await session.info()
            assert info.nodes == len(lines), first
            assert [(u.input, u.output) for u in info.usage] == [(18, 12)], first
            assert await TurnstoneSessionStore(db).load(k) == lines
            assert [i.id for i in (await db.list()).sessions] == [main]
        exported = run("export", main, store=place)
        assert exported.decode() == file.read_text(), first

    # Lines without a uuid that are new are stored, also if the import has read such lines before.
    titles = [{"type": "custom-title", "customTitle": t, "sessionId": main} for t in ("A", "B", "A", "A")]
    lines += titles[:1]
    write(len(lines))
    run("import", str(file), store=tmp_path / "file")
    async with opened(tmp_path / "file") as db:
        await TurnstoneSessionStore(db).append(k, titles[1:])
        assert await TurnstoneSessionStore(db).load(k) == lines + titles[1:]
        assert (await (await db.session(main)).info()).name == "A"


@pytest.mark.asyncio
async def test_an_imported_session_that_goes_on_from_another_one_is_listed(tmp_path: Path) -> None:
    """Its file begins with lines of the other one, as Claude Code writes it."""
    first, second = str(uuid.uuid4()), str(uuid.uuid4())
    project = tmp_path / "projects" / "-home-ann-trip"
    project.mkdir(parents=True)
    lines = [said(str(uuid.uuid4()), None, "one", sessionId=first), said(str(uuid.uuid4()), None, "two", sessionId=second)]
    lines[1]["parentUuid"] = lines[0]["uuid"]
    for session, all in ((first, lines[:1]), (second, lines)):
        (project / f"{session}.jsonl").write_text("".join(json.dumps(e) + "\n" for e in all))
    run("import", str(tmp_path / "projects"), store=tmp_path / "s")
    async with opened(tmp_path / "s") as db:
        assert (await (await db.session(second)).info()).parent == first
        store = TurnstoneSessionStore(db)
        await store.append(key(session=second, subpath="subagents/agent-1"), [said("u1", None, "three")])
        begun, _ = await db.create(f"{second}~new", labels={"claude.project": "-home-ann-trip"})  # An import that replaces a session makes it.
        await begun.commit([NewNode("user", "{}")], turn="1")
        assert {s["session_id"] for s in await store.list_sessions("-home-ann-trip")} == {first, second}
        assert await store.load(key(session=second)) == lines


@pytest.mark.asyncio
async def test_long_after_an_import_a_line_that_is_equal_to_one_of_it_is_new(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def some() -> list[Any]:
        return [{"type": "mode", "mode": "plan"}, said(str(uuid.uuid4()), None, "Hello")]

    k, all = key(session=str(uuid.uuid4())), some()
    async with opened(Path(store)) as db:
        await TurnstoneSessionStore(db).append(k, all)
        await (await db.session(k["session_id"])).change_records(RecordChange.set(".import.stamp", b"x"))
        for later in (False, True):
            more = some()
            all += more if later else more[1:]
            with monkeypatch.context() as m:
                m.setattr(claude_agent, "_BESIDE", 0.0 if later else 60.0)
                await TurnstoneSessionStore(db).append(k, more)
            assert await TurnstoneSessionStore(db).load(k) == all


@pytest.mark.asyncio
async def test_sessions_of_a_project_are_its_own_and_are_listed_over_all_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (adapter, _steps):
        monkeypatch.setattr(module, "MAX_PAGE", 2)
    async with opened(tmp_path) as db:
        store, k = TurnstoneSessionStore(db), key()
        other = key("-home-bob-trip", k["session_id"])
        await store.append(k, [said("u1", None, "Ann's"), said("u1", None, "Ann's")])
        await store.append(other, [said("u1", None, "Bob's")])
        assert (await store.load(k), await store.load(other)) == ([said("u1", None, "Ann's")], [said("u1", None, "Bob's")])
        for n in range(4):
            await store.append(key(session=f"s{n}"), [said("u1", None, str(n))])
        await asyncio.sleep(0.01)
        await (await db.session(k["session_id"])).commit([NewNode("user", b"{}")], expected="any", turn="import")
        listed = {s["session_id"]: s["mtime"] for s in await store.list_sessions(k["project_key"])}
        summaries = {s["session_id"]: s["mtime"] for s in await store.list_session_summaries(k["project_key"])}
        # The summary of a session into which an import has read more is older than the session.
        assert summaries.pop(k["session_id"]) < listed.pop(k["session_id"])
        assert summaries == listed
        assert len(listed) == 4
