import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import private_postgres
import turnstonedb


@pytest.fixture(scope="session", autouse=True)
def command() -> None:
    """Builds the command, unless TURNSTONE_COMMAND has it."""
    if os.environ.get("TURNSTONE_COMMAND"):
        return
    out = Path(tempfile.mkdtemp()) / "turnstone"
    subprocess.run(["go", "build", "-o", str(out), "./cmd/turnstone"], cwd=Path(__file__).parents[2], check=True)
    os.environ["TURNSTONE_COMMAND"] = str(out)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Starts a private PostgreSQL server. Without its commands the test is skipped, or fails if TURNSTONE_TEST_REQUIRE is "postgres"."""
    if not private_postgres.command("initdb") or not private_postgres.command("pg_ctl"):
        if os.environ.get("TURNSTONE_TEST_REQUIRE") == "postgres":
            pytest.fail("PostgreSQL is not installed")
        pytest.skip("PostgreSQL is not installed")
    with private_postgres.running() as d:
        yield f"postgres://test@/postgres?host={d}"


@pytest.fixture
def store() -> Iterator[str]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as d:  # A short path: that of a socket has 100 bytes at most.
        yield d + "/s"


@pytest.fixture
def db(store: str) -> Iterator[turnstonedb.Client]:
    with turnstonedb.Client.open(store, idle=2) as c:
        yield c
