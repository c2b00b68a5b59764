"""How sessions go from one store to another: steps that either client makes. It does what package push of the Go library does."""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from . import _calls, errors
from ._calls import Call
from .types import Bundled, PushReport, Standing, Unbundled

_TOGETHER = 100  # sessions of a bundle
_ATTEMPTS = 6  # in turn without a session that has come
_ASKED = 32  # commits that are compared at once
_PAGE = 1000  # sessions of a page


@dataclass(frozen=True, slots=True)
class Ask:
    """Asks one of the stores."""

    target: bool
    call: Call[Any]


@dataclass(frozen=True, slots=True)
class Send:
    """Sends a bundle from the source to the target."""

    of: Sequence[Bundled]
    branch: str = ""


@dataclass(frozen=True, slots=True)
class Wait:
    """Waits for so many seconds."""

    seconds: float


_GOES_ON = {"unavailable", "unknown-outcome", "conflict", "diverged", "session-deleted", "session-not-found"}
"""Kinds of errors after which another attempt may do it: the connection was cut, or a session was changed meanwhile."""

Step = Ask | Send | Wait
Steps = Generator[Step, Any, Any]
Pair = tuple[Standing | None, Standing | None]
"""Where a session stands in the source and in the target."""


@dataclass
class _Lacking:
    """What the target lacks of some sessions."""

    of: list[Bundled] = field(default_factory=list)
    diverged: list[Bundled] = field(default_factory=list)
    same: int = 0
    refused: list[errors.Error] = field(default_factory=list)


def _bare(time: str) -> str:
    """Returns a time so that its text is in the order of time."""
    return time.removesuffix("Z").removesuffix("+00:00").rstrip("0").rstrip(".") if "." in time else time.removesuffix("Z").removesuffix("+00:00")


