"""A gate that many threads may pass at the same time, or one alone.

LMDB's map may be replaced or closed only when no transaction of the process uses it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    __slots__ = ("_changed", "_held", "_inside", "_lock", "_shut")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._inside = 0
        self._shut = False  # by one who waits outside, or is alone
        self._held = False  # by one who is inside

    def enter(self) -> None:
        with self._lock:
            while self._shut or self._held:
                self._changed.wait()
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._shut or self._held:
                self._changed.notify_all()

    @contextmanager
    def others_out(self) -> Iterator[None]:
        """Lets nobody in and waits until all others have left: for one thread at a time, which is inside."""
        with self._lock:
            self._held = True
            self._changed.wait_for(lambda: self._inside == 1)
        try:
            yield
        finally:
            with self._lock:
                self._held = False
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lets nobody in and waits until everyone has left. Not for a thread that is inside."""
        self.shut()
        try:
            yield
        finally:
            self.unshut()

    def shut(self, timeout: float | None = None) -> bool:
        """The first half of `alone`; False when the time is over."""
        with self._lock:
            if not self._changed.wait_for(lambda: not self._shut, timeout):
                return False
            self._shut = True
            if self._changed.wait_for(lambda: not self._inside, timeout):
                return True
            self._shut = False
            self._changed.notify_all()
            return False

    def unshut(self) -> None:
        with self._lock:
            self._shut = False
            self._changed.notify_all()
