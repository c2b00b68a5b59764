"""Takes the place of the fixtures of the PostgreSQL saver's and store's tests: what these open is Turnstone, and their connections are mocks."""

import contextlib
from unittest.mock import AsyncMock, MagicMock

import langgraph.checkpoint.postgres
import langgraph.checkpoint.postgres.aio
import langgraph.store.postgres
import opened
import psycopg
import psycopg_pool
import pytest
from tests.embed_test_utils import CharacterEmbeddings

from turnstonedb.langgraph import AsyncTurnstoneSaver, TurnstoneSaver
from turnstonedb.langgraph_store import AsyncTurnstoneStore, TurnstoneStore

DEFAULT_POSTGRES_URI = "postgres://nobody/"
DEFAULT_URI = "postgres://nobody/postgres"
VECTOR_TYPES = ["vector"]

connection = MagicMock(execute=AsyncMock())
connection.__aenter__.return_value = connection
psycopg.Connection = psycopg_pool.ConnectionPool = MagicMock()
psycopg.AsyncConnection = MagicMock(connect=AsyncMock(return_value=connection))
psycopg_pool.AsyncConnectionPool = MagicMock()

clients = contextlib.ExitStack()


def connected(saver, conn=None, pipe=None, serde=None):
    """Makes a saver of a connection: each has a namespace of its own."""
    TurnstoneSaver.__init__(saver, clients.enter_context(opened.client()), serde=serde)


def aconnected(saver, conn=None, pipe=None, serde=None):
    """Makes a saver of a connection: each has a namespace of its own."""
    AsyncTurnstoneSaver.__init__(saver, opened.aclient_at_once(), serde=serde)


langgraph.checkpoint.postgres.PostgresSaver = opened.standing_in(TurnstoneSaver, __init__=connected)
langgraph.checkpoint.postgres.aio.AsyncPostgresSaver = opened.standing_in(AsyncTurnstoneSaver, __init__=aconnected)
langgraph.store.postgres.PostgresStore = opened.standing_in(TurnstoneStore, MIGRATIONS=[], _cursor=MagicMock())
langgraph.store.postgres.AsyncPostgresStore = opened.standing_in(AsyncTurnstoneStore, MIGRATIONS=[], _cursor=lambda _: AsyncMock())


@pytest.fixture
def fake_embeddings():
    return CharacterEmbeddings(dims=500)
