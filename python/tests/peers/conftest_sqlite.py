"""Takes the place of the fixtures of the SQLite saver's and store's tests: what these open is Turnstone."""

import langgraph.checkpoint.sqlite
import langgraph.checkpoint.sqlite.aio
import langgraph.store.sqlite
import langgraph.store.sqlite.aio
import langgraph.store.sqlite.base
import opened

from turnstonedb.langgraph import AsyncTurnstoneSaver, TurnstoneSaver
from turnstonedb.langgraph_store import AsyncTurnstoneStore, TurnstoneStore

store, astore = opened.standing_in(TurnstoneStore), opened.standing_in(AsyncTurnstoneStore)
langgraph.checkpoint.sqlite.SqliteSaver = opened.standing_in(TurnstoneSaver)
langgraph.checkpoint.sqlite.aio.AsyncSqliteSaver = opened.standing_in(AsyncTurnstoneSaver)
langgraph.store.sqlite.SqliteStore = langgraph.store.sqlite.base.SqliteStore = store
langgraph.store.sqlite.AsyncSqliteStore = langgraph.store.sqlite.aio.AsyncSqliteStore = astore
