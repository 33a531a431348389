"""Giving batches their place in the log: the checks that may refuse them, and the headers they are stored with.

Pure state, no I/O. What is noted of batches that are then not written can be taken back.
"""

from __future__ import annotations

from collections.abc import Sequence

from dq.engine.errors import BatchTooLarge, DQError, OffsetMismatch, StaleEpoch
from dq.engine.files import Buffer
from dq.engine.segments.batch import HEADER_SIZE, BatchHeader, EncodedBatch, pack_header
from dq.engine.segments.combiner import Request
from dq.engine.segments.epochs import EpochHistory
from dq.engine.segments.producers import ProducerStates, Undo

Stamped = tuple[BatchHeader, bytes, Buffer]  # header, header packed, body


class Append(Request):
    """What somebody wants to be stored, as a whole or not at all."""

    __slots__ = ("batches", "end", "expected_offset", "leader_epoch", "offsets")

    def __init__(
        self, batches: Sequence[EncodedBatch], expected_offset: int | None = None, leader_epoch: int | None = None
    ) -> None:
        super().__init__()
        self.batches = batches
        self.expected_offset = expected_offset
        self.leader_epoch = leader_epoch
        self.offsets: list[int] = []  # of each batch, once it has one
        self.end = 0  # what has to be durable before this is acknowledged


class Stamping:
    """One round: stamps requests one after the other, from the log's end on."""

    __slots__ = ("_after_sync", "_epochs", "_epochs_before", "_limit", "_producers", "_undo", "next_offset", "stamped")

    def __init__(
        self, next_offset: int, producers: ProducerStates, epochs: EpochHistory, *, after_sync: bool, limit: int
    ) -> None:
        """`after_sync`: everything before `next_offset` is on stable storage. `limit`: of a batch, in bytes."""
        self.next_offset = next_offset
        self.stamped: list[Stamped] = []
        self._producers = producers
        self._epochs = epochs
        self._epochs_before = len(epochs)
        self._after_sync = after_sync
        self._limit = limit
        self._undo: Undo = []

    def add(self, request: Append) -> None:
        """Stamps a request, or sets its error and leaves everything as it was."""
        noted, count, start = len(self._undo), len(self.stamped), self.next_offset
        try:
            self._add(request)
        except DQError as error:
            request.error = error
            self._producers.undo(self._undo, noted)
            del self.stamped[count:]
            self.next_offset = start

    def _add(self, request: Append) -> None:
        if request.expected_offset is not None and request.expected_offset != self.next_offset:
            raise OffsetMismatch(request.expected_offset, self.next_offset)
        epoch = self._epochs.latest if request.leader_epoch is None else request.leader_epoch
        if epoch < self._epochs.latest:
            raise StaleEpoch(epoch, self._epochs.latest)
        start = self.next_offset
        for header, body in request.batches:
            size = HEADER_SIZE + max(header.body_size, header.raw_size)
            if size > self._limit:
                raise BatchTooLarge(size, self._limit)
            offset = self._producers.find_duplicate(header) if header.producer_id >= 0 else None
            if offset is None:
                offset = self.next_offset
                self._place(header.stamped(offset, epoch, self._after_sync and not self.stamped), body)
            request.offsets.append(offset)
            request.end = max(request.end, offset + header.span)
        if self.next_offset > start:
            self._epochs.add(epoch, start)

    def add_stamped(self, header: BatchHeader, body: Buffer) -> None:
        """Takes a batch that already has its place. What its leader had synced says nothing about this disk."""
        if header.base_offset != self.next_offset:
            raise OffsetMismatch(self.next_offset, header.base_offset)
        self._epochs.add(header.leader_epoch, header.base_offset)
        after_sync = self._after_sync and not self.stamped
        self._place(header.stamped(header.base_offset, header.leader_epoch, after_sync), body)

    def _place(self, header: BatchHeader, body: Buffer) -> None:
        self._producers.add(header, self._undo)
        self.stamped.append((header, pack_header(header), body))
        self.next_offset += header.span

    def take_back(self) -> None:
        """Forgets everything that was noted: nothing of it was written."""
        self._producers.undo(self._undo)
        self._epochs.shrink(self._epochs_before)
