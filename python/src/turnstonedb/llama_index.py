"""A chat store for LlamaIndex.

    from llama_index.core.memory import ChatMemoryBuffer
    from turnstonedb import Client
    from turnstonedb.llama_index import TurnstoneChatStore

    with Client.open("./data") as db:
        memory = ChatMemoryBuffer.from_defaults(chat_store=TurnstoneChatStore(client=db), chat_store_key="user-1")

A key is a session of the store, llama-index/KEY, and a message a node. Messages that are set again are stored once: the difference is stored.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from llama_index.core.llms import ChatMessage
from llama_index.core.storage.chat_store.base import BaseChatStore
from pydantic import PrivateAttr

from . import adapter
from ._sync import Client, Session
from .errors import ConflictError, NotFoundError
from .types import Commit, Message, NewNode, State

_ROOT = "llama-index"
_MOST = 4096  # nodes of a tombstone


class TurnstoneChatStore(BaseChatStore):
    """Keeps chats in a store. Threads may share it, and processes the store. A message that is deleted can't be read any more."""

    _client: Client = PrivateAttr()

    def __init__(self, client: Client, **fields: Any) -> None:
        super().__init__(**fields)
        self._client = client

    @classmethod
    def class_name(cls) -> str:
        """Returns the name of the class, for LlamaIndex."""
        return "TurnstoneChatStore"

    def _with(self, key: str, call: Callable[[Session], Any]) -> Any:
        """Makes a call of the session of a key, again if somebody else has changed it. Returns None if there is none."""
        while True:
            try:
                return call(self._client.session(_id(key)))
            except ConflictError as e:
                if e.outcome_unknown:
                    raise
            except NotFoundError as e:
                if adapter.gone(e):
                    return None
                raise

    def set_messages(self, key: str, messages: list[ChatMessage]) -> None:
        """Makes messages all that a key has."""
        self._client.save(_id(key), [Message(_kind(m), _payload(m)) for m in messages], group=_ROOT, custom={"key": key}, turn=secrets.token_hex(16))

    def get_messages(self, key: str) -> list[ChatMessage]:
        """Returns the messages of a key: none if there is none."""
        return self._with(key, _messages) or []

    def add_message(self, key: str, message: ChatMessage) -> None:
        """Adds a message at the end."""
        commit = Commit("any", [NewNode(_kind(message), _payload(message))], secrets.token_hex(16))
        self._client.commit_all(self._client.first_turn(_id(key), commit, group=_ROOT, custom={"key": key}))

    def delete_messages(self, key: str) -> list[ChatMessage] | None:
        """Deletes a key, and returns what it had."""

        def delete(session: Session) -> list[ChatMessage]:
            state = session.load()
            all = [n.id for n in session.load(full=True).nodes]
            # Of several who delete it, the one that empties it returns what it had.
            empty = session.commit(expected=state.revision, turn=secrets.token_hex(16), leaf="none", tombstone=all[:_MOST])
            with suppress(ConflictError, NotFoundError):  # What somebody has added since then stays.
                for i in range(_MOST, len(all), _MOST):
                    session.tombstone(*all[i : i + _MOST])
                session.delete(expected=empty.revision)
            return _of(state)

        had: list[ChatMessage] | None = self._with(key, delete)
        return had

    def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Deletes a message by its index, and returns it: None if there is none."""

        def delete(session: Session) -> ChatMessage | None:
            state = session.load()
            if not -len(state.nodes) <= idx < len(state.nodes):
                return None
            node = state.nodes[idx]
            session.commit(expected=state.revision, turn=secrets.token_hex(16), tombstone=[node.id])
            return ChatMessage.model_validate_json(node.payload)

        deleted: ChatMessage | None = self._with(key, delete)
        return deleted

    def delete_last_message(self, key: str) -> ChatMessage | None:
        """Deletes the last message, and returns it."""
        return self.delete_message(key, -1)

    def get_keys(self) -> list[str]:
        """Returns all keys."""
        out = []
        for i in adapter.listed_at_once(self._client, group=_ROOT):
            key = i.custom.get("key") if isinstance(i.custom, dict) else None
            if isinstance(key, str) and _id(key) == i.id:  # Somebody else may put sessions into the group.
                out.append(key)
        return out


def _id(key: str) -> str:
    return adapter.short(adapter.join(_ROOT, key))


def _messages(session: Session) -> list[ChatMessage]:
    return _of(session.load())


def _of(state: State) -> list[ChatMessage]:
    return [ChatMessage.model_validate_json(n.payload) for n in state.nodes]


def _kind(message: ChatMessage) -> str:
    return adapter.cut(str(getattr(message.role, "value", message.role)), 64)


def _payload(message: ChatMessage) -> bytes:
    return json.dumps(json.loads(message.model_dump_json()), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
