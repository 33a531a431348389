"""How far readers may see: in this process, in others, and waiting for it to grow.

Other processes find the number in the file `visible` beside the segments. It is derived and never synced.
"""

from __future__ import annotations

import threading

from dq.engine.files import Counter, FileSystem
from dq.engine.segments.growth import Growth

VISIBLE = "visible"


class Visibility:
    """Readers see the offsets below `end`. With `owned` only `publish` lets them see more."""

    __slots__ = ("_closed", "_counter", "_files", "_mutex", "_owned", "_path", "end", "growth")

    def __init__(self, files: FileSystem, directory: str, growth: Growth, *, owned: bool = False) -> None:
        self.end = 0
        self.growth = growth
        self._owned = owned
        self._files = files
        self._path = f"{directory}/{VISIBLE}"
        self._mutex = threading.Lock()
        self._counter: Counter | None = None
        self._closed = False

    def raise_to(self, end: int) -> None:
        """The log is flushed up to an offset: readers see it, unless the owner of the log has the say."""
        if not self._owned:
            self.publish(end)

    def publish(self, end: int) -> None:
        """Lets readers see up to an offset; never takes back what they have seen."""
        if end <= self.end:
            return
        with self._mutex:
            if end > self.end:
                self._store(end)
        self.growth.announce()

    def open_at(self, start: int, end: int) -> None:
        """The log was opened and holds the offsets [start, end). What its owner has published stays so."""
        with self._mutex:
            self._store(max(start, min(self._stored(), end)) if self._owned else end)
        self.growth.announce()

    def cut_to(self, end: int) -> None:
        """The log was truncated."""
        with self._mutex:
            self._store(min(end, self.end) if self._owned else end)
        self.growth.announce()

    def _stored(self) -> int:
        if self._counter is None:
            self._counter = self._files.counter(self._path, write=True)
        return self._counter.get()

    def _store(self, end: int) -> None:
        self.end = end
        if self._closed:
            return
        if self._counter is None:
            self._counter = self._files.counter(self._path, write=True)
        self._counter.set(end)

    def close(self) -> None:
        """From here on the file is left alone: it may be about to be deleted."""
        self._closed = True
        self.park()

    def park(self) -> None:
        """Lets go of the file until the number changes."""
        with self._mutex:
            if self._counter is not None:
                self._counter.close()
                self._counter = None
