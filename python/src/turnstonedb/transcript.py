"""Savers, for hosts that save the whole history on every message: those that come within `delay` seconds become one save.

    from turnstonedb import Client, Message
    from turnstonedb.transcript import Saver

    with Client.open("data") as db, Saver(db, "chat-1") as saver:
        saver.save([Message("user", "hello")], state={"prompt": "Be kind."})

The end of `with` saves what is due; a crash loses it. `Client.history` reads the history again.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import errors
from ._sync import Client
from .types import Message, Revision, Saved, Usage

if TYPE_CHECKING:
    from ._async import AsyncClient

_FIELDS = {
    "name": "name", "model": "model", "cwd": "cwd", "group": "group", "labels": "labels", "retention": "retention", "custom": "custom",
    "host_created": "hostCreated", "host_updated": "hostUpdated",
}  # fmt: skip
"""Of the options that are metadata, how `empty` names them."""

Report = Callable[[Saved | None, BaseException | None], None]
"""Is called after each save, with what it did or why it failed."""


@dataclass(slots=True)
class _Snapshot:
    """What is to be saved, and under which turn: so its usage counts once."""

    messages: Sequence[Message]
    state: Mapping[str, bytes | str] | None
    usage: tuple[Usage, ...]
    options: dict[str, Any]  # of Client.save
    turn: str = field(default_factory=lambda: "saver " + secrets.token_hex(16))

    def then(self, newer: _Snapshot) -> _Snapshot:
        """Returns the snapshot that has the effect of saving this one, and then a newer one."""
        emptied = set(newer.options.get("empty", ()))
        before = {k: v for k, v in self.options.items() if not (k in _FIELDS and emptied & {"all", _FIELDS[k]})}
        options = {**before, **newer.options}
        if "labels" in before and "labels" in newer.options:
            options["labels"] = {**before["labels"], **newer.options["labels"]}
        if empty := sorted({*self.options.get("empty", ()), *emptied}):
            options["empty"] = empty
        return replace(newer, state=self.state if newer.state is None else newer.state, usage=_sum(self.usage + newer.usage), options=options)


def _snapshot(messages: Sequence[Message], state: Mapping[str, bytes | str] | None, usage: Sequence[Usage], options: dict[str, Any]) -> _Snapshot:
    """Makes a snapshot. What can't be sent is refused here, with a TypeError or ValueError: a save of it would fail again and again."""
    json.dumps(options.get("custom"))
    for content in (*(m.payload for m in messages), *(state or {}).values()):
        if not isinstance(content, bytes | str):
            raise TypeError(f"{content!r} is neither bytes nor str")
    return _Snapshot(list(messages), state, tuple(usage), options)


def _sum(usage: Iterable[Usage]) -> tuple[Usage, ...]:
    by: dict[str, Usage] = {}
    for u in usage:
        h = by.get(u.model, Usage(u.model))
        by[u.model] = Usage(u.model, *(getattr(h, name) + getattr(u, name) for name in Usage.__slots__[1:]))
    return tuple(by.values())


class _Due:
    """What a saver has to save."""

    def __init__(self, base: Revision) -> None:
        self._base = base
        self._next: _Snapshot | None = None
        self._again: _Snapshot | None = None  # its outcome is unknown: it is saved again under its turn, before the next one
        self._scheduled = False
        self._mu = threading.Lock()

    def add(self, snapshot: _Snapshot) -> bool:
        """Reports whether a save has to be scheduled."""
        with self._mu:
            self._next = snapshot if self._next is None else self._next.then(snapshot)
            first, self._scheduled = not self._scheduled, True
            return first

    def take(self) -> tuple[_Snapshot, dict[str, Any]] | None:
        """Returns the next snapshot, and how to save it."""
        with self._mu:
            self._scheduled = False
            snapshot = self._again or self._next
            if snapshot is None:
                return None
            if self._again:
                self._again = None
            else:
                self._next = None
            return snapshot, {**snapshot.options, "state": snapshot.state, "usage": snapshot.usage, "turn": snapshot.turn, "base": self._base}

    def saved(self, saved: Saved) -> None:
        with self._mu:
            if self._base:
                self._base = saved.revision

    def failed(self, snapshot: _Snapshot, error: BaseException) -> None:
        """Keeps a snapshot that was not saved."""
        with self._mu:
            if isinstance(error, errors.Error) and not error.outcome_unknown:
                self._next = snapshot if self._next is None else snapshot.then(self._next)
            else:  # Anything else may have come while the answer was awaited.
                self._again = snapshot


