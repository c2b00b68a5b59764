"""Commits that are sent as differences."""

import os
import random
import signal
import threading
import time
from typing import Any

import pytest

import turnstonedb
from turnstonedb import _bodies
from turnstonedb import _server as server
from turnstonedb._bodies import Bases, Body
from turnstonedb._calls import Call
from turnstonedb._wire import Decoder


def call(*values: bytes) -> Call[Any]:
    return Call("commit", {"expected": 1, "values": list(values)}, lambda _: None, session="s", id="i")


def made(base: bytes, content: bytes) -> bytes:
    """Returns the body that a difference makes, as the server does."""
    (document,) = Decoder().feed(content)
    out, fresh = b"", document.bytes(document.value["fresh"])
    for start, copied, new in document.value["copies"]:
        assert 0 <= start <= start + copied <= len(base)
        out += base[start : start + copied] + fresh[:new]
        fresh = fresh[new:]
    assert not fresh
    return out


def edited(r: random.Random, value: bytes) -> bytes:
    """Returns a value that differs a little."""
    for _ in range(r.randrange(4)):
        at, n = r.randrange(len(value) + 1), r.choice((0, 1, 3, 40, 1000))
        new = r.randbytes(r.choice((0, n, n, 2 * n)))
        value = value[:at] + new + value[at + n :]
    return value + r.randbytes(r.choice((0, 0, 1, 500)))


def test_a_difference_makes_the_body() -> None:
    r = random.Random(1)
    found = 0
    for _ in range(2000):
        values = [r.randbytes(r.choice((0, 10, 2000, 3000, 20_000, 140_000))) for _ in range(r.randrange(4))]
        if r.randrange(3) == 0:
            values = [bytes(len(v)) for v in values]  # all equal
        base = _bodies.whole(call(*values))
        after = [edited(r, v) for v in values if r.randrange(5)]
        if r.randrange(4) == 0:
            r.shuffle(after)
        body = _bodies.whole(call(*after))
        if d := _bodies.difference(base, body, "d"):
            found += 1
            assert made(base.content, d.content) == body.content
            assert (d.id, d.base, d.whole) == ("d", "i", body.whole)
            assert len(d.content) < len(body.content) or len(body.content) < 3000
    assert found > 500


def test_what_was_added_to_a_list_is_all_that_is_sent() -> None:
    r = random.Random(2)
    content = r.randbytes(300_000)
    base = _bodies.whole(call(b"\xdc\x00\x63" + content, b"other" * 1000))
    body = _bodies.whole(call(b"\xdc\x00\x64" + content + b"added" * 10, b"other" * 1000))
    d = _bodies.difference(base, body, "d")
    assert d is not None
    assert len(d.content) < 300
    assert _bodies.difference(base, _bodies.whole(call(r.randbytes(300_000))), "d") is None
    assert _bodies.whole(call(content)).base == "none"
    assert _bodies.whole(call(content[:100])).base == ""


def test_what_was_inserted_or_changed_is_all_that_is_sent() -> None:
    r = random.Random(4)
    content = r.randbytes(300_000)
    base = _bodies.whole(call(content))

    def sent(changed: bytes) -> int:
        body = _bodies.whole(call(changed))
        d = _bodies.difference(base, body, "d")
        assert d is not None
        assert made(base.content, d.content) == body.content
        return len(d.content)

    assert sent(content[:1000] + b"inserted" * 10 + content[1000:]) < 300
    for n in (1, 10, 40):  # changes of a byte each
        changed = bytearray(content)
        for at in range(0, n * 7000, 7000):
            changed[at] ^= 1
        assert sent(bytes(changed)) < 200 + 30 * n
    # With more of them than a difference has pieces, it still makes the body.
    changed = bytearray(content)
    for i in range(100):  # closer and closer
        changed[-100 - 10 * i * i] ^= 1
    sent(bytes(changed))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_process_goes_on_without_the_bases_of_its_parent() -> None:
    bases = Bases()
    bases.put("s", Body("i", [], "", [bytes(200)]))
    with bases._mu:  # as if another thread had it
        child = os.fork()
        if child == 0:
            os._exit(0 if bases.take("s") is None and bases._size == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert bases.take("s") is not None


def test_bases_have_a_limit() -> None:
    bases = Bases(1000)
    for i in range(10):
        bases.put(str(i), Body(str(i), [], "", [bytes(150), bytes(50)]))
    bases.put("large", Body("l", [], "", [bytes(501)]))
    bases.put("9", Body("10", [], "", [bytes(200)]))  # in the place of the one before
    assert [i for i in range(9) if bases.take(str(i))] == [5, 6, 7, 8]
    last = bases.take("9")
    assert last is not None
    assert last.id == "10"
    assert bases.take("9") is None
    assert bases._size == 0


def test_commits_are_sent_as_differences_over_a_network(db: turnstonedb.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not db._differs  # On a local socket they are not.
    with turnstonedb.Client("http://127.0.0.1:1") as networked:
        assert networked._differs
    sent: list[tuple[str, int]] = []
    request = db._http.request

    def spied(method: str, path: str, **kw: Any) -> Any:
        if path == "/v1/commit":
            sent.append((kw["headers"].get("Turnstone-Base", ""), len(kw["content"])))
        return request(method, path, **kw)

    monkeypatch.setattr(db._http, "request", spied)
    s, _ = db.create("s")
    r = random.Random(3)
    content = r.randbytes(20_000)
    s.commit(checkpoint={"list": content})
    s.commit(expected=1, checkpoint={"list": content + b"x"})
    assert [b for b, _ in sent] == ["", ""]
    db._differs = True
    sent.clear()

    def commit(expected: int, turn: str = "") -> None:
        nonlocal content
        content += r.randbytes(1000)
        s.commit(expected=expected, checkpoint={"list": content, "small": b"x"}, turn=turn)
        assert s.checkpoint() == {"list": content, "small": b"x"}

    for i in range(5):
        commit(i + 2)
    assert sent[0][0] == "none"
    assert all(b not in ("", "none") and n < 1500 for b, n in sent[1:])

    # A commit that fails leaves no base.
    with pytest.raises(turnstonedb.ConflictError):
        s.commit(expected=1, checkpoint={"list": content})
    commit(7)
    assert sent[-1][0] == "none"

    # Another server does not have it.
    os.kill(server._children[-1].pid, signal.SIGKILL)
    time.sleep(0.2)
    s.checkpoint()
    commit(8)
    assert [b == "none" for b, _ in sent[-2:]] == [False, True]
    commit(9, "t")
    assert sent[-1][0] not in ("", "none")


def test_threads_commit_to_a_session_at_once(db: turnstonedb.Client) -> None:
    db._differs = True
    s, _ = db.create("s")
    contents = [random.Random(i).randbytes(30_000) for i in range(4)]

    def commits(i: int) -> None:
        for n in range(20):
            s.commit(expected="any", checkpoint={str(i): contents[i] + bytes([n])})

    threads = [threading.Thread(target=commits, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert s.checkpoint() == {str(i): c + b"\x13" for i, c in enumerate(contents)}
