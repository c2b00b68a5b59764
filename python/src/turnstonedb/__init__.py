"""Sessions of AI agents in a Turnstone store.

    import turnstonedb

    with turnstonedb.Client.open("./data") as db:
        session, _ = db.create("chat-1")
        state = session.load()
        session.commit([turnstonedb.NewNode("user", "hello")], expected=state.revision, turn="1")

`turnstonedb.langgraph` is a checkpointer for LangGraph, and `turnstonedb.agents` a session for the OpenAI Agents SDK.
"""

from ._async import AsyncClient, AsyncSession
from ._sync import Client, Session
from .errors import (
    ConflictError,
    Error,
    InvalidError,
    NotFoundError,
    OutcomeUnknownError,
    RecordConflictError,
    SessionDeletedError,
    TurnConflictError,
    UnauthorizedError,
    UnavailableError,
)
from .types import (
    Attachment,
    Change,
    Commit,
    Feed,
    Info,
    LogEntry,
    NewNode,
    Node,
    Page,
    Part,
    Record,
    RecordChange,
    RecordPage,
    Report,
    Result,
    Revision,
    State,
    Usage,
)

__all__ = [
    "AsyncClient", "AsyncSession", "Attachment", "Change", "Client", "Commit", "ConflictError", "Error", "Feed", "Info", "InvalidError",
    "LogEntry", "NewNode", "Node", "NotFoundError", "OutcomeUnknownError", "Page", "Part", "Record", "RecordChange", "RecordConflictError",
    "RecordPage", "Report", "Result", "Revision", "Session", "SessionDeletedError", "State", "TurnConflictError", "UnauthorizedError",
    "UnavailableError", "Usage",
]  # fmt: skip
