import glob
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import turnstonedb


@pytest.fixture(scope="session", autouse=True)
def command() -> None:
    """Builds the command, unless TURNSTONE_COMMAND has it."""
    if os.environ.get("TURNSTONE_COMMAND"):
        return
    out = Path(tempfile.mkdtemp()) / "turnstone"
    subprocess.run(["go", "build", "-o", str(out), "./cmd/turnstone"], cwd=Path(__file__).parents[2], check=True)
    os.environ["TURNSTONE_COMMAND"] = str(out)


def postgres_command(name: str) -> str:
    """Returns the path of a command of PostgreSQL, or an empty string."""
    found = [shutil.which(name) or "", *sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"), reverse=True)]
    return next((f for f in found if f), "")


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Starts a private PostgreSQL server. Without its commands the test is skipped, or fails if TURNSTONE_TEST_REQUIRE is "postgres"."""
    initdb, control = postgres_command("initdb"), postgres_command("pg_ctl")
    if not initdb or not control:
        if os.environ.get("TURNSTONE_TEST_REQUIRE") == "postgres":
            pytest.fail("PostgreSQL is not installed")
        pytest.skip("PostgreSQL is not installed")
    # Its commands refuse to run as root.
    user: dict[str, Any] = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as d:
        if user:
            shutil.chown(d, **user)
        run = {"check": True, "stdout": subprocess.DEVNULL, "cwd": d, **user}
        subprocess.run([initdb, "-D", f"{d}/data", "-U", "test", "-A", "trust", "-N"], **run)
        subprocess.run([control, "-D", f"{d}/data", "-w", "-o", f"-c listen_addresses= -c fsync=off -k {d}", "start"], **run)
        try:
            yield f"postgres://test@/postgres?host={d}"
        finally:
            subprocess.run([control, "-D", f"{d}/data", "-m", "immediate", "stop"], **run)


@pytest.fixture
def store() -> Iterator[str]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as d:  # A short path: that of a socket has 100 bytes at most.
        yield d + "/s"


@pytest.fixture
def db(store: str) -> Iterator[turnstonedb.Client]:
    with turnstonedb.Client.open(store, idle=2) as c:
        yield c
