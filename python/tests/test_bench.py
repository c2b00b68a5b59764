"""The programs in bench run."""

import subprocess
import sys
from pathlib import Path

import private_postgres

BENCH = Path(__file__).parents[1] / "bench"


def rows(*flags: str) -> list[str]:
    """Returns the rows of the table that the comparison of adapters prints."""
    program = [sys.executable, str(BENCH / "adapters_side_by_side.py"), "--events", "3", "--bytes", "10", "--rounds", "1", *flags]
    return subprocess.run(program, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[2:]


def test_adapters_are_compared_with_the_stores_of_their_frameworks() -> None:
    assert len(rows()) == 7


def test_adapters_are_compared_on_postgres() -> None:
    if private_postgres.command("initdb"):
        assert len(rows("--postgres", "--only", "langgraph")) == 1
