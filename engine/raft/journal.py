"""The Raft log, kept in the partition log of `__metadata`: one Raft entry is one batch.

Raft index 1 is a place before the first batch, which pysyncobj wants there: batch number n has the index n + 2.
The leader epoch of a batch is the term of its entry, so an event log that was written without Raft (epoch 0) is a
history of term 0. Offsets are the same on every node; the flag after-sync is not, for it speaks of one disk.

Entries are written by `sync`, all that came since the last one in one write and one sync of the file. Only then may
this node say that it has them. Memory holds 16 bytes for each entry and the last few entries.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from typing import Any

from dq.engine.errors import Corruption, DamagedBatch, OffsetOutOfRange, StorageError
from dq.engine.files import Buffer, read_file, replace_file
from dq.engine.raft.errors import JournalDamaged
from dq.engine.raft.hard_state import HardStateFile
from dq.engine.raft.members import START, Members, control_batch, members_in
from dq.engine.segments.batch import (
    AFTER_SYNC,
    CONTROL,
    BatchHeader,
    EncodedBatch,
    check_body,
    decode,
    pack_header,
    unpack_header,
)
from dq.engine.segments.batch import HEADER_SIZE as BATCH_HEADER_SIZE
from dq.engine.segments.crc import crc32c
from dq.engine.segments.log import PartitionLog
from dq.engine.segments.positions import IndexEntry
from dq.engine.segments.reader import Cursor, find_position, open_segment_of

FIRST_INDEX = 1
NO_OP = b"\x01"  # how pysyncobj writes the entry that begins a leader's term
ENTRIES = "entries"  # the file in which the table of entries is found again; can be deleted at any time
_RECENT_ENTRIES, _RECENT_BYTES = 8192, 8 << 20
_TABLE = struct.Struct("<IQQQ")  # CRC-32C of the rest, number of entries, segment and position of the last one

Entry = tuple[bytes, int, int]  # the batch, its Raft index and its term


class _WholeLog:
    """The log beyond what readers may see: entries are sent to followers before they are committed."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self.files, self.directory, self.index, self.partition = log.files, log.directory, log.index, log.partition

    def segments(self) -> tuple[int, ...]:
        return self._log.segments()

    def visible_end(self) -> int:
        return self._log.next_offset

    def wait_for(self, offset: int, timeout: float | None) -> bool:
        raise NotImplementedError


