"""Which segments are past their time. Only whole, sealed segments are ever removed; offsets stay as they are."""

from __future__ import annotations

from dq.engine.clock import Clock
from dq.engine.errors import Corruption
from dq.engine.segments.log import PartitionLog
from dq.engine.segments.segment import SEGMENT_HEADER_SIZE, Segment


def apply_retention(log: PartitionLog, clock: Clock) -> list[int]:
    """Removes what the log's settings no longer keep; returns the base offsets of the segments removed."""
    removed = []
    if log.config.retention_age is not None:
        cutoff = clock.now() - log.config.retention_age
        if log.next_offset > log.start_offset and log.max_timestamp < cutoff:
            log.roll()  # all of it is too old, the last segment as well
        removed += log.remove_segments_before(_first_to_keep_by_age(log, cutoff))
    if log.config.retention_bytes is not None:
        removed += log.remove_segments_before(_first_to_keep_by_size(log, log.config.retention_bytes))
    return removed


def _first_to_keep_by_age(log: PartitionLog, cutoff: int) -> int:
    """The last segment before which every record is older than the cutoff."""
    segments = log.segments()
    keep = segments[0] if segments else 0
    for base in segments[1:]:
        try:
            segment = Segment.open(log.files, log.directory, base)
        except FileNotFoundError:
            continue  # somebody else removes segments as well
        try:
            if segment.read_header().max_timestamp_before >= cutoff:
                break
        except Corruption:
            break  # not known: kept
        finally:
            segment.close()
        keep = base
    return keep


def _first_to_keep_by_size(log: PartitionLog, limit: int) -> int:
    """Counted from the end, as many whole segments as it takes to hold at least the limit."""
    total = 0
    segments = log.segments()
    for base in reversed(segments):
        try:
            segment = Segment.open(log.files, log.directory, base)
        except FileNotFoundError:
            continue
        total += segment.size() - SEGMENT_HEADER_SIZE
        segment.close()
        if total >= limit:
            return base
    return segments[0] if segments else 0
