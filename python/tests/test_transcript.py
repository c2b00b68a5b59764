import asyncio
import threading
import time
from typing import Any

import pytest

from turnstonedb import AsyncClient, Attachment, Client, ConflictError, Message, NewNode, OutcomeUnknownError, Saved, Usage
from turnstonedb.transcript import AsyncSaver, Saver


def said(*texts: str) -> list[Message]:
    return [Message("user", t) for t in texts]


def texts(db: Client, id: str) -> list[str]:
    h = db.history(id)
    assert h is not None
    return [bytes(m.payload).decode() for m in h.messages if isinstance(m.payload, bytes)]


def test_a_whole_history_is_saved_and_read(db: Client) -> None:
    assert db.history("s") is None
    assert db.save("s", [], name="n", custom={"a": [1]}) == Saved(0, 0, 0)
    large = "x" * 5000
    assert db.save("s", said("one", large), state={"prompt": "be kind", "b": b"\x00\xff"}, usage=[Usage("m", input=3)], turn="t") == Saved(1, 0, 2)
    assert db.save("s", said("one", large), usage=[Usage("m", input=3)], turn="t") == Saved(1, 2, 0)
    h = db.history("s")
    assert h is not None
    assert h.messages == (Message("user", b"one"), Message("user", large.encode()))
    assert h.state == {"prompt": b"be kind", "b": b"\x00\xff"}
    assert (h.info.name, h.info.custom, h.info.usage) == ("n", {"a": [1]}, (Usage("m", input=3),))
    assert db.save("s", said("one", large, "three")) == Saved(2, 2, 1)
    assert db.save("s", said("one", "two"), state={}, empty=["name"]) == Saved(3, 1, 1)
    h = db.history("s")
    assert h is not None
    assert (texts(db, "s"), dict(h.state), h.info.name, h.info.nodes) == (["one", "two"], {}, "", 4)
    with pytest.raises(ConflictError) as e:
        db.save("s", said("x"), base=1)
    assert e.value.revision == 3
    assert db.save("child", said("one", "mine"), parent="s", fork_node=h.messages[0].id) == Saved(1, 1, 1)
    assert texts(db, "child") == ["one", "mine"]
    s = db.session("s")
    a = s.put_attachment(b"image", media_type="image/png", name="i")
    db.save("s", [*said("one", "two"), Message("image", b"", [a])])
    h = db.history("s")
    assert h is not None
    assert h.messages[2].attachments == (Attachment(a.id, 5, "image/png", "i"),)


def test_a_saver_saves_what_came_last(db: Client) -> None:
    done: list[Saved] = []
    saved = threading.Event()

    def report(s: Saved | None, e: BaseException | None) -> None:
        assert s is not None and e is None
        done.append(s)
        saved.set()

    saver = Saver(db, delay=0.05, report=report)
    for i in range(20):
        saver.save(said(*map(str, range(i + 1))), usage=[Usage("m", input=1), Usage(f"m{i % 2}", output=2)], labels={str(i % 3): str(i)})
    assert saved.wait(30)
    saver.flush()
    h = db.history(saver.id)
    assert h is not None
    assert (texts(db, saver.id), h.info.labels) == ([*map(str, range(20))], {"0": "18", "1": "19", "2": "17"})
    assert set(h.info.usage) == {Usage("m", input=20), Usage("m0", output=20), Usage("m1", output=20)}
    assert sum(s.added for s in done) == 20
    assert len(done) < 20
    with Saver(db, "other", delay=3600) as other:
        other.save(said("one"), state={"a": "1"}, name="first", cwd="/")
        other.save(said("one", "two"), empty=["cwd"], model="m")
    h = db.history("other")
    assert h is not None
    assert (texts(db, "other"), h.state, h.info.name, h.info.cwd, h.info.model) == (["one", "two"], {"a": b"1"}, "first", "", "m")
    with Saver(db, "other", delay=3600, base=h.info.revision) as other:
        other.save(said("one", "two", "three"))
        other.flush()
        other.save(said("one", "two", "three", "four"))
    assert texts(db, "other")[-1] == "four"
    db.session("other").commit([NewNode("user", "by another")], expected="any")
    other = Saver(db, "other", delay=3600, base=h.info.revision)
    other.save(said("mine"))
    with pytest.raises(ConflictError):
        other.flush()


def test_a_save_that_failed_is_made_again(db: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    real, failures = db.save, [OutcomeUnknownError("lost", {"matches": ["unknown-outcome"]}), ConflictError("no", {})]

    def save(*args: Any, **kw: Any) -> Saved:
        if not failures:
            return real(*args, **kw)
        if isinstance(failures[-1], OutcomeUnknownError | TimeoutError):
            real(*args, **kw)  # It stands.
        raise failures.pop()

    monkeypatch.setattr(db, "save", save)
    saver = Saver(db, "s", delay=3600)
    saver.save(said("one"), usage=[Usage("m", input=1)])
    with pytest.raises(ConflictError):
        saver.flush()
    saver.save(said("one", "two"), usage=[Usage("m", input=1)])
    with pytest.raises(OutcomeUnknownError):
        saver.flush()
    saver.save(said("one", "two", "three"), usage=[Usage("m", input=1)])
    failures.append(TimeoutError("of who called, while the answer was awaited"))
    with pytest.raises(TimeoutError):
        saver.flush()
    saver.flush()
    saver.flush()
    failures.append(ConflictError("no", {}))
    done = threading.Event()
    saver = Saver(db, "s", delay=0.01, report=lambda s, e: s and done.set())
    saver.save(said("one", "two", "three"))
    while failures:
        time.sleep(0.01)
    saver.save(said("one", "two", "three"), usage=[Usage("m")])  # schedules another save
    assert done.wait(30)
    h = db.history("s")
    assert h is not None
    assert (texts(db, "s"), h.info.usage) == (["one", "two", "three"], (Usage("m", input=3),))


def test_a_snapshot_that_can_not_be_sent_holds_up_no_later_one(db: Client) -> None:
    db.save("parent", said("one"))
    saver = Saver(db, "s", delay=3600)
    saver.save(said("one"), parent="parent", fork_at="zero", host_created="2026-01-02T03:04:05Z", name="n")
    for bad in ({"custom": {1, 2}}, {"state": {"a": 1}}):
        with pytest.raises(TypeError):
            saver.save(said("bad"), **bad)
    with pytest.raises(TypeError):
        saver.save([Message("user", 1)])  # type: ignore[arg-type]
    saver.save(said("one", "two"), empty=["all"], model="m")
    saver.flush()
    h = db.history("s")
    assert h is not None
    assert (texts(db, "s"), h.info.parent, h.info.host_created, h.info.name, h.info.model) == (["one", "two"], "parent", "", "", "m")


def test_an_asynchronous_saver_saves_what_came_last(store: str) -> None:
    async def main() -> None:
        async with await AsyncClient.open(store, idle=5) as db:
            done: list[Saved | None] = []
            saver = AsyncSaver(db, "s", delay=0.05, report=lambda s, _: done.append(s))
            for i in range(10):
                saver.save(said(*map(str, range(i + 1))))
            while not done:
                await asyncio.sleep(0.01)
            async with AsyncSaver(db, "t", delay=3600) as other:
                other.save(said("due"))
            for id, n in (("s", 10), ("t", 1)):
                h = await db.history(id)
                assert h is not None and len(h.messages) == n

    asyncio.run(main())
