"""Reading a partition: a cursor that walks its batches in order, and look-ups by offset and by time.

The same code serves the process that writes the log and any other one; they differ in how they know which
segments there are and how far readers may see (`LogView`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from dq.engine.errors import Corruption, DamagedBatch, OffsetOutOfRange
from dq.engine.files import FileSystem
from dq.engine.segments.batch import HEADER_SIZE, Batch, BatchHeader, check_body, decode, unpack_header
from dq.engine.segments.positions import IndexFeed, PositionIndex
from dq.engine.segments.segment import SEGMENT_HEADER_SIZE, Segment

FIRST_READ = 64 << 10
MOST_READ = 1 << 20
_HEAL_AFTER = 1 << 20  # a walk longer than this found the index wanting, and fills it in


class LogView(Protocol):
    """What a reader has to know of a log."""

    files: FileSystem
    directory: str
    index: PositionIndex

    @property
    def partition(self) -> int: ...

    def segments(self) -> tuple[int, ...]:
        """Base offsets of the segments, in order."""

    def visible_end(self) -> int:
        """Readers see the offsets below this one."""

    def wait_for(self, offset: int, timeout: float | None) -> bool:
        """Waits until an offset is visible; False when the time is over."""


class RawBatch(NamedTuple):
    """A stored batch with its checks done, not yet decoded."""

    file: str
    position: int
    header: BatchHeader
    body: memoryview
    partition: int

    def decode(self) -> Batch:
        try:
            return decode(self.header, self.body, self.partition)
        except DamagedBatch as error:
            raise self.corruption(error) from None

    def corruption(self, error: DamagedBatch) -> Corruption:
        """The same error, with the place where it happened."""
        header = self.header
        return Corruption(
            self.file, self.position, str(error), offset=header.base_offset, resume_offset=header.next_offset
        )


class Cursor:
    """Walks the batches of a log from an offset on. Not safe to share between threads."""

    __slots__ = ("_log", "_position", "_read_size", "_segment", "offset")

    def __init__(self, log: LogView, offset: int) -> None:
        # In this order: a log may get its first segment in between.
        end = log.visible_end()
        segments = log.segments()
        start = segments[0] if segments else end
        if not start <= offset <= end:
            raise OffsetOutOfRange(offset, start, end)
        self.offset = offset  # the next one to be read
        self._log = log
        self._segment: Segment | None = None
        self._position = 0
        self._read_size = FIRST_READ

    def close(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def seek(self, offset: int) -> None:
        """Goes on from another offset; used to pass over damage."""
        self.close()
        self.offset = offset

    def read(self) -> list[RawBatch]:
        """The next batches, about a megabyte; none at the visible end. The first may begin before `offset`.

        Each read yields what is intact; damage is raised by the read that starts with it.
        """
        visible_end = self._log.visible_end()
        while self.offset < visible_end:
            segment = self._segment or self._locate()
            batches = self._read_chunk(segment, visible_end)
            if batches:
                return batches
            if not self._enter_next_segment(segment):
                break
        return []

    def _locate(self) -> Segment:
        """Opens the segment that holds `offset` and finds its batch."""
        segment = open_segment_of(self._log, self.offset)
        try:
            self._position = find_position(self._log, segment, self.offset)
        except BaseException:
            segment.close()
            raise
        self._segment = segment
        self._read_size = FIRST_READ
        return segment

    def _enter_next_segment(self, segment: Segment) -> bool:
        """At the end of a segment's file: goes on to the one that begins there, if there is one."""
        following = [base for base in self._log.segments() if base > segment.base_offset]
        if not following:
            return False
        if self._log.segments()[0] > self.offset:  # retention was faster
            raise OffsetOutOfRange(self.offset, self._log.segments()[0], self._log.visible_end())
        if following[0] != self.offset:
            raise Corruption(
                segment.path,
                self._position,
                f"the segment ends here, and the next one begins at offset {following[0]}",
                offset=self.offset,
                resume_offset=following[0],
            )
        self.close()
        self._segment = _open(self._log, following[0])
        self._position = SEGMENT_HEADER_SIZE
        return True

    def _read_chunk(self, segment: Segment, visible_end: int) -> list[RawBatch]:
        data = segment.read(self._read_size, self._position)
        self._read_size = min(self._read_size * 4, MOST_READ)
        chunk = memoryview(data)
        batches: list[RawBatch] = []
        at = 0
        while at < len(data) and self.offset < visible_end:
            try:
                if at + HEADER_SIZE > len(data) and batches:
                    break
                header = unpack_header(data, at)
                end = at + header.size
                if end > len(data):
                    if batches:
                        break
                    data = segment.read(header.size, self._position)
                    chunk = memoryview(data)
                self._check_place(header)
                if header.next_offset > visible_end:
                    break
                body = chunk[at + HEADER_SIZE : end]
                check_body(header, body)
            except DamagedBatch as error:
                if batches:
                    break
                raise self._corruption(segment, str(error)) from None
            batches.append(RawBatch(segment.path, self._position, header, body, self._log.partition))
            self.offset = header.next_offset
            self._position += header.size
            at = end
        return batches

    def _check_place(self, header: BatchHeader) -> None:
        if not header.base_offset <= self.offset < header.next_offset:
            raise DamagedBatch(f"offset {header.base_offset} stands where {self.offset} belongs")

    def _corruption(self, segment: Segment, reason: str) -> Corruption:
        following = segment.find_batch_after(segment.behind_damage(self._position), self.offset + 1)
        resume = _next_base(self._log, segment) if following is None else following.header.base_offset
        return Corruption(segment.path, self._position, reason, offset=self.offset, resume_offset=resume)


