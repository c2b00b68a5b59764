"""The vectors of items, by which a store finds those that mean what a query does. They are stored as numbers of 32 bits in the order of this machine."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from math import isfinite, sqrt
from operator import mul
from typing import Any

from langgraph.store.base import IndexConfig, PutOp, ensure_embeddings, get_text_at_path, tokenize_path

Vectors = Mapping[tuple[bool, str], "array[float]"]
"""Vectors by the text that they are of, and by whether it is a query: some models have other vectors for queries."""


class Index:
    """What is embedded, and by which function. A vector has 4 bytes for each of its dimensions."""

    def __init__(self, config: IndexConfig) -> None:
        self.dims = config["dims"]
        self.embeddings = ensure_embeddings(config.get("embed"))
        self.fields = list(map(_path, config.get("fields") or ["$"]))

    def texts(self, op: PutOp) -> list[str]:
        """Returns the texts of an item that are embedded."""
        if op.value is None or op.index is False:
            return []
        fields = self.fields if op.index is None else list(map(_path, op.index))
        return [text for f in fields for text in get_text_at_path(op.value, f)]

    def embed(self, texts: list[str], queries: list[str]) -> Vectors:
        found = self.embeddings.embed_documents(texts) if texts else []
        return self._checked(texts, found, queries, [self.embeddings.embed_query(q) for q in queries])

    async def aembed(self, texts: list[str], queries: list[str]) -> Vectors:
        found = await self.embeddings.aembed_documents(texts) if texts else []
        return self._checked(texts, found, queries, [await self.embeddings.aembed_query(q) for q in queries])

    def _checked(self, texts: list[str], of_texts: list[list[float]], queries: list[str], of_queries: list[list[float]]) -> Vectors:
        if len(of_texts) != len(texts):
            raise ValueError(f"the embedding function returned {len(of_texts)} vectors for {len(texts)} texts")
        made: dict[tuple[bool, str], array[float]] = {}
        for key, v in zip([*((False, t) for t in texts), *((True, q) for q in queries)], [*of_texts, *of_queries], strict=True):
            made[key] = array("f", map(float, v))
            if len(v) != self.dims:
                raise ValueError(f"the embedding function returned a vector of {len(v)} dimensions: the index has {self.dims}")
            if not all(map(isfinite, made[key])):
                raise ValueError("the embedding function returned a vector with what is no finite number of 32 bits")
        return made

    def score(self, query: array[float], dims: int, packed: bytes) -> float | None:
        """Returns the cosine of the angle between a query and the nearest of the vectors of an item, or None if it has none of these dimensions."""
        if not packed or dims != self.dims:
            return None
        all_of_them = array("f", packed)
        return max(_cosine(query, all_of_them[i : i + self.dims]) for i in range(0, len(all_of_them), self.dims))


def _path(field: str) -> str | list[str]:
    """Returns a field as LangGraph's helper reads it: $ is the whole value."""
    return field if field == "$" else tokenize_path(field)


def _cosine(a: array[float], b: array[float]) -> float:
    lengths = sqrt(sum(map(mul, a, a)) * sum(map(mul, b, b)))
    return sum(map(mul, a, b)) / lengths if lengths else 0.0


def by_score(found: list[tuple[float | None, Any]]) -> list[tuple[float | None, Any]]:
    """Returns what was found in the order of its scores, and behind it what has none, in its own order."""
    return sorted(found, key=lambda f: (f[0] is None, -(f[0] or 0.0)))
