"""Histories and workflow checkpoints of Microsoft's Agent Framework.

    from turnstonedb import AsyncClient
    from turnstonedb.agent_framework import TurnstoneCheckpoints, TurnstoneHistory

    async with await AsyncClient.open("./data") as db:
        agent = Agent(client=client, context_providers=[TurnstoneHistory(db)])
        workflow = WorkflowBuilder(start_executor=start, checkpoint_storage=TurnstoneCheckpoints(db)).build()

A history is a session of the store, agent-framework/SOURCE/SESSION. The checkpoints of a workflow are one, agent-framework-checkpoints/WORKFLOW: each is a commit, and
kept as the difference from the one before.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from agent_framework import HistoryProvider, Message, WorkflowCheckpoint, WorkflowCheckpointException
from agent_framework._sessions import filter_new_messages
from agent_framework._workflows._checkpoint_encoding import decode_checkpoint_value, encode_checkpoint_value

from . import adapter
from ._async import AsyncClient, AsyncSession
from .errors import ConflictError, NotFoundError, RecordConflictError
from .types import Commit, NewNode, RecordChange

_ROOT, _CHECKPOINTS = "agent-framework", "agent-framework-checkpoints"
_MAX_KNOWN = 10_000  # sessions that are asked for once
_PART = "checkpoint"  # the part with a checkpoint
_KEY = "agent-framework.checkpoint/"  # and the id of a checkpoint: the key of its record


class TurnstoneHistory(HistoryProvider):
    """Keeps what agents and users say. Messages of a run are stored whole or not at all. A session without an id is the session "default"."""

    def __init__(self, client: AsyncClient, source_id: str = "turnstone", **options: Any) -> None:
        """The options are those of HistoryProvider."""
        super().__init__(source_id, **options)
        self._client = client
        self._known: dict[str, AsyncSession] = {}  # by id

    def _id(self, session_id: str | None) -> str:
        return adapter.short(adapter.join(_ROOT, self.source_id, session_id or "default"))

    async def get_messages(self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any) -> list[Message]:
        """Returns the messages of a session: none if there is none."""
        try:
            loaded = await (await self._client.session(self._id(session_id))).load()
        except NotFoundError as e:
            if adapter.gone(e):
                return []
            raise
        return [Message.from_dict(json.loads(n.payload)) for n in loaded.nodes]

    async def save_messages(self, session_id: str | None, messages: Sequence[Message], *, state: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Stores messages after those that are there, without those that are given again."""
        id, group = self._id(session_id), adapter.join(_ROOT, self.source_id)
        while messages:
            handle, revision, there = self._known.get(id), 0, list[Message]()
            try:
                handle = handle or await self._client.session(id)
                loaded = await handle.load(last=len(messages))  # What is given again are the last messages, or all.
                revision, there = loaded.revision, [Message.from_dict(json.loads(n.payload)) for n in loaded.nodes]
            except NotFoundError as e:
                if not adapter.gone(e):
                    raise
                if self._known.pop(id, None):
                    continue  # There may be another one by now.
                handle = None
            nodes = [NewNode(adapter.cut(str(m.role), 64) or "message", _json(m.to_dict())) for m in filter_new_messages(there, messages)]
            if not nodes:
                return
            commit = Commit(revision, nodes, secrets.token_hex(16))
            try:
                await self._client.commit_all(handle.turn(commit) if handle else self._client.first_turn(id, commit, group=group))
                if handle:
                    if len(self._known) >= _MAX_KNOWN:
                        self._known.clear()
                    self._known[id] = handle
                return
            except (ConflictError, NotFoundError) as e:
                if e.outcome_unknown or (isinstance(e, NotFoundError) and not adapter.gone(e)):
                    raise  # Otherwise somebody else has saved messages, or deleted the session.


