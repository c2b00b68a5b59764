"""Documents: a line of JSON, and behind it the bytes that it refers to. See docs/http.md of the project."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

_MAX_INLINE = 1024

Object = dict[str, Any]


class Document:
    """A document that was read: the object of its line, and the bytes behind it."""

    __slots__ = ("block", "value")

    def __init__(self, value: Object, block: bytes) -> None:
        self.value = value
        self.block = block

    def bytes(self, place: str | list[int] | None) -> bytes:
        """Returns a value of bytes that the object has."""
        if place is None:
            return b""
        if isinstance(place, str):
            return place.encode()
        offset, length = place
        if offset < 0 or length < 0 or offset + length > len(self.block):
            raise ValueError(f"malformed document: {length} bytes at {offset}, and {len(self.block)} follow")
        return self.block[offset : offset + length]


def encode(message: Object) -> list[bytes]:
    """Returns a message as a document, in pieces. Values of type bytes are its values of bytes."""
    values: list[bytes] = []
    size = 0

    def place(v: Any) -> Any:
        nonlocal size
        if isinstance(v, str | int):
            return v
        if isinstance(v, dict):
            return {k: place(x) for k, x in v.items()}
        if isinstance(v, list | tuple):
            return [place(x) for x in v]
        if not isinstance(v, bytes | bytearray | memoryview):
            return v
        b = bytes(v)
        if len(b) <= _MAX_INLINE:
            try:
                return b.decode()
            except UnicodeDecodeError:
                pass
        at = size
        values.append(b)
        size += len(b)
        return [at, len(b)]

    line = place(message)
    if size:
        line["follow"] = size
    # A surrogate is no text: encode fails with UnicodeEncodeError, and nothing was sent.
    return [json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n", *values]


class Decoder:
    """Reads documents from chunks of bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._value: Object | None = None
        self._follow = 0
        self._searched = 0

    def feed(self, chunk: bytes) -> Iterator[Document]:
        """Yields the documents that are complete with this chunk."""
        self._buffer += chunk
        while True:
            if self._value is None:
                end = self._buffer.find(b"\n", self._searched)
                if end < 0:
                    self._searched = len(self._buffer)
                    return
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                self._searched = 0
                if not line.strip():
                    continue
                self._value = json.loads(line)
                self._follow = self._value.get("follow", 0)
            if len(self._buffer) < self._follow:
                return
            block = bytes(self._buffer[: self._follow])
            del self._buffer[: self._follow]
            value, self._value = self._value, None
            yield Document(value, block)
