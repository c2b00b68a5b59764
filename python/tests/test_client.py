import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import turnstonedb
from turnstonedb import Commit, NewNode, RecordChange
from turnstonedb import _server as server
from turnstonedb._transport import BrokenError

sys.path.insert(0, str(Path(__file__).parents[1]))


def test_the_synchronous_client_is_the_asynchronous_one_without_awaits() -> None:
    import unasync

    assert unasync.TARGET.read_text() == unasync.synchronous(unasync.SOURCE.read_text()), "python unasync.py writes it"


def test_what_is_committed_is_read(db: turnstonedb.Client) -> None:
    s, created = db.create("chat/1", name="n", labels={"content": "x"}, group="a/b")
    assert created
    assert db.create("chat/1")[1] is False
    binary = bytes(range(256)) * 20
    r = s.commit(
        [NewNode("user", "héllo\ud7ff"), NewNode("image", binary, key="k")],
        expected=s.load().revision, turn="t", checkpoint={"a": b"", "b": binary}, labels={"value": "1"}, keep="first",
        usage=[turnstonedb.Usage("m", input=3)], records=[RecordChange.set("r", b"\x00", "none")],
    )  # fmt: skip
    assert (r.revision, r.replayed) == (1, False)
    st = s.load(parts=["a", "b"], records=["r", "none"])
    assert [n.payload for n in st.nodes] == ["héllo\ud7ff".encode(), binary]
    assert st.nodes[1].parent == st.nodes[0].id
    assert st.contents == {"a": b"", "b": binary}
    assert st.records["r"].value == b"\x00"
    assert st.records["none"].version == "none"
    assert s.checkpoint() == {"a": b"", "b": binary}
    assert [n.id for n in s.nodes(reverse=True)] == [n.id for n in reversed(st.nodes)]
    assert s.node(key="k").payload == binary
    assert s.node(st.nodes[0].id).kind == "user"
    assert set(s.nodes_by_key("k", "other")) == {"k"}
    assert [n.id for n in s.leaves()] == [st.leaf]
    assert [(e.revision, e.turn, e.labels) for e in s.log()] == [(1, "t", {"value": "1"})]
    assert s.kept() == {"first": 1}
    record = s.record("r")
    assert record is not None
    assert s.record("other") is None
    assert [x.key for x in s.records().records] == ["r"]
    assert [x.session for x in db.records("r").records] == ["chat/1"]
    i = s.info()
    assert (i.name, i.labels, i.group, i.nodes, i.usage[0].input) == ("n", {"content": "x"}, "a/b", 2, 3)
    assert [x.id for x in db.list(group="a").sessions] == ["chat/1"]
    # The same turn again changes nothing.
    again = s.commit([NewNode("user", "héllo\ud7ff"), NewNode("image", binary, key="k")],
        turn="t", checkpoint={"a": b"", "b": binary}, labels={"value": "1"}, usage=[turnstonedb.Usage("m", input=3)])  # fmt: skip
    assert again.replayed
    s.save_metadata(name="new", empty=["labels"])
    assert (s.info().name, s.info().labels) == ("new", {})
    s.tombstone(st.nodes[1].id)
    assert len(s.load().nodes) == 1
    s.release("first")
    assert s.change_records(RecordChange.delete("r", record.version)) == ["none"]
    assert db.gc().counts["sessions"] >= 0
    assert "removed" in s.vacuum().counts
    with pytest.raises(turnstonedb.ConflictError) as conflict:
        s.delete(expected=99)
    assert conflict.value.revision == s.info().revision
    s.delete(expected=conflict.value.revision)
    db.delete("chat/1")
    with pytest.raises(turnstonedb.SessionDeletedError):
        s.info()
    with pytest.raises(turnstonedb.NotFoundError):
        db.session("chat/1")


def test_a_store_is_maintained(db: turnstonedb.Client) -> None:
    s, _ = db.create("chat/1")
    s.commit([NewNode("user", "one")])
    s.commit([NewNode("user", "two")], expected=1)
    first = s.load().nodes[0]
    assert s.prune(1) and not s.prune(1)
    s.seal()
    db.seal()
    assert db.stats().counts["sessions"] == 1 and "problems" not in db.verify().counts
    up = db.upgrade().counts
    assert up["from"] == up["to"] == db.stats().counts["format"]
    assert "deleted" not in db.prune(inactive=3600, dry_run=True).counts
    assert db.prune(inactive=0.000001, dry_run=True).counts["deleted"] == ["chat/1"]
    assert "deleted" not in db.prune(group="other", inactive=0.000001, dry_run=True).counts
    with pytest.raises(turnstonedb.InvalidError):
        db.prune(age=-1)
    assert s.erase(first.id).counts["gone"] == 0
    db.create("erased")
    assert db.erase("erased", "refuse").counts["vacuum"]
    assert len(s.load().nodes) == 1


