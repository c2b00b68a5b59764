"""Brings what a framework has in its own store to a store of Turnstone.

    python -m turnstonedb.migrate langgraph sqlite:checkpoints.db --store ./data
    python -m turnstonedb.migrate langgraph postgresql://user@host/db --store ./data
    python -m turnstonedb.migrate agents sqlite:sessions.db --store ./data
    python -m turnstonedb.migrate adk sqlite:adk.db --store ./data

What was brought is read again, and compared with the source. A migration that was cut off goes on where it was, and one that is made again brings what has come since:
make it while the host runs, stop the host, and make it again, which is quick. The source is only read, and what it has deleted since it was brought stays in the store.
`--dry-run` says what there is to do.

A host of LangGraph need not wait for it: `MigratingSaver` brings a thread when the host first uses it.
"""

from typing import Any

from ._agents import agents
from ._langgraph import langgraph
from ._report import Report

__all__ = ["MigratingSaver", "Report", "adk", "agents", "langgraph"]


def __getattr__(name: str) -> Any:
    if name == "MigratingSaver":  # It needs LangGraph.
        from ._langgraph import migrating

        return migrating()
    if name == "adk":
        from ._adk import adk

        return adk
    raise AttributeError(name)
