"""What a node does beside the Raft thread: writing snapshots, and reading its history once after a start.

Both are long, and a thread that computes in Python makes the others wait. So each works for less than a millisecond
and then rests for longer than that, until the node is closed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from dq.engine.errors import Corruption
from dq.engine.raft.image import Image
from dq.engine.raft.journal import RaftJournal
from dq.engine.raft.snapshots import SNAPSHOT_EVERY, prune_snapshots, write_snapshot
from dq.engine.segments.reader import Cursor

_BYTES_PER_EVENT = 200  # a snapshot is written after as many events as it has this many bytes
_REST = 0.002  # seconds
_MOST_UNLISTED = 100_000  # entries that are not in the stored table

logger = logging.getLogger("dq.raft")


class Upkeep:
    """Threads of its own, none when there is nothing to do. `report` is told of damage in the history."""

    def __init__(self, journal: RaftJournal, image: Image, report: Callable[[Corruption], object]) -> None:
        self._journal = journal
        self._files, self._directory = journal.log.files, journal.log.directory
        self._report = report
        self._closing = threading.Event()
        self._writing = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._snapshot_offset = image.offset
        self._snapshot_after = SNAPSHOT_EVERY
        self._start(self._scrub, image.offset)

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=work, args=arguments, name=f"raft {work.__name__}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def committed(self, image: Image) -> None:
        """In the Raft thread: begins to write a snapshot if enough has happened since the last one."""
        if image.offset - self._snapshot_offset >= self._snapshot_after and not self._writing.locked():
            self._snapshot_offset = image.offset
            journal = self._journal
            due = max(SNAPSHOT_EVERY, min(journal.listed // 10, _MOST_UNLISTED))
            table = journal.encoded_table() if journal.last_index - journal.listed >= due else None
            self._start(self._write, image, table)

    def _write(self, image: Image, table: list[bytes] | None) -> None:
        with self._writing:
            try:
                if table is not None:
                    self._journal.store_table(table)
                size = write_snapshot(self._files, self._directory, image, rest=lambda: self._closing.wait(_REST))
                self._snapshot_after = max(SNAPSHOT_EVERY, size // _BYTES_PER_EVENT)
                prune_snapshots(self._files, self._directory)
            except OSError as error:
                # Without it the next start folds more events; the events themselves are safe.
                logger.warning("%s: cannot write a snapshot: %s", self._directory, error)

    def _scrub(self, end: int) -> None:
        """Reads what a start does not: the history before the snapshot. Damage is found before it is needed."""
        if not end:
            return
        cursor = Cursor(self._journal.log, 0)
        try:
            while cursor.offset < end and not self._closing.wait(_REST) and cursor.read():
                pass
        except Corruption as damage:
            self._report(damage)
        finally:
            cursor.close()

    def close(self, image: Image | None) -> None:
        """Ends what is under way; with an image, writes a last snapshot for a fast start."""
        self._closing.set()
        for thread in self._threads:
            thread.join()
        if image is not None:
            self._write(image, self._journal.encoded_table())
