"""Images as plain values, sorted throughout, so that equal images give equal bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DERIVED = {"derived": True}  # a field that follows from others: not stored, not shown


def sorted_pairs(mapping: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    return sorted(mapping.items())
