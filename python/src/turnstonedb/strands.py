"""Sessions of Strands Agents.

    from strands import Agent
    from strands.session.repository_session_manager import RepositorySessionManager
    from turnstonedb import Client
    from turnstonedb.strands import TurnstoneRepository

    with Client.open("./data") as db:
        manager = RepositorySessionManager("user-1", session_repository=TurnstoneRepository(db))
        agent = Agent(session_manager=manager)

An agent of a session is a session of the store, strands/SESSION/AGENT, and each of its messages a node. Its state is a part of the checkpoint, so the command forks an
agent with the state that it had then. The session itself, and the states of multi-agents, are parts of strands/SESSION.
"""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any

from strands.session.session_repository import SessionRepository
from strands.types.exceptions import SessionException
from strands.types.session import Session, SessionAgent, SessionMessage

from . import adapter
from ._sync import Client
from ._sync import Session as Stored
from .errors import ConflictError, InvalidError, NotFoundError
from .types import Commit, NewNode, Node

if TYPE_CHECKING:
    from strands.multiagent import MultiAgentBase

_ROOT = "strands"
_SESSION, _AGENT, _MULTI = "session", "agent", "multi/"  # names of parts, or their beginnings


class TurnstoneRepository(SessionRepository):
    """Keeps sessions of Strands Agents in a store. Threads may share it, and processes the store.

    What a guardrail redacts can't be read any more, and leaves the disk with `turnstone vacuum`.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def _found(self, *names: str) -> Stored | None:
        try:
            return self._client.session(adapter.join(_ROOT, *names))
        except NotFoundError as e:
            if adapter.gone(e):
                return None
            raise

    def _part(self, name: str, *names: str) -> Any:
        """Returns a part of a session's checkpoint, or None if there is none."""
        session = self._found(*names)
        try:
            content = session.load(last=1, parts=[name]).contents.get(name) if session else None
        except NotFoundError as e:
            if adapter.gone(e):
                return None
            raise
        return None if content is None else json.loads(content)

    def _set(self, session: Stored, name: str, value: Any) -> None:
        session.commit(expected="any", turn=secrets.token_hex(16), checkpoint={name: _json(value)})

    def create_session(self, session: Session, **kwargs: Any) -> Session:
        """Makes a session, or raises a SessionException if there is one."""
        id = adapter.join(_ROOT, session.session_id)
        commit = Commit(0, turn=secrets.token_hex(16), checkpoint={_SESSION: _json(session.to_dict())})
        try:
            self._client.commit_all(self._client.first_turn(id, commit, group=id))
        except ConflictError as e:
            if e.outcome_unknown:
                raise
            raise SessionException(f"Session {session.session_id} already exists") from e
        return session

    def read_session(self, session_id: str, **kwargs: Any) -> Session | None:
        """Returns a session, or None."""
        data = self._part(_SESSION, session_id)
        return None if data is None else Session.from_dict(data)

    def delete_session(self, session_id: str, **kwargs: Any) -> None:
        """Deletes a session and its agents, or raises a SessionException if there is none."""
        session = self._found(session_id)
        if session is None:
            raise SessionException(f"Session {session_id} does not exist")
        for i in adapter.listed_at_once(self._client, group=session.id):
            if i.id != session.id:
                self._client.delete(i.id)
        self._client.delete(session.id)

    def create_agent(self, session_id: str, session_agent: SessionAgent, **kwargs: Any) -> None:
        """Makes an agent of a session, or sets the state of one."""
        if self._found(session_id) is None:
            raise SessionException(f"Session {session_id} does not exist")
        commit = Commit("any", turn=secrets.token_hex(16), checkpoint={_AGENT: _json(session_agent.to_dict())})
        id = adapter.join(_ROOT, session_id, session_agent.agent_id)
        self._client.commit_all(self._client.first_turn(id, commit, group=adapter.join(_ROOT, session_id)))

    def read_agent(self, session_id: str, agent_id: str, **kwargs: Any) -> SessionAgent | None:
        """Returns an agent, or None."""
        data = self._part(_AGENT, session_id, agent_id)
        return None if data is None else SessionAgent.from_dict(data)

    def update_agent(self, session_id: str, session_agent: SessionAgent, **kwargs: Any) -> None:
        """Sets the state of an agent. The time at which it was made stays."""
        before = self.read_agent(session_id, session_agent.agent_id)
        if before is None:
            raise SessionException(f"Agent {session_agent.agent_id} in session {session_id} does not exist")
        session_agent.created_at = before.created_at
        self._set(self._agent(session_id, session_agent.agent_id), _AGENT, session_agent.to_dict())

    def _agent(self, session_id: str, agent_id: str) -> Stored:
        stored = self._found(session_id, agent_id)
        if stored is None:
            raise SessionException(f"Agent {agent_id} in session {session_id} does not exist")
        return stored

    def create_message(self, session_id: str, agent_id: str, session_message: SessionMessage, **kwargs: Any) -> None:
        """Stores a message. If the agent has one of that number, it is replaced."""
        agent = self._agent(session_id, agent_id)
        try:
            agent.commit([_node(session_message)], expected="any", turn=secrets.token_hex(16))
        except InvalidError:
            self._replace(agent, session_message)  # There is one of its number, or it is refused again.

    def _replace(self, agent: Stored, message: SessionMessage) -> None:
        turn = secrets.token_hex(16)
        while True:
            state = agent.load()
            old = [n.id for n in state.nodes if _number(n) == message.message_id]
            try:
                agent.commit([_node(message, f"~{state.revision}")], expected=state.revision, turn=turn, tombstone=old)
            except ConflictError as e:
                if e.outcome_unknown:
                    raise
                continue  # Somebody else has stored one.
            return

    def read_message(self, session_id: str, agent_id: str, message_id: int, **kwargs: Any) -> SessionMessage | None:
        """Returns a message, or None."""
        stored = self._found(session_id, agent_id)
        if stored is None:
            return None
        found = list(stored.nodes_by_key(str(message_id)).values()) or [n for n in stored.load().nodes if _number(n) == message_id]
        return _message(found[-1]) if found else None

    def update_message(self, session_id: str, agent_id: str, session_message: SessionMessage, **kwargs: Any) -> None:
        """Replaces a message. The time at which it was made stays."""
        before = self.read_message(session_id, agent_id, session_message.message_id)
        if before is None:
            raise SessionException(f"Message {session_message.message_id} does not exist")
        session_message.created_at = before.created_at
        self._replace(self._agent(session_id, agent_id), session_message)

    def list_messages(self, session_id: str, agent_id: str, limit: int | None = None, offset: int = 0, **kwargs: Any) -> list[SessionMessage]:
        """Returns the messages of an agent by their numbers, after the first ones."""
        nodes = {_number(n): n for n in self._agent(session_id, agent_id).load().nodes if _number(n) >= 0}
        chosen = sorted(nodes)[offset:] if limit is None else sorted(nodes)[offset : offset + limit]
        return [_message(nodes[k]) for k in chosen]

    def create_multi_agent(self, session_id: str, multi_agent: MultiAgentBase, **kwargs: Any) -> None:
        """Sets the state of a multi-agent."""
        stored = self._found(session_id)
        if stored is None:
            raise SessionException(f"Session {session_id} does not exist")
        self._set(stored, _MULTI + multi_agent.id, multi_agent.serialize_state())

    def read_multi_agent(self, session_id: str, multi_agent_id: str, **kwargs: Any) -> dict[str, Any] | None:
        """Returns the state of a multi-agent, or None."""
        state: dict[str, Any] | None = self._part(_MULTI + multi_agent_id, session_id)
        return state

    def update_multi_agent(self, session_id: str, multi_agent: MultiAgentBase, **kwargs: Any) -> None:
        """Sets the state of a multi-agent that there is."""
        if self.read_multi_agent(session_id, multi_agent.id) is None:
            raise SessionException(f"MultiAgent state {multi_agent.id} in session {session_id} does not exist")
        self.create_multi_agent(session_id, multi_agent)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _node(message: SessionMessage, again: str = "") -> NewNode:
    """Returns the node of a message; a replaced one has something behind its number."""
    return NewNode(adapter.cut(str(message.message.get("role") or "message"), 64), _json(message.to_dict()), f"{message.message_id}{again}")


def _number(node: Node) -> int:
    """Returns the number of a message, or -1 if somebody else has stored the node."""
    text = node.key.partition("~")[0]
    return int(text) if text.isdecimal() else -1


def _message(node: Node) -> SessionMessage:
    return SessionMessage.from_dict(json.loads(node.payload))
