"""Which leader epoch begins at which offset: how a follower finds where its log and its leader's part. Pure state."""

from __future__ import annotations

from bisect import bisect_right

from dq.engine.errors import StaleEpoch


class EpochHistory:
    """Pairs of (epoch, first offset), both growing."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self, pairs: list[tuple[int, int]] | None = None) -> None:
        self._epochs = [epoch for epoch, _ in pairs or []]
        self._starts = [start for _, start in pairs or []]

    def __len__(self) -> int:
        return len(self._epochs)

    @property
    def latest(self) -> int:
        return self._epochs[-1] if self._epochs else 0

    def pairs(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    def add(self, epoch: int, offset: int) -> None:
        """A batch of this epoch stands at this offset."""
        if self._epochs:
            if epoch == self._epochs[-1]:
                return
            if epoch < self._epochs[-1]:
                raise StaleEpoch(epoch, self._epochs[-1])
        self._epochs.append(epoch)
        self._starts.append(offset)

    def end_of(self, epoch: int, log_end: int) -> tuple[int, int]:
        """The greatest epoch not above the asked one, and the offset at which it ends: (0, first start) when none.

        A follower that holds this epoch beyond that offset must truncate to it.
        """
        at = bisect_right(self._epochs, epoch)
        if at == 0:
            return 0, self._starts[0] if self._starts else log_end
        return self._epochs[at - 1], self._starts[at] if at < len(self._starts) else log_end

    def truncate(self, offset: int) -> None:
        """Forgets epochs that begin at or after an offset."""
        keep = len([start for start in self._starts if start < offset])
        del self._epochs[keep:], self._starts[keep:]

    def shrink(self, count: int) -> None:
        """Keeps the first `count` epochs: takes back what was added when there were so many."""
        del self._epochs[count:], self._starts[count:]

    def trim(self, log_start: int) -> None:
        """Forgets epochs that ended before the log begins."""
        drop = max(bisect_right(self._starts, log_start) - 1, 0)
        del self._epochs[:drop], self._starts[:drop]
        if self._starts:
            self._starts[0] = max(self._starts[0], log_start)
