"""Which events were folded lately, by their ids, so that one that is proposed again is applied once.

The window is part of the image and is moved by the offsets and times of the events alone, never by a local clock:
every replica has the same one. It holds an event for as long as fewer than MOST offsets follow it and it is not
older than SPAN, and for FEWEST offsets however old it looks, because clocks jump. Those that go, go in order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from immutables import Map

from dq.engine.raft.values import ID_SIZE

FEWEST, MOST = 1024, 65_536  # offsets
SPAN = 3600 * 1_000_000  # microseconds


@dataclass(frozen=True, slots=True)
class RecentEvents:
    offsets: Map[bytes, int] = field(default_factory=Map)  # event id -> offset
    order: Map[int, tuple[bytes, int]] = field(default_factory=Map)  # offset -> event id, time
    first: int = 0  # the smallest offset in `order`

    def __len__(self) -> int:
        return len(self.order)

    def find(self, event_id: bytes) -> int | None:
        return self.offsets.get(event_id)

    def moved_to(self, offset: int, time: int) -> RecentEvents:
        """The window that an event at an offset and time is judged by."""
        offsets, order, first = self.offsets, self.order, self.first
        while order and first < offset:
            entry = order.get(first)
            if entry is not None:
                distance = offset - first
                if distance < FEWEST or (distance < MOST and entry[1] >= time - SPAN):
                    break
                offsets = offsets.delete(entry[0])
                order = order.delete(first)
            first += 1
        return self if order is self.order else RecentEvents(offsets, order, first if order else 0)

    def with_event(self, event_id: bytes, offset: int, time: int) -> RecentEvents:
        """With one that is not in it yet."""
        return RecentEvents(
            self.offsets.set(event_id, offset),
            self.order.set(offset, (event_id, time)),
            self.first if self.order else offset,
        )

    def columns(self, size: int) -> Iterator[list[bytes]]:
        """Ids, offsets and times, up to so many at once, in the order of the offsets."""
        entries: list[tuple[int, bytes, int]] = []
        left, offset = len(self.order), self.first
        while left:
            entry = self.order.get(offset)
            if entry is not None:
                entries.append((offset, *entry))
                left -= 1
            if len(entries) == size or (entries and not left):
                yield _packed(entries)
                entries = []
            offset += 1

    @classmethod
    def from_columns(cls, parts: Iterable[list[bytes]]) -> RecentEvents:
        offsets: list[int] = []
        times: list[int] = []
        ids: list[bytes] = []
        for joined, packed_offsets, packed_times in parts:
            numbers = struct.Struct(f"<{len(packed_offsets) // 8}q")
            offsets += numbers.unpack(packed_offsets)
            times += numbers.unpack(packed_times)
            ids += [joined[at : at + ID_SIZE] for at in range(0, len(joined), ID_SIZE)]
        return cls(
            Map(zip(ids, offsets, strict=True)),
            Map(zip(offsets, zip(ids, times, strict=True), strict=True)),
            offsets[0] if offsets else 0,
        )


def _packed(entries: list[tuple[int, bytes, int]]) -> list[bytes]:
    numbers = struct.Struct(f"<{len(entries)}q")
    offsets, ids, times = zip(*entries, strict=True)
    return [b"".join(ids), numbers.pack(*offsets), numbers.pack(*times)]
