"""Waiting for a log to grow. Several logs may share one, so that a reader can wait for any of them."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Growth:
    __slots__ = ("_condition", "_waiting")

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.Lock())
        self._waiting = 0

    def wait(self, enough: Callable[[], bool], timeout: float | None) -> bool:
        """Waits until `enough()`; False when the time is over."""
        if enough():
            return True
        with self._condition:
            self._waiting += 1
            try:
                return self._condition.wait_for(enough, timeout)
            finally:
                self._waiting -= 1

    def announce(self) -> None:
        """Something grew. Costs next to nothing while nobody waits."""
        if self._waiting:
            with self._condition:
                self._condition.notify_all()
