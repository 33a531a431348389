"""Filling the index from the segments. Look-ups do so by themselves where they find it wanting; this does it all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dq.engine.errors import Corruption
from dq.engine.index.environment import IndexEnvironment
from dq.engine.index.lmdb_index import LmdbIndex
from dq.engine.segments.reader import LogView, index_segment
from dq.engine.segments.segment import Segment


def rebuild(logs: Sequence[LogView], environment: IndexEnvironment, progress: Callable[[int, int], None]) -> None:
    """Makes the entries of some partitions anew; calls `progress` with the bytes of log done and to be done."""
    sizes = [[(base, _size(log, base)) for base in log.segments()] for log in logs]
    total, done = sum(size for segments in sizes for _, size in segments), 0
    progress(done, total)
    for log, segments in zip(logs, sizes, strict=True):
        cleared: LmdbIndex | None = None
        for base, size in segments:
            cleared = _rebuild_segment(log, base, environment, cleared)
            done += size
            progress(done, total)


def _size(log: LogView, base: int) -> int:
    try:
        segment = Segment.open(log.files, log.directory, base)
    except FileNotFoundError:
        return 0  # retention was faster
    try:
        return segment.size()
    finally:
        segment.close()


def _rebuild_segment(
    log: LogView, base: int, environment: IndexEnvironment, cleared: LmdbIndex | None
) -> LmdbIndex | None:
    """Clears the partition's index first, if that is not done; returns it."""
    try:
        segment = Segment.open(log.files, log.directory, base)
    except FileNotFoundError:
        return cleared
    try:
        header = segment.read_header()
        index = environment.partition(header.topic_id, header.partition)
        if index is not cleared:
            index.cut(0)
        index_segment(index, segment)
        return index
    except Corruption:
        return cleared  # whoever reads there is told
    finally:
        segment.close()
