"""What adapters do with either client: generators that yield calls."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Generator
from datetime import datetime, timedelta
from typing import Any, TypeVar, cast

from ._calls import Call
from .errors import Error
from .types import Info, Page

T = TypeVar("T")
Steps = Generator[Call[Any], Any, T]
"""What an adapter does: it yields calls, is sent their results, and returns its own. Errors of calls are raised in it."""

MAX_PAGE = 1000  # sessions or records
_CLOCKS_DIFFER = timedelta(minutes=1)  # at most, of processes that share a store


async def adrive(run: Callable[[Any], Awaitable[Any]], steps: Generator[Any, Any, T]) -> T:
    """Makes the calls of steps, or whatever else they yield."""
    try:
        call = next(steps)
        while True:
            try:
                result = await run(call)
            except Error as e:
                call = steps.throw(e)
            else:
                call = steps.send(result)
    except StopIteration as end:
        return cast(T, end.value)


def drive(run: Callable[[Any], Any], steps: Generator[Any, Any, T]) -> T:
    """Makes the calls of steps, or whatever else they yield."""

    async def made(call: Any) -> Any:
        return run(call)

    try:
        adrive(made, steps).send(None)
    except StopIteration as end:
        return cast(T, end.value)
    raise AssertionError("a coroutine that awaits nothing is over at once")


def loop_of_caller() -> asyncio.AbstractEventLoop | None:
    """Returns the event loop that runs in this thread, if one does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def from_thread(loop: asyncio.AbstractEventLoop | None, made: Coroutine[Any, Any, T]) -> T:
    """Waits for a coroutine that runs on a loop of another thread, as in a part of a graph that is not awaited."""
    if loop is None or loop is loop_of_caller() or not loop.is_running():
        made.close()
        raise asyncio.InvalidStateError("what has an AsyncClient is awaited, or called in another thread than that of the event loop in which it was made")
    return asyncio.run_coroutine_threadsafe(made, loop).result()


def short(text: str, most: int) -> str:
    """Returns text, or what stands for it if it is long."""
    if len(text.encode()) <= most:
        return text
    return "#" + hashlib.sha256(text.encode()).hexdigest()[: most - 1]


def listing(chosen: dict[str, Any]) -> Generator[dict[str, Any], Page, list[Info]]:
    """Yields what to ask for, is sent the pages, and returns the sessions.

    A session that is updated meanwhile moves to the front of the store's list, which was read already. So what was updated since the reading before is read again. The
    last reading is one of one page, or the second one in a row that finds no new session which is older than the call. A session is missed only if somebody uses it
    between two pages of each reading.
    """
    seen: dict[str, Info] = {}
    start, since, quiet = "", "", 0
    while True:
        pages, missed, front, after = 0, False, "", ""
        while True:
            page = yield {"after": after, "limit": MAX_PAGE, **chosen}
            missed = missed or any(i.id not in seen and (not start or _digits(i.created) < start) for i in page.sessions)
            seen.update((i.id, i) for i in page.sessions)
            pages, after = pages + 1, page.next
            front = front or (_digits(page.sessions[0].updated) if page.sessions else "")
            if not after or (page.sessions and _digits(page.sessions[-1].updated) < since):
                break
        quiet = 0 if missed else quiet + 1
        if pages == 1 or quiet == 2 or not front:
            return sorted(seen.values(), key=lambda i: (_digits(i.updated), i.id), reverse=True)
        start = start or front
        since = (datetime.fromisoformat(front[:19]) - _CLOCKS_DIFFER).isoformat()


def _digits(time: str) -> str:
    """Returns a time as a text that can be compared. The server leaves out zeros at its end, and a "Z" would sort after digits that follow."""
    return time.removesuffix("Z")
