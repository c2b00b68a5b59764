"""The command `python -m turnstonedb.migrate`."""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .._async import AsyncClient
from .._sync import Client
from . import _agents, _langgraph
from ._report import Report


def main(arguments: Sequence[str] | None = None) -> int:
    """Is the command. It returns 1 if something differs."""
    p = argparse.ArgumentParser("python -m turnstonedb.migrate", description="Bring what a framework has in its own store to a store of Turnstone.")
    p.add_argument("framework", choices=["langgraph", "agents", "adk"])
    p.add_argument("source", help="sqlite:FILE or postgresql://…; for adk also the URL of another database that SQLAlchemy knows")
    p.add_argument("--store", required=True, help="a directory, or the address of a server: https://HOST:PORT or unix:PATH")
    p.add_argument("--token", default="", help="for a server")
    p.add_argument("--namespace", default="")
    p.add_argument("--dry-run", action="store_true", help="change nothing, say what there is to do")
    a = p.parse_args(arguments)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as none:
        if a.dry_run and not _served(a.store) and not any(Path(a.store).glob("*")):
            a.store = none + "/store"  # There is nothing yet, and a dry run makes nothing.
        return _report(a)


def _report(a: argparse.Namespace) -> int:
    report = asyncio.run(_adk(a)) if a.framework == "adk" else _run(a)
    verb = "to bring" if a.dry_run else "brought"
    what = {"langgraph": "checkpoints", "agents": "items", "adk": "events"}[a.framework]
    print(f"{report.found} found, {report.unchanged} unchanged, {report.brought} {what} {verb}")
    for d in report.different:
        print(d, file=sys.stderr)
    return 1 if report.different else 0


def _run(a: argparse.Namespace) -> Report:
    with Client(a.store, token=a.token, namespace=a.namespace) if _served(a.store) else Client.open(a.store, namespace=a.namespace) as client:
        if a.framework == "langgraph":
            with _langgraph.opened(a.source) as saver:
                return _langgraph.langgraph(saver, client, dry_run=a.dry_run)
        with _agents.opened(a.source) as conn:
            return _agents.agents(conn, client, dry_run=a.dry_run)


def _served(store: str) -> bool:
    return store.startswith(("https://", "http://", "unix:"))


async def _adk(a: argparse.Namespace) -> Report:
    from . import _adk as module

    connect = AsyncClient(a.store, token=a.token, namespace=a.namespace) if _served(a.store) else await AsyncClient.open(a.store, namespace=a.namespace)
    async with connect as client, module.opened(a.source) as (service, apps):
        return await module.adk(service, client, apps, dry_run=a.dry_run)


if __name__ == "__main__":
    sys.exit(main())
