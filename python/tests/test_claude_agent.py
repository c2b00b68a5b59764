"""The session store for the Claude Agent SDK."""

import pytest

pytest.importorskip("claude_agent_sdk")

from pathlib import Path

from claude_agent_sdk.testing import run_session_store_conformance

from turnstonedb import AsyncClient
from turnstonedb.claude_agent import TurnstoneSessionStore


@pytest.mark.asyncio
async def test_the_contracts_of_the_sdk_hold(tmp_path: Path) -> None:
    made = 0
    async with await AsyncClient.open(tmp_path / "data", idle=5) as db:
        clients = []

        async def make() -> TurnstoneSessionStore:
            nonlocal made
            made += 1
            clients.append(await AsyncClient.open(tmp_path / f"data{made}", idle=5))
            return TurnstoneSessionStore(clients[-1])

        await run_session_store_conformance(make)
        for c in clients:
            await c.close()
    assert made == 15
