"""Key compaction: of the records with one key, only the latest stays. Sealed segments are rewritten one by one.

Offsets do not change. A batch that lost records becomes a sparse one that covers the same offsets as before,
so the log stays without gaps: a hole in the offsets always means damage, in a compacted log as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

from dq.engine.clock import Clock
from dq.engine.errors import StorageError
from dq.engine.segments.batch import (
    AFTER_SYNC,
    SPARSE,
    BatchHeader,
    EncodedBatch,
    Record,
    decode,
    encode,
    pack_header,
)
from dq.engine.segments.log import PartitionLog
from dq.engine.segments.segment import COMPACTED, REWRITTEN, Placed, Segment, pack_segment_header

MERGED_RECORDS = 1000  # what is left of small batches is put together up to about these sizes
MERGED_BYTES = 1 << 20

NO_PRODUCER = (-1, -1, -1)


class CompactionResult(NamedTuple):
    segments_rewritten: int
    records_removed: int
    bytes_before: int
    bytes_after: int


def compact(log: PartitionLog, clock: Clock, *, below: int | None = None) -> CompactionResult:
    """Compacts the sealed segments of a log. Needs memory for one entry per distinct key.

    `below`: nothing from this offset on counts, because it may still be rolled back: it is not compacted, and
    nothing is removed on its account.
    """
    # In this order: the checkpoint then names the last of these segments or a later one, and none that is replaced.
    segments = log.segments()
    if not log.checkpoint():
        raise StorageError(f"{log.directory} is not compacted: its state could not be written down first")
    end = log.durable_end if below is None else min(below, log.durable_end)
    segments = tuple(base for base in segments if base <= end)
    rule = _LatestOfKey(log, clock.now() - log.config.tombstone_age, end, segments[-1] if segments else 0)
    return rewrite_segments(log, segments, rule)


class Rule(Protocol):
    """What stays when sealed segments are rewritten."""

    def stays(self, record: Record) -> bool: ...

    def producer_of(self, header: BatchHeader) -> tuple[int, int, int]:
        """What a batch goes on saying about its producer: id, epoch and sequence, or NO_PRODUCER."""


def rewrite_segments(log: PartitionLog, segments: Sequence[int], rule: Rule) -> CompactionResult:
    """Rewrites these segments but the last, each as far as something goes from it.

    The log's checkpoint has to name the last one or a later place: see `compact`.
    """
    rewritten = removed = before = after = 0
    for base, next_base in pairwise(segments):
        try:
            source = Segment.open(log.files, log.directory, base)
        except FileNotFoundError:
            continue  # retention was faster
        try:
            before += source.size()
            if not _removes_any(rule, source):
                after += source.size()
                continue
            path = source.path + REWRITTEN
            try:
                count, size = _rewrite(log, source, path, rule)
                replaced = log.replace_segment(base, path, next_base)
            except BaseException:
                with contextlib.suppress(OSError):  # above all when the disk is full
                    log.files.remove(path)
                raise
        finally:
            source.close()
        if not replaced:
            continue
        rewritten += 1
        removed += count
        after += size
    return CompactionResult(rewritten, removed, before, after)


class _LatestOfKey:
    """Which records stay, from one look over the whole log."""

    def __init__(self, log: PartitionLog, gone_before: int, end: int, sealed_end: int) -> None:
        self._gone_before = gone_before  # markers of deletion older than this have done their work
        self._latest: dict[bytes, int] = {}
        self._last_of_producer: dict[int, int] = {}
        cursor = log.cursor(log.start_offset)
        try:
            while batches := cursor.read():
                for raw in batches:
                    if raw.header.next_offset > end:
                        return
                    batch = raw.decode()
                    if raw.header.base_offset < sealed_end:
                        self._last_of_producer[raw.header.producer_id] = raw.header.base_offset
                    if batch.keys is not None:
                        self._latest.update(
                            (key, offset)
                            for key, offset in zip(batch.keys, batch.offsets, strict=True)
                            if key is not None
                        )
        finally:
            cursor.close()

    def stays(self, record: Record) -> bool:
        if record.key is None:
            return True
        if self._latest[record.key] != record.offset:
            return False
        return record.value is not None or record.timestamp >= self._gone_before

    def producer_of(self, header: BatchHeader) -> tuple[int, int, int]:
        """The last sealed batch of a producer keeps saying so: the producer's state is rebuilt from it."""
        if header.producer_id >= 0 and self._last_of_producer[header.producer_id] == header.base_offset:
            return header.producer_id, header.producer_epoch, header.base_sequence
        return NO_PRODUCER


