"""Filters of metadata and of values, as LangGraph's savers and stores have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def at(value: Any, path: str) -> Any:
    """Returns what a map has under a name, or else under names that dots part, or None."""
    while isinstance(value, Mapping):
        if path in value:
            return value[path]
        name, dot, path = path.partition(".")
        if not dot:
            break
        value = value.get(name)
    return None


def has_all(value: Any, filter: Mapping[str, Any] | None) -> bool:
    """Reports whether a map has all that a filter wants."""
    return all(matches(at(value, path), want) for path, want in (filter or {}).items())


def matches(value: Any, want: Any) -> bool:
    """Reports whether a value is one that a filter wants: equal, or as its operators say."""
    if isinstance(want, Mapping):
        if any(name.startswith("$") for name in want):
            return all(_compares(value, name, other) for name, other in want.items())
        return isinstance(value, Mapping) and all(matches(at(value, path), w) for path, w in want.items())
    if isinstance(want, list | tuple):
        return isinstance(value, list | tuple) and len(value) == len(want) and all(map(matches, value, want))
    return bool(value == want)


def _compares(value: Any, operator: str, other: Any) -> bool:
    if isinstance(other, tuple):
        other = list(other)
    if operator == "$eq":
        return bool(value == other)
    if operator == "$ne":
        return bool(value != other)
    if operator not in ("$gt", "$gte", "$lt", "$lte"):
        raise ValueError(f"a filter has no operator {operator!r}: want $eq, $ne, $gt, $gte, $lt or $lte")
    a, b = _number(value), _number(other)
    if a is None or b is None:
        if not isinstance(value, str) or not isinstance(other, str):
            return False  # What is no number is neither less nor more.
        a, b = value, other
    if operator in ("$gt", "$gte"):
        return bool(a > b or (operator == "$gte" and a == b))
    return bool(a < b or (operator == "$lte" and a == b))


def _number(value: Any) -> Any:
    """Returns a number, also one that is written as text, or None."""
    if isinstance(value, int | float):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
