"""Time that stands still until a test moves it, in either direction."""

from __future__ import annotations


class ManualClock:
    """Wall-clock time in microseconds may be set to anything; monotonic time only ever grows."""

    def __init__(self, now: int = 1_700_000_000_000_000) -> None:
        self.time = now
        self._monotonic = 0.0

    def now(self) -> int:
        return self.time

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, microseconds: int) -> None:
        """Time passes: both clocks go forward."""
        assert microseconds >= 0
        self.time += microseconds
        self._monotonic += microseconds / 1e6

    def jump(self, microseconds: int) -> None:
        """Somebody sets the wall clock: forward, or back with a negative number."""
        self.time += microseconds

    def sleep(self, seconds: float) -> None:
        """Nobody waits: the time has passed already."""
        self.advance(round(seconds * 1e6))
