"""Parts of images as plain values, sorted, so that equal ones give equal bytes; and maps that share being empty."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from immutables import Map

NOTHING: Map[Any, Any] = Map()
DERIVED = {"derived": True}  # a field that follows from others: not stored, not shown


def sorted_pairs(mapping: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    return sorted(mapping.items())


def to_map(items: Mapping[Any, Any] | Iterable[Any]) -> Map[Any, Any]:
    """Most of the small maps of an image are empty: one for all leaves less for the garbage collector to look at."""
    return Map(items) or NOTHING
