"""What the log remembers of idempotent producers, so that a retried batch is stored once. Pure state.

Every batch of such a producer carries (id, epoch, base sequence) in its header; this state is what those
headers, read in order, amount to, and it can be rebuilt from them at any time. For each producer the last
few batches are kept, so that a late retry is answered with the offset of the first try.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from dq.engine.errors import ProducerFenced, SequenceError
from dq.engine.segments.batch import BatchHeader

WINDOW = 5
FORGET_AFTER = 7 * 24 * 3600 * 1_000_000  # microseconds without a batch
ALWAYS_KEPT = 1000  # producers: so few cost nothing, and the clock may be wrong


class _Stored(NamedTuple):
    base_sequence: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    base_offset: int


class _Producer(NamedTuple):
    epoch: int
    last_seen: int  # the time of the first checkpoint after its last batch, 0 when there was none yet
    complete: bool  # the window holds every batch that the producer ever stored
    window: tuple[_Stored, ...]


Undo = list[tuple[int, _Producer | None]]  # what was known before, oldest first


class ProducerStates:
    __slots__ = ("_producers",)

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def find_duplicate(self, header: BatchHeader) -> int | None:
        """The offset at which this very batch was stored before, None when it is new and in order.

        Raises ProducerFenced or SequenceError when it may not be stored at all.
        """
        known = self._producers.get(header.producer_id)
        if known is None:
            return None
        if header.producer_epoch < known.epoch:
            raise ProducerFenced(header.producer_id, header.producer_epoch, known.epoch)
        if header.producer_epoch > known.epoch:
            if header.base_sequence != 0:
                raise SequenceError(header.producer_id, 0, header.base_sequence)
            return None
        last = known.window[-1]
        expected = last.base_sequence + last.count
        if header.base_sequence == expected:
            return None
        for stored in known.window:
            if stored.base_sequence == header.base_sequence and stored.count == header.count:
                return stored.base_offset
        raise SequenceError(header.producer_id, expected, header.base_sequence)

    def add(self, header: BatchHeader, undo: Undo | None = None) -> None:
        """Takes note of a stored batch; batches without a producer are ignored."""
        if header.producer_id < 0:
            return
        known = self._producers.get(header.producer_id)
        if undo is not None:
            undo.append((header.producer_id, known))
        stored = _Stored(header.base_sequence, header.span, header.base_offset)
        complete = known is None and header.base_sequence == 0
        window: tuple[_Stored, ...] = (stored,)
        if known is not None and known.epoch == header.producer_epoch:
            complete = known.complete and len(known.window) < WINDOW
            window = (*known.window[1 - WINDOW :], stored)
        self._producers[header.producer_id] = _Producer(header.producer_epoch, 0, complete, window)

    def undo(self, undo: Undo, keep: int = 0) -> None:
        """Takes back what was added, the last first, until only the first `keep` additions are left."""
        while len(undo) > keep:
            producer_id, known = undo.pop()
            if known is None:
                del self._producers[producer_id]
            else:
                self._producers[producer_id] = known

    def truncate(self, offset: int) -> bool:
        """Forgets batches from an offset on; False when what is left is not enough to know the state before them."""
        for producer_id, known in list(self._producers.items()):
            window = tuple(stored for stored in known.window if stored.base_offset < offset)
            if window == known.window:
                continue
            if window:
                self._producers[producer_id] = known._replace(window=window)
            elif known.complete:
                del self._producers[producer_id]
            else:
                return False
        return True

    def forget(self, now: int) -> None:
        """Drops producers that have been silent for long, so that their number stays bounded.

        Silence is measured by the log's clock: the timestamps of records say what their producer wants.
        """
        for producer_id, known in list(self._producers.items()):
            if not known.last_seen:
                self._producers[producer_id] = known._replace(last_seen=now)
            elif known.last_seen < now - FORGET_AFTER and len(self._producers) > ALWAYS_KEPT:
                del self._producers[producer_id]

    def to_plain(self) -> list[Any]:
        return [[producer_id, *known] for producer_id, known in self._producers.items()]

    @classmethod
    def from_plain(cls, plain: list[Any]) -> ProducerStates:
        states = cls()
        for producer_id, epoch, last_seen, complete, window in plain:
            stored = tuple(_Stored(*item) for item in window)
            states._producers[producer_id] = _Producer(epoch, last_seen, complete, stored)
        return states
