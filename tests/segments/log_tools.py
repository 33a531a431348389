"""What the tests of the partition log share: opening one on any file system, appending to it and reading it back."""

from __future__ import annotations

import contextlib
from typing import Any

from dq.engine.errors import Corruption
from dq.engine.files import FileSystem
from dq.engine.segments.batch import AFTER_SYNC, BatchHeader, EncodedBatch, Record, encode
from dq.engine.segments.config import LogConfig
from dq.engine.segments.log import Identity, PartitionLog
from dq.engine.segments.positions import MemoryIndex, PositionIndex
from dq.engine.segments.segment import Segment, file_name
from tests.clocks import ManualClock

DIRECTORY = "/data/topics/orders-1/3"
IDENTITY = Identity(bytes(range(16)), 3)
NOW = 1_700_000_000_000_000
SECOND = 1_000_000


def open_log(
    files: FileSystem,
    clock: ManualClock | None = None,
    *,
    index: PositionIndex | None = None,
    directory: str = DIRECTORY,
    **settings: Any,
) -> PartitionLog:
    """A log with the given settings. Unless an index is given it starts without one, as if it had been deleted."""
    index = MemoryIndex() if index is None else index
    return PartitionLog(files, clock or ManualClock(NOW), directory, IDENTITY, LogConfig(**settings), index)


def batch_of(*values: bytes | None, **columns: Any) -> EncodedBatch:
    columns.setdefault("timestamp", NOW)
    return encode(list(values), **columns)


def put(log: PartitionLog, *values: bytes | None, leader_epoch: int | None = None, **columns: Any) -> int:
    """Appends one batch and waits until it is as durable as it gets; returns its offset."""
    [offset] = log.append([batch_of(*values, **columns)], leader_epoch=leader_epoch)
    log.wait_durable(log.next_offset)
    return offset


def put_many(log: PartitionLog, count: int, *, size: int = 10, **columns: Any) -> None:
    """Batches of one record each, numbered by their offset."""
    for _ in range(count):
        put(log, numbered(log.next_offset, size), **columns)


def numbered(number: int, size: int = 10) -> bytes:
    return (b"%d " % number).ljust(size, b".")


def records(log: PartitionLog, start: int | None = None) -> list[Record]:
    """Every visible record from an offset on; raises where the log is damaged."""
    found, damage = read_on(log, start)
    if damage:
        raise damage[0]
    return found


def values(log: PartitionLog, start: int | None = None) -> list[bytes | None]:
    return [record.value for record in records(log, start)]


def offsets(log: PartitionLog, start: int | None = None) -> list[int]:
    return [record.offset for record in records(log, start)]


def read_on(log: PartitionLog, start: int | None = None) -> tuple[list[Record], list[Corruption]]:
    """Every record that can be read, going on behind damage where the damage says so."""
    start = log.start_offset if start is None else start
    cursor = log.cursor(start)
    found: list[Record] = []
    damage: list[Corruption] = []
    try:
        while True:
            try:
                batches = cursor.read()
                if not batches:
                    return found, damage
                for raw in batches:
                    found += raw.decode().starting_at(start)
            except Corruption as corruption:
                damage.append(corruption)
                if corruption.resume_offset is None:
                    return found, damage
                if len(damage) > 100:
                    raise AssertionError("reading does not get on") from corruption
                cursor.seek(corruption.resume_offset)
    finally:
        cursor.close()


def segment_path(base: int, directory: str = DIRECTORY) -> str:
    return f"{directory}/{file_name(base)}"


def delete_checkpoints(files: FileSystem, directory: str = DIRECTORY) -> None:
    for name in files.list(directory):
        if name.startswith("checkpoint"):
            files.remove(f"{directory}/{name}")


def headers(log: PartitionLog) -> list[tuple[int, int, BatchHeader]]:
    """(segment, position, header) of every batch."""
    found = []
    for base in log.segments():
        with contextlib.closing(Segment.open(log.files, log.directory, base)) as segment:
            found += [(base, position, header) for position, header in segment.headers()]
    return found


def after_sync_flags(log: PartitionLog) -> list[bool]:
    return [bool(header.flags & AFTER_SYNC) for _, _, header in headers(log)]