class TurnstoneCheckpoints:
    """A storage of workflow checkpoints. As with the framework's files, only values of allowed types come back: see FileCheckpointStorage.

    `turnstone prune` removes old checkpoints: those that it leaves are the last revisions of the session of a workflow.
    """

    def __init__(self, client: AsyncClient, *, allowed_checkpoint_types: Sequence[str] = ()) -> None:
        """The types are in the form "module:qualname"."""
        self._client = client
        self._allowed = frozenset(allowed_checkpoint_types)

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        """Stores a checkpoint, in place of one of its id, and returns the id. What could not be restored is refused."""
        try:
            encoded = encode_checkpoint_value(checkpoint.to_dict())
            decode_checkpoint_value(encoded, allowed_types=self._allowed)
            content = _json(encoded)
        except WorkflowCheckpointException:
            raise
        except Exception as e:
            raise WorkflowCheckpointException(f"Checkpoint {checkpoint.checkpoint_id} can't be encoded or restored.") from e
        turn, key = secrets.token_hex(16), _key(checkpoint.checkpoint_id)
        while True:
            session, _ = await self._client.create(adapter.short(adapter.join(_CHECKPOINTS, checkpoint.workflow_name)), group=_CHECKPOINTS)
            try:
                revision = (await session.info()).revision
                place = {"id": checkpoint.checkpoint_id, "revision": revision + 1, "timestamp": checkpoint.timestamp}
                await session.commit(expected=revision, turn=turn, checkpoint={_PART: content}, records=[RecordChange.set(key, _json(place))])
            except (ConflictError, RecordConflictError) as e:
                if e.outcome_unknown:
                    raise
                continue  # Somebody else has saved one.
            except NotFoundError as e:
                if adapter.gone(e):
                    continue
                raise
            return checkpoint.checkpoint_id

    async def _read(self, session: AsyncSession, value: bytes) -> WorkflowCheckpoint | None:
        """Returns the checkpoint that a record names, or None if it was pruned."""
        try:
            content = (await session.checkpoint(json.loads(value)["revision"]))[_PART]
        except NotFoundError as e:
            if e.kind == "revision-pruned" or adapter.gone(e):
                return None
            raise
        return WorkflowCheckpoint.from_dict(decode_checkpoint_value(json.loads(content), allowed_types=self._allowed))

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        """Returns a checkpoint, or raises a WorkflowCheckpointException."""
        for r in await self._records(_key(checkpoint_id)):
            if checkpoint := await self._read(await self._client.session(r.session), r.value):
                return checkpoint
        raise WorkflowCheckpointException(f"No checkpoint found with ID {checkpoint_id}")

    async def _records(self, key: str) -> list[Any]:
        """Returns the records of a key: of several workflows, if they have checkpoints of one id."""
        return [r for r in (await self._client.records(key, limit=adapter.MAX_PAGE)).records if r.key == key]

    async def _of(self, workflow_name: str) -> tuple[AsyncSession, list[dict[str, Any]]] | None:
        """Returns the session of a workflow, and what the records of its checkpoints say, in the order of their commits."""
        try:
            session = await self._client.session(adapter.short(adapter.join(_CHECKPOINTS, workflow_name)))
            places = [json.loads(r.value) for r in await adapter.records(session, _KEY)]
        except NotFoundError as e:
            if adapter.gone(e):
                return None
            raise
        return session, sorted(places, key=lambda p: int(p["revision"]))

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """Returns the checkpoints of a workflow, the first one first."""
        found = await self._of(workflow_name)
        if found is None:
            return []
        read = [await self._read(found[0], _json(p)) for p in found[1]]
        return [c for c in read if c]

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """Returns the checkpoint of the latest time, or None."""
        found = await self._of(workflow_name)
        for p in sorted(found[1], key=lambda p: datetime.fromisoformat(p["timestamp"]), reverse=True) if found else ():
            if checkpoint := await self._read(found[0], _json(p)):  # type: ignore[index]
                return checkpoint
        return None

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        """Returns the ids of the checkpoints of a workflow, the first one first."""
        return [c.checkpoint_id for c in await self.list_checkpoints(workflow_name=workflow_name)]

    async def delete(self, checkpoint_id: str) -> bool:
        """Deletes a checkpoint, and reports whether there was one. Its content leaves the disk when its revision is pruned."""
        deleted = False
        for r in await self._records(_key(checkpoint_id)):
            try:
                await (await self._client.session(r.session)).change_records(RecordChange.delete(r.key, r.version))
            except (RecordConflictError, NotFoundError) as e:
                if isinstance(e, RecordConflictError) and not e.outcome_unknown:
                    continue  # Somebody else has deleted it, or saved another one.
                raise
            deleted = True
        return deleted


def _key(id: str) -> str:
    return _KEY + adapter.short(adapter.join("", id)[1:], 200)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
