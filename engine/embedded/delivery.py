"""Records on their way through a buffered producer, and how their senders learn what became of them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dq.engine.embedded.columns import Appended, Timestamp
from dq.engine.segments.batch import Headers

RECORD_OVERHEAD = 16  # no less than what a record costs in a batch besides its bytes
SMALL = 1000  # plain values up to this size are counted, not measured


class Buffer:
    """Records of one sending thread for one partition.

    Only that thread appends, only the producer's thread takes: it remembers how far it has taken and leaves the
    lists alone, so neither needs a lock. A record's index is its place in the lists.
    """

    __slots__ = (
        "_callbacks",
        "_measured",
        "_measured_size",
        "_outcomes",
        "_settled",
        "headers",
        "is_plain",
        "keys",
        "partition",
        "settled",
        "taken",
        "timestamps",
        "values",
    )

    def __init__(self, partition: int, settled: threading.Condition) -> None:
        self.partition = partition
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] | None = None
        self.headers: list[Headers | None] | None = None
        self.timestamps: list[Timestamp | None] | None = None
        self.is_plain = True  # nothing but small values so far: more of them may be appended to `values` alone
        self.taken = 0  # records before this are written, or being written
        self.settled = 0  # records before this have an outcome
        self._measured = 0  # records whose bytes are in
        self._measured_size = 0
        self._settled = settled
        self._outcomes: list[tuple[int, int, Appended | BaseException]] = []  # (first, end, outcome)
        self._callbacks: list[tuple[int, Callable[[], object]]] = []

    def size(self) -> int:
        """No less than the bytes that the records take in a batch."""
        fresh = self.values[self._measured :]
        if fresh:
            self._measured += len(fresh)
            self._measured_size += len(b"".join(fresh)) + RECORD_OVERHEAD * len(fresh)  # type: ignore[arg-type]
        return self._measured_size

    def add(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        timestamp: Timestamp | None,
        size: int,
    ) -> None:
        self._measured_size = self.size() + size
        self._measured += 1
        self.is_plain = self.is_plain and size <= SMALL and key is None and headers is None and timestamp is None
        count = len(self.values)
        if key is not None or self.keys is not None:
            self.keys = [None] * count if self.keys is None else self.keys
            self.keys.append(key)
        if headers is not None or self.headers is not None:
            self.headers = [None] * count if self.headers is None else self.headers
            self.headers.append(headers)
        if timestamp is not None or self.timestamps is not None:
            self.timestamps = [None] * count if self.timestamps is None else self.timestamps
            self.timestamps.append(timestamp)
        self.values.append(value)  # last: from here on the record can be taken

    def remove_last(self) -> None:
        """Takes back the record that was added last."""
        self.size()
        for column in (self.values, self.keys, self.headers, self.timestamps):
            if column is not None:
                column.pop()
        self._measured -= 1

    def settle(self, first: int, end: int, outcome: Appended | BaseException) -> list[Callable[[], object]]:
        """Notes what became of some records; returns the callbacks that are due now."""
        with self._settled:
            self._outcomes.append((first, end, outcome))
            self.settled = end
            due = [callback for index, callback in self._callbacks if index < end]
            if due:
                self._callbacks = [item for item in self._callbacks if item[0] >= end]
        return due

    def wait(self, index: int, timeout: float | None) -> Appended | BaseException:
        """The outcome of a record."""
        if self.settled <= index:
            with self._settled:
                if not self._settled.wait_for(lambda: self.settled > index, timeout):
                    raise TimeoutError(f"not stored within {timeout} seconds")
        first, outcome = next((first, outcome) for first, end, outcome in self._outcomes if first <= index < end)
        if isinstance(outcome, BaseException):
            return outcome
        own = None if self.timestamps is None else self.timestamps[index]
        timestamp = own if isinstance(own, int) else outcome.timestamp
        return Appended(outcome.partition, outcome.offset + index - first, timestamp)

    def call_back(self, index: int, callback: Callable[[], object]) -> None:
        with self._settled:
            if self.settled <= index:
                self._callbacks.append((index, callback))
                return
        callback()


class Delivery:
    """What `send` returns: tells when and where its record was stored."""

    __slots__ = ("buffer", "index")  # set by the producer: without an __init__ it is made in half the time

    buffer: Buffer
    index: int

    def done(self) -> bool:
        return self.buffer.settled > self.index

    def result(self, timeout: float | None = None) -> Appended:
        """Waits until the record is stored; raises what went wrong, or TimeoutError."""
        outcome = self.buffer.wait(self.index, timeout)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def exception(self, timeout: float | None = None) -> BaseException | None:
        outcome = self.buffer.wait(self.index, timeout)
        return outcome if isinstance(outcome, BaseException) else None

    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Called with this delivery once it is done: from the producer's thread, or at once if it is."""
        self.buffer.call_back(self.index, lambda: callback(self))

    def __repr__(self) -> str:
        return f"<Delivery {'done' if self.done() else 'on its way'}>"
