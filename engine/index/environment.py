"""The index of a data directory: one LMDB environment for all its partitions.

It is a cache of what the segments say. Nothing here waits for a disk to be sure of anything, nothing here raises
because of what is on it, and whatever is missing is found by reading the segments.
"""

from __future__ import annotations

import os
import threading
from typing import NamedTuple

from dq.engine.index import entries
from dq.engine.index.lmdb_index import Backlog, LmdbIndex
from dq.engine.index.state import DATA
from dq.engine.index.store import store_of

WORTH_OPENING = 16  # entries, a megabyte of log: reading that much is quicker than opening LMDB and closing it again


class IndexStatistics(NamedTuple):
    entries: int  # in LMDB
    pending: int  # in memory
    bytes: int
    map_size: int


class IndexEnvironment:
    """Made at no cost: the directory is first touched by a look-up, or when there is enough to be written.

    `path` is the index's own directory. `boot_id` is FileSystem.boot_id. Read-only, it never writes and may be used
    beside a writer in any process. Safe to use from many threads; a forked child may go on using it, to read.
    """

    def __init__(self, path: str, boot_id: str, *, read_only: bool = False) -> None:
        self.boot_id = boot_id
        self.read_only = read_only
        self._lock = threading.Lock()
        self._backlog = Backlog()
        self._partitions: dict[bytes, LmdbIndex] = {}
        self._store = store_of(path)
        self._store.attach(self, read_only=read_only)

    def partition(self, topic_id: bytes, partition: int) -> LmdbIndex:
        """The index of a partition: always the same object."""
        prefix = entries.prefix_of(topic_id, partition)
        with self._lock:
            index = self._partitions.get(prefix)
            if index is None:
                index = LmdbIndex(self._store, prefix, self._backlog, self._flush, read_only=self.read_only)
                self._partitions[prefix] = index
            return index

    def forget_topic(self, topic_id: bytes) -> None:
        """Removes all entries of a topic that is gone."""
        if self.read_only:
            return
        first = entries.key_of(entries.prefix_of(topic_id, 0), 0)
        last = entries.key_of(entries.prefix_of(topic_id, entries.MAX_PARTITION), entries.MAX_OFFSET)
        with self._store.writing:
            with self._lock:
                for prefix in [prefix for prefix in self._partitions if prefix.startswith(topic_id)]:
                    del self._partitions[prefix]
            self._store.delete(lambda txn: entries.delete_range(txn, first, last))

    def flush(self) -> None:
        """Hands what was added to other processes."""
        self._flush(True)

    def _flush(self, wait: bool) -> None:
        """Writes the pending entries of all partitions in one transaction."""
        if self.read_only or not self._store.writing.acquire(wait):
            return
        try:
            partitions = self._with_pending()
            if not self._store.is_open and sum(index.pending for index in partitions) < WORTH_OPENING:
                return
            self._backlog.count = 0
            try:
                items = [item for index in partitions for item in index.begin_flush()]
                if items:
                    self._store.write(lambda txn: txn.cursor().putmulti(items))
            finally:
                for index in partitions:
                    index.end_flush()
        finally:
            self._store.writing.release()

    def _with_pending(self) -> list[LmdbIndex]:
        with self._lock:
            return [index for index in self._partitions.values() if index.pending]

    def statistics(self) -> IndexStatistics:
        stored = self._store.read(lambda txn: txn.stat()["entries"])
        try:
            size = os.stat(f"{self._store.path}/{DATA}").st_size
        except OSError:
            size = 0
        pending = sum(index.pending for index in self._with_pending())
        return IndexStatistics(stored or 0, pending, size, self._store.map_size())

    def close(self) -> None:
        """Writes what is pending. The last writer's close is what makes the next opening quick."""
        self.flush()
        self._store.detach(self)

    def become_reader(self) -> None:
        self.read_only = True
        self._lock = threading.Lock()
        for index in self._partitions.values():
            index.become_reader()
