"""The index of one partition: entries that wait in memory, and those in the LMDB environment of the data directory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import lmdb

from dq.engine.index import entries
from dq.engine.index.store import Store
from dq.engine.segments.positions import IndexEntry, MemoryIndex

MOST_PENDING = 256
LONGEST_PENDING = 1.0  # seconds


class Backlog:
    """How much waits in memory, over all partitions. Threads count without a lock: it need not be exact."""

    __slots__ = ("count", "since")

    def __init__(self) -> None:
        self.count = 0
        self.since = 0.0


class LmdbIndex:
    """A PositionIndex. Safe to use from many threads.

    An entry goes from `_pending` to `_flushing` to LMDB, and leaves each place only when it is in the next. Look-ups
    go the same way, so they miss none.
    """

    __slots__ = ("_backlog", "_flush", "_flushing", "_lock", "_pending", "_prefix", "_read_only", "_store")

    def __init__(
        self, store: Store, prefix: bytes, backlog: Backlog, flush: Callable[[bool], None], *, read_only: bool
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._backlog = backlog
        self._flush = flush  # of all partitions; told whether to wait while another thread does it
        self._read_only = read_only
        self._lock = threading.Lock()  # guards what is in memory
        self._pending = MemoryIndex()
        self._flushing = MemoryIndex()

    def add(self, entry: IndexEntry) -> None:
        if self._read_only:
            return
        with self._lock:
            self._pending.add(entry)
        now = time.monotonic()
        backlog = self._backlog
        backlog.count += 1
        if backlog.count == 1:
            backlog.since = now
        if backlog.count >= MOST_PENDING or now - backlog.since > LONGEST_PENDING:
            self._flush(False)

    def floor(self, offset: int) -> IndexEntry | None:
        with self._lock:
            pending, flushing = self._pending.floor(offset), self._flushing.floor(offset)
        stored = self._store.read(lambda txn: entries.floor(txn.cursor(), self._prefix, offset))
        return _last(pending, flushing, stored)

    def floor_time(self, timestamp: int) -> IndexEntry | None:
        with self._lock:
            pending, flushing = self._pending.floor_time(timestamp), self._flushing.floor_time(timestamp)
        stored = self._store.read(lambda txn: entries.floor_time(txn.cursor(), self._prefix, timestamp))
        return _last(pending, flushing, stored)

    def cut(self, offset: int) -> None:
        self._forget(lambda memory: memory.cut(offset), offset, entries.MAX_OFFSET)

    def drop(self, offset: int) -> None:
        self._forget(lambda memory: memory.drop(offset), 0, offset - 1)

    def forget_segment(self, segment: int, end: int) -> None:
        self._forget(lambda memory: memory.forget_segment(segment, end), segment, end - 1)

    def _forget(self, forget: Callable[[MemoryIndex], None], first: int, last: int) -> None:
        if self._read_only or last < 0:
            return
        with self._store.writing:  # so nothing is being flushed
            with self._lock:
                forget(self._pending)
            self._store.delete(lambda txn: self._delete(txn, first, last))

    def _delete(self, txn: lmdb.Transaction[bytes], first: int, last: int) -> None:
        entries.delete_range(txn, entries.key_of(self._prefix, first), entries.key_of(self._prefix, last))

    def flush(self) -> None:
        self._flush(True)

    # ------------------------------------------------------------ for the environment

    @property
    def pending(self) -> int:
        return len(self._pending)

    def begin_flush(self) -> list[tuple[bytes, bytes]]:
        """What is to be written. Called with `writing` held."""
        with self._lock:
            taken = self._pending.take()
            for entry in taken:
                self._flushing.add(entry)
        return [entries.pack(self._prefix, entry) for entry in taken]

    def end_flush(self) -> None:
        with self._lock:
            self._flushing.take()

    def become_reader(self) -> None:
        self._read_only = True
        self._lock = threading.Lock()
        self._pending = MemoryIndex()
        self._flushing = MemoryIndex()


def _last(*found: IndexEntry | None) -> IndexEntry | None:
    """The one with the greatest offset, and of the same offset the first."""
    last: IndexEntry | None = None
    for entry in found:
        if entry is not None and (last is None or entry.offset > last.offset):
            last = entry
    return last
