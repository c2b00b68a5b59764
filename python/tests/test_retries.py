"""What comes of calls that meet faults: the table that the clients in Go, Python and TypeScript all keep."""

import asyncio
import json
import subprocess
import tempfile
from collections.abc import Iterator
from inspect import isawaitable
from pathlib import Path
from typing import Any

import pytest

import turnstonedb
from turnstonedb import RecordChange
from turnstonedb._transport import Transport

ROOT = Path(__file__).parents[2]
TABLE = [json.loads(line) for line in (ROOT / "server" / "retries.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def faulty() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as d:
        subprocess.run(["go", "build", "-o", f"{d}/faulty", "./internal/faulty/serve"], cwd=ROOT, check=True)
        with subprocess.Popen([f"{d}/faulty", f"{d}/s"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as p:
            assert p.stdin
            assert p.stdout
            p.stdout.readline()
            yield f"{d}/s"
            p.stdin.close()


async def calls(c: Any, socket: str, ran: str) -> None:
    """Makes the calls of the table with either client."""
    control = Transport(socket, "http://faulty", {}, False)

    async def awaited(result: Any) -> Any:
        return await result if isawaitable(result) else result

    for i, row in enumerate(TABLE):
        s, _ = await awaited(c.create(f"{ran}{i}"))
        control.request("POST", "/faults", content=json.dumps(row["faults"]).encode())
        outcome = "made once"
        try:
            match row["call"]:
                case "commit with a turn id":
                    await awaited(s.commit(expected="any", turn="t"))
                case "commit without a turn id":
                    await awaited(s.commit(expected="any"))
                case "change of records":
                    await awaited(s.change_records(RecordChange.set("k", b"v", "none")))
                case "read":
                    await awaited(s.load())
        except turnstonedb.Error as e:
            assert e.outcome_unknown, f"{row}: {e}"
            outcome = "unknown outcome"
        assert outcome == row["outcome"], row
        control.request("POST", "/faults", content=b"[]")
        assert (await awaited(s.info())).revision == (1 if row["call"].startswith("commit") else 0), row
        if row["call"] == "change of records" and outcome == "made once":
            assert (await awaited(s.record("k"))).value == b"v"


def test_calls_that_meet_faults_end_as_the_table_says(faulty: str) -> None:
    with turnstonedb.Client(f"unix:{faulty}") as c:
        asyncio.run(calls(c, faulty, "s"))


def test_calls_that_are_awaited_and_meet_faults_end_as_the_table_says(faulty: str) -> None:
    async def run() -> None:
        async with turnstonedb.AsyncClient(f"unix:{faulty}") as c:
            await calls(c, faulty, "a")

    asyncio.run(run())
