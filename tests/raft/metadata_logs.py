"""Metadata logs for tests: opening one in memory or on disk, and filling it with events as they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dq.engine.clock import Clock
from dq.engine.files import FileSystem
from dq.engine.memory_files import MemoryFiles
from dq.engine.raft.event_log import METADATA_TOPIC_ID, LocalEventLog
from dq.engine.raft.events import Event, encode_event
from dq.engine.raft.image import EMPTY, Image, fold
from dq.engine.segments.batch import encode
from dq.engine.segments.config import LogConfig
from dq.engine.segments.log import Identity, PartitionLog
from dq.engine.segments.positions import MemoryIndex
from dq.engine.segments.view import PartitionView
from tests.clocks import ManualClock

DIRECTORY = "/data/topics/__metadata-00000000/0"


def open_log(
    files: FileSystem | None = None,
    clock: Clock | None = None,
    *,
    directory: str = DIRECTORY,
    segment_bytes: int = 256 << 20,
) -> PartitionLog:
    return PartitionLog(
        files or MemoryFiles(),
        clock or ManualClock(),
        directory,
        Identity(METADATA_TOPIC_ID, 0),
        LogConfig(flush="os", segment_bytes=segment_bytes),
        MemoryIndex(),
    )


def open_event_log(files: FileSystem | None = None, clock: Clock | None = None) -> LocalEventLog:
    clock = clock or ManualClock()
    return LocalEventLog(open_log(files, clock), clock, "ada@test")


def open_view(files: FileSystem, clock: Clock | None = None, *, directory: str = DIRECTORY) -> PartitionView:
    return PartitionView(files, clock or ManualClock(), directory, MemoryIndex(), 0)


def put(log: PartitionLog, events: Sequence[Event]) -> None:
    """As one batch, without asking whether they apply."""
    log.append([encode([encode_event(event) for event in events], timestamps=[event.time for event in events])])


def folded(events: Iterable[Event], image: Image = EMPTY) -> Image:
    for event in events:
        image = fold(image, event)
    return image
