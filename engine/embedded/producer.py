"""The buffered producer: one cheap call per record; a background thread writes batches and waits for the disk."""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from dq.engine.embedded.arguments import check_count, check_milliseconds, check_timeout
from dq.engine.embedded.columns import Appended, Columns, Timestamp
from dq.engine.embedded.delivery import RECORD_OVERHEAD, SMALL, Buffer, Delivery
from dq.engine.errors import BatchTooLarge, Closed, InvalidInput, InvalidRecord, UnknownPartition
from dq.engine.segments.batch import HEADER_SIZE, MAX_RECORDS, EncodedBatch, Headers

if TYPE_CHECKING:
    from dq.engine.embedded.topic import Topic

_BATCH_OVERHEAD = HEADER_SIZE + 64

logger = logging.getLogger("dq.engine")


_open_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


@atexit.register
def _flush_open_producers() -> None:
    """A program that ends without closing its producers still gets its records stored."""
    for producer in list(_open_producers):
        try:
            producer.close()
        except Exception as error:
            logger.error("%r: not everything that was sent is stored: %s", producer, error)


class _Lane:
    """The buffers of one sending thread."""

    __slots__ = ("buffers", "sticky", "thread")

    def __init__(self, sticky: Buffer) -> None:
        self.thread = weakref.ref(threading.current_thread())
        self.sticky = sticky  # takes the records without a key
        self.buffers: dict[int, Buffer] = {sticky.partition: sticky}

    def is_over(self) -> bool:
        """Its thread has ended, and everything it sent is taken."""
        thread = self.thread()
        return (thread is None or not thread.is_alive()) and all(
            len(buffer.values) == buffer.taken for buffer in self.buffers.values()
        )


class _Taken(NamedTuple):
    """Some records of a buffer that are about to be written as one batch."""

    buffer: Buffer
    first: int
    end: int

    def columns(self) -> Columns:
        """Timestamps are left out: some may be None and need the current time."""
        buffer, first, end = self
        return Columns(
            buffer.values[first:end],
            None if buffer.keys is None else buffer.keys[first:end],
            None if buffer.headers is None else buffer.headers[first:end],
            None,
        )


