"""Thinning: consumer positions that were superseded long ago leave the metadata log. Everything else is kept for good.

No image as of an offset at or after the limit changes, its window of recent events included. For that:

- an event goes only if later events before the border have set all that it set, or if it changed nothing;
- the border lies as many offsets before the limit as the window of recent events is long, so that the window at
  the limit and all duplicates of what may go are behind it;
- an event stays if its id comes again behind the border, where only the window tells a duplicate from a new event;
- resets of positions stay: claims after one are judged by it;
- before anything is rewritten, what would be left is folded, and has to give the same image at the limit.

Claims are judged by those before them, too, but only in one direction: none may begin before what is handed out.
With some of the earlier ones gone, less is handed out, and what was accepted still is.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping

from dq.engine.clock import Clock
from dq.engine.errors import StorageError
from dq.engine.raft.changes import (
    Change,
    ConsumerRemoved,
    PositionsClaimed,
    PositionsCommitted,
    PositionsReset,
    TopicDeleted,
)
from dq.engine.raft.event_log import read_events
from dq.engine.raft.events import Event
from dq.engine.raft.image import EMPTY, Image, advance, apply_event, fold
from dq.engine.raft.recent_events import MOST
from dq.engine.raft.snapshots import write_snapshot
from dq.engine.segments.batch import BatchHeader, Record
from dq.engine.segments.compaction import CompactionResult, rewrite_segments
from dq.engine.segments.config import DAY
from dq.engine.segments.log import PartitionLog

KEPT = 7 * DAY  # microseconds

logger = logging.getLogger("dq.engine")

_NOTHING = CompactionResult(0, 0, 0, 0)
_Consumer = tuple[str, str]  # topic, name


def thin(log: PartitionLog, clock: Clock, *, kept: int = KEPT) -> CompactionResult:
    """Removes superseded positions that are older than `kept` microseconds from the sealed segments of a log."""
    limit = _limit(log, clock, kept)
    border = limit - MOST
    if border <= log.start_offset:
        return _NOTHING
    superseded, image = _superseded(log, border, limit)
    if not superseded:
        return _NOTHING
    if _folded_without(log, limit, superseded) != image:
        logger.error("%s is not thinned: the metadata would not be the same without what is superseded", log.directory)
        return _NOTHING
    if border > log.segments()[-1]:
        log.roll()
    segments = tuple(base for base in log.segments() if base <= border)
    segments += tuple(base for base in log.segments() if base > border)[:1]
    # As with compaction: the checkpoint names none of the segments that are replaced.
    if not log.checkpoint():
        raise StorageError(f"{log.directory} is not thinned: its state could not be written down first")
    write_snapshot(log.files, log.directory, image, durable=True)
    return rewrite_segments(log, segments, _Kept(superseded))


class Thinner:
    """Thins a log from time to time: only once enough has come within reach to be worth a look over the whole log."""

    def __init__(self, log: PartitionLog, clock: Clock, *, kept: int = KEPT) -> None:
        self._log = log
        self._clock = clock
        self._kept = kept
        self._lock = threading.Lock()
        self._limit = 0

    def run(self) -> CompactionResult:
        with self._lock:
            limit = _limit(self._log, self._clock, self._kept)
            if limit - self._limit < MOST:
                return _NOTHING
            self._limit = limit
            return thin(self._log, self._clock, kept=self._kept)


def _limit(log: PartitionLog, clock: Clock, kept: int) -> int:
    return log.offset_at_time(clock.now() - kept) if log.segments() else 0


class _Kept:
    """What stays, for the machinery of compaction."""

    def __init__(self, gone: set[int]) -> None:
        self._gone = gone

    def stays(self, record: Record) -> bool:
        return record.offset not in self._gone

    def producer_of(self, header: BatchHeader) -> tuple[int, int, int]:
        return header.producer_id, header.producer_epoch, header.base_sequence


def _superseded(log: PartitionLog, border: int, limit: int) -> tuple[set[int], Image]:
    """The offsets of the events that may go, and the image at the limit."""
    image = EMPTY
    positions = _Positions()
    ids: dict[bytes, list[int]] = {}  # of those that may go, with their offsets
    for offset, event in _events_before(log, limit):
        if offset >= border:
            positions.keep(ids.pop(event.id, ()))
        image, refusal, duplicate_of = apply_event(image, event, offset)
        if offset < border:
            applied = refusal is None and duplicate_of is None
            if positions.see(event.change, offset, applied):
                ids.setdefault(event.id, []).append(offset)
    return positions.superseded(), advance(image, limit)


def _folded_without(log: PartitionLog, limit: int, gone: set[int]) -> Image:
    """The image at the limit from what would be left. If it is the same, then so are all that come after it."""
    image = EMPTY
    for offset, event in _events_before(log, limit):
        if offset not in gone:
            image = fold(image, event, offset)
    return advance(image, limit)


def _events_before(log: PartitionLog, end: int) -> Iterator[tuple[int, Event]]:
    for offset, event in read_events(log, log.start_offset):
        if offset >= end:
            return
        yield offset, event


class _Positions:
    """Which event set each consumer's positions last."""

    def __init__(self) -> None:
        self._seen: set[int] = set()  # offsets of events that may go
        self._kept: set[int] = set()
        self._latest: dict[_Consumer, dict[tuple[str, int], int]] = {}

    def see(self, change: Change, offset: int, applied: bool) -> bool:
        """True when the event is one of those that may go once they are superseded."""
        if applied:
            if isinstance(change, ConsumerRemoved):
                self._latest.pop((change.topic, change.consumer), None)
            elif isinstance(change, TopicDeleted):
                for consumer in [consumer for consumer in self._latest if consumer[0] == change.topic]:
                    del self._latest[consumer]
            elif isinstance(change, PositionsReset):
                self._set(change.topic, change.consumer, offset, committed=change.positions, claimed=change.positions)
            elif isinstance(change, PositionsCommitted):
                self._set(change.topic, change.consumer, offset, committed=change.positions)
            elif isinstance(change, PositionsClaimed):
                self._set(change.topic, change.consumer, offset, claimed=change.claims)
        may_go = isinstance(change, (PositionsCommitted, PositionsClaimed))
        if may_go:
            self._seen.add(offset)
        return may_go

    def _set(self, topic: str, consumer: str, offset: int, **positions: Mapping[int, object]) -> None:
        latest = self._latest.setdefault((topic, consumer), {})
        for kind, partitions in positions.items():
            latest.update(((kind, partition), offset) for partition in partitions)

    def keep(self, offsets: Iterable[int]) -> None:
        self._kept.update(offsets)

    def superseded(self) -> set[int]:
        needed = {offset for latest in self._latest.values() for offset in latest.values()}
        return self._seen - needed - self._kept
