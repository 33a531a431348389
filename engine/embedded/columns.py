"""Records on their way in and what comes back: columns, cut to batches, and where they were stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from dq.engine.errors import BatchTooLarge, InvalidRecord
from dq.engine.segments.batch import MAX_RECORDS, Headers, check_column

BATCH_BYTES = 1 << 20  # more than this is written as several batches
BATCH_RECORDS = 100_000

Timestamp = int | datetime


class Appended(NamedTuple):
    """Where records were stored: the first one's offset, and how many there are from there on."""

    partition: int
    offset: int
    timestamp: int
    count: int = 1  # type: ignore[assignment]  # hides tuple.count, which nobody needs here

    @property
    def next_offset(self) -> int:
        return self.offset + self.count


class ColumnsCheck(NamedTuple):
    size: int
    null_values: bool
    null_keys: bool


class Columns(NamedTuple):
    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None
    headers: Sequence[Headers | None] | None
    timestamps: Sequence[int] | None

    def check_lengths(self) -> None:
        count = len(self.values)
        for name, column in (("keys", self.keys), ("headers", self.headers), ("timestamps", self.timestamps)):
            if column is not None and len(column) != count:
                raise InvalidRecord(f"{len(column)} {name} do not go with {count} values")

    def check(self) -> ColumnsCheck:
        """Raises unless values and keys are bytes or None."""
        size, null_values = check_column("values", self.values)
        if self.keys is None:
            return ColumnsCheck(size, null_values, True)
        keys = check_column("keys", self.keys)
        return ColumnsCheck(size + keys.size, null_values, keys.nulls)

    def pieces(self, size: int, *, whole: bool) -> Iterator[Columns]:
        """Cuts what is too much for one batch, unless it has to stay whole. `size` is the bytes of all of it."""
        count = len(self.values)
        if whole or count == 1 or (size <= BATCH_BYTES and count <= BATCH_RECORDS):
            if count > MAX_RECORDS:
                raise BatchTooLarge(count, MAX_RECORDS, unit="records")
            yield self
            return
        step = min(max(count * BATCH_BYTES // max(size, 1), 1), BATCH_RECORDS, count - 1)
        for first in range(0, count, step):
            # A piece with more than its share of the bytes is cut once more.
            piece = self.slice(first, first + step)
            yield from piece.pieces(piece.check().size, whole=False)

    def slice(self, first: int, end: int) -> Columns:
        return Columns(
            self.values[first:end],
            None if self.keys is None else self.keys[first:end],
            None if self.headers is None else self.headers[first:end],
            None if self.timestamps is None else self.timestamps[first:end],
        )

    def by_partition(self, partitions: list[int]) -> dict[int, Columns]:
        """The same records, sorted out by the partition of each."""
        rows: dict[int, list[int]] = {}
        for row, partition in enumerate(partitions):
            rows.setdefault(partition, []).append(row)
        return {partition: self._select(chosen) for partition, chosen in rows.items()}

    def _select(self, rows: list[int]) -> Columns:
        return Columns(
            [self.values[row] for row in rows],
            None if self.keys is None else [self.keys[row] for row in rows],
            None if self.headers is None else [self.headers[row] for row in rows],
            None if self.timestamps is None else [self.timestamps[row] for row in rows],
        )
