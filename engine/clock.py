"""Where time comes from. The engine never asks the operating system itself, so tests can make time jump."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> int:
        """Wall-clock time in microseconds since the epoch, UTC. May jump either way."""

    def monotonic(self) -> float:
        """Seconds that only ever grow, for deadlines and intervals."""

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    __slots__ = ()

    def now(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