def test_errors_have_what_a_caller_acts_on(db: turnstonedb.Client) -> None:
    s, _ = db.create("s")
    s.commit()
    with pytest.raises(turnstonedb.ConflictError) as conflict:
        s.commit(expected=0)
    assert (conflict.value.revision, conflict.value.expected, conflict.value.session) == (1, 0, "s")
    assert not conflict.value.outcome_unknown
    s.commit(expected=1, turn="t")
    with pytest.raises(turnstonedb.TurnConflictError) as turn:
        s.commit([NewNode("k")], turn="t")
    assert turn.value.revision == 2
    with pytest.raises(turnstonedb.RecordConflictError) as record:
        s.change_records(RecordChange.set("k", b"", s.change_records(RecordChange.set("other", b""))[0]))
    assert record.value.key == "k"
    with pytest.raises(turnstonedb.InvalidError):
        s.commit([NewNode("")], expected="any")
    with pytest.raises(UnicodeEncodeError):
        db.create("\udc80")
    with pytest.raises(turnstonedb.NotFoundError) as missing:
        s.load(at=9)
    assert missing.value.kind == "revision-not-found"


def test_several_sessions_change_together(db: turnstonedb.Client) -> None:
    a, _ = db.create("a")
    results = db.commit_all(a.turn(Commit(nodes=[NewNode("k", "x")])), db.first_turn("b", Commit(nodes=[NewNode("k")]), parent="a", group="g"))
    assert [(r.revision, r.created) for r in results] == [(1, False), (1, True)]
    with pytest.raises(turnstonedb.ConflictError):
        db.commit_all(a.turn(Commit()), db.session("b").turn(Commit("any")))
    assert db.session("b").info().revision == 1
    db.commit_all(a.turn(Commit(records=[RecordChange.set("k", b"v")]), records_only=True))
    made = db.commit_all(db.first_turn("made", Commit(records=[RecordChange.set("k", b"v")]), records_only=True))
    assert (made[0].created, made[0].revision) == (True, 0) and db.session("made").record("k").value == b"v"  # type: ignore[union-attr]
    assert a.info().revision == 1


def test_attachments_of_many_pieces(db: turnstonedb.Client, tmp_path: Path) -> None:
    s, _ = db.create("s")
    content = os.urandom(9_000_001)
    a = s.put_attachment(content, media_type="application/x", name="n")
    assert (a.size, a.media_type, a.name) == (len(content), "application/x", "n")
    path = tmp_path / "f"
    path.write_bytes(content[:8_388_608])  # pieces that end where the file does
    with path.open("rb") as f:
        assert s.put_attachment(f).size == 8_388_608
    assert s.put_attachment(b"").size == 0
    assert s.attachment(a.id).expires
    other, _ = db.create("other")
    assert other.link_attachment(s.id, a.id) == a
    other.commit([NewNode("k", attachments=[a])], stored={"part": a.id})
    (listed,) = other.attachments()
    assert (listed.attachment, listed.revision, listed == other.attachment(a.id)) == (a, 1, True)
    assert other.checkpoint() == {"part": content}
    s.commit([NewNode("image", attachments=[a])], expected="any")
    assert b"".join(s.read_attachment(a.id)) == content
    with pytest.raises(turnstonedb.NotFoundError):
        next(iter(s.read_attachment("0" * 64)))


def test_watches_go_on_when_the_server_is_killed(store: str) -> None:
    with turnstonedb.Client.open(store, idle=5) as db:
        db.start_feed(3600, records=True)
        begin = db.feed().end
        s, _ = db.create("s")
        seen: list[int] = []

        def watch() -> None:
            for e in s.watch():
                seen.append(e.revision)
                if e.revision == 30:
                    return

        t = threading.Thread(target=watch, daemon=True)
        t.start()
        for i in range(30):
            if i % 10 == 5:
                os.kill(server._children[-1].pid, signal.SIGKILL)
            s.commit(expected=i, turn=str(i))
        t.join(20)
        assert seen == list(range(1, 31))
        told = []
        for c in db.changes(begin):
            told.append((c.kind, c.revision))
            if c.revision == 30:
                break
        assert told == [("created", 0), *(("committed", i) for i in range(1, 31))]