class _Saver:
    """What both savers have."""

    def __init__(self, id: str, delay: float, base: Revision, report: Report | None) -> None:
        self.id = id or str(uuid.uuid4())
        self._delay, self._report, self._due = delay, report, _Due(base)

    @contextmanager
    def _attempt(self, snapshot: _Snapshot) -> Iterator[list[Saved]]:
        """Keeps the snapshot unless what is done within it has put in the list what the save did, and reports."""
        result: list[Saved] = []
        try:
            yield result
        except BaseException as e:
            self._due.failed(snapshot, e)
            if self._report:
                self._report(None, e)
            raise
        self._due.saved(result[0])
        if self._report:
            self._report(result[0], None)


class Saver(_Saver):
    """Saves the history of one session some time after it changed. Threads may share it.

    Without an id, the session gets a random one. With a base, the revision of the history that the host has, each save builds on the one before: a
    ConflictError says that somebody else has saved meanwhile. A save that failed is made again with the next one, and by `flush`.
    """

    def __init__(self, client: Client, id: str = "", *, delay: float = 0.25, base: Revision = 0, report: Report | None = None) -> None:
        super().__init__(id, delay, base, report)
        self._client = client
        self._saving = threading.Lock()
        self._timer: threading.Timer | None = None

    def save(self, messages: Sequence[Message], *, state: Mapping[str, bytes | str] | None = None, usage: Sequence[Usage] = (), **options: Any) -> None:
        """Schedules a save, and returns at once. The options are those of `Client.save`. What can't be sent is refused."""
        if self._due.add(_snapshot(messages, state, usage, options)):
            self._timer = threading.Timer(self._delay, self._flush_quietly)
            self._timer.daemon = True
            self._timer.start()

    def _flush_quietly(self) -> None:
        with suppress(Exception):  # The report has it, and what was not saved is due still.
            self.flush()

    def flush(self) -> None:
        """Saves what is due, and returns when it is stored."""
        with self._saving:
            while taken := self._due.take():
                snapshot, options = taken
                with self._attempt(snapshot) as result:
                    result.append(self._client.save(self.id, snapshot.messages, **options))

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._timer:
            self._timer.cancel()
        self.flush()


class AsyncSaver(_Saver):
    """Is Saver for an AsyncClient. Tasks of one event loop may share it."""

    def __init__(self, client: AsyncClient, id: str = "", *, delay: float = 0.25, base: Revision = 0, report: Report | None = None) -> None:
        super().__init__(id, delay, base, report)
        self._client = client
        self._saving = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def save(self, messages: Sequence[Message], *, state: Mapping[str, bytes | str] | None = None, usage: Sequence[Usage] = (), **options: Any) -> None:
        """Schedules a save, and returns at once. The options are those of `AsyncClient.save`. What can't be sent is refused."""
        if self._due.add(_snapshot(messages, state, usage, options)):
            self._timer = asyncio.get_running_loop().call_later(self._delay, self._begin)

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._flush_quietly())

    async def _flush_quietly(self) -> None:
        with suppress(Exception):  # The report has it, and what was not saved is due still.
            await self.flush()

    async def flush(self) -> None:
        """Saves what is due, and returns when it is stored."""
        async with self._saving:
            while taken := self._due.take():
                snapshot, options = taken
                with self._attempt(snapshot) as result:
                    result.append(await self._client.save(self.id, snapshot.messages, **options))

    async def __aenter__(self) -> AsyncSaver:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._timer:
            self._timer.cancel()
        await self.flush()
