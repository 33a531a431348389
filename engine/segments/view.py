"""A partition as another process sees it: read-only, following what the writer makes visible."""

from __future__ import annotations

import contextlib

from dq.engine.clock import Clock
from dq.engine.errors import Corruption
from dq.engine.files import Counter, FileSystem
from dq.engine.segments.checkpoint import read_checkpoints
from dq.engine.segments.positions import PositionIndex
from dq.engine.segments.reader import Cursor, offset_at_time
from dq.engine.segments.recovery import list_segments
from dq.engine.segments.segment import NO_TIMESTAMP, SEGMENT_HEADER_SIZE, Segment
from dq.engine.segments.visibility import VISIBLE

_SHORTEST_NAP, _LONGEST_NAP = 0.0005, 0.02


class PartitionView:
    """Never writes, and never waits for the writer: it may run, have crashed, or not be there at all."""

    def __init__(self, files: FileSystem, clock: Clock, directory: str, index: PositionIndex, partition: int) -> None:
        self.files = files
        self.partition = partition
        self.directory = directory
        self.index = index
        self.closed = False
        self._clock = clock
        self._counter: Counter | None = None
        self._segments: tuple[int, ...] = ()
        self._listed_at = -1  # the visible end when the directory was last listed

    def segments(self) -> tuple[int, ...]:
        visible_end = self.visible_end()
        if visible_end != self._listed_at or not self._first_is_there():
            self._segments = list_segments(self.files, self.directory)
            self._listed_at = visible_end
        return self._segments

    def _first_is_there(self) -> bool:
        """Retention removes segments without changing the visible end."""
        if not self._segments:
            return False
        try:
            Segment.open(self.files, self.directory, self._segments[0]).close()
        except FileNotFoundError:
            return False
        return True

    def visible_end(self) -> int:
        counter = self._counter
        if counter is None:
            try:
                counter = self._counter = self.files.counter(f"{self.directory}/{VISIBLE}", write=False)
            except (FileNotFoundError, ValueError):  # not there yet, or still empty
                return self._scanned_end()
        return counter.get() or self._synced_end()

    def _synced_end(self) -> int:
        """The number may be gone after a power loss, as it is never synced. What a checkpoint calls synced is not."""
        checkpoints = read_checkpoints(self.files, self.directory)
        return max((checkpoint.next_offset for checkpoint in checkpoints if checkpoint.synced), default=0)

    def _scanned_end(self) -> int:
        """Without the writer's word: the end of the last whole batch in the files."""
        segments = list_segments(self.files, self.directory)
        if not segments:
            return 0
        end, base, position = segments[-1], segments[-1], SEGMENT_HEADER_SIZE
        for checkpoint in read_checkpoints(self.files, self.directory):
            if checkpoint.segment == base:
                end, position = checkpoint.next_offset, checkpoint.position
                break
        segment = Segment.open(self.files, self.directory, base)
        try:
            for placed in segment.batches(position):
                end = placed.header.next_offset
        except Corruption:
            pass
        finally:
            segment.close()
        return end

    @property
    def start_offset(self) -> int:
        segments = self.segments()
        return segments[0] if segments else self.visible_end()

    @property
    def next_offset(self) -> int:
        return self.visible_end()

    @property
    def max_timestamp(self) -> int:
        """The greatest timestamp there is; found by reading the headers of the last segment."""
        segments, visible_end = self.segments(), self.visible_end()
        greatest = NO_TIMESTAMP
        if segments:
            segment = Segment.open(self.files, self.directory, segments[-1])
            try:
                greatest = segment.read_header().max_timestamp_before
                for _, header in segment.headers():
                    greatest = max(greatest, header.last_timestamp)
                    if header.next_offset >= visible_end:
                        break
            finally:
                segment.close()
        return greatest

    def size(self) -> int:
        total = 0
        for base in self.segments():
            with contextlib.suppress(FileNotFoundError):  # retention removed it just now
                segment = Segment.open(self.files, self.directory, base)
                total += segment.size()
                segment.close()
        return total

    def cursor(self, offset: int) -> Cursor:
        return Cursor(self, offset)

    def offset_at_time(self, timestamp: int) -> int:
        return offset_at_time(self, timestamp)

    def wait_for(self, offset: int, timeout: float | None) -> bool:
        """Waits until an offset is visible; False when the time is over. Looks at a mapped number, then naps."""
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        nap = _SHORTEST_NAP
        while self.visible_end() <= offset and not self.closed:
            left = nap if deadline is None else min(nap, deadline - self._clock.monotonic())
            if left <= 0:
                return False
            self._clock.sleep(left)
            nap = min(nap * 2, _LONGEST_NAP)
        return not self.closed

    def park(self) -> None:
        """Lets go of the file handle until it is needed again."""
        self._counter = None  # closed when the last thread that looks at it is done

    def close(self) -> None:
        self.closed = True
        self.park()
