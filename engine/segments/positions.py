"""Where batches stand: the interface of the position index, the rule for what goes in, and one kept in memory.

The index is only ever a shortcut. Whoever uses an entry checks that the batch it names is really there, and
without any entry the answer is found by reading the segment from its start.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from dq.engine.segments.batch import BatchHeader

SPACING = 64 << 10  # bytes of log from one entry to the next


class IndexEntry(NamedTuple):
    offset: int  # base offset of a batch
    segment: int  # base offset of the segment it is in
    position: int  # where it starts in that segment's file
    max_timestamp: int  # the greatest timestamp of all batches before it


class PositionIndex(Protocol):
    """The index of one partition."""

    def add(self, entry: IndexEntry) -> None: ...

    def floor(self, offset: int) -> IndexEntry | None:
        """The last entry at or before an offset."""

    def floor_time(self, timestamp: int) -> IndexEntry | None:
        """The last entry before which all timestamps are smaller than this one."""

    def cut(self, offset: int) -> None:
        """Forgets entries from an offset on; done when it returns."""

    def drop(self, offset: int) -> None:
        """Forgets entries before an offset."""

    def forget_segment(self, segment: int, end: int) -> None:
        """Forgets the entries of the offsets from a segment's base up to its end."""

    def flush(self) -> None:
        """Hands what was added to other processes."""


class MemoryIndex:
    """An index that nobody else sees: for logs in memory, and for entries on their way to a file."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[IndexEntry] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: IndexEntry) -> None:
        entries = self._entries
        if not entries or entry.offset > entries[-1].offset:
            entries.append(entry)
            return
        at = bisect_left(entries, entry.offset, key=lambda known: known.offset)
        entries[at : at + (entries[at].offset == entry.offset)] = [entry]

    # Readers ask without a lock, so a list that they may be looking at never gets shorter.

    def floor(self, offset: int) -> IndexEntry | None:
        entries = self._entries
        at = bisect_right(entries, offset, key=lambda entry: entry.offset)
        return entries[at - 1] if at else None

    def floor_time(self, timestamp: int) -> IndexEntry | None:
        entries = self._entries
        at = bisect_left(entries, timestamp, key=lambda entry: entry.max_timestamp)
        return entries[at - 1] if at else None

    def cut(self, offset: int) -> None:
        self._entries = self._entries[: bisect_left(self._entries, offset, key=lambda entry: entry.offset)]

    def drop(self, offset: int) -> None:
        self._entries = self._entries[bisect_left(self._entries, offset, key=lambda entry: entry.offset) :]

    def forget_segment(self, segment: int, end: int) -> None:
        self._entries = [entry for entry in self._entries if not segment <= entry.offset < end]

    def flush(self) -> None:
        pass

    def take(self) -> Sequence[IndexEntry]:
        """All entries, leaving none."""
        entries, self._entries = self._entries, []
        return entries


class IndexFeed:
    """Sees every batch in order and adds an entry for the first of a segment and then about every 64 KiB."""

    __slots__ = ("_index", "_indexed_to", "_segment")

    def __init__(self, index: PositionIndex) -> None:
        self._index = index
        self._segment = -1
        self._indexed_to = 0

    def see(self, segment: int, position: int, header: BatchHeader, max_timestamp_before: int) -> None:
        if segment != self._segment or position >= self._indexed_to:
            self._segment = segment
            self._indexed_to = position + SPACING
            self._index.add(IndexEntry(header.base_offset, segment, position, max_timestamp_before))