def _removes_any(rule: Rule, segment: Segment) -> bool:
    return any(
        not rule.stays(record)
        for placed in segment.batches()
        for record in decode(placed.header, placed.body).records()
    )


def _rewrite(log: PartitionLog, source: Segment, path: str, rule: Rule) -> tuple[int, int]:
    """Writes and syncs what stays of a segment; returns how many records went and the new size."""
    header = source.read_header()
    kept = 0
    total = 0
    target = log.files.open(path, write=True, create=True)
    try:
        target.truncate(0)
        size = target.write([pack_segment_header(header._replace(flags=header.flags | COMPACTED))], 0)
        for group in _grouped(_Group.of(placed, rule) for placed in source.batches()):
            batch = group.encode()
            size += target.write([pack_header(batch.header), batch.body], size)
            kept += len(group.records)
            total += group.records_before
        target.sync()
    finally:
        target.close()
    return total - kept, size


@dataclass(slots=True)
class _Group:
    """What stays of one batch, or of several neighbours that become one."""

    header: BatchHeader  # of the first
    producer: tuple[int, int, int]
    span: int
    size: int
    last_timestamp: int
    records: list[Record]
    records_before: int

    @classmethod
    def of(cls, placed: Placed, rule: Rule) -> _Group:
        header = placed.header
        records = [record for record in decode(header, placed.body).records() if rule.stays(record)]
        size = header.raw_size * len(records) // max(header.count, 1)
        return cls(header, rule.producer_of(header), header.span, size, header.last_timestamp, records, header.count)

    def takes(self, other: _Group) -> bool:
        return (
            self.producer == other.producer == NO_PRODUCER
            and self.header.leader_epoch == other.header.leader_epoch
            and self.header.codec == other.header.codec
            and not (self.header.flags | other.header.flags) & ~AFTER_SYNC & ~SPARSE
            and len(self.records) + len(other.records) <= MERGED_RECORDS
            and self.size + other.size <= MERGED_BYTES
            and self.span + other.span < 1 << 32
        )

    def take(self, other: _Group) -> None:
        self.records += other.records
        self.records_before += other.records_before
        self.span += other.span
        self.size += other.size
        self.last_timestamp = max(self.last_timestamp, other.last_timestamp)

    def encode(self) -> EncodedBatch:
        base = self.header.base_offset
        records = self.records
        keyed = any(record.key is not None for record in records)
        with_headers = any(record.headers for record in records)
        return encode(
            [record.value for record in records],
            [record.key for record in records] if keyed else None,
            timestamp=self.last_timestamp,
            timestamps=[record.timestamp for record in records] if records else None,
            headers=[record.headers for record in records] if with_headers else None,
            codec=self.header.codec,
            producer=self.producer,
            offset_deltas=[record.offset - base for record in records],
            base_offset=base,
            span=self.span,
            leader_epoch=self.header.leader_epoch,
            flags=self.header.flags,
        )


def _grouped(groups: Iterator[_Group]) -> Iterator[_Group]:
    waiting: _Group | None = None
    for group in groups:
        if waiting is not None and waiting.takes(group):
            waiting.take(group)
            continue
        if waiting is not None:
            yield waiting
        waiting = group
    if waiting is not None:
        yield waiting
