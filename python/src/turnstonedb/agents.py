"""A session for the OpenAI Agents SDK.

    from agents import Agent, Runner
    from turnstonedb import AsyncClient
    from turnstonedb.agents import TurnstoneSession

    async with await AsyncClient.open("./data") as db:
        result = await Runner.run(agent, "Hello", session=TurnstoneSession("user-1", db))

Each call of `add_items` is one turn of the store's session: all items are stored, or none. Sessions of the Agents SDK may be forked, listed, watched and
read by the command and by other languages like all others.
"""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any, cast

from agents.memory.session import SessionABC
from agents.memory.session_settings import SessionSettings, resolve_session_limit

from . import adapter
from ._async import AsyncClient, AsyncSession
from .errors import ConflictError, NotFoundError
from .types import NewNode

if TYPE_CHECKING:
    from agents.items import TResponseInputItem


class TurnstoneSession(SessionABC):
    """A session of the Agents SDK in a store. Processes may share it; each call is atomic."""

    def __init__(self, session_id: str, client: AsyncClient, *, session_settings: SessionSettings | None = None, group: str = "") -> None:
        self.session_id = session_id
        self.session_settings = session_settings or SessionSettings()
        self._client = client
        self._group = group
        self._handle: AsyncSession | None = None

    async def _session(self) -> AsyncSession:
        if self._handle is None:
            self._handle, _ = await self._client.create(self.session_id, group=self._group)
        return self._handle

    async def _existing(self) -> AsyncSession | None:
        """Returns the session, or None if there is none: reading makes no session."""
        if self._handle is None:
            try:
                self._handle = await self._client.session(self.session_id)
            except NotFoundError:
                return None
        return self._handle

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Returns the items, or the last ones."""
        last = resolve_session_limit(limit, self.session_settings)
        if last is not None and last <= 0:
            return []
        for _ in range(2):
            s = await self._existing()
            if s is None:
                return []
            try:
                state = await s.load(last=last or 0)
            except NotFoundError:  # It was cleared by another process.
                self._handle = None
                continue
            return [cast("TResponseInputItem", json.loads(n.payload)) for n in state.nodes]
        return []

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Stores items, all or none."""
        if not items:
            return
        nodes = [NewNode(_kind(i), json.dumps(i, ensure_ascii=False).encode("utf-8", "surrogatepass")) for i in cast("list[dict[str, Any]]", items)]
        turn = secrets.token_hex(16)  # so that items are added once, whatever happens to the server
        while True:
            try:
                await (await self._session()).commit(nodes, expected="any", turn=turn)
            except NotFoundError:  # It was cleared by another process.
                self._handle = None
            else:
                return

    async def pop_item(self) -> TResponseInputItem | None:
        """Removes the last item, and returns it."""
        while (s := await self._existing()) is not None:
            try:
                state = await s.load(last=1)
                if not state.nodes:
                    return None
                n = state.nodes[0]
                await s.commit(expected=state.revision, turn=secrets.token_hex(16), leaf=n.parent or "none", tombstone=[n.id])
            except ConflictError as e:
                if e.outcome_unknown:
                    raise
                continue  # Somebody else has added or removed one.
            except NotFoundError:
                self._handle = None
                continue
            return cast("TResponseInputItem", json.loads(n.payload))
        return None

    async def clear_session(self) -> None:
        """Removes all items, and the session."""
        if (s := await self._existing()) is not None:
            self._handle = None
            try:
                await self._client.delete(s.id)
            except NotFoundError:
                return


def _kind(item: dict[str, Any]) -> str:
    """Returns the kind of the node for an item: the role of a message, or the type of anything else."""
    return adapter.cut(str(item.get("role") or item.get("type") or "item"), 64)
