"""Iterating over partitions: where to start, batches in order, waiting for more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Literal

from dq.engine.clock import Clock
from dq.engine.errors import InvalidInput
from dq.engine.segments.batch import CONTROL, Batch
from dq.engine.segments.log import PartitionLog
from dq.engine.segments.reader import Cursor, RawBatch
from dq.engine.segments.view import PartitionView

Partition = PartitionLog | PartitionView
Start = int | datetime | Literal["earliest", "latest"]

MOST_OPEN = 64  # partitions that are read at once with a file handle each
_LONGEST_NAP = 0.02


def to_microseconds(moment: datetime) -> int:
    """A datetime without a time zone is taken as local time, as everywhere in Python."""
    moment = moment.astimezone(timezone.utc)
    return int(moment.timestamp()) * 1_000_000 + moment.microsecond


def resolve_start(log: Partition, start: Start) -> int:
    """The offset that a start means on one partition."""
    if start == "earliest":
        return log.start_offset
    if start == "latest":
        return log.visible_end()
    if isinstance(start, datetime):
        return log.offset_at_time(to_microseconds(start))
    if isinstance(start, int) and not isinstance(start, bool):
        return start
    raise InvalidInput(f"invalid start {start!r}: allowed are an offset, a datetime, 'earliest' and 'latest'")


def raw_batches(
    logs: Sequence[Partition], starts: dict[int, int], *, follow: bool, timeout: float | None, clock: Clock
) -> Iterator[RawBatch]:
    """Batches of several partitions, in turns; in order within each. Checks the starts before the first `next`."""
    cursors = [Cursor(log, starts[log.partition]) for log in logs]
    return _iterate(list(logs), cursors, follow, timeout, clock)


def _iterate(
    logs: list[Partition], cursors: list[Cursor], follow: bool, timeout: float | None, clock: Clock
) -> Iterator[RawBatch]:
    try:
        while True:
            found = False
            for cursor in cursors:
                batches = cursor.read()
                if len(cursors) > MOST_OPEN:
                    cursor.close()  # it finds its place again, and many partitions do not need as many handles
                for raw in batches:
                    found = True
                    if raw.header.count and not raw.header.flags & CONTROL:
                        yield raw
            if found:
                continue
            if not follow or not wait_for_any(logs, [cursor.offset for cursor in cursors], timeout, clock):
                return
    finally:
        for cursor in cursors:
            cursor.close()


def decoded(batches: Iterator[RawBatch], starts: dict[int, int]) -> Iterator[Batch]:
    """Decodes; what lies before the start of its partition in a batch is left out."""
    for raw in batches:
        batch = raw.decode()
        start = starts.get(raw.partition, 0)
        if start > raw.header.base_offset:
            batch = batch.starting_at(start)
            if not len(batch):
                continue
        yield batch


def wait_for_any(logs: Sequence[Partition], offsets: Sequence[int], timeout: float | None, clock: Clock) -> bool:
    """Waits until one of the partitions has grown beyond its offset; False when the time is over."""

    def grown() -> bool:
        return any(log.visible_end() > offset for log, offset in zip(logs, offsets, strict=True))

    if len(logs) == 1:
        return logs[0].wait_for(offsets[0], timeout)
    first = logs[0]
    if isinstance(first, PartitionLog):  # the partitions of a topic share one Growth
        first.growth.wait(lambda: grown() or all(log.closed for log in logs), timeout)
        return grown()
    deadline = None if timeout is None else clock.monotonic() + timeout
    nap = 0.0005
    while not grown():
        left = nap if deadline is None else min(nap, deadline - clock.monotonic())
        if left <= 0:
            return False
        clock.sleep(left)
        nap = min(nap * 2, _LONGEST_NAP)
    return True