class Producer:
    """Safe to share between threads; close it, or use it in a `with` statement.

    Records without a key go to one partition until its batch is full, then to the next. What one thread sends to
    a partition is stored in that order. When a batch fails, its deliveries say so, and so does the next `flush`.
    """

    def __init__(
        self, topic: Topic, *, linger_ms: float, batch_bytes: int, batch_records: int, max_in_flight_bytes: int
    ) -> None:
        self._topic = topic
        self._linger = check_milliseconds("linger_ms", linger_ms, 60_000, may_be_zero=True) / 1000
        check_count("batch_records", batch_records, MAX_RECORDS)
        check_count("batch_bytes", batch_bytes)
        check_count("max_in_flight_bytes", max_in_flight_bytes)
        self._most_record = topic.config.max_batch_bytes - _BATCH_OVERHEAD
        self._batch_bytes = min(batch_bytes, self._most_record)
        self._batch_records = batch_records
        self._small_records = min(batch_records, self._batch_bytes // (SMALL + RECORD_OVERHEAD))
        if topic.config.compact:
            self._small_records = 0  # there is no record without a key
        self._most_waiting = max_in_flight_bytes
        self._local = threading.local()
        self._lanes: list[_Lane] = []
        self._full: deque[Buffer] = deque()  # handed over by their senders
        self._writing: list[_Taken] = []  # in the hands of the thread
        self._waiting_bytes = 0  # in full buffers that are not stored yet
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # for the thread: there is something to do
        self._stored = threading.Condition(self._lock)  # for everyone else: something has been stored
        self._asleep = True  # the thread waits for the first record; set before it looks a last time
        self._hurry = False  # somebody flushes
        self._closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="dq-producer", daemon=True)
        self._thread.start()
        _open_producers.add(self)

    def __repr__(self) -> str:
        return f"<dq producer of topic {self._topic.name!r}{' closed' if self._closed else ''}>"

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------ for the senders

    def send(
        self,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        headers: Headers | None = None,
        timestamp: Timestamp | None = None,
    ) -> Delivery:
        """Takes a record and returns at once, unless more bytes are waiting than allowed."""
        if (
            key is None
            and partition is None
            and headers is None
            and timestamp is None
            and type(value) is bytes
            and len(value) <= SMALL
        ):
            # The common case, and every nanosecond counts: no lock, no check that can be left to the end.
            try:
                buffer: Buffer = self._local.lane.sticky
            except AttributeError:
                return self._send(value, None, None, None, None)
            values = buffer.values
            index = len(values)
            if index < self._small_records and buffer.is_plain:
                values.append(value)
                if self._asleep:
                    self._rouse(buffer)
                delivery = Delivery()
                delivery.buffer = buffer
                delivery.index = index
                return delivery
        return self._send(value, key, partition, headers, timestamp)

    def _send(
        self,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        headers: Headers | None,
        timestamp: Timestamp | None,
    ) -> Delivery:
        """The same for every other record than a plain one that fits into the open batch."""
        value, key = self._checked("value", value), self._checked("key", key)
        if timestamp is not None:
            timestamp = self._topic.moment(timestamp)
        if key is None and self._topic.config.compact:
            raise InvalidRecord(f"topic {self._topic.name!r} is compacted: every record needs a key")
        size = RECORD_OVERHEAD + len(value or b"") + len(key or b"") + _size_of_headers(headers)
        if size > self._most_record:
            raise BatchTooLarge(size, self._most_record, "record")
        lane = self._lane()
        buffer = self._buffer_for(lane, key, partition)
        most = self._small_records if buffer.is_plain else self._batch_records
        if buffer.values and (len(buffer.values) >= most or buffer.size() + size > self._batch_bytes):
            self._hand_over(lane, buffer)
            buffer = self._buffer_for(lane, key, partition)
        delivery = Delivery()
        delivery.buffer = buffer
        delivery.index = len(buffer.values)
        buffer.add(value, key, headers, timestamp, size)
        if self._asleep:
            self._rouse(buffer)
        return delivery

    def flush(self, timeout: float | None = None) -> None:
        """Waits until everything sent so far is stored; raises the first error since the last flush."""
        check_timeout(timeout)
        if threading.current_thread() is self._thread:
            raise InvalidInput("a callback of a delivery cannot flush or close its producer: it would wait for itself")
        with self._lock:
            sent = [(buffer, len(buffer.values)) for lane in self._lanes for buffer in list(lane.buffers.values())]
            sent += [(buffer, len(buffer.values)) for buffer in self._full]
            sent += [(taken.buffer, taken.end) for taken in self._writing]
            self._hurry = True
            self._work.notify()
            if not self._stored.wait_for(lambda: all(buffer.settled >= count for buffer, count in sent), timeout):
                raise TimeoutError(f"not stored within {timeout} seconds")
            error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Flushes and ends the producer's thread."""
        try:
            if not self._closed:
                self.flush()
        finally:
            with self._lock:
                self._closed = True
                _open_producers.discard(self)
                self._asleep = True  # from now on every send asks, and is told
                self._work.notify()
            self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _checked(self, name: str, item: bytes | None) -> bytes | None:
        if item is None:
            if name == "value" and not self._topic.config.compact:
                raise InvalidRecord(f"a value of None deletes a key, but topic {self._topic.name!r} is not compacted")
            return None
        if isinstance(item, bytes):
            return item
        if isinstance(item, (bytearray, memoryview)):
            return bytes(item)  # the caller may change it before it is written
        raise InvalidRecord(f"a {name} is {type(item).__name__}: allowed are bytes and None")

    def _lane(self) -> _Lane:
        try:
            lane: _Lane = self._local.lane
        except AttributeError:
            with self._lock:
                lane = _Lane(Buffer(self._topic.partition_for(None), self._stored))
                self._lanes.append(lane)
            self._local.lane = lane
        return lane

    def _buffer_for(self, lane: _Lane, key: bytes | None, partition: int | None) -> Buffer:
        if partition is None:
            if key is None:
                return lane.sticky
            partition = self._topic.partition_for(key)
        elif (
            isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition < self._topic.partitions
        ):
            raise UnknownPartition(self._topic.name, partition, self._topic.partitions)
        buffer = lane.buffers.get(partition)
        if buffer is None:
            buffer = lane.buffers[partition] = Buffer(partition, self._stored)
        return buffer

    def _hand_over(self, lane: _Lane, buffer: Buffer) -> None:
        """Passes a full buffer to the thread; waits while too many bytes are on their way."""
        with self._lock:
            if self._closed:
                raise Closed("the producer is closed")
            self._full.append(buffer)
            self._waiting_bytes += buffer.size()
            fresh = Buffer(buffer.partition, self._stored)
            lane.buffers[buffer.partition] = fresh
            if buffer is lane.sticky:
                following = (buffer.partition + 1) % self._topic.partitions
                lane.sticky = lane.buffers.setdefault(following, Buffer(following, self._stored))
            self._work.notify()
            if threading.current_thread() is not self._thread:  # which is the one that makes room
                self._stored.wait_for(lambda: self._waiting_bytes <= self._most_waiting or self._closed)

    def _rouse(self, buffer: Buffer) -> None:
        """Wakes the thread for the first record after a pause."""
        with self._lock:
            if self._closed:
                if buffer.taken == len(buffer.values):
                    return  # just in time
                buffer.remove_last()  # nobody takes it any more
                raise Closed("the producer is closed")
            self._asleep = False
            self._work.notify()

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._await_work():
                    return
                self._take()
            self._write()
            with self._lock:
                self._waiting_bytes = sum(buffer.size() for buffer in self._full)
                self._writing = []
                self._stored.notify_all()

    def _await_work(self) -> bool:
        """Waits for a full buffer, or for the first record and then the linger time. False at the end."""
        self._asleep = True
        while not self._full and not self._has_open_records():
            self._hurry = False
            if self._closed:
                return False
            self._work.wait()
            self._asleep = True
        if not self._closed:
            self._asleep = False
        if not self._full and not self._hurry and not self._closed and self._linger:
            self._work.wait(self._linger)
        return True

    def _has_open_records(self) -> bool:
        return any(len(buffer.values) > buffer.taken for lane in self._lanes for buffer in list(lane.buffers.values()))

    def _take(self) -> None:
        """Takes everything there is: first full buffers, then open ones, so that each partition stays in order.

        Open buffers are listed first: one that becomes full in between is then found in both lists, not in none.
        """
        self._lanes = [lane for lane in self._lanes if not lane.is_over()]
        buffers = [buffer for lane in self._lanes for buffer in list(lane.buffers.values())]
        full, self._full = self._full, deque()
        for buffer in [*full, *buffers]:
            end = len(buffer.values)
            if end > buffer.taken:
                self._writing.append(_Taken(buffer, buffer.taken, end))
                buffer.taken = end

    def _write(self) -> None:
        """Writes all that was taken, one call for each partition, then waits for the disk, then tells everyone."""
        by_partition: dict[int, list[tuple[_Taken, EncodedBatch]]] = {}
        for taken in self._writing:
            try:
                by_partition.setdefault(taken.buffer.partition, []).append((taken, self._encode(taken)))
            except BaseException as error:
                self._settle(taken, error)
        written = []
        for partition, items in by_partition.items():
            try:
                log = self._topic.writable(partition)
                written.append((log, items, log.append([batch for _, batch in items])))
            except BaseException as error:
                for taken, _ in items:
                    self._settle(taken, error)
        for log, items, offsets in written:
            failure: BaseException | None = None
            try:
                log.wait_durable(offsets[-1] + items[-1][1].header.count)
            except BaseException as error:
                failure = error
            for (taken, (header, _)), offset in zip(items, offsets, strict=True):
                appended = Appended(log.partition, offset, header.first_timestamp, header.count)
                self._settle(taken, failure or appended)

    def _encode(self, taken: _Taken) -> EncodedBatch:
        columns, moment = taken.columns(), self._topic.now()
        stamps = taken.buffer.timestamps
        if stamps is not None:
            moments = [
                moment if stamp is None else self._topic.moment(stamp) for stamp in stamps[taken.first : taken.end]
            ]
            columns = columns._replace(timestamps=moments)
        return self._topic.encode(columns, moment)

    def _settle(self, taken: _Taken, outcome: Appended | BaseException) -> None:
        if isinstance(outcome, BaseException):
            self._error = self._error or outcome
        for callback in taken.buffer.settle(taken.first, taken.end, outcome):
            try:
                callback()
            except BaseException as error:  # the user's: it must not end the thread
                self._error = self._error or error


def _size_of_headers(headers: Headers | None) -> int:
    if headers is None:
        return 0
    if not isinstance(headers, Mapping) or not all(
        isinstance(name, str) and isinstance(value, bytes) for name, value in headers.items()
    ):
        raise InvalidRecord(f"headers map str to bytes, which {headers!r} does not")
    return sum(len(name) * 4 + len(value) + 12 for name, value in headers.items())
