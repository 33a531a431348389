"""Checks of single arguments: a wrong one is told what is allowed, whatever its type."""

from __future__ import annotations

from typing import Any

from dq.engine.errors import InvalidConfig


def check_count(name: str, value: Any, most: int | None = None) -> int:
    """A whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (most is not None and value > most):
        raise InvalidConfig(name, value, "1 or more" if most is None else f"1 to {most:,}")
    return value


def check_timeout(value: Any) -> None:
    """Seconds, or None for ever."""
    if value is not None and not _is_number(value, 0, float("inf")):
        raise InvalidConfig("timeout", value, "seconds, not negative, or None to wait for ever")


def check_milliseconds(name: str, value: Any, most: int, *, may_be_zero: bool) -> float:
    if not _is_number(value, 0, most) or (value == 0 and not may_be_zero):
        raise InvalidConfig(name, value, f"{'0' if may_be_zero else 'more than 0'} to {most:,} milliseconds")
    return float(value)


def check_expected_offset(value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise InvalidConfig("expected_offset", value, "an offset, 0 or more, or None")


def _is_number(value: Any, least: float, most: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most
