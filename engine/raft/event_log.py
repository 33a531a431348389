"""The log of metadata events: the interface, the local one behind it, which one process keeps for itself, and those
who follow either.

Events are records of the topic `__metadata`, in segments like any other. The image is rebuilt from a snapshot
and the events after it. Snapshots bound the time that takes and can be deleted; the events never are, except for
consumer positions that were superseded long ago (`thinning.py`).
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Protocol

from dq.engine.clock import Clock
from dq.engine.errors import Corruption, DamagedBatch, InvalidInput
from dq.engine.files import FileSystem
from dq.engine.raft.changes import Change
from dq.engine.raft.events import Event, decode_event, encode_event, new_event
from dq.engine.raft.image import EMPTY, Image, advance, find_event, fold, preview
from dq.engine.raft.snapshots import SNAPSHOT_EVERY, nearest_snapshot, prune_snapshots, write_snapshot
from dq.engine.raft.values import ID_SIZE
from dq.engine.segments.batch import CONTROL, encode
from dq.engine.segments.log import PartitionLog
from dq.engine.segments.reader import Cursor, LogView, RawBatch

METADATA_TOPIC = "__metadata"
METADATA_TOPIC_ID = bytes(16)

_BYTES_PER_EVENT = 200  # a snapshot is written after as many events as it has this many bytes

logger = logging.getLogger("dq.engine")


class EventLog(Protocol):
    @property
    def image(self) -> Image:
        """The state after the last committed event."""

    def propose(self, change: Change, *, event_id: bytes | None = None) -> int:
        """Commits a change as an event and returns its offset; raises a typed error when it would change nothing.

        Proposed again with the same event id it is not stored again: the offset it has is returned.
        """

    def propose_all(self, changes: Sequence[Change], *, event_id: bytes | None = None) -> list[int]:
        """Commits several changes, all or none, each an event that the next one can rely on."""

    def events(
        self, start: int = 0, *, follow: bool = False, timeout: float | None = None
    ) -> Iterator[tuple[int, Event]]:
        """See `read_events`."""


def derived_ids(event_id: bytes, count: int) -> list[bytes]:
    """The ids of the events of one proposal: the first has that of the proposal, the others follow from it."""
    if len(event_id) != ID_SIZE:
        raise InvalidInput(f"an event id has {ID_SIZE} bytes, not {len(event_id)}")
    others = (hashlib.sha256(b"%s %d" % (event_id, number)).digest()[:ID_SIZE] for number in range(1, count))
    return [event_id, *others][:count]


# ---------------------------------------------------------------- reading


def read_events(
    log: LogView, start: int = 0, *, follow: bool = False, timeout: float | None = None
) -> Iterator[tuple[int, Event]]:
    """Committed events and their offsets. With `follow` waits for more, up to `timeout` seconds for the next."""
    cursor = Cursor(log, start)
    try:
        while True:
            while batches := cursor.read():
                for raw in batches:
                    yield from _events_of(raw, start)
            if not follow or not log.wait_for(cursor.offset, timeout):
                return
    finally:
        cursor.close()


def _events_of(raw: RawBatch, start: int = 0) -> Iterator[tuple[int, Event]]:
    if raw.header.flags & CONTROL:
        return
    for record in raw.decode().records():
        if record.offset < start:
            continue
        try:
            event = decode_event(record.value or b"")
        except DamagedBatch as error:
            raise Corruption(
                raw.file, raw.position, str(error), offset=record.offset, resume_offset=record.offset + 1
            ) from error
        yield record.offset, event


def fold_events(image: Image, log: LogView, end: int | None = None) -> Image:
    """The image with the events of a log up to an offset, or all there are."""
    end = log.visible_end() if end is None else end
    if image.offset >= end:
        return image
    cursor = Cursor(log, image.offset)
    try:
        while cursor.offset < end and (batches := cursor.read()):
            for raw in batches:
                for offset, event in _events_of(raw, image.offset):
                    if offset >= end:
                        break
                    image = fold(image, event, offset)
        return advance(image, min(end, cursor.offset))
    finally:
        cursor.close()


def image_at(files: FileSystem, log: LogView, end: int) -> Image:
    """The image of the events below an offset, from the nearest snapshot before it."""
    image = nearest_snapshot(files, log.directory, end)
    if image.offset and not _speaks_of(image, log):
        image = EMPTY
    return fold_events(image, log, end)


def _speaks_of(image: Image, log: LogView) -> bool:
    """The snapshot comes from this log, and not from one that was cut and went on in another way."""
    last = image.recent.order.get(image.offset - 1)
    if last is None:  # the last event was a duplicate, or is not there any more
        return True
    try:
        offset, event = next(read_events(log, image.offset - 1), (-1, None))
    except Corruption:
        return True  # there is nothing better, and what follows can still be read
    return event is None or offset != image.offset - 1 or event.id == last[0]


def load_image(files: FileSystem, log: LogView) -> Image:
    """The image at the end of a log: the last good snapshot, and the events after it."""
    return image_at(files, log, log.visible_end())


class ImageFollower:
    """Keeps an image up to date with a log that somebody else writes, in this process or in another. Thread-safe."""

    def __init__(self, files: FileSystem, log: LogView) -> None:
        self._files = files
        self._log = log
        self._lock = threading.Lock()
        self._image = EMPTY

    @property
    def image(self) -> Image:
        """The image of everything that is committed now. Costs nothing when that is what it was."""
        if self._log.visible_end() != self._image.offset:
            with self._lock:
                end = self._log.visible_end()
                if self._image is EMPTY or end < self._image.offset:  # the log was cut, or is another one
                    self._image = load_image(self._files, self._log) if self._log.segments() else EMPTY
                else:
                    self._image = fold_events(self._image, self._log)
        return self._image

    def wait(self, offset: int, timeout: float | None) -> bool:
        """Waits until the event at an offset is in the image; False when the time is over."""
        return self._log.wait_for(offset, timeout) and self.image.offset > offset


# ---------------------------------------------------------------- the local one


class LocalEventLog:
    """The event log of an embedded data directory: one writer, no replication."""

    def __init__(self, log: PartitionLog, clock: Clock, actor: str) -> None:
        self.log = log
        self._clock = clock
        self._actor = actor
        self._lock = threading.Lock()
        self._image = load_image(log.files, log)
        self._snapshot_offset = self._image.offset
        self._snapshot_after = SNAPSHOT_EVERY

    @property
    def image(self) -> Image:
        if self._image.offset != self.log.visible_end():
            with self._lock:
                self._catch_up()
        return self._image

    def _catch_up(self) -> None:
        """Folds what is in the log and not in the image: an interrupt may have come between the two."""
        if self._image.offset != self.log.visible_end():
            self._image = fold_events(self._image, self.log)

    def propose(self, change: Change, *, event_id: bytes | None = None, actor: str | None = None) -> int:
        (offset,) = self.propose_all([change], event_id=event_id, actor=actor)
        return offset

    def propose_all(
        self, changes: Sequence[Change], *, event_id: bytes | None = None, actor: str | None = None
    ) -> list[int]:
        if not changes:
            return []
        with self._lock:
            self._catch_up()
            first = None if event_id is None else find_event(self._image, event_id)
            if first is not None:
                return list(range(first, first + len(changes)))
            events = self._checked(changes, event_id, actor or self._actor)
            # One batch: it is on disk as a whole or not at all.
            batch = encode([encode_event(event) for event in events], timestamp=events[0].time)
            (offset,) = self.log.append_durably([batch])
            image = self._image
            for at, event in enumerate(events, offset):
                image = fold(image, event, at)
            self._image = image
            if image.offset - self._snapshot_offset >= self._snapshot_after:
                self._write_snapshot()
        return list(range(offset, offset + len(events)))

    def _checked(self, changes: Sequence[Change], event_id: bytes | None, actor: str) -> list[Event]:
        time = self._clock.now()
        image = self._image
        for change in changes:
            image = preview(image, change, time)
        if event_id is None:
            return [new_event(change, time, actor) for change in changes]
        ids = derived_ids(event_id, len(changes))
        return [new_event(change, time, actor, given) for change, given in zip(changes, ids, strict=True)]

    def events(
        self, start: int = 0, *, follow: bool = False, timeout: float | None = None
    ) -> Iterator[tuple[int, Event]]:
        return read_events(self.log, start, follow=follow, timeout=timeout)

    def _write_snapshot(self) -> None:
        try:
            size = write_snapshot(self.log.files, self.log.directory, self._image)
            prune_snapshots(self.log.files, self.log.directory)
        except OSError as error:
            # Without it the next opening folds more events; the events themselves are safe.
            logger.warning("%s: cannot write a snapshot: %s", self.log.directory, error)
            size = 0
        self._snapshot_offset = self._image.offset
        self._snapshot_after = max(SNAPSHOT_EVERY, size // _BYTES_PER_EVENT)

    def close(self) -> None:
        with self._lock:
            self._catch_up()
            if self._image.offset != self._snapshot_offset:
                self._write_snapshot()
            self.log.close()
