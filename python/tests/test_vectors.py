"""The vectors of the protocol, which a client in any language can prove itself by."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from turnstonedb import _calls, _http, errors
from turnstonedb._calls import Call
from turnstonedb._transport import Response

VECTORS = [json.loads(line) for line in (Path(__file__).parents[2] / "server" / "vectors.jsonl").read_text().splitlines()]
SESSION = {"session": "s"}


def body_of(o: dict[str, Any]) -> bytes:
    return o.get("body", "").encode() + base64.b64decode(o.get("base64", ""))


def answer(about: str, call: Call[Any]) -> Any:
    """Returns what a call makes of the answer of a vector."""
    (v,) = (v for v in VECTORS if v["about"] == about)
    _http.check(Response(v["answer"]["status"], v["answer"]["header"], body_of(v["answer"])))
    return _http.read(call, body_of(v["answer"]))


def test_answers_are_read() -> None:
    state = answer("the whole session", _calls.load(SESSION, 0, "", False, 0, 0, False, [], []))
    assert [(n.kind, n.payload) for n in state.nodes] == [("user", b"hello"), ("assistant", "hi é".encode()), ("image", b"\xff\xd8\xff\xe0")]
    assert answer("the checkpoint", _calls.checkpoint(SESSION, 0)) == {"p": b"abc"}
    (ref,) = answer("a ref, with the checkpoint that it leads to and the records beside it", _calls.refs(SESSION, []))
    assert (ref.record.key, ref.parts, [r.value for r in ref.beside]) == ("ref", {"p": b"abc"}, [b"v", ref.record.value])
    last = answer("its last node, a part and a record that is not there", _calls.load(SESSION, 0, "", False, 1, 0, False, ["p"], ["r"]))
    assert (last.contents, last.records["r"].version) == ({"p": b"abc"}, "none")


@pytest.mark.parametrize(
    ("about", "error"),
    [("a conflict", errors.ConflictError), ("another commit of a turn", errors.TurnConflictError), ("and not again", errors.RecordConflictError),
     ("a session that is not there", errors.NotFoundError), ("a field that is not there", errors.InvalidError), ("no document", errors.InvalidError)],
)  # fmt: skip
def test_problems_are_errors(about: str, error: type[errors.Error]) -> None:
    with pytest.raises(error):
        answer(about, _calls.record(SESSION, "r"))