def test_processes_share_a_store(store: str) -> None:
    program = (
        "import sys, turnstonedb\n"
        "with turnstonedb.Client.open(sys.argv[1], idle=2) as db:\n"
        "    s, _ = db.create('s')\n"
        "    for i in range(20): s.commit([turnstonedb.NewNode('k', sys.argv[2])], expected='any')\n"
    )
    all_of_them = [subprocess.Popen([sys.executable, "-c", program, store, str(i)]) for i in range(4)]
    assert [p.wait() for p in all_of_them] == [0] * 4
    with turnstonedb.Client.open(store, idle=2) as db:
        assert sorted(n.payload for n in db.session("s").load().nodes) == sorted(str(i).encode() for i in range(4) for _ in range(20))


def test_a_server_that_is_away_is_unavailable(tmp_path: Path) -> None:
    with turnstonedb.Client(f"unix:{tmp_path}/none", patience=0.05) as db, pytest.raises(turnstonedb.UnavailableError):
        db.list()
    for bad in ("", "host:80", "ftp://host"):
        with pytest.raises(ValueError):
            turnstonedb.Client(bad)
    with pytest.raises(ValueError):
        turnstonedb.Client.open("postgres://host/db")


def test_a_write_after_a_pause_goes_to_a_new_server(store: str) -> None:
    before = set(server._children)
    with turnstonedb.Client.open(store, idle=0.3) as db:
        s, _ = db.create("s")
        for i in range(2):
            time.sleep(1.5)  # The server has ended, and with it the connection that was kept.
            assert s.commit(expected=i).revision == i + 1
        assert len(set(server._children) - before) <= 2  # Those that have ended are waited for.


def test_a_write_names_the_server_that_it_is_for(db: turnstonedb.Client) -> None:
    with turnstonedb.Client(db._o.address) as plain:
        assert plain._server == ""
        plain.create("s")
        assert plain._server == db._server != ""


