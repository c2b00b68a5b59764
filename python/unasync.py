"""Writes the synchronous client, which is the asynchronous one without its awaits. `python unasync.py` writes it; a test compares it."""

import re
from pathlib import Path

SOURCE = Path(__file__).parent / "src" / "turnstonedb" / "_async.py"
TARGET = SOURCE.with_name("_sync.py")

REPLACED = [
    (r"from asyncio import sleep, to_thread\n", "from time import sleep\n"),
    (r"await to_thread\((.*?), ", r"\1("),
    (r"\basync (def|with|for) ", r"\1 "),
    (r"\b_atransport\b", "_transport"),
    (r"\bawait ", ""),
    (r"asynccontextmanager", "contextmanager"),
    (r"__a(enter|exit)__", r"__\1__"),
    (r"\badrive\b", "drive"),
    (r"\baclosing\b", "closing"),
    (r"\bAsyncGenerator\[bytes, None\]", "Generator[bytes, None, None]"),
    (r"\bAsyncGenerator\b", "Generator"),
    (r"\bAsync(Transport|Iterator|Client|Session)\b", r"\1"),
    (r"\b_AsyncStream\b", "_Stream"),
    (r"\ba(iter_lines|iter_bytes|read|close)\(", r"\1("),
    (r"asynchronous client", "synchronous client"),
    (r"Tasks, event loops and forked processes may share it", "Threads and forked processes may share it"),
]


def synchronous(source: str) -> str:
    for pattern, replacement in REPLACED:
        source = re.sub(pattern, replacement, source)
    return source


if __name__ == "__main__":
    TARGET.write_text(synchronous(SOURCE.read_text()))
