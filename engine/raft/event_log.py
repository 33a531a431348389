"""The log of metadata events: the interface, and the local one behind it, which one process keeps for itself.

Events are records of the topic `__metadata`, in segments like any other. The image is rebuilt from a snapshot
and the events after it. Snapshots bound the time that takes and can be deleted; the events never are.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from dq.engine.clock import Clock
from dq.engine.files import FileSystem, read_file, replace_file
from dq.engine.raft.events import Change, Event, decode_event, encode_event, new_event
from dq.engine.raft.image import EMPTY, Image, decode_image, encode_image, fold
from dq.engine.segments.batch import encode
from dq.engine.segments.crc import crc32c
from dq.engine.segments.log import PartitionLog
from dq.engine.segments.reader import Cursor, LogView

METADATA_TOPIC = "__metadata"
METADATA_TOPIC_ID = bytes(16)
SNAPSHOT = "image.snapshot"
SNAPSHOT_EVERY = 10_000  # events
_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEADER = struct.Struct("<II")  # CRC-32C of the rest, version

logger = logging.getLogger("dq.engine")


class EventLog(Protocol):
    @property
    def image(self) -> Image:
        """The state after the last committed event."""

    def propose(self, change: Change) -> int:
        """Commits a change as an event and returns its offset."""


def read_events(log: LogView, start: int = 0) -> Iterator[tuple[int, Event]]:
    """Committed events and their offsets."""
    cursor = Cursor(log, start)
    try:
        while batches := cursor.read():
            for raw in batches:
                for record in raw.decode().records():
                    if record.offset >= start:
                        yield record.offset, decode_event(record.value or b"")
    finally:
        cursor.close()


def load_image(files: FileSystem, log: LogView, start: Image | None = None) -> Image:
    """The image at the end of a log: `start`, or the snapshot if there is a good one, and the events after it."""
    image = start or _read_snapshot(files, log)
    for offset, event in read_events(log, image.offset):
        # The log may have offsets without an event: repair leaves such holes.
        image = replace(fold(image, event), offset=offset + 1)
    return image


def _read_snapshot(files: FileSystem, log: LogView) -> Image:
    data = read_file(files, f"{log.directory}/{SNAPSHOT}")
    if data is None:
        return EMPTY
    try:
        crc, version = _SNAPSHOT_HEADER.unpack_from(data)
        if crc != crc32c(data[4:]) or version != _SNAPSHOT_VERSION:
            raise ValueError("the CRC or the version does not match")
        image = decode_image(data[_SNAPSHOT_HEADER.size :])
        if image.offset > log.visible_end():
            raise ValueError(f"it stands at event {image.offset}, the log ends at {log.visible_end()}")
        return image
    except (ValueError, TypeError, struct.error) as error:
        logger.warning("%s/%s is not usable and is made anew: %s", log.directory, SNAPSHOT, error)
        return EMPTY


class LocalEventLog:
    """The event log of an embedded data directory: one writer, no replication."""

    def __init__(self, log: PartitionLog, clock: Clock, actor: str) -> None:
        self.log = log
        self._clock = clock
        self._actor = actor
        self._lock = threading.Lock()
        self._image = load_image(log.files, log)
        self._snapshot_offset = self._image.offset

    @property
    def image(self) -> Image:
        if self._image.offset != self.log.visible_end():
            with self._lock:
                self._catch_up()
        return self._image

    def _catch_up(self) -> None:
        """Folds what is in the log and not in the image: an interrupt may have come between the two."""
        if self._image.offset != self.log.visible_end():
            for offset, event in read_events(self.log, self._image.offset):
                self._image = replace(fold(self._image, event), offset=offset + 1)

    def propose(self, change: Change) -> int:
        event = new_event(change, self._clock.now(), self._actor)
        batch = encode([encode_event(event)], timestamp=event.time)
        with self._lock:
            self._catch_up()
            (offset,) = self.log.append_durably([batch])
            self._image = replace(fold(self._image, event), offset=offset + 1)
            if self._image.offset - self._snapshot_offset >= SNAPSHOT_EVERY:
                self._write_snapshot()
        return offset

    def _write_snapshot(self) -> None:
        body = struct.pack("<I", _SNAPSHOT_VERSION) + encode_image(self._image)
        data = struct.pack("<I", crc32c(body)) + body
        replace_file(self.log.files, f"{self.log.directory}/{SNAPSHOT}", data, sync=False)
        self._snapshot_offset = self._image.offset

    def close(self) -> None:
        with self._lock:
            self._catch_up()
            if self._image.offset != self._snapshot_offset:
                self._write_snapshot()
            self.log.close()
