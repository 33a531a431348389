"""Finding the end of a log that may not have been closed: what opening a partition for writing begins with.

The scan starts at the furthest checkpoint that can be trusted and reads to the end of the last segment, so
its cost is bounded by what was written since, not by what is stored. It ends in one of three ways:

- every byte belongs to a whole batch: that is the end;
- the last bytes do not, and nothing intact follows them: a torn tail, the trace of a write that was never
  acknowledged. It is cut off;
- damage with intact batches behind it: corruption. It is never cut. The damage is reported, and the log goes
  on behind it.

After a power loss unsynced pages may be missing in any order, so a torn tail can also have intact batches
behind it. Batches say so themselves: one with the after-sync flag was written when everything before it was on
stable storage. Damage before such a batch is corruption; damage behind which there is none is a torn tail. As
long as the machine has not gone down since the writer ran, pages cannot be missing, and this is not asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dq.engine.errors import Corruption
from dq.engine.files import FileSystem
from dq.engine.segments.batch import AFTER_SYNC, BatchHeader
from dq.engine.segments.checkpoint import Checkpoint, read_checkpoints
from dq.engine.segments.epochs import EpochHistory
from dq.engine.segments.positions import IndexFeed, PositionIndex
from dq.engine.segments.producers import ProducerStates
from dq.engine.segments.segment import (
    NO_TIMESTAMP,
    REWRITTEN,
    SEGMENT_HEADER_SIZE,
    Placed,
    Segment,
    base_offset_of,
    file_name,
)


class Recovered(NamedTuple):
    segments: tuple[int, ...]  # base offsets
    position: int  # the end of the last segment
    next_offset: int
    max_timestamp: int
    producers: ProducerStates
    epochs: EpochHistory
    closed: bool  # the log was closed cleanly
    boot_id: str  # of the machine when the log was last written; empty when unknown
    synced_segment: int  # everything before this segment is known to be on stable storage,
    synced_position: int  # and everything before this position in it,
    synced_end: int  # which is that of this offset
    scanned_bytes: int
    cut_bytes: int
    lost_offsets: int  # that a checkpoint had seen and that are gone: somebody cut the files
    damage: tuple[Corruption, ...]


class _Synced(NamedTuple):
    segment: int
    position: int
    end: int


def list_segments(files: FileSystem, directory: str) -> tuple[int, ...]:
    """The base offsets of all segments in a directory, in order."""
    return tuple(sorted(base for name in files.list(directory) if (base := base_offset_of(name)) is not None))


def recover(files: FileSystem, directory: str, index: PositionIndex) -> Recovered:
    """Brings the files of a log into order and tells its state. A log without files is an empty one."""
    return _Recovery(files, directory, index).run()


class _Recovery:
    """The log's state while the scan goes on."""

    def __init__(self, files: FileSystem, directory: str, index: PositionIndex) -> None:
        self.files = files
        self.directory = directory
        self.index = index
        self.feed = IndexFeed(index)
        self.segments = list_segments(files, directory)
        self.next_offset = self.segments[0] if self.segments else 0
        self.max_timestamp = NO_TIMESTAMP
        self.producers = ProducerStates()
        self.epochs = EpochHistory()
        self.synced = _Synced(0, 0, 0)
        self.synced_before = 0  # offsets that were on stable storage once, whatever has become of the files since
        self.scanned = 0
        self.cut = 0
        self.damage: list[Corruption] = []

    def run(self) -> Recovered:
        checkpoints = read_checkpoints(self.files, self.directory)
        self.boot_id = checkpoints[0].boot_id if checkpoints else ""
        fitting = [checkpoint for checkpoint in checkpoints if self._fits(checkpoint)]
        start = fitting[0] if fitting else None
        first, position = 0, SEGMENT_HEADER_SIZE
        seen = max((checkpoint.next_offset for checkpoint in checkpoints), default=0)
        self.synced_before = max((checkpoint.next_offset for checkpoint in checkpoints if checkpoint.synced), default=0)
        lost_all = not self.segments
        if lost_all:
            self.next_offset = seen  # an offset is never given out twice
        self._remove_leftovers()
        if start is not None:
            first, position = self.segments.index(start.segment), start.position
            self.next_offset = start.next_offset
            self.max_timestamp = start.max_timestamp
            self.producers, self.epochs = start.producers, start.epochs
        at_end = start is not None and self._ends_with(start)
        if not at_end or (start is not None and not start.closed):
            self.index.cut(self.next_offset)
        synced = next((checkpoint for checkpoint in fitting if checkpoint.synced), None)
        if synced is not None:
            self.synced = _Synced(synced.segment, synced.position, synced.next_offset)
        end = self._scan(first, position)
        self.epochs.trim(self.segments[0] if self.segments else 0)
        return Recovered(
            segments=self.segments,
            position=end,
            next_offset=self.next_offset,
            max_timestamp=self.max_timestamp,
            producers=self.producers,
            epochs=self.epochs,
            closed=at_end and start is not None and start.closed and not self.cut,
            boot_id=self.boot_id,
            synced_segment=self.synced.segment,
            synced_position=self.synced.position,
            synced_end=min(self.synced.end, self.next_offset),
            scanned_bytes=self.scanned,
            cut_bytes=self.cut,
            lost_offsets=seen if lost_all else max(seen - self.next_offset, 0),
            damage=tuple(self.damage),
        )

    def _remove_leftovers(self) -> None:
        """A crash in the middle of a compaction leaves the file behind that it was writing."""
        for name in self.files.list(self.directory):
            if name.endswith(REWRITTEN):
                self.files.remove(f"{self.directory}/{name}")

    def _fits(self, checkpoint: Checkpoint) -> bool:
        return checkpoint.segment in self.segments and checkpoint.position <= self._size(checkpoint.segment)

    def _ends_with(self, checkpoint: Checkpoint) -> bool:
        """There is nothing behind the checkpoint."""
        return checkpoint.segment == self.segments[-1] and checkpoint.position == self._size(checkpoint.segment)

    def _size(self, base: int) -> int:
        segment = Segment.open(self.files, self.directory, base)
        try:
            return segment.size()
        finally:
            segment.close()

    def _scan(self, first: int, position: int) -> int:
        """Reads the segments from the given one on; returns where the last one ends."""
        number = first
        while number < len(self.segments):
            segment = Segment.open(self.files, self.directory, self.segments[number], write=True)
            try:
                position = self._scan_segment(segment, position)
            except Corruption as torn:
                position = self._cut_tail(segment, number, torn.position)
            finally:
                segment.close()
            number += 1
            if number < len(self.segments):
                position = SEGMENT_HEADER_SIZE
        return position

    def _scan_segment(self, segment: Segment, position: int) -> int:
        """Reads one segment to its end and returns it; raises Corruption where a torn tail begins."""
        end = segment.size()
        entering = position <= SEGMENT_HEADER_SIZE
        while True:
            try:
                if entering:
                    entering = False
                    self._enter(segment)
                for placed in segment.batches(position, end=end):
                    self._take(segment, placed)
                return end
            except Corruption as corruption:
                resume = self._pass_over(segment, corruption)
                if resume is None:
                    return end
                position = resume

    def _pass_over(self, segment: Segment, corruption: Corruption) -> int | None:
        """Reports damage and returns where this segment goes on behind it, None when a later one does.

        Raises the corruption again when it is a torn tail.
        """
        behind = self._batches_behind(segment, corruption.position)
        following = next(behind, None)
        if following is None or self._may_be_torn(following, behind):
            raise corruption
        base, placed = following
        resume_offset = placed.header.base_offset
        self.damage.append(
            Corruption(
                corruption.file,
                corruption.position,
                corruption.reason,
                offset=self.next_offset,
                resume_offset=resume_offset,
            )
        )
        if base != segment.base_offset:
            return None
        self.next_offset = resume_offset
        return placed.position

    def _enter(self, segment: Segment) -> None:
        header = segment.read_header()
        self.max_timestamp = max(self.max_timestamp, header.max_timestamp_before)
        if segment.base_offset < self.next_offset:
            raise Corruption(segment.path, 0, f"it begins before offset {self.next_offset}, where the last one ends")
        if segment.base_offset > self.next_offset:
            if not self.damage or self.damage[-1].resume_offset != segment.base_offset:
                raise Corruption(segment.path, 0, f"the offsets from {self.next_offset} on are missing before it")
            self.next_offset = segment.base_offset

    def _take(self, segment: Segment, placed: Placed) -> None:
        header = placed.header
        if header.base_offset != self.next_offset:
            reason = f"offset {header.base_offset} stands where {self.next_offset} belongs"
            raise Corruption(segment.path, placed.position, reason)
        if header.leader_epoch < self.epochs.latest:
            reason = f"leader epoch {header.leader_epoch} stands behind {self.epochs.latest}"
            raise Corruption(segment.path, placed.position, reason)
        if _after_sync(header):
            self.synced = _Synced(segment.base_offset, placed.position, header.base_offset)
        self.feed.see(segment.base_offset, placed.position, header, self.max_timestamp)
        self.max_timestamp = max(self.max_timestamp, header.last_timestamp)
        self.producers.add(header)
        self.epochs.add(header.leader_epoch, header.base_offset)
        self.next_offset = header.next_offset
        self.scanned += header.size

    def _batches_behind(self, segment: Segment, position: int) -> Iterator[tuple[int, Placed]]:
        """All intact batches behind a damaged place, in this segment and the later ones."""
        yield from _intact_batches(segment, segment.behind_damage(position), self.next_offset)
        for base in self.segments[self.segments.index(segment.base_offset) + 1 :]:
            later = Segment.open(self.files, self.directory, base)
            try:
                yield from _intact_batches(later, 0, self.next_offset)
            finally:
                later.close()

    def _may_be_torn(self, following: tuple[int, Placed], behind: Iterator[tuple[int, Placed]]) -> bool:
        if self.boot_id and self.boot_id == self.files.boot_id:
            return False
        if self.next_offset < self.synced_before:
            return False
        return not _after_sync(following[1].header) and not any(_after_sync(placed.header) for _, placed in behind)

    def _cut_tail(self, segment: Segment, number: int, position: int) -> int:
        """Removes everything from a position on; returns where the log then ends."""
        for base in reversed(self.segments[number + 1 :]):
            self._remove(base)
        self.segments = self.segments[: number + 1]
        if position >= SEGMENT_HEADER_SIZE:
            self.cut += segment.size() - position
            segment.truncate(position)
            segment.sync()
        else:
            # Not even the header is whole: the file was being created.
            self.segments = self.segments[:number]
            if number:
                self._remove(segment.base_offset)
                position = self._size(self.segments[-1])
            else:
                # Its name is all that tells at which offset the log goes on; the next segment takes its place.
                self.cut += segment.size()
                segment.truncate(0)
                segment.sync()
        self.files.sync_directory(self.directory)
        return position

    def _remove(self, base: int) -> None:
        self.cut += self._size(base)
        self.files.remove(f"{self.directory}/{file_name(base)}")


def _after_sync(header: BatchHeader) -> bool:
    return bool(header.flags & AFTER_SYNC)


def _intact_batches(segment: Segment, position: int, least_offset: int) -> Iterator[tuple[int, Placed]]:
    while True:
        placed = segment.find_batch_after(position, least_offset)
        if placed is None:
            return
        yield segment.base_offset, placed
        position = placed.position + placed.header.size
