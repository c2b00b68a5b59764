"""Compares the session with the OpenAI Agents SDK's own on SQLite: 200 turns of two items in each of 8 conversations at once.

python bench/agents_side_by_side.py

Both commit durably: SQLite as the SDK sets it up (a write-ahead log, synchronous=FULL), Badger with its default.
"""

import asyncio
import os
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable
from typing import Any

from agents.memory import SessionABC, SQLiteSession

from turnstonedb import AsyncClient
from turnstonedb import _server as server
from turnstonedb.agents import TurnstoneSession

TURNS, CONVERSATIONS = 200, 8


async def run(open_session: Callable[[str], SessionABC], name: str) -> tuple[float, float]:
    """Returns turns a second, and milliseconds that a conversation takes to read."""
    sessions = [open_session(f"{name}-{i}") for i in range(CONVERSATIONS)]

    async def converse(s: SessionABC) -> None:
        for i in range(TURNS):
            text = f"message {i} " + str(uuid.uuid4()) * 8
            items: list[Any] = [{"role": "user", "content": text}, {"role": "assistant", "content": text[::-1]}]
            await s.add_items(items)

    begun = time.perf_counter()
    await asyncio.gather(*(converse(s) for s in sessions))
    added = time.perf_counter()
    for s in sessions:
        assert len(await s.get_items()) == 2 * TURNS
    read = time.perf_counter()
    return CONVERSATIONS * TURNS / (added - begun), (read - added) / CONVERSATIONS * 1000


def size(d: str) -> int:
    """Returns how many bytes of the disk a directory takes."""
    return sum(os.stat(os.path.join(at, f)).st_blocks * 512 for at, _, names in os.walk(d) for f in names)


async def main() -> None:
    adds, reads = [], []
    with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as b:
        async with await AsyncClient.open(f"{b}/s", idle=1) as db:
            for i in range(5):  # one after the other, several times: machines are noisy
                theirs = await run(lambda id: SQLiteSession(id, f"{a}/db"), str(i))
                ours = await run(lambda id: TurnstoneSession(id, db), str(i))
                adds.append(ours[0] / theirs[0])
                reads.append(ours[1] / theirs[1])
                print(f"turns a second: SQLite {theirs[0]:.0f}, Turnstone {ours[0]:.0f} ({adds[-1]:.2f} times); reading: {theirs[1]:.1f} ms, {ours[1]:.1f} ms")
        await asyncio.sleep(3)  # until the server has ended
        before = size(b)
        subprocess.run([server.command(), "vacuum", "--store", f"{b}/s"], check=True, stdout=subprocess.DEVNULL)
        print(f"median: {sorted(adds)[2]:.2f} times the turns a second, {sorted(reads)[2]:.1f} times the time to read")
        print(f"bytes on disk: SQLite {size(a)}, Turnstone {before}, vacuumed {size(b)}: {size(a) / size(b):.1f} times fewer")


asyncio.run(main())
