"""Errors of a store and of its server. `Error.kind` is one of the kinds of docs/http.md; `Error.matches` has all that it matches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._kinds import KINDS

if TYPE_CHECKING:
    from .types import PushReport


class Error(Exception):
    """Any error of a store. Nothing of a write has happened, unless `outcome_unknown` or `incomplete` is true."""

    def __init__(self, text: str, problem: dict[str, Any] | None = None) -> None:
        super().__init__(text)
        p = problem or {}
        self.problem = p
        self.kind: str = str(p.get("type", "#other")).rpartition("#")[2]
        self.matches: frozenset[str] = frozenset(p.get("matches") or ())

    @property
    def outcome_unknown(self) -> bool:
        """Whether what the call was to do may or may not stand. Repeat it with the same turn id."""
        return "unknown-outcome" in self.matches

    @property
    def incomplete(self) -> bool:
        """Whether a part of the work was done, and stands. Calling again does the rest."""
        return "incomplete" in self.matches


class ConflictError(Error):
    """Somebody else committed first. `revision`, `leaf` and `commit` are those of the head that stands."""

    def __init__(self, text: str, problem: dict[str, Any]) -> None:
        super().__init__(text, problem)
        c = problem.get("conflict") or {}
        self.session: str = c.get("session", "")
        self.expected: int | str = c.get("expected", 0)
        self.revision: int = c.get("revision", 0)
        self.leaf: str = c.get("leaf", "")
        self.commit: str = c.get("commit", "")
        self.node: str = c.get("node", "")


class TurnConflictError(Error):
    """The turn id stands for another commit, of `revision`."""

    def __init__(self, text: str, problem: dict[str, Any]) -> None:
        super().__init__(text, problem)
        c = problem.get("turnConflict") or {}
        self.session: str = c.get("session", "")
        self.turn: str = c.get("turn", "")
        self.revision: int = c.get("revision", 0)


class RecordConflictError(Error):
    """A record is of `version`, and not of the version `expected`."""

    def __init__(self, text: str, problem: dict[str, Any]) -> None:
        super().__init__(text, problem)
        c = problem.get("recordConflict") or {}
        self.session: str = c.get("session", "")
        self.key: str = c.get("key", "")
        self.expected: str = c.get("expected", "")
        self.version: str = c.get("version", "")


class RefusedError(Error):
    """What is stored does not allow it: the id or name is taken, the session has children, the feed is off, or it is another store."""


class DivergedError(RefusedError):
    """A session in a store, and the one that was to come to it, have gone different ways since revision `common`, or since before what is known of it if that
    is 0. `here` and `there` are their revisions."""

    def __init__(self, text: str, problem: dict[str, Any]) -> None:
        super().__init__(text, problem)
        d = problem.get("diverged") or {}
        self.session: str = d.get("session", "")
        self.here: int = (d.get("here") or {}).get("revision", 0)
        self.there: int = (d.get("there") or {}).get("revision", 0)
        self.common: int = (d.get("common") or {}).get("revision", 0)


class PushError(RefusedError):
    """Not all was pushed: `refused` has an error for each session that can't be, and at the end the one that has ended the push, if there is such. `report` says
    what has come."""

    def __init__(self, refused: Sequence[Error], report: PushReport) -> None:
        super().__init__("\n".join(str(e) for e in refused), refused[0].problem)
        self.refused = tuple(refused)
        self.report = report


class NotFoundError(Error):
    """There is no such session, node, record, revision or attachment."""


class SessionDeletedError(NotFoundError):
    """The session of this handle was deleted or renamed."""


class InvalidError(Error):
    """The request is malformed, contradicts itself or the session, or exceeds a limit."""


class DamagedError(Error):
    """Data of the store is missing or damaged."""


class UnauthorizedError(Error):
    """The token is missing or unknown, or does not allow the request."""


class UnavailableError(Error):
    """The server, or the database of its store, could not be reached."""


class OutcomeUnknownError(UnavailableError):
    """The server could not be reached again, and may have made the write."""


def of_problem(problem: dict[str, Any]) -> Error:
    """Returns a problem as an error."""
    kind = str(problem.get("type", "")).rpartition("#")[2]
    error: type[Error] = globals()[KINDS.get(kind, "Error")]
    return error(str(problem.get("detail", "")), problem)


def unavailable(text: str) -> UnavailableError:
    return UnavailableError(text, {"type": "#unavailable", "matches": ["unavailable"]})


def unknown_outcome(text: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(text, {"type": "#unknown-outcome", "matches": ["unknown-outcome", "unavailable"]})