def test_a_store_stays_where_it_is_when_the_process_moves(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = Path(store).parent
    monkeypatch.chdir(parent)
    with turnstonedb.Client.open(Path("s"), idle=0.3) as db:
        db.create("x")
        monkeypatch.chdir("/")
        time.sleep(1.5)
        assert [i.id for i in db.list().sessions] == ["x"]
    assert os.listdir(parent) == ["s"]


def test_development_mode_has_nothing_to_warn_of(store: str) -> None:
    script = f"import turnstonedb\nwith turnstonedb.Client.open({store!r}, idle=1) as c: c.create('a')"
    done = subprocess.run([sys.executable, "-X", "dev", "-W", "error", "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", ["/bin/true", "/bin/false", "/none", "/"])
def test_a_wrong_command_is_said_at_once(command: str, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(server.COMMAND_VARIABLE, command)
    starts, start = [], server.start
    monkeypatch.setattr(server, "start", lambda *a: starts.append(a) or start(*a))
    with pytest.raises(turnstonedb.Error, match=command):
        turnstonedb.Client.open(store)
    assert len(starts) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the path of a socket has 103 bytes at most")
def test_a_store_is_in_a_directory_of_any_name(store: str) -> None:
    deep = os.path.join(store, *["x" * 200] * 3)

    async def run() -> None:
        async with await turnstonedb.AsyncClient.open(deep, idle=2) as db:
            s = await db.session("s")
            await s.commit([NewNode("k", "2")], expected="any")
            os.kill(server._children[-1].pid, signal.SIGKILL)
            assert len((await s.load()).nodes) == 2
            await asyncio.gather(*(s.info() for _ in range(20)))

    with turnstonedb.Client.open(deep, idle=2) as db:
        s, _ = db.create("s")
        s.commit([NewNode("k", "1")])
        asyncio.run(run())
        assert len(s.load().nodes) == 2
    asyncio.run(run_new(os.path.join(deep, "y")))


async def run_new(path: str) -> None:
    async with await turnstonedb.AsyncClient.open(path, idle=2) as db:
        await db.create("s")


def test_what_can_not_be_done_is_said(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with turnstonedb.Client.open(store, idle=2) as db:
        monkeypatch.setattr("turnstonedb._bodies.MAX_REQUEST", 100)
        s, _ = db.create("s")
        with pytest.raises(turnstonedb.InvalidError, match="bytes: a server reads 100"):
            s.commit([NewNode("k", "x" * 300)])
    with pytest.raises(turnstonedb.Error, match="closed"):
        db.list()
    for bad in ("unix:", "http://", "http://h?q", "http://u@h"):
        with pytest.raises(ValueError):
            turnstonedb.Client(bad)
    with pytest.raises(ValueError, match="https"):
        turnstonedb.Client("http://203.0.113.1", token="t")
    monkeypatch.setenv("TURNSTONE_COMMAND", "/none")
    with pytest.raises(turnstonedb.Error, match="TURNSTONE_COMMAND"):
        turnstonedb.Client.open(store + "2")


def test_what_takes_long_tells_of_its_progress(db: turnstonedb.Client) -> None:
    class Slow(BaseHTTPRequestHandler):
        """Answers as a server does whose work takes seconds."""

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            name = self.path.rpartition("/")[2]
            self.send_response(200)
            for header, value in (
                ("Turnstone-Call", self.headers["Turnstone-Call"]),
                ("Turnstone-Server", "s"),
                ("Turnstone-Request", self.headers.get("Turnstone-Request", "")),
            ):
                self.send_header(header, value)
            told = [b'{"progress":{"phase":"sessions",', b'"done":0}}\n\n', b'{"progress":{"phase":"sessions","done":10}}\n']
            counts = ("sessions", "commits", "roots", "retained", "candidates", "condemned", "revived", "bytes", "expired", "nanoseconds")
            report = {**dict.fromkeys(counts, 0), "deleted": 1, "repaired": False}
            done = json.dumps({"report": report}).encode() + b"\n"
            pieces = [b'{"sessions":[]}'] if name == "list" else [*told, done, b'{"end":true}\n']
            self.send_header("Content-Length", str(sum(map(len, pieces))))
            self.end_headers()
            for piece in pieces:
                self.wfile.write(piece)
                time.sleep(0.002)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with turnstonedb.Client(f"http://127.0.0.1:{server.server_port}") as slow:
            told: list[tuple[str, int]] = []
            s = turnstonedb.Session(slow, "s", "")
            for report in (
                slow.gc(progress=lambda *p: told.append(p)), slow.vacuum(progress=lambda *p: told.append(p)),
                slow.verify(progress=lambda *p: told.append(p)), slow.erase("s", progress=lambda *p: told.append(p)),
                s.gc(progress=lambda *p: told.append(p)), s.vacuum(progress=lambda *p: told.append(p)), s.erase("n", progress=lambda *p: told.append(p)),
            ):  # fmt: skip
                assert (told, report.counts["deleted"] > 0) == ([("sessions", 0), ("sessions", 10)] * (len(told) // 2), True)
            assert len(told) == 14
        server.shutdown()
    # What is refused is the error that it is without.
    with pytest.raises(turnstonedb.InvalidError):
        db.erase("", progress=lambda *_: None)
    assert not db.verify(progress=lambda *_: None).counts.get("problems")


def test_a_watch_of_records_tells_what_stands_and_what_changes(store: str) -> None:
    with turnstonedb.Client.open(store, idle=5) as db:
        a, _ = db.create("a")
        b, _ = db.create("b")
        a.change_records(RecordChange.set("p/1", b"\x00one"), RecordChange.set("q", b"other"))
        seen: dict[tuple[str, str], bytes] = {}
        changed = threading.Condition()

        def watch() -> None:
            for u in db.watch_records("p/"):
                with changed:
                    if u.anew:
                        seen.clear()
                    for r in u.records:
                        seen[r.session, r.key] = r.value
                        if r.version == "none":
                            del seen[r.session, r.key]
                    if not u.more:
                        changed.notify()
                    if ("b", "p/last") in seen:
                        return

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()

        def becomes(want: dict[tuple[str, str], bytes]) -> None:
            with changed:
                assert changed.wait_for(lambda: seen == want, 60), seen

        becomes({("a", "p/1"): b"\x00one"})
        b.change_records(RecordChange.set("p/1", b""))
        becomes({("a", "p/1"): b"\x00one", ("b", "p/1"): b""})
        os.kill(server._children[-1].pid, signal.SIGKILL)
        b.commit(turn="t", records=[RecordChange.set("p/2", b"two")])
        a.change_records(RecordChange.delete("p/1"))
        becomes({("b", "p/1"): b"", ("b", "p/2"): b"two"})
        b.change_records(RecordChange.set("p/last", b""))
        watching.join(60)
        assert not watching.is_alive()
        first = next(iter(b.watch_records("p/2")))
        assert [first.records[0].value, first.anew, first.more] == [b"two", True, False]


def test_async_watches_split_lines_where_events_do(store: str) -> None:
    async def main() -> None:
        async with await turnstonedb.AsyncClient.open(store, idle=2) as db:
            s, _ = await db.create("s")
            await s.commit(labels={"a": "x\x85y\u2028z"})
            async for e in s.watch():
                assert e.labels == {"a": "x\x85y\u2028z"}
                return

    asyncio.run(main())


def test_async_tasks_share_a_client(store: str) -> None:
    async def main() -> None:
        async with await turnstonedb.AsyncClient.open(store, idle=2) as db:
            s, _ = await db.create("s")
            await asyncio.gather(*(s.commit([NewNode("k", str(i))], expected="any") for i in range(50)))
            assert sorted(int(n.payload) for n in (await s.load()).nodes) == list(range(50))
            assert len([n async for n in s.nodes(full=True)]) == 50
            a = await s.put_attachment(b"x" * 5_000_000)
            assert sum([len(b) async for b in s.read_attachment(a.id)]) == a.size
            async for e in s.watch(49):
                assert e.revision == 50
                break

    asyncio.run(main())


def test_a_watch_goes_on_however_long_nothing_has_come_before_it_was_cut_off(store: str) -> None:
    with turnstonedb.Client.open(store, idle=5, patience=2) as db:
        s, _ = db.create("s")
        seen: list[int] = []

        def watch() -> None:
            for e in s.watch():
                seen.append(e.revision)
                return

        t = threading.Thread(target=watch, daemon=True)
        t.start()
        time.sleep(3)
        os.kill(server._children[-1].pid, signal.SIGKILL)
        s.commit(turn="t")
        t.join(10)
        assert seen == [1]


def test_nodes_are_read_when_the_server_has_ended(store: str) -> None:
    with turnstonedb.Client.open(store, idle=0.3) as db:
        s, _ = db.create("s")
        s.commit([NewNode("k", str(i)) for i in range(5)])
        time.sleep(1.5)
        assert [n.payload for n in s.nodes()] == [b"0", b"1", b"2", b"3", b"4"]


def test_an_upload_whose_source_fails_is_given_up(db: turnstonedb.Client) -> None:
    class Source(io.BytesIO):
        def read(self, n: int | None = -1) -> bytes:
            if self.tell() > 0:
                raise OSError("the source has failed")
            return super().read(n)

    s, _ = db.create("s")
    asked: list[str] = []
    request = db._http.request

    def spied(method: str, path: str, **kw: Any) -> Any:
        asked.append(f"{method} {path}")
        return request(method, path, **kw)

    db._http.request = spied  # type: ignore[method-assign]
    with pytest.raises(OSError, match="the source"):
        s.put_attachment(Source(os.urandom(9_000_000)))
    assert asked[-1] == "DELETE /v1/upload"


def test_a_collection_that_takes_longer_than_the_patience_goes_on_when_it_is_cut_off(store: str) -> None:
    with turnstonedb.Client.open(store, idle=2, patience=0.2) as db:
        request, cuts = db._http.request, []

        def cut(method: str, path: str, **kw: Any) -> Any:
            if not cuts:
                cuts.append(path)
                time.sleep(0.5)
                raise BrokenError(OSError("cut"), True, True)
            return request(method, path, **kw)

        db._http.request = cut  # type: ignore[method-assign]
        assert "sessions" in db.gc().counts
        assert cuts == ["/v1/gc"]


def test_the_synchronous_client_imports_no_httpx() -> None:
    program = """
import sys, turnstonedb, turnstonedb.langgraph, turnstonedb.transcript
assert "httpx" not in sys.modules
turnstonedb.AsyncClient
assert "httpx" in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_refs_lead_to_checkpoints(db: turnstonedb.Client) -> None:
    s, _ = db.create("s")
    for text in (b"one", b"two"):
        s.commit(checkpoint={"p": text}, expected="any")
    versions = s.change_records(
        turnstonedb.RecordChange.set("r/1", b'{"revision":1,"beside":"w/"}'),
        turnstonedb.RecordChange.set("r/2", b'{"revision":2}'),
        turnstonedb.RecordChange.set("w/a", b"x"),
    )
    first, second = s.refs([("r/1", "none"), ("gone", "none"), ("r/2", versions[1])])
    assert (first.record.version, first.parts, [r.key for r in first.beside]) == (versions[0], {"p": b"one"}, ["w/a"])
    assert (second.record.key, second.parts, second.beside) == ("r/2", None, [])


def test_a_store_of_an_unknown_scheme_is_refused(tmp_path: Path) -> None:
    for store in ("sqlite:///x.db", "file:x", "Pebble:x"):
        with pytest.raises(ValueError, match="no scheme"):
            turnstonedb.Client.open(store)
    assert server.absolute("pebble:/x") == "pebble:/x"
    assert server.absolute(f"{tmp_path}/sqlite:x") == f"{tmp_path}/sqlite:x"
