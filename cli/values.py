"""What people type, as values: sizes, durations, and where to start reading."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Literal

import typer

_SIZE = re.compile(r"([0-9.]+)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_DURATION = re.compile(r"([0-9.]+)\s*(ms|s|m|h|d|w)?", re.IGNORECASE)
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

Start = int | datetime | Literal["earliest", "latest"]


def parse_size(text: str, option: str) -> int | None:
    """256MiB, 64k (of 1,024), 1GB (of 1,000), or a number of bytes; None for 'none'."""
    if text.lower() == "none":
        return None
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is no size: write 512MiB, 64k, a number of bytes, or none", param_hint=option
        )
    amount, prefix, binary = match.groups()
    # 64k is what people write for 64 KiB; only 64kB, spelled out, is 64,000.
    decimal = text.strip().lower().endswith("b") and prefix and not binary
    try:
        return int(float(amount) * (1000 if decimal else 1024) ** " kmgt".index(prefix.lower() or " "))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no size", param_hint=option) from None


def parse_duration(text: str, option: str) -> timedelta | None:
    """7d, 12h, 30m, 45s, 500ms, or a number of seconds; None for 'none'."""
    if text.lower() == "none":
        return None
    match = _DURATION.fullmatch(text.strip())
    try:
        if match is None:
            raise ValueError
        return timedelta(seconds=float(match[1]) * _SECONDS[(match[2] or "s").lower()])
    except (ValueError, OverflowError):
        message = f"{text!r} is no duration: write 7d, 12h, 30m, 45s, a number of seconds, or none"
        raise typer.BadParameter(message, param_hint=option) from None


def parse_start(text: str, option: str) -> Start:
    """earliest, latest, an offset, or an ISO time; one without a time zone is local."""
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.isdecimal():
        return int(text)
    moment = parse_time(text)
    if moment is None:
        message = f"{text!r} is no start: write earliest, latest, an offset, or a time as 2026-01-31T12:00:00Z"
        raise typer.BadParameter(message, param_hint=option)
    return moment


def parse_time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text))
    except ValueError:
        return None
