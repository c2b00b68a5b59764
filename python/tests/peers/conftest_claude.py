"""The session store of the Claude Agent SDK's tests is Turnstone."""

import asyncio
import threading
from typing import Any

import claude_agent_sdk
import opened
import pytest
from claude_agent_sdk._internal import session_store

from turnstonedb.claude_agent import TurnstoneSessionStore


class Store(TurnstoneSessionStore):
    def __init__(self) -> None:
        super().__init__(opened.aclient_at_once())

    def _now(self, call: Any) -> Any:
        """Returns what a call returns, in a test that does not await it."""
        result: list[Any] = []
        waiting = threading.Thread(target=lambda: result.append(asyncio.run(call)))
        waiting.start()
        waiting.join()
        return result[0]

    def get_entries(self, key: Any) -> list[Any]:
        return self._now(self.load(key)) or []

    @property
    def size(self) -> int:
        return sum(1 for i in self._now(self._client.list(limit=1000)).sessions if i.nodes and not i.parent)


claude_agent_sdk.InMemorySessionStore = session_store.InMemorySessionStore = Store


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
