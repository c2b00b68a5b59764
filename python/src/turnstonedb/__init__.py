"""Sessions of AI agents in a Turnstone store.

    import turnstonedb

    with turnstonedb.Client.open("./data") as db:
        session, _ = db.create("chat-1")
        state = session.load()
        session.commit([turnstonedb.NewNode("user", "hello")], expected=state.revision, turn="1")

`turnstonedb.langgraph` is a checkpointer for LangGraph, and `turnstonedb.agents` a session for the OpenAI Agents SDK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._sync import Client, Session
from .errors import (
    ConflictError,
    DamagedError,
    DivergedError,
    Error,
    InvalidError,
    NotFoundError,
    OutcomeUnknownError,
    PushError,
    RecordConflictError,
    RefusedError,
    SessionDeletedError,
    TurnConflictError,
    UnauthorizedError,
    UnavailableError,
)
from .types import (
    Attached,
    Attachment,
    Bundled,
    Change,
    Commit,
    Feed,
    History,
    Info,
    LogEntry,
    Message,
    NewNode,
    Node,
    Page,
    Part,
    PushReport,
    Record,
    RecordChange,
    RecordPage,
    RecordUpdate,
    Ref,
    Report,
    Result,
    Revision,
    Saved,
    Standing,
    State,
    Unbundled,
    Usage,
)

if TYPE_CHECKING:
    from ._async import AsyncClient, AsyncSession

__all__ = [
    "AsyncClient", "AsyncSession", "Attached", "Attachment", "Bundled", "Change", "Client", "Commit", "ConflictError", "DamagedError", "DivergedError", "Error",
    "Feed", "History", "Info", "InvalidError", "LogEntry", "Message", "NewNode", "Node", "NotFoundError", "OutcomeUnknownError", "Page", "Part", "PushError",
    "PushReport", "Record", "RecordChange", "RecordConflictError", "RecordPage", "RecordUpdate", "Ref", "RefusedError", "Report", "Result", "Revision", "Saved",
    "Session", "SessionDeletedError", "Standing", "State", "TurnConflictError", "UnauthorizedError", "UnavailableError", "Unbundled", "Usage",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Imports the asynchronous client when somebody asks for it: httpx, which it needs, takes as long as all the rest."""
    if name not in ("AsyncClient", "AsyncSession"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import _async

    return getattr(_async, name)
