"""Repairing a data directory: makes a damaged log contiguous again, and keeps every byte that it takes away.

Nothing is repaired unless somebody asks for it. A damaged part of a segment is replaced by an empty batch that covers
the lost offsets, so readers pass over it, and no offset is ever given out a second time. The bytes that were there are
kept, synced, before anything changes:

    <data>/repair/<UTC time>/<topic directory>/<partition>/<segment>@<position>.bin

A segment is never changed in place: what stays of it is written beside it, synced, and renamed. Killed at any point,
a repair can simply be run again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Literal, NamedTuple

from dq.engine.clock import Clock, SystemClock
from dq.engine.embedded.directory import DataDirectory, absolute
from dq.engine.embedded.verify import (
    LAST_OFFSET,
    Finding,
    PartitionScan,
    Progress,
    TornTail,
    lock_holder,
    scan_directory,
)
from dq.engine.files import FileSystem, OsFiles
from dq.engine.index.environment import IndexEnvironment
from dq.engine.segments.batch import encode, pack_header
from dq.engine.segments.checkpoint import (
    Checkpoint,
    encode_checkpoint,
    remove_unsynced_checkpoint,
    write_checkpoint,
)
from dq.engine.segments.recovery import list_segments
from dq.engine.segments.segment import (
    CHUNK,
    NO_TIMESTAMP,
    SEGMENT_HEADER_SIZE,
    Segment,
    SegmentHeader,
    base_offset_of,
    file_name,
    pack_segment_header,
)
from dq.engine.segments.visibility import VISIBLE

Action = Literal["replace", "fill", "cut", "correct", "forget"]

_WRITTEN = ".repaired"  # what is appended to the name of a segment while its new content is being written
_MOST_SPAN = (1 << 32) - 1
_MOST_LOST = 1 << 40  # offsets: a gap that is wider comes from a file that does not belong there


class Step(NamedTuple):
    """One thing that is repaired, or would be."""

    action: Action
    topic: str
    partition: int
    file: str
    position: int
    bytes: int  # that are taken away, and kept elsewhere
    offset: int  # the first offset that is lost,
    next_offset: int  # and the one behind the last: the same when none is
    reason: str

    @property
    def lost_offsets(self) -> int:
        return self.next_offset - self.offset


@dataclass(frozen=True, slots=True)
class RepairReport:
    path: str
    applied: bool
    steps: tuple[Step, ...]
    left_alone: tuple[Finding, ...]  # what a person has to decide about
    kept_in: str | None  # the directory with the bytes that were taken away

    @property
    def lost_offsets(self) -> int:
        return sum(step.lost_offsets for step in self.steps)


def repair(
    path: str | os.PathLike[str],
    *,
    apply: bool = False,
    files: FileSystem | None = None,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> RepairReport:
    """Says what a repair would do; with `apply`, does it. Raises DirectoryLocked when somebody is writing then."""
    files = files or OsFiles()
    clock = clock or SystemClock()
    directory = DataDirectory(files, absolute(path))
    directory.open(clock, create=False, read_only=not apply)
    index = None
    try:
        if isinstance(files, OsFiles):
            index = IndexEnvironment(directory.index_path, files.boot_id, read_only=not apply)
        live = not apply and lock_holder(files, directory.path) is not None
        moment = datetime.fromtimestamp(clock.now() / 1_000_000, tz=timezone.utc)
        keep = f"{directory.path}/repair/{moment:%Y%m%dT%H%M%S.%fZ}"
        steps: list[Step] = []
        left_alone: list[Finding] = []
        for scan in scan_directory(directory, index, live=live, progress=progress):
            plan = _Plan(scan, clock)
            steps += plan.steps
            left_alone += plan.left_alone
            if apply:
                _Repair(plan, f"{keep}/{_partition_path(scan)}").run()
        kept = keep if apply and any(step.bytes for step in steps) else None
        return RepairReport(directory.path, apply, tuple(steps), tuple(left_alone), kept)
    finally:
        if index is not None:
            index.close()
        directory.release()


def _partition_path(scan: PartitionScan) -> str:
    """Topic directory and partition, as in the data directory."""
    topic_path, partition = os.path.split(scan.directory)
    return f"{os.path.basename(topic_path)}/{partition}"


# ---------------------------------------------------------------- what to do


class _Edit(NamedTuple):
    """The bytes [position, end) of a segment are replaced."""

    position: int
    end: int
    replacement: bytes


class _Plan:
    """What the findings of a scan call for: edits of segments, new segments, index entries to be forgotten."""

    def __init__(self, scan: PartitionScan, clock: Clock) -> None:
        self.scan = scan
        self.end = scan.next_offset or 0  # of the log: the first offset behind all that is there or lost
        self.steps: list[Step] = []
        self.left_alone: list[Finding] = []
        self.edits: dict[int, list[_Edit]] = {}  # by base offset of the segment
        self.created: dict[int, bytes] = {}  # base offset and content of segments that are made
        self.stale: list[int] = []  # segments whose index entries are wrong
        self._clock = clock
        if any((finding.next_offset or 0) - (finding.offset or 0) > _MOST_LOST for finding in scan.findings):
            self.left_alone += scan.findings
            return
        for finding in scan.findings:
            self._add(finding)
        if scan.torn_tail is not None and self.changes_files:
            self._cut(scan.torn_tail)
        if self.changes_files and (self.end not in scan.segments or self.end in self.edits):
            self.created[self.end] = self._segment_header(self.end, scan.max_timestamp)

    @property
    def changes_files(self) -> bool:
        return bool(self.edits or self.created)

    def _add(self, finding: Finding) -> None:
        base = base_offset_of(os.path.basename(finding.file))
        offset = finding.offset or 0
        next_offset = offset if finding.next_offset is None else finding.next_offset
        if base is None:
            # All segments are gone: what is left to do is not to begin at offset 0 again.
            self.created[self.end] = self._segment_header(self.end, NO_TIMESTAMP)
            self._step("fill", finding, offset, next_offset)
        elif finding.kind == "gap" and finding.position == 0:
            if offset in self.scan.segments:  # the segment that should hold them is there, but empty
                size = self._size(offset)
                self._edit(offset, _Edit(size, size, _filler(finding)))
            else:
                self.created[offset] = self._segment_header(offset, finding.timestamp) + _filler(finding)
            self._step("fill", finding, offset, next_offset)
        elif finding.kind in ("damage", "gap"):
            self._edit(base, _Edit(finding.position, finding.end, _filler(finding)))
            self._step("replace" if finding.kind == "damage" else "fill", finding, offset, next_offset)
        elif finding.kind == "batch header" and finding.header is not None:
            self._edit(base, _Edit(finding.position, finding.end, pack_header(finding.header)))
            self._step("correct", finding, offset, offset)
        elif finding.kind == "segment header":
            self._edit(base, _Edit(0, finding.end, self._segment_header(base, finding.timestamp)))
            self._step("correct", finding, offset, offset)
        elif finding.kind == "index":
            self.stale.append(base)
            self._step("forget", finding, offset, offset)
        else:
            self.left_alone.append(finding)

    def _edit(self, base: int, edit: _Edit) -> None:
        self.edits.setdefault(base, []).append(edit)

    def _step(self, action: Action, finding: Finding, offset: int, next_offset: int) -> None:
        size = 0 if action == "forget" else finding.end - finding.position
        where = (self.scan.topic, self.scan.identity.partition, finding.file, finding.position)
        self.steps.append(Step(action, *where, size, offset, next_offset, finding.reason))

    def _cut(self, tail: TornTail) -> None:
        """Opening the log would cut it off as well, but would not keep it."""
        for base in self.scan.segments:
            path = f"{self.scan.directory}/{file_name(base)}"
            if path >= tail.file:
                position = tail.position if path == tail.file else 0
                size = self._size(base)
                self._edit(base, _Edit(position, size, b""))
                where = (self.scan.topic, self.scan.identity.partition, path, position)
                self.steps.append(Step("cut", *where, size - position, tail.offset, tail.offset, tail.reason))

    def _size(self, base: int) -> int:
        segment = Segment.open(self.scan.files, self.scan.directory, base)
        try:
            return segment.size()
        finally:
            segment.close()

    def _segment_header(self, base: int, max_timestamp_before: int) -> bytes:
        topic_id, partition = self.scan.identity
        header = SegmentHeader(
            flags=0,
            partition=partition,
            topic_id=topic_id,
            base_offset=base,
            created=self._clock.now(),
            max_timestamp_before=max_timestamp_before,
        )
        return pack_segment_header(header)


def _filler(finding: Finding) -> bytes:
    """Empty batches that cover the lost offsets."""
    offset = finding.offset or 0
    next_offset = finding.next_offset or 0
    filler = b""
    while offset < next_offset:
        batch = encode(
            [],
            timestamp=max(finding.timestamp, NO_TIMESTAMP + 1),  # never above that of a record
            offset_deltas=[],
            base_offset=offset,
            span=min(next_offset - offset, _MOST_SPAN),
            leader_epoch=finding.leader_epoch,
        )
        filler += batch.to_bytes()
        offset = batch.header.next_offset
    return filler


# ---------------------------------------------------------------- doing it


class _Repair:
    """Carries out the plan for one partition.

    First the log gets a new, empty last segment and a checkpoint that stands there. From then on no opening for
    writing looks at what stands before, and the damaged segments can be replaced one by one.
    """

    def __init__(self, plan: _Plan, keep: str) -> None:
        self._plan = plan
        self._keep = keep
        self._files = plan.scan.files
        self._directory = plan.scan.directory

    def run(self) -> None:
        plan = self._plan
        self._remove_leftovers()
        if not plan.changes_files:
            self._forget_entries()
            return
        for base, edits in plan.edits.items():
            self._keep_bytes(base, edits)
        for base in sorted(plan.edits, reverse=True):
            if base > plan.end:  # a part of a torn tail
                self._files.remove(f"{self._directory}/{file_name(base)}")
        for base, content in plan.created.items():
            self._write(base, [content])
        edited = {base: edits for base, edits in plan.edits.items() if base < plan.end}
        for base, edits in edited.items():
            self._write_edited(base, edits)
        if plan.end in plan.created:
            self._put_in_place(plan.end)
        self._sync()
        self._write_checkpoint()
        self._forget_entries()
        for base in {*plan.created, *edited} - {plan.end}:
            self._put_in_place(base)
        self._publish()

    def _remove_leftovers(self) -> None:
        """Of a repair that was killed."""
        for name in self._files.list(self._directory):
            if name.endswith(_WRITTEN):
                self._files.remove(f"{self._directory}/{name}")

    def _keep_bytes(self, base: int, edits: list[_Edit]) -> None:
        segment = Segment.open(self._files, self._directory, base)
        try:
            for edit in edits:
                if edit.end > edit.position:
                    self._files.make_directory(self._keep)
                    path = f"{self._keep}/{file_name(base)}@{edit.position}.bin"
                    _write_file(self._files, path, _pieces(segment, edit.position, edit.end))
                    self._files.sync_directory(self._keep)
        finally:
            segment.close()

    def _write_edited(self, base: int, edits: list[_Edit]) -> None:
        segment = Segment.open(self._files, self._directory, base)
        try:
            self._write(base, _edited(segment, sorted(edits, key=lambda edit: edit.position)))
        finally:
            segment.close()

    def _write(self, base: int, pieces: Iterable[bytes]) -> None:
        _write_file(self._files, f"{self._directory}/{file_name(base)}{_WRITTEN}", pieces)

    def _sync(self) -> None:
        """What a crash left behind may still be in the page cache only."""
        for base in list_segments(self._files, self._directory):
            segment = Segment.open(self._files, self._directory, base, write=True)
            try:
                segment.sync()
            finally:
                segment.close()

    def _write_checkpoint(self) -> None:
        scan = self._plan.scan
        checkpoint = Checkpoint(
            synced=True,
            boot_id=self._files.boot_id,
            segment=self._plan.end,
            position=SEGMENT_HEADER_SIZE,
            next_offset=self._plan.end,
            max_timestamp=scan.max_timestamp,
            producers=scan.producers,
            epochs=scan.epochs,
        )
        write_checkpoint(self._files, self._directory, encode_checkpoint(checkpoint), synced=True, durable=True)
        remove_unsynced_checkpoint(self._files, self._directory)
        self._files.sync_directory(self._directory)

    def _forget_entries(self) -> None:
        index = self._plan.scan.index
        if index is not None:
            for base in {*self._plan.edits, *self._plan.stale}:
                end = next((other for other in self._plan.scan.segments if other > base), LAST_OFFSET)
                index.forget_segment(base, end)

    def _put_in_place(self, base: int) -> None:
        path = f"{self._directory}/{file_name(base)}"
        self._files.rename(path + _WRITTEN, path)
        self._files.sync_directory(self._directory)

    def _publish(self) -> None:
        counter = self._files.counter(f"{self._directory}/{VISIBLE}", write=True)
        counter.set(self._plan.end)
        counter.close()


def _pieces(segment: Segment, position: int, end: int) -> Iterator[bytes]:
    while position < end and (piece := segment.read(min(CHUNK, end - position), position)):
        yield piece
        position += len(piece)


def _edited(segment: Segment, edits: list[_Edit]) -> Iterator[bytes]:
    """The content of a segment with parts of it replaced."""
    position = 0
    for edit in edits:
        yield from _pieces(segment, position, edit.position)
        yield edit.replacement
        position = edit.end
    yield from _pieces(segment, position, segment.size())


def _write_file(files: FileSystem, path: str, pieces: Iterable[bytes]) -> None:
    file = files.open(path, write=True, create=True)
    try:
        file.truncate(0)
        position = 0
        for piece in pieces:
            if piece:
                position += file.write([piece], position)
        file.sync()
    finally:
        file.close()
