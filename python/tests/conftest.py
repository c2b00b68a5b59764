import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import referencing
import referencing.jsonschema

import private_postgres
import turnstonedb
from turnstonedb import _http
from turnstonedb._wire import Decoder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begins with the suites of others, which take longest: other processes have tests left while they run."""
    items.sort(key=lambda item: "test_peers" not in item.nodeid)


@pytest.fixture(scope="session", autouse=True)
def command() -> None:
    """Builds the command, unless TURNSTONE_COMMAND has it."""
    if os.environ.get("TURNSTONE_COMMAND"):
        return
    out = Path(tempfile.mkdtemp()) / "turnstone"
    subprocess.run(["go", "build", "-o", str(out), "./cmd/turnstone"], cwd=Path(__file__).parents[2], check=True)
    os.environ["TURNSTONE_COMMAND"] = str(out)


@pytest.fixture(scope="session", autouse=True)
def schema() -> Iterator[None]:
    """Checks each answer that a test gets against the OpenAPI document."""
    doc = json.loads((Path(__file__).parents[2] / "server" / "openapi.json").read_text())
    registry: Any = referencing.Registry().with_resource("urn:openapi", referencing.jsonschema.DRAFT202012.create_resource(doc))
    validators = {}
    for path, methods in doc["paths"].items():
        if content := (methods.get("post") or methods.get("get", {})).get("responses", {}).get("200", {}).get("content", {}):
            schema = next(iter(content.values())).get("schema", {})
            if "$ref" not in schema:
                continue  # It is no document.
            ref = {"$ref": "urn:openapi" + schema["$ref"]}
            validators[path.removeprefix("/v1/")] = jsonschema.Draft202012Validator(ref, registry=registry)
    read = _http.read

    def checked(call: Any, content: bytes) -> Any:
        with suppress(ValueError):
            for d in Decoder().feed(content + b"\n"):
                validators[call.name].validate(d.value)
        return read(call, content)

    with pytest.MonkeyPatch.context() as m:
        m.setattr(_http, "read", checked)
        yield


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
