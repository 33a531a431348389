"""Group commit: many threads wait for stable storage, one of them syncs for all."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dq.engine.segments.combiner import Combiner, Request


class GroupCommit:
    """`sync` makes everything written so far durable and returns the offset up to which that holds."""

    __slots__ = ("_combiner", "_sync", "durable_end", "paused")

    def __init__(self, durable_end: int, sync: Callable[[], int]) -> None:
        self.durable_end = durable_end
        self._sync = sync
        self._combiner = Combiner(self._serve)
        self.paused = threading.Lock()  # whoever holds it may set `durable_end` back: no sync is under way

    def wait(self, end: int) -> None:
        """Returns when everything below an offset is durable; raises what the failing sync raised."""
        if self.durable_end < end:
            self._combiner.run(Request())

    def lead(self, end: int) -> None:
        """As `wait`, for a caller that serves others already and need not queue up."""
        with self.paused:
            if self.durable_end < end:
                self.durable_end = max(self.durable_end, self._sync())

    def _serve(self, requests: list[Request]) -> None:
        # Whoever waits has written before, so one sync from now on covers all of them.
        with self.paused:
            self.durable_end = max(self.durable_end, self._sync())
