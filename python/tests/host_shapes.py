"""Shapes of hosts: `python host_shapes.py SHAPE STORE` runs one of them, in a process that may fork and end as it likes."""

import asyncio
import faulthandler
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import turnstonedb
from turnstonedb import NewNode

TENANTS = 4
ROUNDS = 12
ENDS = 50  # seconds after which a shape that hangs shows where


def own(n: int) -> str:
    return f"tenant {n}"


def check(n: int, payloads: list[bytes]) -> None:
    assert payloads, "nothing was read"
    assert set(payloads) == {own(n).encode()}, f"tenant {n} has read {set(payloads)}"


def work(db: turnstonedb.Client, n: int) -> None:
    """What a tenant does: it reads and writes what is its own, in some threads at once."""

    def some(_: int) -> None:
        s = db.session(own(n))
        for _ in range(ROUNDS // 4):
            r = s.commit([NewNode("user", own(n))], expected="any")
            assert s.log(r.revision - 1)[0].revision == r.revision
            check(n, [x.payload for x in s.load().nodes])
            assert s.info().id == own(n)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(some, range(4)))


async def awork(db: turnstonedb.AsyncClient, n: int) -> None:
    async def some() -> None:
        s = await db.session(own(n))
        for _ in range(ROUNDS // 4):
            await s.commit([NewNode("user", own(n))], expected="any")
            check(n, [x.payload for x in (await s.load()).nodes])
            assert (await s.info()).id == own(n)

    await asyncio.gather(*(some() for _ in range(4)))


def create(store: str) -> None:
    """Makes the sessions, each with one node."""
    with turnstonedb.Client.open(store, idle=20) as db:
        for n in range(TENANTS):
            db.create(own(n))[0].commit([NewNode("user", own(n))])


def whole(store: str, times: int = 1) -> None:
    """Checks that each tenant has what it was told that it has."""
    with turnstonedb.Client.open(store, idle=5) as db:
        for n in range(TENANTS):
            nodes = db.session(own(n)).load().nodes
            check(n, [x.payload for x in nodes])
            assert len(nodes) == 1 + times * ROUNDS, f"tenant {n} has {len(nodes)} nodes"


def descriptors() -> int:
    """Returns how many files and sockets the process has open, or 0 where nothing tells."""
    gc.collect()
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


def forked(f: Callable[[int], None], children: range) -> None:
    """Runs f in forked children."""
    pids = []
    for n in children:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                signal.alarm(ENDS)
                f(n)
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        pids.append(pid)
    for pid in pids:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "a child failed"


def fork_before_use(store: str) -> None:
    create(store)
    address = turnstonedb._server.address(store)
    db, adb = turnstonedb.Client(address), turnstonedb.AsyncClient(address)

    def child(n: int) -> None:
        work(db, n)
        asyncio.run(awork(adb, n))

    forked(child, range(TENANTS))
    whole(store, 2)


def fork_after_use(store: str) -> None:
    create(store)
    db = turnstonedb.Client.open(store)
    work(db, 0)
    forked(lambda n: work(db, n), range(1, TENANTS))
    db.session(own(0)).info()
    whole(store)


def fork_after_use_async(store: str) -> None:
    create(store)

    async def first() -> turnstonedb.AsyncClient:
        db = await turnstonedb.AsyncClient.open(store)
        s = await db.session(own(0))
        await asyncio.gather(*(s.load() for _ in range(16)))  # so that there are connections
        return db

    db = asyncio.run(first())
    forked(lambda n: asyncio.run(awork(db, n)), range(1, TENANTS))
    asyncio.run(awork(db, 0))
    whole(store)


def fork_while_in_use(store: str) -> None:
    """Threads of the parent read and write while it forks, and its children fork again."""
    create(store)
    db = turnstonedb.Client.open(store)
    busy = threading.Thread(target=work, args=(db, 0))
    busy.start()

    def child(n: int) -> None:
        work(db, n)
        forked(lambda m: db.session(own(m)).info() and None, range(n, n + 1))

    forked(child, range(1, TENANTS))
    busy.join()
    whole(store)


def fork_while_it_reads(store: str) -> None:
    """The process forks within a watch, and both go on with it."""
    create(store)
    db = turnstonedb.Client.open(store)
    s = db.session(own(0))
    for i in range(8):
        s.commit([NewNode("user", own(0))], expected=1 + i)
    seen, pid = [], -1
    for entry in s.watch():
        seen.append(entry.revision)
        if len(seen) == 3:
            pid = os.fork()
        if len(seen) == 9:
            break
    right = seen == list(range(1, 10))
    db.session(own(1)).info()
    if pid == 0:
        os._exit(0 if right else 1)
    assert right, seen
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "the child has seen something else"


def threads_and_loops(store: str) -> None:
    create(store)
    db = asyncio.run(turnstonedb.AsyncClient.open(store))
    with ThreadPoolExecutor(TENANTS) as pool:
        list(pool.map(lambda n: asyncio.run(awork(db, n)), range(TENANTS)))
    whole(store)


def loops_in_turn(store: str) -> None:
    """As in a notebook: one event loop after another, with the same client."""
    create(store)
    db = asyncio.run(turnstonedb.AsyncClient.open(store))
    for n in range(TENANTS):
        asyncio.run(awork(db, n))
    open_now = descriptors()
    for _ in range(20):
        asyncio.run(db.list(limit=1))  # type: ignore[arg-type]
    assert descriptors() < open_now + 10, "loops that have ended keep their connections"
    asyncio.run(db.close())
    try:
        asyncio.run(db.list())
    except turnstonedb.Error as e:
        assert "closed" in str(e)
    else:
        raise AssertionError("a call of a closed client")
    whole(store)


def close_in_a_child(store: str) -> None:
    create(store)
    db = turnstonedb.Client.open(store)
    db.session(own(0)).info()
    forked(lambda _: db.close(), range(1))
    work(db, 0)


def exit_without_close(store: str) -> None:
    """The interpreter ends while a thread watches, and with an event loop that was not closed."""
    create(store)
    db = turnstonedb.Client.open(store)

    def watch() -> None:
        for _ in db.session(own(0)).watch():
            pass

    threading.Thread(target=watch, daemon=True).start()
    loop = asyncio.new_event_loop()
    adb = loop.run_until_complete(turnstonedb.AsyncClient.open(store))
    loop.run_until_complete(awork(adb, 0))


SHAPES = {
    f.__name__: f
    for f in (
        fork_before_use,
        fork_after_use,
        fork_after_use_async,
        fork_while_in_use,
        fork_while_it_reads,
        threads_and_loops,
        loops_in_turn,
        close_in_a_child,
        exit_without_close,
    )
}

if __name__ == "__main__":
    faulthandler.dump_traceback_later(ENDS, exit=True)
    SHAPES[sys.argv[1]](sys.argv[2])
    print("done")
