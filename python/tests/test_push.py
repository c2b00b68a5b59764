"""Sessions that go from one store to another."""

import asyncio
import random
import time
from collections.abc import Iterator
from datetime import datetime, timezone

import pytest

import turnstonedb
from test_cut import Cutter
from turnstonedb import Bundled, Info, NewNode, Page, RecordChange, _push


@pytest.fixture
def other(store: str) -> Iterator[turnstonedb.Client]:
    with turnstonedb.Client.open(store + "2", idle=2) as c:
        yield c


def fill(db: turnstonedb.Client) -> turnstonedb.Session:
    s, _ = db.create("trip", name="Trip", group="work/trips")
    a = s.put_attachment(b"attached" * 1000, name="a.txt")
    r = s.commit([NewNode("user", "hello", attachments=[a])], turn="1", checkpoint={"part": b"one"}, records=[RecordChange.set("r", b"v")])
    s.commit([NewNode("assistant", "hi")], expected=1, checkpoint={"part": b"two"})
    db.create("fork", parent="trip", fork_node=r.nodes[0])
    return s


def same(a: turnstonedb.Client, b: turnstonedb.Client, id: str) -> None:
    x, y = a.session(id), b.session(id)
    assert x.log() == y.log()
    assert x.checkpoint() == y.checkpoint()
    assert [n.id for n in x.nodes(full=True)] == [n.id for n in y.nodes(full=True)]
    assert [(r.key, r.value) for r in x.records().records] == [(r.key, r.value) for r in y.records().records]


def test_sessions_go_to_another_store_and_back(db: turnstonedb.Client, other: turnstonedb.Client) -> None:
    s = fill(db)
    report = db.push(other, all=True)
    assert {i.id: (i.created, i.begin, i.end) for i in report.sessions} == {"trip": (True, 0, 2), "fork": (True, 0, 0)}
    assert other.session("fork").info().parent == "trip"
    same(db, other, "trip")
    assert db.push(other, "trip", "fork") == turnstonedb.PushReport((), 2)
    s.save_metadata(model="m")
    (only,) = db.push(other, group="work").sessions
    assert (only.id, only.begin, only.end, other.session("trip").info().model) == ("trip", 2, 2, "m")
    other.session("trip").commit([NewNode("user", "more")], expected=2)
    assert other.push(db, all=True).sessions[0].end == 3
    same(db, other, "trip")
    other.verify()
    with pytest.raises(turnstonedb.PushError) as e:
        db.push(other, "nobody", "trip")
    assert (e.value.refused[0].kind, e.value.report.same) == ("session-not-found", 1)
    t, _ = db.create("later fork", parent="trip")
    assert db.push(other, all=True).same == 2
    assert other.session(t.id).info().parent == "trip"
    for wrong in ({}, {"all": True, "group": "g"}):
        with pytest.raises(ValueError, match="name sessions"):
            db.push(other, **wrong)


def test_what_has_diverged_is_told_and_both_are_kept(db: turnstonedb.Client, other: turnstonedb.Client) -> None:
    fill(db)
    db.create("second")
    db.push(other, "trip")
    for n, client in ((1, db), (2, other)):
        for i in range(n):
            client.session("trip").commit([NewNode("user", f"of {n}")], expected=2 + i, checkpoint={"part": b"of %d" % n})
    with pytest.raises(turnstonedb.PushError) as refused:
        db.push(other, all=True)
    (diverged,) = refused.value.refused
    assert isinstance(diverged, turnstonedb.DivergedError)
    assert (diverged.session, diverged.here, diverged.there, diverged.common) == ("trip", 4, 3, 2)
    assert {i.id for i in refused.value.report.sessions} == {"second", "fork"}
    (came,) = db.push(other, "trip", branch="laptop").sessions
    there = other.session("trip")
    assert (came.begin, came.end, came.branch) == (4, 7, 6)
    assert there.kept() == {"laptop": 6}
    assert (there.checkpoint(), there.checkpoint(6)) == ({"part": b"of 2"}, {"part": b"of 1"})
    assert {n.payload for n in there.nodes(full=True)} == {b"hello", b"hi", b"of 1", b"of 2"}
    db.push(other, "trip", as_id="trip/laptop")
    assert other.session("trip/laptop").log() == db.session("trip").log()


