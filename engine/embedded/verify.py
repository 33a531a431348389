"""Verifying a data directory: everything that is stored is read and checked. Changes nothing.

Works beside a running writer, and then looks at nothing that readers may not see yet. Without one, what a crash left
behind the last acknowledged batch is looked at too. If that is not whole it is a torn tail, which the next opening
for writing cuts off, and not damage.

`walk` goes over one segment file, `PartitionScan` over the files of a partition, `verify` over a data directory.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from dq.engine.clock import SystemClock
from dq.engine.embedded.directory import DataDirectory, absolute
from dq.engine.errors import CodecUnavailable, Corruption, DamagedBatch, FormatTooNew
from dq.engine.files import FileSystem, OsFiles
from dq.engine.index.environment import IndexEnvironment
from dq.engine.raft.event_log import METADATA_TOPIC, METADATA_TOPIC_ID
from dq.engine.raft.events import decode_event
from dq.engine.raft.image import EMPTY, fold
from dq.engine.segments.batch import AFTER_SYNC, HEADER_SIZE, Batch, BatchHeader, decode, unpack_header
from dq.engine.segments.checkpoint import read_checkpoints
from dq.engine.segments.crc import crc32c
from dq.engine.segments.epochs import EpochHistory
from dq.engine.segments.log import Identity
from dq.engine.segments.positions import IndexEntry, PositionIndex
from dq.engine.segments.producers import ProducerStates
from dq.engine.segments.recovery import list_segments
from dq.engine.segments.segment import (
    NO_TIMESTAMP,
    SEGMENT_HEADER_SIZE,
    Placed,
    Segment,
    SegmentHeader,
    file_name,
    unpack_segment_header,
)
from dq.engine.segments.visibility import VISIBLE

Progress = Callable[[int, int], object]  # bytes done, bytes in all
See = Callable[[str, Placed, Batch], list["Finding"]]  # what else is wrong with a batch

Kind = Literal[
    "damage",  # bytes that are no intact batch, and the offsets that are lost with them
    "gap",  # offsets that are missing, without any bytes in their place
    "batch header",  # intact, but it says something else than the batch or the log; nothing is lost
    "segment header",  # the first 64 bytes of a file; nothing is lost
    "misplaced",  # a file that belongs to another partition
    "index",  # an entry that does not point to the batch it names; readers notice and do without it
    "event",  # a record of the metadata log that is no event
]

_TOPIC_DIRECTORY = re.compile(r"(.+)-([0-9a-f]{8})")
LAST_OFFSET = (1 << 63) - 1
_NUMBER = struct.Struct("<I")
_FAR = 1 << 32  # offsets: a visible end further away than this from what the files hold is not believed


class Finding(NamedTuple):
    """Something that is not as it should be, and where."""

    kind: Kind
    file: str
    position: int
    reason: str
    offset: int | None = None  # the first offset that is concerned
    next_offset: int | None = None  # and the one behind the last
    end: int = 0  # where the bytes that are concerned end in the file
    leader_epoch: int = 0  # of the last batch before
    timestamp: int = NO_TIMESTAMP  # the greatest before
    header: BatchHeader | None = None  # kind "batch header": what it should say


class TornTail(NamedTuple):
    """What a crash left of writes that were never acknowledged: from this position on, later files included."""

    file: str
    position: int
    offset: int
    bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class PartitionReport:
    topic: str
    partition: int
    directory: str
    segments: int
    batches: int
    records: int
    bytes: int
    start_offset: int
    end_offset: int
    undecoded: int  # batches whose codec is not installed: their CRC is good, their content was not looked at
    torn_tail: TornTail | None
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class VerifyReport:
    path: str
    partitions: tuple[PartitionReport, ...]

    @property
    def ok(self) -> bool:
        """Nothing is damaged. A torn tail is no damage."""
        return not any(partition.findings for partition in self.partitions)

    @property
    def findings(self) -> list[Finding]:
        return [finding for partition in self.partitions for finding in partition.findings]


def verify(
    path: str | os.PathLike[str], *, files: FileSystem | None = None, progress: Progress | None = None
) -> VerifyReport:
    """Reads and checks a whole data directory; raises NotADataDirectory when it is none."""
    files = files or OsFiles()
    directory = DataDirectory(files, absolute(path))
    directory.open(SystemClock(), create=False, read_only=True)
    index = None
    if isinstance(files, OsFiles):
        index = IndexEnvironment(directory.index_path, files.boot_id, read_only=True)
    try:
        live = lock_holder(files, directory.path) is not None
        scans = scan_directory(directory, index, live=live, progress=progress)
        return VerifyReport(directory.path, tuple(scan.report() for scan in scans))
    finally:
        if index is not None:
            index.close()


def lock_holder(files: FileSystem, path: str) -> str | None:
    """Who has a data directory open for writing, in the holder's words; None when nobody has."""
    if not isinstance(files, OsFiles):
        try:
            files.lock(f"{path}/lock").release()
        except BlockingIOError as error:
            return str(error)
        return None
    try:
        fd = os.open(f"{path}/lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(fd, 200, 0).decode("utf-8", "replace").strip() or "unknown process"
    finally:
        os.close(fd)
    return None


# ---------------------------------------------------------------- one segment


class Damaged(NamedTuple):
    """A part of a segment without an intact batch at its place; of no bytes when offsets are merely missing."""

    position: int
    end: int
    offset: int
    next_offset: int | None  # None: nothing intact follows in this file
    reason: str


def walk(segment: Segment, *, limit: int = LAST_OFFSET, visible_end: int = LAST_OFFSET) -> Iterator[Placed | Damaged]:
    """The batches of a segment, and the damage between them.

    The offsets of the file are below `limit`. What stands behind the visible end is not looked at.
    """
    offset, position, end = segment.base_offset, SEGMENT_HEADER_SIZE, segment.size()
    while position < end and offset < visible_end:
        try:
            for placed in segment.batches(position, end=end):
                base, following = placed.header.base_offset, placed.header.next_offset
                if base < offset or following > limit:
                    reason = f"offset {base} stands where {offset} belongs"
                    raise Corruption(segment.path, placed.position, reason)
                if base > offset:
                    reason = f"the offsets {offset} to {base - 1} are missing"
                    yield Damaged(placed.position, placed.position, offset, base, reason)
                yield placed
                offset = following
                if offset >= visible_end:
                    return
            return
        except Corruption as damage:
            found = _next_intact(segment, damage.position, offset, limit, end)
            resume, next_offset = (end, None) if found is None else found
            yield Damaged(damage.position, resume, offset, next_offset, damage.reason)
            position, offset = resume, offset if next_offset is None else next_offset
        except FormatTooNew as error:
            raise FormatTooNew(f"a batch in {segment.path}", error.version, error.supported) from None


def _next_intact(segment: Segment, position: int, offset: int, limit: int, end: int) -> tuple[int, int] | None:
    """Where a segment goes on behind damage, as position and offset.

    A record may hold a batch as its value. So wherever possible the place is computed and not searched for.
    """
    start, least = position + 1, offset
    header = _header_at(segment, position)
    if header is not None and header.base_offset == offset and header.next_offset <= limit:
        behind = position + header.size
        if behind == end or _begins(segment, behind, header.next_offset):
            return behind, header.next_offset
        least = header.next_offset
    elif header is not None:
        start = position + header.size
    else:
        size, crc = _claims(segment, position)
        behind = position + HEADER_SIZE + size
        following = _header_at(segment, behind) if behind < end else None
        if following is not None and offset < following.base_offset and following.next_offset <= limit:
            return behind, following.base_offset
        if behind <= end and crc32c(segment.read(size, position + HEADER_SIZE)) == crc:
            start = behind
    return _search(segment, start, least, limit, end)


def _search(segment: Segment, position: int, least: int, limit: int, end: int) -> tuple[int, int] | None:
    """The first batch from a position on, unless a later one that is followed by the next speaks against it."""
    lonely: list[Placed] = []
    while (placed := segment.find_batch_after(position, least, end=end)) is not None:
        next_offset, behind = placed.header.next_offset, placed.position + placed.header.size
        if next_offset <= limit and (behind == end or _begins(segment, behind, next_offset)):
            lonely = [item for item in lonely if item.header.next_offset <= placed.header.base_offset]
            lonely.append(placed)
            break
        if next_offset <= limit:
            lonely.append(placed)
        position = placed.position + 1
    return (lonely[0].position, lonely[0].header.base_offset) if lonely else None


def _claims(segment: Segment, position: int) -> tuple[int, int]:
    """Size and CRC of the body, as a header says that is damaged, perhaps in another place."""
    data = segment.read(HEADER_SIZE, position)
    if len(data) < HEADER_SIZE:
        return 0, 0
    return _NUMBER.unpack_from(data, 8)[0], _NUMBER.unpack_from(data, 72)[0]


def _header_at(segment: Segment, position: int) -> BatchHeader | None:
    try:
        return unpack_header(segment.read(HEADER_SIZE, position))
    except DamagedBatch:
        return None


def _begins(segment: Segment, position: int, offset: int) -> bool:
    header = _header_at(segment, position)
    return header is not None and header.base_offset == offset


# ---------------------------------------------------------------- one partition


class PartitionScan:
    """One look over the files of a partition. Makes findings; what they amount to is known at the end.

    `live`: a writer may be at work, so nothing at or above the visible end is looked at.
    """

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        topic: str,
        identity: Identity,
        index: PositionIndex | None,
        *,
        live: bool,
        see: See,
        advance: Callable[[int], object] = lambda size: None,
    ) -> None:
        self.files = files
        self.directory = directory
        self.topic = topic
        self.identity = identity
        self.index = index
        self.live = live
        self._advance = advance
        self._see = see
        self.findings: list[Finding] = []
        self.torn_tail: TornTail | None = None
        self.batches = self.records = self.bytes = self.undecoded = 0
        self.max_timestamp = NO_TIMESTAMP
        self.leader_epoch = 0
        self.producers = ProducerStates()
        self.epochs = EpochHistory()
        self.next_offset: int | None = None  # None: not known, whatever comes next is right
        self._headless: set[int] = set()  # segments whose header cannot be read
        self._last_synced = -1  # offset of the last batch that was written when all before it was synced
        checkpoints = read_checkpoints(files, directory)
        self._synced_end = max((item.next_offset for item in checkpoints if item.synced), default=0)
        # Since the machine went down last, somebody has opened the log for writing.
        self._same_boot = checkpoints[0].boot_id == files.boot_id != "" if checkpoints else live
        self._seen_end = max((item.next_offset for item in checkpoints), default=0)
        self._visible_end = visible_end_of(files, directory)
        self._limit = self._visible_end if live and self._visible_end is not None else LAST_OFFSET
        self.segments = tuple(base for base in list_segments(files, directory) if base < self._limit)

    def run(self) -> None:
        for number, base in enumerate(self.segments):
            last = number == len(self.segments) - 1
            try:
                segment = Segment.open(self.files, self.directory, base)
            except FileNotFoundError:  # retention was faster
                self.next_offset = None
                continue
            try:
                self._scan_segment(segment, self._limit if last else self.segments[number + 1])
            finally:
                segment.close()
        self._judge_end()

    def report(self) -> PartitionReport:
        start = self.segments[0] if self.segments else 0
        return PartitionReport(
            topic=self.topic,
            partition=self.identity.partition,
            directory=self.directory,
            segments=len(self.segments),
            batches=self.batches,
            records=self.records,
            bytes=self.bytes,
            start_offset=start,
            end_offset=start if self.next_offset is None else self.next_offset,
            undecoded=self.undecoded,
            torn_tail=self.torn_tail,
            findings=tuple(self.findings),
        )

    # ------------------------------------------------------------ segments

    def _scan_segment(self, segment: Segment, limit: int) -> None:
        size = segment.size()
        self.bytes += size
        self._check_header(segment)
        base = segment.base_offset
        if self.next_offset is not None and base > self.next_offset:
            reason = f"the offsets {self.next_offset} to {base - 1} are missing before this segment"
            self._find("gap", segment, 0, reason, self.next_offset, base)
        self.next_offset = base
        entries = self._entries(base, limit)
        done = 0
        for item in walk(segment, limit=limit, visible_end=self._limit):
            if isinstance(item, Damaged):
                # At the end of a segment that is not the last one, the next one tells how much is lost.
                next_offset = limit if item.next_offset is None and limit < self._limit else item.next_offset
                kind: Kind = "damage" if item.end > item.position else "gap"
                self._find(kind, segment, item.position, item.reason, item.offset, next_offset, item.end)
                self.next_offset = item.offset if next_offset is None else next_offset
                behind = item.end
            else:
                self._check_entry(segment, item, entries.pop(item.header.base_offset, None))
                self._take(segment, item)
                behind = item.position + item.header.size
            self._advance(behind - done)
            done = behind
        self._advance(size - done)
        self._check_left_over(segment, entries)

    def _check_header(self, segment: Segment) -> None:
        try:
            header = unpack_segment_header(segment.read(SEGMENT_HEADER_SIZE, 0))
        except DamagedBatch as error:
            self._find_header(segment, str(error))
            self._headless.add(segment.base_offset)
            return
        except FormatTooNew as error:
            raise FormatTooNew(segment.path, error.version, error.supported) from None
        problem = self._foreign(header)
        if problem is not None:
            self._find("misplaced", segment, 0, problem, segment.base_offset)
        elif header.base_offset != segment.base_offset:
            self._find_header(segment, f"it says base offset {header.base_offset}, the name says another")
        elif header.max_timestamp_before < self.max_timestamp:
            # Greater is allowed: the batch that had it may have been truncated, compacted or lost.
            said, seen = header.max_timestamp_before, self.max_timestamp
            self._find_header(segment, f"it says that no earlier timestamp is above {said}, but {seen} is")
        else:
            self.max_timestamp = header.max_timestamp_before

    def _find_header(self, segment: Segment, reason: str) -> None:
        base = segment.base_offset
        self._find("segment header", segment, 0, reason, base, base, min(SEGMENT_HEADER_SIZE, segment.size()))

    def _foreign(self, header: SegmentHeader) -> str | None:
        if header.topic_id != self.identity.topic_id:
            return f"it belongs to the topic with the id {header.topic_id.hex()}"
        if header.partition != self.identity.partition:
            return f"it belongs to partition {header.partition}"
        return None

    def _take(self, segment: Segment, placed: Placed) -> None:
        header = placed.header
        checked = self._check_batch(segment, placed)
        if checked is not None:
            self.batches += 1
            self.records += header.count
            header = checked
            self.producers.add(header)
            self.epochs.add(header.leader_epoch, header.base_offset)
        self.next_offset = header.next_offset
        if header.count:
            self.max_timestamp = max(self.max_timestamp, header.last_timestamp)
        self.leader_epoch = max(self.leader_epoch, header.leader_epoch)
        if header.flags & AFTER_SYNC:
            self._last_synced = header.base_offset

    def _check_batch(self, segment: Segment, placed: Placed) -> BatchHeader | None:
        """What intact bytes do not say: that they make sense, and that the header agrees with them.

        Returns the header as it should be, None when the batch cannot be read.
        """
        header, position = placed.header, placed.position
        timestamps = (header.first_timestamp, header.last_timestamp)
        try:
            batch = decode(header, placed.body, self.identity.partition)
            if len(batch):
                stamps = batch.timestamps
                timestamps = (min(stamps), max(stamps))
            self.findings += self._see(segment.path, placed, batch)
        except CodecUnavailable:
            self.undecoded += 1
        except DamagedBatch as error:
            end = position + header.size
            self._find("damage", segment, position, str(error), header.base_offset, header.next_offset, end)
            return None
        reasons = []
        if timestamps != (header.first_timestamp, header.last_timestamp):
            said, found = f"{header.first_timestamp} to {header.last_timestamp}", "{} to {}".format(*timestamps)
            reasons.append(f"the header says that timestamps are {said}, but they are {found}")
        if header.leader_epoch < self.leader_epoch:
            reasons.append(f"leader epoch {header.leader_epoch} stands behind {self.leader_epoch}")
        right = header._replace(
            first_timestamp=timestamps[0],
            last_timestamp=timestamps[1],
            leader_epoch=max(header.leader_epoch, self.leader_epoch),
        )
        if reasons:
            offsets, end = (header.base_offset, header.next_offset), position + HEADER_SIZE
            self._find("batch header", segment, position, "; ".join(reasons), *offsets, end, right)
        return right

    def _find(
        self,
        kind: Kind,
        segment: Segment,
        position: int,
        reason: str,
        offset: int | None = None,
        next_offset: int | None = None,
        end: int | None = None,
        header: BatchHeader | None = None,
    ) -> None:
        end = position if end is None else end
        before = (self.leader_epoch, self.max_timestamp)
        self.findings.append(Finding(kind, segment.path, position, reason, offset, next_offset, end, *before, header))

    # ------------------------------------------------------------ the index

    def _entries(self, base: int, limit: int) -> dict[int, IndexEntry]:
        """The index entries of the offsets [base, limit)."""
        entries: dict[int, IndexEntry] = {}
        if self.index is not None:
            entry = self.index.floor(limit - 1)
            while entry is not None and entry.offset >= base:
                entries[entry.offset] = entry
                entry = self.index.floor(entry.offset - 1)
        return entries

    def _check_entry(self, segment: Segment, placed: Placed, entry: IndexEntry | None) -> None:
        if entry is None:
            return
        if (entry.segment, entry.position) != (segment.base_offset, placed.position):
            where = f"{file_name(entry.segment)} at byte {entry.position}"
            self._report_entry(segment, entry, f"the batch is at byte {placed.position}, the index says {where}")
        elif entry.max_timestamp < self.max_timestamp:
            reason = f"the index says that no earlier timestamp is above {entry.max_timestamp}, but one is"
            self._report_entry(segment, entry, reason)

    def _check_left_over(self, segment: Segment, entries: dict[int, IndexEntry]) -> None:
        """Entries that no batch was found for; those of damaged batches are not to blame."""
        lost = [item for item in self.findings if item.file == segment.path and item.kind in ("damage", "gap")]
        for entry in entries.values():
            if not any((item.offset or 0) <= entry.offset < (item.next_offset or LAST_OFFSET) for item in lost):
                self._report_entry(segment, entry, "there is no batch that begins at this offset")

    def _report_entry(self, segment: Segment, entry: IndexEntry, reason: str) -> None:
        assert self.index is not None
        if self.live and self.index.floor(entry.offset) != entry:
            return  # compaction or retention was faster
        self._find("index", segment, entry.position, reason, entry.offset, entry.offset + 1)

    # ------------------------------------------------------------ the end

    def _judge_end(self) -> None:
        """Tells a torn tail from damage, and finds out whether something is missing at the end."""
        expected = self._expected_end()
        torn = self._first_torn(expected)
        if torn is not None:
            self._set_torn_tail(torn)
            return
        for number, finding in enumerate(self.findings):
            if finding.kind == "damage" and finding.next_offset is None:  # at the very end
                self.next_offset = max(expected, finding.offset or 0)
                self.findings[number] = finding._replace(next_offset=self.next_offset)
        if not self.segments and expected:
            reason = f"there are no segments, but there were records up to offset {expected - 1}"
            self.findings.append(Finding("gap", self.directory, 0, reason, 0, expected))
            self.next_offset = expected
        elif self.segments and self.next_offset is not None and self.next_offset < expected:
            segment = Segment.open(self.files, self.directory, self.segments[-1])
            reason = f"the offsets {self.next_offset} to {expected - 1} are missing at the end"
            self._find("gap", segment, segment.size(), reason, self.next_offset, expected)
            segment.close()
            self.next_offset = expected

    def _expected_end(self) -> int:
        """Up to where the log certainly reached once."""
        expected = self._seen_end
        visible = self._visible_end
        # The visible end is never synced and has no CRC.
        if visible is not None and self._same_boot and 0 <= visible - (self.next_offset or 0) < _FAR:
            expected = max(expected, visible)
        return min(expected, self._limit)

    def _first_torn(self, expected: int) -> Finding | None:
        """The finding with which a torn tail begins: the same rules as in recovery."""
        for finding in self.findings:
            if finding.kind not in ("damage", "gap", "segment header") or finding.offset is None:
                continue
            empty = finding.offset == self.next_offset and finding.offset in self._headless
            if (finding.next_offset is None or empty) and finding.offset >= expected:
                return finding
            if not self._same_boot and finding.offset >= self._synced_end and finding.offset > self._last_synced:
                return finding
        return None

    def _set_torn_tail(self, torn: Finding) -> None:
        base = os.path.basename(torn.file)
        size = -torn.position
        for other in self.segments:
            if file_name(other) >= base:
                segment = Segment.open(self.files, self.directory, other)
                size += segment.size()
                segment.close()
        self.torn_tail = TornTail(torn.file, torn.position, torn.offset or 0, size, torn.reason)
        self.findings = self.findings[: self.findings.index(torn)]
        self.next_offset = torn.offset


