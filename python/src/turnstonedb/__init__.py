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
    DamagedError,
    Error,
    InvalidError,
    NotFoundError,
    OutcomeUnknownError,
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
    Record,
    RecordChange,
    RecordPage,
    RecordUpdate,
    Report,
    Result,
    Revision,
    Saved,
    State,
    Usage,
)

__all__ = [
    "AsyncClient", "AsyncSession", "Attached", "Attachment", "Change", "Client", "Commit", "ConflictError", "DamagedError", "Error", "Feed", "History", "Info",
    "InvalidError", "LogEntry", "Message", "NewNode", "Node", "NotFoundError", "OutcomeUnknownError", "Page", "Part", "Record", "RecordChange", "RecordConflictError",
    "RecordPage", "RecordUpdate", "RefusedError", "Report", "Result", "Revision", "Saved", "Session", "SessionDeletedError", "State",
    "TurnConflictError", "UnauthorizedError", "UnavailableError", "Usage",
]  # fmt: skip
