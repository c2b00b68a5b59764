"""Compares the checkpointer with LangGraph's own on SQLite: a list that grows for 200 steps.

python bench/langgraph_side_by_side.py [--writes]

Both commit durably: SQLite as its saver sets it up (a write-ahead log, synchronous=FULL), Badger with its default.
"""

import os
import subprocess
import sys
import tempfile
import time
import uuid
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver

import turnstonedb
from turnstonedb import _server as server
from turnstonedb.langgraph import TurnstoneSaver

STEPS = 200


def run(saver: BaseCheckpointSaver[str], thread: str, writes: bool) -> tuple[float, float]:
    """Returns puts a second, and milliseconds that the latest checkpoint takes to read."""
    config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    messages: list[Any] = []
    version: Any = None
    begun = time.perf_counter()
    for i in range(STEPS):
        messages.append({"role": "user", "content": f"message {i} " + str(uuid.uuid4()) * 10})
        c = empty_checkpoint()
        version = saver.get_next_version(version, None)
        c["channel_values"], c["channel_versions"] = {"messages": list(messages)}, {"messages": version}
        config = saver.put(config, c, {"step": i, "source": "loop"}, {"messages": version})
        if writes:
            saver.put_writes(config, [("messages", messages[-1])], str(uuid.uuid4()))
    put = time.perf_counter()
    for _ in range(20):
        t = saver.get_tuple(config)
        assert t is not None
        assert len(t.checkpoint["channel_values"]["messages"]) == STEPS
    return STEPS / (put - begun), (time.perf_counter() - put) / 20 * 1000


def size(d: str) -> int:
    """Returns how many bytes of the disk a directory takes."""
    return sum(os.stat(os.path.join(at, f)).st_blocks * 512 for at, _, names in os.walk(d) for f in names)


def main() -> None:
    writes = "--writes" in sys.argv[1:]
    ratios = []
    with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as b:
        with SqliteSaver.from_conn_string(f"{a}/db") as sqlite, turnstonedb.Client.open(f"{b}/s", idle=1) as db:
            own = TurnstoneSaver(db)
            for i in range(5):  # one after the other, several times: machines are noisy
                theirs, ours = run(sqlite, f"t{i}", writes), run(own, f"t{i}", writes)
                ratios.append(ours[0] / theirs[0])
                print(f"puts a second: SQLite {theirs[0]:.0f}, Turnstone {ours[0]:.0f} ({ratios[-1]:.2f} times); reading: {theirs[1]:.1f} ms, {ours[1]:.1f} ms")
        time.sleep(3)  # until the server has ended
        subprocess.run([server.command(), "vacuum", "--store", f"{b}/s"], check=True, stdout=subprocess.DEVNULL)
        print(f"puts a second, median: {sorted(ratios)[2]:.2f} times; bytes on disk: SQLite {size(a)}, Turnstone {size(b)}: {size(a) / size(b):.1f} times fewer")


main()