def visible_end_of(files: FileSystem, directory: str) -> int | None:
    try:
        counter = files.counter(f"{directory}/{VISIBLE}", write=False)
        try:
            return counter.get()
        finally:
            counter.close()
    except (OSError, ValueError, struct.error):  # not there yet, or still empty
        return None


# ---------------------------------------------------------------- the directory


def scan_directory(
    directory: DataDirectory, index: IndexEnvironment | None, *, live: bool, progress: Progress | None = None
) -> Iterator[PartitionScan]:
    """Scans every partition there are files of, the metadata first: it knows the topics."""
    meter = _Meter(directory, progress)
    events = _Events()

    def scan(path: str, topic: str, identity: Identity) -> PartitionScan:
        positions = None if index is None else index.partition(identity.topic_id, identity.partition)
        see = events.see if topic == METADATA_TOPIC else _see_nothing
        found = PartitionScan(
            directory.files, path, topic, identity, positions, live=live, advance=meter.advance, see=see
        )
        found.run()
        if found.findings and live:
            # A writer that truncates, compacts or removes segments looks like damage, but not twice.
            events.begin(topic)
            found = PartitionScan(directory.files, path, topic, identity, positions, live=live, see=see)
            found.run()
        return found

    metadata = directory.partition_path(METADATA_TOPIC, METADATA_TOPIC_ID, 0)
    yield scan(metadata, METADATA_TOPIC, Identity(METADATA_TOPIC_ID, 0))
    topics = events.image.topics.values()
    topic_ids = {directory.topic_path(topic.name, topic.topic_id): topic.topic_id for topic in topics}
    deleted = {directory.topic_path(name, topic_id) for topic_id, name in events.image.deleted.items()}
    for path, name, partition in partition_directories(directory):
        parent = os.path.dirname(path)
        if name != METADATA_TOPIC and parent not in deleted:
            topic_id = topic_ids.get(parent) or topic_id_of(directory.files, path)
            yield scan(path, name, Identity(topic_id, partition))
    meter.finish()


