"""Runs the tests that LangGraph and its SQLite and PostgreSQL savers have, on Turnstone. Their source packages have them."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

PEERS = Path(__file__).parent / "peers"
SUITES = {
    "langgraph": ("langgraph", "test_pregel*.py test_time_travel*.py test_large_cases*.py test_subgraph_persistence*.py test_delta_channel*.py test_interrupt*.py", []),
    "strands": ("strands-agents", "strands/session/test_repository_session_manager.py strands/types/test_session.py", ["-o", "asyncio_mode=auto"]),
    "sqlite": ("langgraph-checkpoint-sqlite", "test_*.py", ["-o", "asyncio_mode=auto"]),
    # Left out is one that expects a request to end within some turns of the event loop, which it does now and then.
    "claude": ("claude-agent-sdk", "test_session_*.py test_transcript_mirror.py", ["-p", "anyio", "-k", "not test_cancelled_after_mkdtemp"]),
    # Left out are other ways to connect with PostgreSQL.
    "postgres": ("langgraph-checkpoint-postgres", "test_*.py", ["-o", "asyncio_mode=auto", "-k", "not pool and not pipe"]),
}


def source(package: str, into: Path) -> Path:
    """Unpacks the source of the version of a package that is installed, which is fetched once."""
    version = importlib.metadata.version(package)
    kept = Path(sys.prefix) / "sources"
    archive = kept / f"{package.replace('-', '_')}-{version}.tar.gz"
    if not archive.exists():
        done = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "-d", str(kept), f"{package}=={version}"]
        subprocess.run(done, check=True)
    with tarfile.open(archive) as t:
        t.extractall(into, filter="data")
    return into / archive.name.removesuffix(".tar.gz")


def differences(suite: str) -> dict[str, str]:
    """Returns the tests that fail, as patterns, with the reasons."""
    lines = (PEERS / f"differs_{suite}.txt").read_text().splitlines()
    return dict(line.split(": ", 1) for line in lines if line)


def run(root: Path, arguments: list[str]) -> tuple[set[str], set[str], str]:
    """Runs tests. Returns their names, the names of those that fail, and what pytest says."""
    report = root / "report.xml"
    options = f"-c {os.devnull} --rootdir . -q -p no:cacheprovider --timeout 60 --junit-xml {report}".split()
    done = subprocess.run([sys.executable, "-m", "pytest", *options, *arguments], cwd=root, env={**os.environ, "PYTHONPATH": "."}, capture_output=True, text=True)
    cases = [(f"{c.get('classname', '').removeprefix('tests.').replace('.', '::')}::{c.get('name')}", [k.tag for k in c]) for c in ET.parse(report).iter("testcase")]
    return {name for name, _ in cases}, {name for name, kinds in cases if {"failure", "error"} & set(kinds)}, done.stdout


def file_of(root: Path, name: str) -> Path:
    parts = name.partition("[")[0].split("::")
    return next(f for i in range(1, len(parts)) if (f := (root / "tests").joinpath(*parts[:i]).with_suffix(".py")).exists())


def function_of(name: str) -> str:
    return name.partition("[")[0].rpartition("::")[2]


def text_of(root: Path, name: str) -> str:
    """Returns the text of the function of a test."""
    found = re.search(rf"^( *)(async )?def {function_of(name)}\(.*?(?=^\1(async )?def |^\1@|^\1class |\Z)", file_of(root, name).read_text(), re.DOTALL | re.MULTILINE)
    return found[0] if found else ""


@pytest.mark.parametrize("suite", SUITES)
def test_the_tests_of_peers_pass_but_for_those_that_are_explained(suite: str, tmp_path: Path) -> None:
    package, files, some = SUITES[suite]
    root = source(package, tmp_path)
    shutil.copy(PEERS / f"conftest_{suite}.py", root / "tests" / "conftest.py")
    shutil.copy(PEERS / "opened.py", root)
    chosen = sorted(str(f.relative_to(root)) for pattern in files.split() for f in (root / "tests").glob(pattern))
    cases, failed, said = run(root, ["-n", "2", *some, *chosen])
    explained = differences(suite)
    print(f"{suite}: {len(cases)} tests, {len(failed)} differ")
    assert len(cases) > 60, said[-3000:]
    unexplained = sorted(name for name in failed if not any(fnmatchcase(name, p) for p in explained))
    for _ in range(4):  # Some expect a task that waits for 10 ms to end after one that doesn't, which a busy machine turns around.
        again = [name for name in unexplained if "sleep(" in text_of(root, name)]
        if not again or again != unexplained:
            break
        print(f"{suite}: once more, alone: {again}")
        wanted = sorted({function_of(name) for name in again})
        alone, failed_again, said = run(root, [*some, *sorted({str(file_of(root, name)) for name in again}), "-k", " or ".join(wanted)])
        unexplained = [name for name in again if name in failed_again or name not in alone]
    assert unexplained == [], said[-6000:]
    assert [p for p in explained if not any(fnmatchcase(name, p) for name in failed)] == [], "these pass now"
