"""A topic of an embedded log: append, read, and what there is to know and to change about it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from dq.engine.embedded.arguments import check_expected_offset, check_timeout
from dq.engine.embedded.columns import BATCH_BYTES, Appended, Columns, Timestamp
from dq.engine.embedded.consumer import Consumer
from dq.engine.embedded.directory import topic_directory
from dq.engine.embedded.producer import Producer
from dq.engine.embedded.reading import Partition, Start, decoded, raw_batches, resolve_start, to_microseconds
from dq.engine.embedded.settings import TopicConfig, config_from_image
from dq.engine.errors import (
    BatchTooLarge,
    Corruption,
    InvalidInput,
    InvalidRecord,
    OffsetOutOfRange,
    ReadOnly,
    UnknownPartition,
    UnknownTopic,
)
from dq.engine.raft.event_log import METADATA_TOPIC
from dq.engine.raft.image import TopicImage
from dq.engine.segments.batch import HEADER_SIZE, Batch, EncodedBatch, Headers, Record, encode
from dq.engine.segments.compaction import compact
from dq.engine.segments.compression import codec_number
from dq.engine.segments.crc import crc32c
from dq.engine.segments.log import PartitionLog
from dq.engine.segments.reader import RawBatch
from dq.engine.segments.retention import apply_retention

if TYPE_CHECKING:
    import pyarrow

    from dq.engine.embedded.store import EmbeddedLog


class PendingWrite:
    """A batch that is written but perhaps not durable yet; what `submit` returns."""

    __slots__ = ("_log", "appended")

    def __init__(self, appended: Appended, log: PartitionLog) -> None:
        self.appended = appended
        self._log = log

    def done(self) -> bool:
        """`result` would not wait."""
        return self._log.closed or self._log.visible_end() >= self.appended.next_offset

    def result(self) -> Appended:
        """Waits for the disk, together with everyone else who does; raises what went wrong."""
        self._log.wait_durable(self.appended.next_offset)
        return self.appended


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    partition: int
    start_offset: int
    next_offset: int
    size: int
    segments: int
    last_timestamp: datetime | None


@dataclass(frozen=True, slots=True)
class TopicInfo:
    name: str
    topic_id: str
    created: datetime
    config: TopicConfig
    partitions: tuple[PartitionInfo, ...]
    consumers: tuple[str, ...]

    @property
    def records(self) -> int:
        """Offsets that the topic holds; compaction may have left fewer records."""
        return sum(item.next_offset - item.start_offset for item in self.partitions)

    @property
    def size(self) -> int:
        return sum(item.size for item in self.partitions)


class Topic:
    """Cheap to make; safe to share between threads."""

    def __init__(self, store: EmbeddedLog, image: TopicImage) -> None:
        self._store = store
        self._image = image
        self._config = config_from_image(image.config)
        self._codec = codec_number(self._config.compression)
        self._turn = itertools.count(random.randrange(image.partitions))

    def __repr__(self) -> str:
        return f"<dq topic {self.name!r} with {self.partitions} partitions>"

    @property
    def name(self) -> str:
        return self._image.name

    @property
    def partitions(self) -> int:
        return self._image.partitions

    @property
    def config(self) -> TopicConfig:
        return self._config

    @property
    def directory_name(self) -> str:
        return topic_directory(self.name, self._image.topic_id)

    # ------------------------------------------------------------ append

    def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        headers: Headers | None = None,
        timestamp: Timestamp | None = None,
        expected_offset: int | None = None,
    ) -> Appended:
        """Stores one record, durable (as the flush mode promises) when this returns.

        The partition is the given one, that of the key, or the next in turn. A value of None deletes its key in
        a compacted topic. With `expected_offset` the record is stored only if it gets that very offset.
        """
        check_expected_offset(expected_offset)
        number = self.partition_for(key) if partition is None else partition
        moment = self.moment(timestamp)
        columns = Columns([value], None if key is None else [key], None if headers is None else [headers], None)
        self._check(columns)
        batch = self.encode(columns, moment)
        (offset,) = self.writable(number).append_durably([batch], expected_offset=expected_offset)
        return Appended(number, offset, moment)

    def append_many(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        *,
        partition: int | None = None,
        headers: Sequence[Headers | None] | None = None,
        timestamps: Sequence[Timestamp] | None = None,
        expected_offset: int | None = None,
    ) -> list[Appended]:
        """Stores many records, durable when this returns; one answer for each batch that was written.

        Without a partition, records go where their keys belong; records without keys stay together, each call on
        the next partition in turn. What goes to one partition and fits in a batch is stored as a whole or not at
        all; with `expected_offset` it has to.
        """
        encoded = self._encode_many(values, keys, partition, headers, timestamps, expected_offset)
        appended: list[Appended] = []
        for number, batches in encoded.items():
            offsets = self.writable(number).append_durably(batches, expected_offset=expected_offset)
            appended += _appended(number, offsets, batches)
        return appended

    def submit(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        *,
        partition: int | None = None,
        headers: Sequence[Headers | None] | None = None,
        timestamps: Sequence[Timestamp] | None = None,
    ) -> list[PendingWrite]:
        """As append_many, without waiting for the disk: each one's `result()` waits for its batch.

        Those that are waited for at the same time share one sync.
        """
        pending = []
        for number, batches in self._encode_many(values, keys, partition, headers, timestamps, None).items():
            log = self.writable(number)
            pending += [PendingWrite(item, log) for item in _appended(number, log.append(batches), batches)]
        return pending

    def producer(
        self,
        *,
        linger_ms: float = 5.0,
        batch_bytes: int = BATCH_BYTES,
        batch_records: int = 10_000,
        max_in_flight_bytes: int = 64 << 20,
    ) -> Producer:
        """A buffered producer: `send` returns at once, records are written in batches."""
        self._check_writable()
        return Producer(
            self,
            linger_ms=linger_ms,
            batch_bytes=batch_bytes,
            batch_records=batch_records,
            max_in_flight_bytes=max_in_flight_bytes,
        )

    def _encode_many(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        partition: int | None,
        headers: Sequence[Headers | None] | None,
        timestamps: Sequence[Timestamp] | None,
        expected_offset: int | None,
    ) -> dict[int, list[EncodedBatch]]:
        """The batches for each partition."""
        check_expected_offset(expected_offset)
        values = _sequence(values)
        stamps = None if timestamps is None else [self.moment(timestamp) for timestamp in timestamps]
        columns = Columns(values, keys, headers, stamps)
        columns.check_lengths()
        if not len(values):
            return {}
        if partition is not None or keys is None or self.partitions == 1:
            parts = {self.partition_for(None) if partition is None else partition: columns}
        else:
            parts = columns.by_partition([self.partition_for(key) for key in keys])
        if expected_offset is not None and len(parts) > 1:
            raise InvalidInput("expected_offset needs one partition: name it, or give keys that share one")
        moment, whole = self.now(), expected_offset is not None
        encoded = {}
        for number, part in parts.items():
            size = self._check(part)
            encoded[number] = [self.encode(piece, moment) for piece in part.pieces(size, whole=whole)]
        return encoded

    def _check(self, columns: Columns) -> int:
        """Raises unless these records may be stored in this topic; returns their size."""
        self.current_image()
        size, null_values, null_keys = columns.check()
        if self._config.compact:
            if null_keys:
                raise InvalidRecord(f"topic {self.name!r} is compacted: every record needs a key")
        elif null_values:
            raise InvalidRecord(f"a value of None deletes a key, but topic {self.name!r} is not compacted: send bytes")
        return size

    def encode(self, columns: Columns, moment: int) -> EncodedBatch:
        """A batch of records that have been checked; `moment` is the time of those without one of their own."""
        values = columns.values
        batch = encode(
            values,
            columns.keys,
            timestamp=moment,
            timestamps=columns.timestamps,
            headers=columns.headers,
            codec=self._codec,
            checked=True,
        )
        size, limit = HEADER_SIZE + batch.header.raw_size, self._config.max_batch_bytes
        if size > limit:
            raise BatchTooLarge(size, limit, "record" if len(values) == 1 else "batch")
        return batch

    def partition_for(self, key: bytes | None) -> int:
        if self.partitions == 1:
            return 0
        if key is None:
            return next(self._turn) % self.partitions
        return partition_of_key(key, self.partitions)

    def now(self) -> int:
        return self._store.clock.now()

    def moment(self, timestamp: Timestamp | None) -> int:
        if timestamp is None:
            return self._store.clock.now()
        if isinstance(timestamp, datetime):
            return to_microseconds(timestamp)
        if isinstance(timestamp, bool) or not isinstance(timestamp, int):
            raise InvalidRecord(f"invalid timestamp {timestamp!r}: allowed are a datetime and microseconds")
        return timestamp

    # ------------------------------------------------------------ read

    def read(
        self,
        partition: int | None = None,
        start: Start = "earliest",
        *,
        follow: bool = False,
        timeout: float | None = None,
    ) -> Iterator[Record]:
        """Records in order. Without a partition, all of them in turns, in order within each.

        With `follow` the iterator waits for more, and ends after `timeout` seconds without any.
        """
        batches = self.read_batches(partition, start, follow=follow, timeout=timeout)
        return itertools.chain.from_iterable(map(Batch.records, batches))

    def read_batches(
        self,
        partition: int | None = None,
        start: Start = "earliest",
        *,
        follow: bool = False,
        timeout: float | None = None,
    ) -> Iterator[Batch]:
        """The same as columns: a batch has lists of values, keys, and so on."""
        return decoded(*self._raw_batches(partition, start, follow, timeout))

    def read_arrow(
        self,
        partition: int | None = None,
        start: Start = "earliest",
        *,
        follow: bool = False,
        timeout: float | None = None,
    ) -> Iterator[pyarrow.RecordBatch]:
        """The same as Arrow record batches, without making Python objects on the way where that is possible."""
        from dq.engine.embedded.arrow import arrow_batches

        return arrow_batches(*self._raw_batches(partition, start, follow, timeout))

    def _raw_batches(
        self, partition: int | None, start: Start, follow: bool, timeout: float | None
    ) -> tuple[Iterator[RawBatch], dict[int, int]]:
        """The batches, and from which offset of each partition they count."""
        check_timeout(timeout)
        logs = self._readable(partition, start)
        while True:
            starts = {log.partition: resolve_start(log, start) for log in logs}
            try:
                return raw_batches(logs, starts, follow=follow, timeout=timeout, clock=self._store.clock), starts
            except OffsetOutOfRange:
                if start != "earliest":
                    raise  # otherwise retention came between the two: look again

    def consumer(self, name: str, *, start: Start = "earliest") -> Consumer:
        """A named consumer whose positions are kept. `start` counts only when the name is new."""
        return Consumer(self, self._store, name, start)

    def consumers(self) -> list[str]:
        return sorted(self.current_image().consumers)

    # ------------------------------------------------------------ know and change

    def describe(self) -> TopicInfo:
        image = self.current_image()
        return TopicInfo(
            name=image.name,
            topic_id=image.topic_id.hex(),
            created=_to_datetime(image.created),
            config=config_from_image(image.config),
            partitions=tuple(self._describe_partition(self.log(number)) for number in range(image.partitions)),
            consumers=tuple(sorted(image.consumers)),
        )

    def _describe_partition(self, log: Partition) -> PartitionInfo:
        empty = log.next_offset == log.start_offset
        return PartitionInfo(
            partition=log.partition,
            start_offset=log.start_offset,
            next_offset=log.visible_end(),
            size=log.size(),
            segments=len(log.segments()),
            last_timestamp=None if empty else _last_moment(log),
        )

    def configure(self, **settings: Any) -> None:
        """Changes settings; see EmbeddedLog.create_topic for their names."""
        with self._store.metadata_lock:
            self.current_image()
            self._store.configure_topic(self.name, **settings)
            self.current_image()

    def maintain(self) -> None:
        """Applies retention, and compaction if the topic has it."""
        for number in range(self.partitions):
            log = self.writable(number)
            apply_retention(log, self._store.clock)
            if log.config.compact:
                compact(log, self._store.clock)

    def compact(self) -> None:
        """Keeps only the latest record of each key, in all but the newest segment of each partition."""
        if not self._config.compact:
            raise InvalidInput(f"topic {self.name!r} is not compacted: configure(compact=True) first")
        for number in range(self.partitions):
            compact(self.writable(number), self._store.clock)

    # ------------------------------------------------------------ partitions

    def log(self, partition: int) -> Partition:
        """The log of one partition; raises UnknownPartition."""
        if isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition < self.partitions:
            raise UnknownPartition(self.name, partition, self.partitions)
        self._store.check_open()
        return self._store.partition_log(self.name, self._image.topic_id, partition)

    def writable(self, partition: int) -> PartitionLog:
        log = self.log(partition)
        if not isinstance(log, PartitionLog) or self.name == METADATA_TOPIC:
            self._check_writable()
            raise ReadOnly(f"topic {self.name!r} is written by DQ itself")
        return log

    def _check_writable(self) -> None:
        self._store.check_open()
        if self._store.read_only:
            raise ReadOnly(f"the log {self._store.path!r} was opened with read_only=True")

    def _readable(self, partition: int | None, start: Start) -> list[Partition]:
        self.current_image()
        if partition is not None:
            return [self.log(partition)]
        if self.partitions > 1 and isinstance(start, int):
            raise InvalidInput(
                f"topic {self.name!r} has {self.partitions} partitions: an offset to start from needs a partition"
            )
        return [self.log(number) for number in range(self.partitions)]

    def current_image(self) -> TopicImage:
        """The topic as it is now; UnknownTopic when it was deleted, even if there is a new one of that name."""
        image = self._store.topic_image(self.name)
        if image.topic_id != self._image.topic_id:
            raise UnknownTopic(self.name)
        if image is not self._image:  # somebody changed its settings
            self._image = image
            self._config = config_from_image(image.config)
            self._codec = codec_number(self._config.compression)
        return image


def partition_of_key(key: bytes, partitions: int) -> int:
    """The same in every language and release: CRC-32C of the key, modulo the number of partitions."""
    try:
        return crc32c(key) % partitions
    except TypeError:
        raise InvalidRecord(f"a key is {type(key).__name__}: allowed are bytes and None") from None


def _sequence(values: Any) -> Sequence[bytes | None]:
    """Any iterable of values will do; but one value alone is a mistake."""
    if isinstance(values, (list, tuple)):
        return values
    if isinstance(values, (bytes, bytearray, memoryview, str)) or not hasattr(values, "__iter__"):
        raise InvalidRecord(f"values is {type(values).__name__}: allowed is a list of bytes")
    return list(values)


def _appended(partition: int, offsets: list[int], batches: list[EncodedBatch]) -> list[Appended]:
    return [
        Appended(partition, offset, batch.header.first_timestamp, batch.header.count)
        for offset, batch in zip(offsets, batches, strict=True)
    ]


def _to_datetime(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / 1_000_000, tz=timezone.utc)


def _last_moment(log: Partition) -> datetime | None:
    """None when the place that tells is damaged, or when no datetime can say it."""
    try:
        return _to_datetime(log.max_timestamp)
    except (Corruption, ValueError, OverflowError, OSError):
        return None