def partition_directories(directory: DataDirectory) -> Iterator[tuple[str, str, int]]:
    """Every partition there is a directory of: its path, its topic's name and its number."""
    for name in sorted(directory.files.list(directory.topics_path)):
        match = _TOPIC_DIRECTORY.fullmatch(name)
        if match is None:
            continue
        parent = f"{directory.topics_path}/{name}"
        for number in sorted(int(item) for item in _list(directory.files, parent) if item.isdecimal()):
            yield f"{parent}/{number}", match[1], number


def topic_id_of(files: FileSystem, path: str) -> bytes:
    """The id of a topic that the metadata does not know: its segments tell, as far as they agree with its directory."""
    short = os.path.basename(os.path.dirname(path)).rpartition("-")[2]
    for base in list_segments(files, path):
        try:
            segment = Segment.open(files, path, base)
        except FileNotFoundError:
            continue
        try:
            topic_id = segment.read_header().topic_id
        except Corruption:
            continue
        finally:
            segment.close()
        if topic_id.hex().startswith(short):
            return topic_id
    return bytes.fromhex(short) + bytes(12)


class _Events:
    """Folds the events of the metadata log, as far as they can be read."""

    def __init__(self) -> None:
        self.image = EMPTY

    def begin(self, topic: str) -> None:
        if topic == METADATA_TOPIC:
            self.image = EMPTY

    def see(self, file: str, placed: Placed, batch: Batch) -> list[Finding]:
        findings = []
        for record in batch:
            try:
                self.image = fold(self.image, decode_event(record.value or b""))
            except (DamagedBatch, TypeError, ValueError) as error:
                offset = record.offset
                findings.append(Finding("event", file, placed.position, str(error), offset, offset + 1))
        return findings


def _see_nothing(file: str, placed: Placed, batch: Batch) -> list[Finding]:
    return []


class _Meter:
    """Adds up what was looked at, and tells."""

    def __init__(self, directory: DataDirectory, progress: Progress | None) -> None:
        self._progress = progress
        self._done = 0
        self._total = 0
        if progress is not None:
            paths = [path for path, _, _ in partition_directories(directory)]
            self._total = sum(_size(directory.files, path) for path in paths)
            progress(0, self._total)

    def advance(self, size: int) -> None:
        before = self._done
        self._done += size
        if self._progress is not None and before >> 20 != self._done >> 20:
            self._progress(min(self._done, self._total), self._total)

    def finish(self) -> None:
        if self._progress is not None:
            self._progress(self._total, self._total)


def _size(files: FileSystem, path: str) -> int:
    total = 0
    for base in list_segments(files, path):
        try:
            segment = Segment.open(files, path, base)
        except FileNotFoundError:
            continue
        total += segment.size()
        segment.close()
    return total


def _list(files: FileSystem, path: str) -> list[str]:
    try:
        return files.list(path)
    except NotADirectoryError:
        return []