class RaftJournal:
    """Belongs to the Raft thread. The names in camel case are those that pysyncobj calls."""

    def __init__(self, log: PartitionLog, hard_state: HardStateFile) -> None:
        self.log = log
        self.hard_state = hard_state
        self._view = _WholeLog(log)
        self._offsets = array("Q")
        self._terms = array("I")
        self._crcs = array("I")  # of the bodies: equal index and term must mean an equal body
        self._controls: dict[int, bytes] = {}  # index -> control record
        self._pending: list[tuple[BatchHeader, Buffer]] = []
        self._end = log.next_offset
        self._recent: dict[int, bytes] = {}
        self._recent_bytes = 0
        self.commit_index = FIRST_INDEX
        self.listed = FIRST_INDEX  # up to here the entries are in the stored table
        self.syncs = 0
        self._check_recovered()
        try:
            self._load_table()
        except (Corruption, OffsetOutOfRange, DamagedBatch) as error:
            raise JournalDamaged(log.directory, str(error)) from error
        hard_state.acked = log.next_offset

    def _check_recovered(self) -> None:
        found, acked = self.log.recovered, self.hard_state.acked
        if found.damage:
            raise JournalDamaged(self.log.directory, str(found.damage[0]))
        if found.lost_offsets or self.log.start_offset:
            raise JournalDamaged(self.log.directory, "a part of it is missing")
        if acked > self.log.next_offset:
            reason = f"it ended at offset {acked} before, and ends at {self.log.next_offset} now"
            raise JournalDamaged(self.log.directory, reason)

    # ------------------------------------------------------------ the table of entries

    def _load_table(self) -> None:
        if not self._read_table():
            self._offsets, self._terms, self._crcs, self._controls = array("Q"), array("I"), array("I"), {}
        self.listed = self.last_index
        start = self._next_after(len(self._offsets)) if self._offsets else 0
        for header in self._headers_from(start):
            self._note(header)
        for index in self._controls:
            self._controls[index] = self._control_value(index)

    def _note(self, header: BatchHeader) -> None:
        self._offsets.append(header.base_offset)
        self._terms.append(header.leader_epoch)
        self._crcs.append(header.body_crc)
        if header.flags & CONTROL:
            self._controls[self.last_index] = b""

    def _headers_from(self, offset: int) -> Iterator[BatchHeader]:
        for base in self.log.segments():
            following = [other for other in self.log.segments() if other > base]
            if following and following[0] <= offset:
                continue
            segment = open_segment_of(self._view, max(base, offset))
            try:
                for _, header in segment.headers(find_position(self._view, segment, max(base, offset))):
                    yield header
            finally:
                segment.close()

    def _next_after(self, count: int) -> int:
        """The offset behind the first `count` entries."""
        return unpack_header(self.read(count + FIRST_INDEX, 1)[0][0]).next_offset

    def _read_table(self) -> bool:
        """True when the stored table fits the log: then its last entry is there, and so is all before it."""
        data = read_file(self.log.files, f"{self.log.directory}/{ENTRIES}")
        if data is None or len(data) < _TABLE.size:
            return False
        crc, count, segment, position = _TABLE.unpack_from(data)
        sizes = [8 * count, 4 * count, 4 * count]
        if crc != crc32c(data[4:]) or len(data) < _TABLE.size + sum(sizes) or not count:
            return False
        at = _TABLE.size
        for column, size in zip((self._offsets, self._terms, self._crcs), sizes, strict=True):
            column.frombytes(data[at : at + size])
            at += size
        controls = array("I")
        controls.frombytes(data[at:])
        self._controls = dict.fromkeys(controls, b"")
        if self.log.index.floor(self._offsets[-1]) is None:  # one that is kept in memory is empty now
            self.log.index.add(IndexEntry(self._offsets[-1], segment, position, self.log.max_timestamp))
        try:
            ((command, _, _),) = self.read(self.last_index, 1)
            header = unpack_header(command)
        except (ValueError, Corruption, OffsetOutOfRange, DamagedBatch, JournalDamaged):
            return False
        return (header.base_offset, header.leader_epoch, header.body_crc) == (
            self._offsets[-1],
            self._terms[-1],
            self._crcs[-1],
        )

    def encoded_table(self) -> list[bytes] | None:
        """For `store_table`: what the next opening then need not read from the headers. None without entries."""
        stored = len(self._offsets) - len(self._pending)
        if not stored:
            return None
        segment = open_segment_of(self._view, self._offsets[stored - 1])
        position = find_position(self._view, segment, self._offsets[stored - 1])
        segment.close()
        columns = [column[:stored].tobytes() for column in (self._offsets, self._terms, self._crcs)]
        controls = array("I", [index for index in self._controls if index <= stored + FIRST_INDEX])
        self.listed = stored + FIRST_INDEX
        return [struct.pack("<QQQ", stored, segment.base_offset, position), *columns, controls.tobytes()]

    def store_table(self, parts: list[bytes]) -> None:
        """Derived and native-endian: never synced. Any thread may do this, one at a time."""
        body = b"".join(parts)
        data = struct.pack("<I", crc32c(body)) + body
        replace_file(self.log.files, f"{self.log.directory}/{ENTRIES}", data, sync=False)

    # ------------------------------------------------------------ looking up

    @property
    def last_index(self) -> int:
        return len(self._offsets) + FIRST_INDEX

    @property
    def last_term(self) -> int:
        return self._terms[-1] if self._terms else 0

    @property
    def durable_index(self) -> int:
        """Up to here this node may tell others that it has the entries."""
        return self.last_index - len(self._pending)

    @property
    def is_empty(self) -> bool:
        return not self._offsets

    def is_control(self, index: int) -> bool:
        return index in self._controls

    def term_at(self, index: int) -> int:
        return self._terms[index - FIRST_INDEX - 1] if index > FIRST_INDEX else 0

    def crc_at(self, index: int) -> int:
        return self._crcs[index - FIRST_INDEX - 1] if index > FIRST_INDEX else 0

    def offset_after(self, index: int) -> int:
        """Where the entry behind an index begins."""
        at = index - FIRST_INDEX
        return self._offsets[at] if at < len(self._offsets) else self._end

    def first_index_of_term_at(self, index: int) -> int:
        """The first entry of the run of entries of one term that an index belongs to, as far as none is committed."""
        term = self.term_at(index)
        while index > self.commit_index + 1 and self.term_at(index - 1) == term:
            index -= 1
        return index

    def index_behind(self, offset: int) -> int:
        """The last entry that lies wholly before an offset."""
        low, high = 0, len(self._offsets)
        while low < high:
            middle = (low + high) // 2
            if self.offset_after(middle + 1 + FIRST_INDEX) <= offset:
                low = middle + 1
            else:
                high = middle
        return low + FIRST_INDEX

    def latest_members(self) -> tuple[int, Members] | None:
        """The last entry that says who belongs to the cluster, committed or not."""
        for index in reversed(self._controls):
            members = members_in(self._controls[index])
            if members is not None:
                return index, members
        return None

    def _control_value(self, index: int) -> bytes:
        ((command, _, _),) = self.read(index, 1)
        header = unpack_header(command)
        return decode(header, memoryview(command)[BATCH_HEADER_SIZE:]).values[0] or b""

    # ------------------------------------------------------------ reading

    def read(self, first: int, most: int, most_bytes: int = 1 << 62) -> list[Entry]:
        """Entries from an index on: at most so many, and no more once there are so many bytes; at least one."""
        entries: list[Entry] = []
        last = min(self.last_index, first + most - 1)
        size, index = 0, first
        while index <= last and (size < most_bytes or not entries):
            command = self._recent.get(index)
            found = (
                [(command, index, self.term_at(index))]
                if command
                else self._read_stored(index, last, most_bytes - size)
            )
            entries += found
            size += sum([len(command) for command, _, _ in found])
            index += len(found)
        return entries

    def _read_stored(self, first: int, last: int, most_bytes: int) -> list[Entry]:
        """One or more entries from the files."""
        if first == FIRST_INDEX:
            return [(NO_OP, FIRST_INDEX, 0)]
        entries: list[Entry] = []
        last = min(last, self.durable_index)
        cursor = Cursor(self._view, self._offsets[first - FIRST_INDEX - 1])
        try:
            while len(entries) <= last - first and (most_bytes > 0 or not entries):
                batches = cursor.read()
                if not batches:
                    raise JournalDamaged(self.log.directory, f"entry {first + len(entries)} is missing")
                for raw in batches:
                    if len(entries) > last - first or (most_bytes <= 0 and entries):
                        break
                    # What was on this disk when it was written is of no interest elsewhere.
                    header = raw.header._replace(flags=raw.header.flags & ~AFTER_SYNC)
                    command = pack_header(header) + raw.body
                    entries.append((command, first + len(entries), raw.header.leader_epoch))
                    most_bytes -= len(command)
        finally:
            cursor.close()
        return entries

    def _remember(self, index: int, command: bytes) -> None:
        self._recent[index] = command
        self._recent_bytes += len(command)
        while len(self._recent) > 1 and (len(self._recent) > _RECENT_ENTRIES or self._recent_bytes > _RECENT_BYTES):
            oldest = next(iter(self._recent))
            if oldest > self.durable_index:
                break
            self._recent_bytes -= len(self._recent.pop(oldest))

    # ------------------------------------------------------------ writing

    def append(self, batch: EncodedBatch, term: int) -> int:
        """Adds an entry of the leader; returns its index. Durable after `sync`."""
        self._put(batch.header._replace(base_offset=self._end, leader_epoch=term), batch.body)
        return self.last_index

    def take(self, command: bytes, index: int, term: int) -> None:
        """Adds an entry that the leader sent. Damaged or misplaced ones raise DamagedBatch."""
        header, body = unpack_header(command), memoryview(command)[BATCH_HEADER_SIZE:]
        check_body(header, body)
        if (header.base_offset, header.leader_epoch, index) != (self._end, term, self.last_index + 1):
            raise DamagedBatch(f"entry {index} of term {term} does not belong at offset {self._end}")
        self._put(header, body)

    def _put(self, header: BatchHeader, body: Buffer) -> None:
        self._pending.append((header, body))
        self._note(header)
        self._end = header.next_offset
        if header.flags & CONTROL:
            self._controls[self.last_index] = decode(header, body).values[0] or b""
        self._remember(self.last_index, pack_header(header) + body)

    def sync(self) -> None:
        """Makes all entries durable: one write and one sync."""
        if self._pending:
            self.log.append_stamped(self._pending)
            self.log.wait_durable(self._end)
            self._pending = []
            self.hard_state.acked = self._end
            self.syncs += 1

    def truncate(self, index: int) -> None:
        """Removes the entries from an index on; never committed ones."""
        if index <= self.commit_index:
            raise StorageError(f"entry {index} is committed and cannot be removed")
        self.sync()
        self._end = self._offsets[index - FIRST_INDEX - 1]
        self.hard_state.acked = self._end
        self.log.truncate(self._end)
        keep = index - FIRST_INDEX - 1
        del self._offsets[keep:], self._terms[keep:], self._crcs[keep:]
        self._controls = {at: value for at, value in self._controls.items() if at < index}
        for at in [at for at in self._recent if at >= index]:
            self._recent_bytes -= len(self._recent.pop(at))

    # ------------------------------------------------------------ what pysyncobj calls

    def add(self, command: bytes, idx: int, term: int) -> None:
        """The library adds by itself only the entry that begins its term as a leader."""
        if bytes(command) != NO_OP:
            raise NotImplementedError("entries are added by `append` and `take`")
        self.append(control_batch(START, term), term)

    def __len__(self) -> int:
        return self.last_index

    def __getitem__(self, item: int | slice) -> Any:
        if isinstance(item, slice):
            start, stop, _ = item.indices(len(self))
            return self.read(start + FIRST_INDEX, stop - start) if stop > start else []
        index = (item if item >= 0 else len(self) + item) + FIRST_INDEX
        if not FIRST_INDEX <= index <= self.last_index:
            raise IndexError(item)
        entry = self.read(index, 1)[0]
        if index == self.last_index and index not in self._recent:
            self._remember(index, entry[0])
        return entry

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:
        self.commit_index = max(self.commit_index, raftCommitIndex)

    def getRaftCommitIndex(self) -> int:
        return self.commit_index

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:
        self.hard_state.save_vote(term, votedForNodeId)

    def getCurrentTerm(self) -> int:
        return self.hard_state.state.term

    def getVotedForNodeId(self) -> str | None:
        return self.hard_state.state.vote

    def onOneSecondTimer(self) -> None:
        pass

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        raise NotImplementedError("entries are removed by `truncate`")

    def deleteEntriesTo(self, entryTo: int) -> None:
        raise NotImplementedError("the history is kept")

    def clear(self) -> None:
        raise NotImplementedError("the history is kept")

    def _destroy(self) -> None:
        pass
