"""Printing: the two consoles, tables, JSON, and numbers as people read them. Colours only where there is a terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

_WIDTH_WITHOUT_TERMINAL = 120  # nobody wants a file with lines that were wrapped for a terminal


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _WIDTH_WITHOUT_TERMINAL
    return Console(stderr=stderr, highlight=False, width=width)


out = _console(stderr=False)
err = _console(stderr=True)


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_bytes(data: bytes) -> None:
    """All of it: with PYTHONUNBUFFERED, as in many containers, a write to a pipe may take only a part."""
    rest = memoryview(data)
    while rest:
        rest = rest[sys.stdout.buffer.write(rest) :]
    sys.stdout.buffer.flush()


def table(*columns: str) -> Table:
    """A column whose name begins with '>' is one of numbers, aligned to the right."""
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in columns:
        right = name.startswith(">")
        made.add_column(name.lstrip(">"), justify="right" if right else "left", no_wrap=right)
    return made


@contextmanager
def byte_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr, while there is somebody to see it, to be told bytes done and bytes in all."""
    columns = (TextColumn(what), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task(what, total=None)

        def update(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield update


# ---------------------------------------------------------------- numbers


def number(count: int) -> str:
    return f"{count:,}"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def seconds(count: float) -> str:
    if count < 0.001:
        return f"{count * 1e6:.0f} µs"
    if count < 1:
        return f"{count * 1e3:.1f} ms"
    return f"{count:.1f} s" if count < 120 else str(timedelta(seconds=round(count)))


def rate(count: float, elapsed: float, unit: str) -> str:
    """How many a second."""
    return f"{count / max(elapsed, 1e-9):,.0f} {unit}/s"


def duration(microseconds: int | None) -> str:
    """A setting that is a time."""
    if microseconds is None:
        return "no limit"
    for name, length in (("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000)):
        if microseconds >= length and microseconds % length == 0:
            return f"{microseconds // length}{name}"
    return f"{microseconds / 1_000_000:g}s"