class Push:
    """One push. `steps` yields what is to be done."""

    def __init__(self, sessions: Sequence[str], group: str, all: bool, changed_since: datetime | None, as_id: str, branch: str) -> None:
        if (bool(sessions), bool(group), all).count(True) != 1:
            raise ValueError("name sessions, or a group, or say all")
        if sessions and changed_since:
            raise ValueError("changed_since is for a group or all sessions, and sessions are named")
        if as_id and len(sessions) != 1:
            raise ValueError("as_id is for one session")
        if len(set(sessions)) < len(sessions):
            raise ValueError("a session is named twice")
        self._sessions, self._group, self._since = list(sessions), group, changed_since
        self._as, self._branch = as_id, branch
        self._tried: dict[str, Unbundled] = {}
        self._came: list[Unbundled] = []
        self._same = 0

    def steps(self) -> Generator[Step, Any, PushReport]:
        refused: list[errors.Error] = []
        try:
            ids = yield from self._named(refused) if self._sessions else self._listed()
            for begin in range(0, len(ids), _TOGETHER):
                refused += yield from self._some(ids[begin : begin + _TOGETHER])
        except errors.Error as e:
            if not refused and not self._came:
                raise
            raise errors.PushError([*refused, e], self._report()) from e
        if refused:
            raise errors.PushError(refused, self._report())
        return self._report()

    def _report(self) -> PushReport:
        return PushReport(tuple(self._came), self._same)

    def _named(self, missing: list[errors.Error]) -> Steps:
        """Returns those sessions that exist of those that are named, and adds an error for each of the others."""
        exists: set[str] = set()
        for begin in range(0, len(self._sessions), _PAGE):
            found = yield Ask(False, _calls.standings([(id, ()) for id in self._sessions[begin : begin + _PAGE]]))
            exists |= {s.id for s in found}
        for id in self._sessions:
            if id not in exists:
                missing.append(errors.of_problem({"type": "#session-not-found", "matches": ["session-not-found"], "detail": f"session not found: {id!r}"}))
        return [id for id in self._sessions if id in exists]

    def _listed(self) -> Steps:
        """Returns the ids of all sessions that are meant, parents before their forks."""
        found: dict[str, str] = {}
        since = _bare(self._since.astimezone(timezone.utc).isoformat()) if self._since else ""
        limit, before = _PAGE, -1
        # A session that is updated meanwhile moves to the front, which may be behind the reader: so the front is read again until there is nothing new.
        while len(found) > before:
            before, newest, after, more = len(found), since, "", True
            while more:
                page = yield Ask(False, _calls.list_sessions(after, limit, "", self._group, None, None))
                after, more = page.next, bool(page.next)
                for i in page.sessions:
                    if _bare(i.updated) < since:
                        more = False  # The others were updated before.
                        break
                    newest = max(newest, _bare(i.updated))
                    found.setdefault(i.id, _bare(i.created))
            since, limit = newest, 50
        return sorted(found, key=lambda id: found[id])

    def _there(self, id: str) -> str:
        return self._as or id

    def _some(self, ids: list[str]) -> Steps:
        """Pushes some sessions, and returns the errors of those that can't be."""
        last, parents, failed = None, True, 0
        while True:
            failed += 1
            received = False
            try:
                lacking = yield from self._compare(ids, parents)
                if lacking.of != last:
                    failed, last = 1, lacking.of
                received = True
                if lacking.of:
                    self._note((yield Send(lacking.of)))
                for one in lacking.diverged:
                    yield from self._diverged(one)
            except errors.Error as e:
                if "invalid-bundle" in e.matches and len(ids) > 1:  # because of one of them
                    return (yield from self._each(ids))
                if "invalid-bundle" in e.matches and parents and last and len(last) > 1:  # perhaps because of the parent
                    parents = False
                    continue
                if failed == _ATTEMPTS or not e.matches & _GOES_ON:
                    raise
                parents = parents and not (received and "conflict" in e.matches)
                yield Wait(0.02 * failed * failed + random.uniform(0, 0.02))
                continue
            self._same += lacking.same
            return lacking.refused

    def _diverged(self, one: Bundled) -> Steps:
        """Sends a session that becomes a branch."""
        try:
            self._note((yield Send([one], self._branch)))
        except errors.Error as e:
            if "revision-pruned" not in e.matches or not one.since:
                raise
            # What came after the last common revision is relative to what is not there any more.
            self._note((yield Send([Bundled(one.id)], self._branch)))

    def _each(self, ids: list[str]) -> Steps:
        refused: list[errors.Error] = []
        for id in ids:
            try:
                refused += yield from self._some([id])
            except errors.Error as e:
                if "invalid-bundle" not in e.matches:
                    raise
                refused.append(e)
        return refused

    def _note(self, sessions: Sequence[Unbundled]) -> None:
        """Adds sessions that have come to the report."""
        for s in sessions:
            before = self._tried.pop(s.id, None)
            begin, created = (before.begin, before.created) if before else (s.begin, s.created)  # An attempt before this one may have brought some.
            if s.changed or created or s.end > begin:
                self._came.append(Unbundled(s.id, created, begin, s.end, True, s.branch))
            elif before:  # What is different is of the target alone.
                self._same += 1

    def _compare(self, ids: list[str], parents: bool) -> Steps:
        """Finds out what the target lacks of sessions, and of the parents of those that are new there."""
        out = _Lacking()
        missing: list[str] = []
        pairs = yield from self._pairs(ids)
        for id in ids:
            here, there = pairs[id]
            if here is None:
                continue  # It was deleted since it was found.
            yield from self._add(out, here, there)
            if parents and not self._as and there is None and here.parent and here.parent not in missing:
                missing.append(here.parent)
        missing = [id for id in missing if all(b.id != id for b in out.of)]
        pairs = yield from self._pairs(missing)
        for id in missing:
            here, there = pairs[id]
            if here and there:
                try:
                    since, _ = yield from self._lacks(here, there)
                except errors.RefusedError:
                    continue
                out.of.append(Bundled(id, since or "zero"))
        return out

    def _add(self, out: _Lacking, here: Standing, there: Standing | None) -> Steps:
        """Adds what the target lacks of a session."""
        id = self._there(here.id)
        try:
            since, lacks = yield from self._lacks(here, there)
        except errors.DivergedError as e:
            if not self._branch:
                out.refused.append(e)
                return
            out.diverged.append(Bundled(here.id, e.common))
        except errors.RefusedError as e:
            out.refused.append(e)
            return
        else:
            if not lacks:
                if before := self._tried.pop(id, None):  # An attempt that failed in the end has brought it.
                    self._came.append(Unbundled(id, before.created, before.begin, there.revision if there else 0, True))
                else:
                    out.same += 1
                return
            out.of.append(Bundled(here.id, since or "zero" if there else 0))
        self._tried.setdefault(id, Unbundled(id, there is None, there.revision if there else 0, 0, False))

    def _pairs(self, ids: list[str]) -> Steps:
        """Compares where sessions stand. `at` of each has the commit at the revision where the other one stands."""
        if not ids:
            return {}

        def ask(target: bool, at: dict[str, Standing]) -> Steps:
            of = [(self._there(id) if target else id, [at[id].revision] if id in at else []) for id in ids]
            found = {s.id: s for s in (yield Ask(target, _calls.standings(of)))}
            return {id: s for id in ids if (s := found.get(self._there(id) if target else id))}

        there = yield from ask(True, {})
        here = yield from ask(False, there)
        if any(id in here and s.revision > here[id].revision for id, s in there.items()):
            now = yield from ask(True, here)
            there = {id: now[id] if id in now and now[id].commit == s.commit else s for id, s in there.items()}
        return {id: (here.get(id), there.get(id)) for id in ids}

    def _lacks(self, here: Standing, there: Standing | None) -> Steps:
        """Returns since which revision the target lacks what, and whether it lacks anything."""
        if there is None:
            return 0, True
        if here.genesis != there.genesis:
            raise errors.of_problem({"type": "#exists", "matches": ["exists"], "detail": f"session exists: another session is called {there.id!r} there"})
        if (here.revision, here.commit) == (there.revision, there.commit):
            return here.revision, here.rest != there.rest
        if there.revision < here.revision and here.at[:1] == (there.commit,):
            return there.revision, True
        if there.revision > here.revision and there.at[:1] == (here.commit,):
            return here.revision, here.rest != there.rest
        revision, commit = yield from self._common(here, there)
        if revision == there.revision:  # It was committed to since it was asked.
            return there.revision, True
        if revision == here.revision:
            return here.revision, here.rest != there.rest
        text = f"session has diverged: {there.id!r} is at revision {there.revision} here and at {here.revision} there, and the last common one is {revision}"
        of = {
            "session": there.id, "here": {"revision": there.revision, "commit": there.commit},
            "there": {"revision": here.revision, "commit": here.commit}, "common": {"revision": revision, "commit": commit},
        }  # fmt: skip
        raise errors.of_problem({"type": "#diverged", "matches": ["diverged"], "detail": text, "diverged": of})

    def _common(self, here: Standing, there: Standing) -> Steps:
        """Returns the last commit that both stores have of a session."""
        low, commit, high = 0, "", min(here.revision, there.revision)  # low is common, and high + 1 is not.
        while low < high:
            n = min(_ASKED, high - low)
            at = [low + (high - low) * i // n for i in range(1, n + 1)]
            ours = yield Ask(False, _calls.standings([(here.id, at)]))
            theirs = yield Ask(True, _calls.standings([(there.id, at)]))
            if not ours or not theirs:
                raise errors.of_problem({"type": "#session-deleted", "matches": ["session-deleted"], "detail": f"session was deleted: {here.id!r}"})
            for r, a, b in zip(at, ours[0].at, theirs[0].at, strict=True):
                if a != b:
                    high = r - 1
                    break
                low, commit = r, a
        return low, commit