def test_a_bundle_is_bytes_that_any_store_reads(db: turnstonedb.Client, other: turnstonedb.Client) -> None:
    s = fill(db)
    whole = b"".join(db.bundle("trip", "fork"))
    assert [i.id for i in other.unbundle(whole)] == ["trip", "fork"]
    s.commit([NewNode("user", "more")], expected=2)
    (came,) = other.unbundle(db.bundle(Bundled("trip", 2)))
    assert (came.begin, came.end) == (2, 3)
    same(db, other, "trip")
    with pytest.raises(turnstonedb.InvalidError) as e:
        other.unbundle(whole[:-10])
    assert e.value.kind in ("invalid-bundle", "limit")
    with pytest.raises(turnstonedb.NotFoundError):
        list(db.bundle("nobody"))
    with pytest.raises(turnstonedb.NotFoundError):
        other.unbundle(db.bundle("nobody"))


def test_a_push_goes_on_where_it_was_cut_off(db: turnstonedb.Client, other: turnstonedb.Client, store: str) -> None:
    s = fill(db)
    a = s.put_attachment(random.Random(1).randbytes(12 << 20))
    s.commit([NewNode("user", "large", attachments=[a])], expected=2)
    assert db._o.socket
    assert other._o.socket
    near = Cutter(db._o.socket, f"{store}.near", 3, 1 << 20, 1 << 20)
    far = Cutter(other._o.socket, f"{store}.far", 4, 1 << 20, 1 << 20)
    with turnstonedb.Client(f"unix:{near.address}", patience=30) as source, turnstonedb.Client(f"unix:{far.address}", patience=30) as target:
        source.push(target, all=True)
    same(db, other, "trip")
    assert near.cuts + far.cuts > 2
    near.close()
    far.close()


def test_async_clients_push(db: turnstonedb.Client, other: turnstonedb.Client, store: str) -> None:
    fill(db)

    async def pushes() -> None:
        async with await turnstonedb.AsyncClient.open(store) as a, await turnstonedb.AsyncClient.open(store + "2") as b:
            assert len((await a.push(b, all=True)).sessions) == 2
            assert (await a.push(b, all=True)).same == 2

    asyncio.run(pushes())
    same(db, other, "trip")


def test_times_are_compared_as_times() -> None:
    push = _push.Push((), "", True, datetime(2026, 1, 1, 0, 0, 0, 500_000, timezone.utc), "", "")
    at = {"before": "2026-01-01T00:00:00.499Z", "exactly": "2026-01-01T00:00:00.5Z", "later": "2026-01-01T00:00:01Z"}
    pages = [Page(tuple(Info(id, "", 0, time, time) for id, time in at.items() if not last or id == "later"), "") for last in (False, True)]
    pages[0] = Page(tuple(reversed(pages[0].sessions)), "")
    steps = push._listed()
    next(steps)
    steps.send(pages[0])
    with pytest.raises(StopIteration) as end:
        steps.send(pages[1])
    assert end.value.value == ["exactly", "later"]


def test_a_push_whose_target_fails_takes_no_place_of_the_source(db: turnstonedb.Client, other: turnstonedb.Client) -> None:
    s = fill(db)
    a = s.put_attachment(random.Random(1).randbytes(9 << 20))
    s.commit([NewNode("user", "large", attachments=[a])], expected=2)

    def fails(*_: object) -> None:
        raise turnstonedb.Error("no")

    kept = []
    with pytest.MonkeyPatch.context() as m:
        m.setattr(other, "_put", fails)
        for _ in range(6):  # more than the server sends at once
            with pytest.raises(turnstonedb.Error) as e:
                db.push(other, "trip")
            kept.append(e)
    begun = time.monotonic()
    db.push(other, "trip")
    assert time.monotonic() - begun < 20
