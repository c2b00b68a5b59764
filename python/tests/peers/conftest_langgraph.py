"""Takes the place of the fixtures of LangGraph's own tests: each checkpointer and store is one of Turnstone."""

from uuid import UUID

import opened
import pytest
from langgraph.cache.memory import InMemoryCache
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from turnstonedb.langgraph import AsyncTurnstoneSaver, TurnstoneSaver
from turnstonedb.langgraph_store import AsyncTurnstoneStore, TurnstoneStore

pytest.register_assert_rewrite("tests.memory_assert")


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def deterministic_uuids(mocker):
    return mocker.patch("uuid.uuid4", side_effect=(UUID(f"00000000-0000-4000-8000-{i:012}", version=4) for i in range(10000)))


@pytest.fixture(params=["sync", "async", "exit"])
def durability(request):
    return request.param


@pytest.fixture
def cache():
    return InMemoryCache()


@pytest.fixture(params=["turnstone"])
def sync_store(request):
    with opened.client() as c:
        yield TurnstoneStore(c)


@pytest.fixture(params=["turnstone"])
async def async_store(request):
    async with opened.aclient() as c:
        yield AsyncTurnstoneStore(c)


@pytest.fixture(params=["turnstone_aes"])
def sync_checkpointer(request):
    with opened.client() as c:
        yield TurnstoneSaver(c, serde=EncryptedSerializer.from_pycryptodome_aes(key=b"1234567890123456"))


@pytest.fixture(params=["turnstone"])
async def async_checkpointer(request):
    async with opened.aclient() as c:
        yield AsyncTurnstoneSaver(c)
