"""Fields are declared once: what the server reads and tells, as its OpenAPI document says, this package reads and takes."""

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import turnstonedb
from turnstonedb import types
from turnstonedb._wire import Document

SCHEMAS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "server" / "openapi.json").read_text())["components"]["schemas"]


class Seen(dict[str, Any]):
    """An object that notes which of its members are read."""

    def __init__(self, schema: str, all: list["Seen"]) -> None:
        super().__init__({name: sample(p, all) for name, p in SCHEMAS[schema]["properties"].items()})
        self.schema, self.read = schema, set[str]()
        all.append(self)

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)


def sample(schema: dict[str, Any], all: list[Seen]) -> Any:
    """Returns a value that a schema allows."""
    if ref := schema.get("$ref"):
        return Seen(ref.rpartition("/")[2], all)
    first = schema.get("oneOf", [schema])[0]
    kind = first.get("type", "object")
    if kind == "array":
        return [sample(first["items"], all)]
    if kind == "object":
        return {"k": "v"}
    return {"string": "text", "integer": 3, "number": 3.5, "boolean": True}[kind]


def of_document(f: Callable[[Any, Document], Any]) -> Callable[[Any], Any]:
    return lambda o: f(o, Document(o, b""))


READS: dict[str, Callable[[Any], Any]] = {
    "turnstone.Info": types.Info._of,
    "turnstone.Page": types.Page._of,
    "turnstone.Result": types.Result._of,
    "turnstone.LogEntry": types.LogEntry._of,
    "turnstone.Change": types.Change._of,
    "turnstone.Feed": types.Feed._of,
    "wire.Node": of_document(types.Node._of),
    "wire.Record": of_document(types.Record._of),
    "wire.RecordPage": of_document(types.RecordPage._of),
    "wire.State": of_document(lambda o, d: types.State._of(o, d, [])),
}

# What is of the document, and not of what it tells.
NOT_READ = {"follow", ("wire.State", "nodes")}


@pytest.mark.parametrize("schema", READS)
def test_every_field_that_the_server_tells_is_read(schema: str) -> None:
    all: list[Seen] = []
    READS[schema](Seen(schema, all))
    for o in all:
        missed = {p for p in o if p not in o.read and p not in NOT_READ and (o.schema, p) not in NOT_READ}
        assert not missed, f"{o.schema} of {schema}: {missed}"


# Of the session that a request is about, and of the document.
TARGET = {"session", "incarnation", "follow"}

WRITES: dict[str, list[Callable[..., Any]]] = {
    "turnstone.Request": [turnstonedb.Client.create, turnstonedb.Client.first_turn],
    "turnstone.ListOptions": [turnstonedb.Client.list],
    "wire.CommitRequest": [turnstonedb.Session.commit, turnstonedb.Commit],
    "wire.NewNode": [turnstonedb.NewNode],
    "head.Usage": [turnstonedb.Usage],
    "blob.Attachment": [turnstonedb.Attachment],
    "wire.RecordChange": [turnstonedb.RecordChange],
    "wire.SaveMetadata": [turnstonedb.Session.save_metadata],
    "wire.Load": [turnstonedb.Session.load],
    "wire.ListRecords": [turnstonedb.Session.records],
    "wire.Rename": [turnstonedb.Session.rename],
    "wire.Delete": [turnstonedb.Session.delete],
    "wire.Keep": [turnstonedb.Session.keep],
}


@pytest.mark.parametrize("schema", WRITES)
def test_every_field_that_the_server_takes_can_be_given(schema: str) -> None:
    want = {re.sub("[A-Z]", lambda m: "_" + m[0].lower(), p) for p in SCHEMAS[schema]["properties"] if p not in TARGET}
    for f in WRITES[schema]:
        missed = want - set(inspect.signature(f).parameters)
        assert not missed, f"{f.__qualname__}: {missed}"


def test_what_is_given_is_stored(db: turnstonedb.Client) -> None:
    db.create("p")
    given = {
        "name": "n",
        "model": "m",
        "cwd": "/w",
        "group": "g",
        "labels": {"k": "v"},
        "retention": 7,
        "custom": {"<": [1, None, 2.5]},
        "host_created": "2001-02-03T04:05:06.7Z",
        "host_updated": "2002-02-03T04:05:06Z",
        "summary": True,
        "parent": "p",
        "detached": True,
    }
    fork = {"self", "id", "fork_node", "fork_at", "no_checkpoint"}
    assert given.keys() == set(inspect.signature(turnstonedb.Client.create).parameters) - fork
    db.create("a", **given)  # type: ignore[arg-type]
    db.commit_all(db.first_turn("b", turnstonedb.Commit(), **given))  # type: ignore[arg-type]
    for id in ("a", "b"):
        i = db.session(id).info()
        assert {k: getattr(i, k) for k in given} == given
        assert i in db.list().sessions
