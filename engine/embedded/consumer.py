"""A named consumer: durable positions, one for each partition of its topic."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING

from dq.engine.embedded.arguments import check_count, check_timeout
from dq.engine.embedded.reading import MOST_OPEN, Partition, Start, resolve_start, wait_for_any
from dq.engine.errors import Closed, DQError, InvalidInput, OffsetOutOfRange, ReadOnly, UnknownConsumer
from dq.engine.names import check_user_name
from dq.engine.raft.event_log import METADATA_TOPIC
from dq.engine.raft.events import ConsumerRegistered, ConsumerRemoved, PositionsCommitted
from dq.engine.segments.batch import CONTROL, Record
from dq.engine.segments.reader import Cursor

if TYPE_CHECKING:
    from dq.engine.embedded.store import EmbeddedLog
    from dq.engine.embedded.topic import Topic


@dataclass(frozen=True, slots=True)
class PartitionLag:
    records: int
    seconds: float  # the age of the oldest record that was not read yet; 0 when all were


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a consumer is behind: in all, and by partition."""

    partitions: dict[int, PartitionLag]

    @property
    def records(self) -> int:
        return sum(item.records for item in self.partitions.values())

    @property
    def seconds(self) -> float:
        return max(item.seconds for item in self.partitions.values())


class Consumer:
    """Reads its topic's partitions in turns, skipping those with nothing new. For one thread.

    `poll` moves the position, `commit` makes it last: after a restart the consumer goes on from the last commit,
    so every record is seen at least once.
    """

    def __init__(self, topic: Topic, store: EmbeddedLog, name: str, start: Start) -> None:
        self.name = check_user_name(name, "a consumer name")
        self.topic = topic
        self._store = store
        self._closed = False
        self._logs: list[Partition] = [topic.log(number) for number in range(topic.partitions)]
        self._positions = self._registered(start)
        self._committed = dict(self._positions)
        self._cursors: dict[int, Cursor] = {}
        self._fetched: dict[int, deque[Record]] = {}
        self._turn = 0

    def _registered(self, start: Start) -> dict[int, int]:
        with self._store.metadata_lock:
            known = self.topic.current_image().consumers.get(self.name)
            if known is not None:
                return dict(known.positions)
            if self.topic.name == METADATA_TOPIC:
                raise ReadOnly(f"topic {METADATA_TOPIC!r} has no named consumers: read it with read()")
            if self._store.read_only:
                raise ReadOnly(f"consumer {self.name!r} is new, and a log opened with read_only=True cannot take it")
            if isinstance(start, int) and len(self._logs) > 1:
                raise InvalidInput("a consumer of several partitions starts at 'earliest', 'latest' or a datetime")
            positions = {log.partition: _checked(log, resolve_start(log, start)) for log in self._logs}
            self._store.propose(ConsumerRegistered(topic=self.topic.name, consumer=self.name, positions=positions))
            return positions

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<dq consumer {self.name!r} of topic {self.topic.name!r}>"

    # ------------------------------------------------------------ read

    def poll(self, max_records: int = 500, timeout: float | None = 0.0) -> list[Record]:
        """Up to max_records new records; waits up to `timeout` seconds for the first, None is for ever. No commit.

        Raises OffsetOutOfRange when retention removed what comes next: `seek` says where to go on.
        """
        check_count("max_records", max_records)
        check_timeout(timeout)
        self._check_open()
        records = self._collect(max_records)
        if not records and (timeout is None or timeout > 0):
            ends = [self._positions[log.partition] for log in self._logs]
            if wait_for_any(self._logs, ends, timeout, self._store.clock):
                records = self._collect(max_records)
        return records

    def __iter__(self) -> Iterator[Record]:
        """Everything there is now, record by record: a commit covers those that were handed out, and no more."""
        while records := self.poll(1):
            yield records[0]

    def _collect(self, max_records: int) -> list[Record]:
        records: list[Record] = []
        empty = 0
        try:
            while len(records) < max_records and empty < len(self._logs):
                log = self._logs[self._turn]
                self._turn = (self._turn + 1) % len(self._logs)
                taken = self._take(log, max_records - len(records))
                empty = 0 if taken else empty + 1
                records += taken
        except BaseException as error:
            if records and isinstance(error, DQError):
                return records  # the error comes again with the next poll, and nothing is passed over
            self._put_back(records)
            raise
        return records

    def _put_back(self, records: list[Record]) -> None:
        for record in reversed(records):
            self._fetched[record.partition].appendleft(record)
            self._positions[record.partition] = record.offset

    def _take(self, log: Partition, most: int) -> list[Record]:
        """The next records of one partition, at most what is left of one read."""
        fetched = self._fetched.setdefault(log.partition, deque())
        if not fetched:
            try:
                self._fetch(log, fetched)
            except BaseException as error:
                # The cursor stands somewhere beyond: the next one begins behind what was fetched.
                self._drop_cursor(log.partition)
                if not fetched or not isinstance(error, DQError):
                    fetched.clear()
                    raise
            if not fetched:
                return []
        taken = list(islice(fetched, most))
        for _ in taken:
            fetched.popleft()
        self._positions[log.partition] = taken[-1].offset + 1
        return taken

    def _fetch(self, log: Partition, fetched: deque[Record]) -> None:
        position = self._positions[log.partition]
        cursor = self._cursors.get(log.partition)
        if cursor is None:
            cursor = self._cursors[log.partition] = Cursor(log, position)
        for raw in cursor.read():
            if not raw.header.flags & CONTROL:
                fetched.extend(record for record in raw.decode() if record.offset >= position)
        if not fetched:
            self._positions[log.partition] = max(position, cursor.offset)
        if len(self._logs) > MOST_OPEN:
            cursor.close()  # it finds its place again

    def _drop_cursor(self, partition: int) -> None:
        cursor = self._cursors.pop(partition, None)
        if cursor is not None:
            cursor.close()

    # ------------------------------------------------------------ positions

    def positions(self) -> dict[int, int]:
        """By partition, the offset that the next `poll` goes on from."""
        return dict(self._positions)

    def committed(self) -> dict[int, int]:
        return dict(self._committed)

    def commit(self) -> None:
        """Makes the positions last; durable when this returns. Costs nothing when they have not moved."""
        self._check_open()
        moved = {
            partition: offset
            for partition, offset in self._positions.items()
            if self._committed.get(partition) != offset
        }
        if not moved:
            return
        with self._store.metadata_lock:
            if self.name not in self.topic.current_image().consumers:
                raise UnknownConsumer(self.topic.name, self.name)
            self._store.propose(PositionsCommitted(topic=self.topic.name, consumer=self.name, positions=moved))
        self._committed.update(moved)

    def seek(self, position: Start, partition: int | None = None) -> None:
        """Goes on from an offset, a datetime, 'earliest' or 'latest'; on one partition, or on all."""
        self._check_open()
        if partition is None and len(self._logs) > 1 and isinstance(position, int):
            raise InvalidInput("an offset to go on from needs a partition")
        logs = self._logs if partition is None else [self.topic.log(partition)]
        targets = {log.partition: _checked(log, resolve_start(log, position)) for log in logs}
        for number, offset in targets.items():
            self._positions[number] = offset
            self._fetched.pop(number, None)
            self._drop_cursor(number)

    def lag(self) -> Lag:
        self._check_open()
        return Lag({log.partition: self._lag_of(log) for log in self._logs})

    def _lag_of(self, log: Partition) -> PartitionLag:
        position = self._positions[log.partition]
        behind = max(log.visible_end() - position, 0)
        if not behind:
            return PartitionLag(0, 0.0)
        oldest = self._next_timestamp(log, max(position, log.start_offset))
        age = 0.0 if oldest is None else max(self._store.clock.now() - oldest, 0) / 1_000_000
        return PartitionLag(behind, age)

    def _next_timestamp(self, log: Partition, position: int) -> int | None:
        fetched = self._fetched.get(log.partition)
        if fetched:
            return fetched[0].timestamp
        cursor = Cursor(log, position)
        try:
            while batches := cursor.read():
                for raw in batches:
                    for record in raw.decode():
                        if record.offset >= position:
                            return record.timestamp
        finally:
            cursor.close()
        return None

    # ------------------------------------------------------------ end

    def remove(self) -> None:
        """Forgets the consumer and its positions."""
        self._check_open()
        with self._store.metadata_lock:
            if self.name not in self.topic.current_image().consumers:
                raise UnknownConsumer(self.topic.name, self.name)
            self._store.propose(ConsumerRemoved(topic=self.topic.name, consumer=self.name))
        self.close()

    def close(self) -> None:
        """Lets go of file handles. Positions that were not committed are not kept."""
        self._closed = True
        for cursor in self._cursors.values():
            cursor.close()
        self._cursors.clear()
        self._fetched.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the consumer {self.name!r} is closed")
        self.topic.current_image()  # raises when the log is closed or the topic is gone


def _checked(log: Partition, offset: int) -> int:
    if not log.start_offset <= offset <= log.visible_end():
        raise OffsetOutOfRange(offset, log.start_offset, log.visible_end())
    return offset