# ---------------------------------------------------------------- look-ups


def open_segment_of(log: LogView, offset: int) -> Segment:
    segments = log.segments()
    number = bisect_right(segments, offset) - 1
    if number < 0:
        raise OffsetOutOfRange(offset, segments[0] if segments else log.visible_end(), log.visible_end())
    return _open(log, segments[number])


def _open(log: LogView, base: int) -> Segment:
    try:
        return Segment.open(log.files, log.directory, base)
    except FileNotFoundError:
        # Retention was faster.
        segments, end = log.segments(), log.visible_end()
        raise OffsetOutOfRange(base, segments[0] if segments else end, end) from None


def find_position(log: LogView, segment: Segment, offset: int) -> int:
    """Where the batch that covers an offset starts in its segment, or the segment's end when none does yet."""
    entry = log.index.floor(offset)
    position = SEGMENT_HEADER_SIZE
    if entry is not None and entry.segment == segment.base_offset and _holds(segment, entry.position, entry.offset):
        position = entry.position
    for at, header in _walk(log, segment, position, offset):
        if header.next_offset > offset:
            if at - position > _HEAL_AFTER:
                index_segment(log.index, segment)
            return at
    return segment.size()


def _holds(segment: Segment, position: int, offset: int) -> bool:
    """The place has the batch that an index entry says."""
    try:
        return unpack_header(segment.read(HEADER_SIZE, position)).base_offset == offset
    except DamagedBatch:
        return False


def _next_base(log: LogView, segment: Segment) -> int | None:
    return next((base for base in log.segments() if base > segment.base_offset), None)


def _walk(log: LogView, segment: Segment, position: int, offset: int) -> Iterator[tuple[int, BatchHeader]]:
    """Positions and headers on the way to an offset; passes over damage that lies entirely before it."""
    next_offset = segment.base_offset
    while True:
        try:
            for at, header in segment.headers(position):
                yield at, header
                next_offset = header.next_offset
            return
        except Corruption as damage:
            following = segment.find_batch_after(damage.position + 1, next_offset)
            if following is None or following.header.base_offset > offset:
                resume = _next_base(log, segment) if following is None else following.header.base_offset
                raise Corruption(
                    damage.file, damage.position, damage.reason, offset=next_offset, resume_offset=resume
                ) from None
            position = following.position


def index_segment(index: PositionIndex, segment: Segment) -> None:
    """Puts a whole segment into the index. Damage ends it: the rest is then found by walking."""
    feed = IndexFeed(index)
    try:
        greatest = segment.read_header().max_timestamp_before
        for position, header in segment.headers():
            feed.see(segment.base_offset, position, header, greatest)
            greatest = max(greatest, header.last_timestamp)
    except Corruption:
        pass
    index.flush()


def offset_at_time(log: LogView, timestamp: int) -> int:
    """The first offset whose record is not older than a timestamp; the visible end when there is none."""
    visible_end = log.visible_end()
    segments = log.segments()
    low, high = 0, len(segments)
    while high - low > 1:
        middle = (low + high) // 2
        segment = _open(log, segments[middle])
        try:
            before = segment.read_header().max_timestamp_before
        except Corruption:
            before = timestamp  # not known: begin earlier, which only takes longer
        finally:
            segment.close()
        low, high = (middle, high) if before < timestamp else (low, middle)
    for base in segments[low:]:
        segment = _open(log, base)
        try:
            found = _offset_at_time_in(log, segment, timestamp, visible_end)
        finally:
            segment.close()
        if found is not None:
            return found
    return visible_end


def _offset_at_time_in(log: LogView, segment: Segment, timestamp: int, visible_end: int) -> int | None:
    if segment.base_offset >= visible_end:
        return visible_end
    entry = log.index.floor_time(timestamp)
    position = SEGMENT_HEADER_SIZE
    if entry is not None and entry.segment == segment.base_offset and entry.offset < visible_end:
        position = entry.position if _holds(segment, entry.position, entry.offset) else position
    for at, header in _walk(log, segment, position, segment.base_offset):
        if header.last_timestamp >= timestamp and header.count:
            batch = _read_batch(segment, at, header, log.partition)
            stamps = zip(batch.offsets, batch.timestamps, strict=True)
            found = next((offset for offset, stamp in stamps if stamp >= timestamp), None)
            if found is not None:  # a header is its producer's word, and may promise too much
                return found
        if header.next_offset >= visible_end:  # what follows may still be on its way to the file
            return visible_end
    return None


def _read_batch(segment: Segment, position: int, header: BatchHeader, partition: int) -> Batch:
    body = memoryview(segment.read(header.body_size, position + HEADER_SIZE))
    try:
        check_body(header, body)
    except DamagedBatch as error:
        raise Corruption(
            segment.path, position, str(error), offset=header.base_offset, resume_offset=header.next_offset
        ) from None
    return RawBatch(segment.path, position, header, body, partition).decode()
