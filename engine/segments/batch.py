"""The record batch: the unit on the wire, on disk and in replication. Pure functions over bytes, no I/O.

A batch is a header of 96 bytes, little-endian, and a body:

    at  size  field
     0     4  magic "DQRB"
     4     1  format version (1)
     5     1  codec of the body: 0 none, 1 lz4, 2 zstd
     6     2  flags: bit 0 control, bit 1 sparse, bit 2 after-sync
     8     4  body size as stored
    12     4  record count
    16     8  base offset
    24     4  offset span: the batch covers the offsets [base, base + span)
    28     4  leader epoch
    32     8  first timestamp: the smallest in the batch, microseconds since the epoch, UTC
    40     8  last timestamp: the greatest in the batch
    48     8  producer id, -1 for none
    56     8  base sequence, -1 for none
    64     4  producer epoch, -1 for none
    68     4  body size before compression
    72     4  CRC-32C of the body as stored
    76    16  reserved, zero
    92     4  CRC-32C of the bytes 0 to 91

The producer fills in everything; the log stamps base offset, leader epoch and the after-sync flag, and
computes the header CRC anew. The body, and so its CRC, is never touched again.

The body is one msgpack array of columns, [values, keys, timestamps, headers] and, when the sparse flag is
set, a fifth column of offsets:

- values: an array of bin, or nil for a record that deletes its key;
- keys: nil, or an array of bin or nil;
- timestamps: nil when all equal the first timestamp, or a bin of `count` little-endian unsigned integers of
  4 or 8 bytes each, to be added to the first timestamp;
- headers: nil, or an array of nil or map from str to bin;
- offsets: a bin of `count` little-endian 4-byte unsigned integers, to be added to the base offset. Only
  compaction makes sparse batches; otherwise record i has the offset base + i.
"""

from __future__ import annotations

import operator
import struct
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack
import msgspec

from dq.engine.errors import BatchTooLarge, DamagedBatch, FormatTooNew, InvalidRecord
from dq.engine.files import Buffer
from dq.engine.segments.compression import KNOWN_CODECS, NONE, compress, decompress
from dq.engine.segments.crc import crc32c

if TYPE_CHECKING:
    import pyarrow

MAGIC = b"DQRB"
VERSION = 1
HEADER_SIZE = 96

CONTROL = 1 << 0  # not for readers: the log's own bookkeeping
SPARSE = 1 << 1  # the body has a column of offsets
AFTER_SYNC = 1 << 2  # everything before this batch was on stable storage when it was written
KNOWN_FLAGS = CONTROL | SPARSE | AFTER_SYNC

MAX_BATCH_BYTES = 16 << 20  # the default limit of a batch, header included
MAX_BODY_BYTES = 1 << 30  # no limit may be set above this: what a header may claim before it is called damaged
MAX_RECORDS = 1 << 20

_FIELDS = struct.Struct("<4sBBHIIQIIqqqqiII16s")
_CRC = struct.Struct("<I")
_CRC_AT = 92
_NO_RESERVED = bytes(16)
_MAX_INT64 = (1 << 63) - 1

Headers = Mapping[str, bytes]

_encoder = msgspec.msgpack.Encoder()  # makes the bytes that msgpack.packb makes, three to four times as fast


class BatchHeader(NamedTuple):
    codec: int
    flags: int
    body_size: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    base_offset: int
    span: int
    leader_epoch: int
    first_timestamp: int
    last_timestamp: int
    producer_id: int
    base_sequence: int
    producer_epoch: int
    raw_size: int
    body_crc: int

    @property
    def size(self) -> int:
        """The whole batch in bytes."""
        return HEADER_SIZE + self.body_size

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.span

    def stamped(self, base_offset: int, leader_epoch: int, after_sync: bool) -> BatchHeader:
        """The header with what the log decides. As `_replace`, in half the time."""
        flags = self[1] | AFTER_SYNC if after_sync else self[1] & ~AFTER_SYNC
        return BatchHeader(self[0], flags, self[2], self[3], base_offset, self[5], leader_epoch, *self[7:])


def pack_header(header: BatchHeader) -> bytes:
    fields = _FIELDS.pack(MAGIC, VERSION, *header, _NO_RESERVED)
    return fields + _CRC.pack(crc32c(fields))


def unpack_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at a position; raises DamagedBatch unless every byte of it is as it was written."""
    if len(buffer) - position < HEADER_SIZE:
        raise DamagedBatch("the batch header is cut off")
    # Slicing bytes copies 92 bytes, which is cheaper than a memoryview around them.
    if _CRC.unpack_from(buffer, position + _CRC_AT)[0] != crc32c(buffer[position : position + _CRC_AT]):
        raise DamagedBatch("the CRC of the batch header does not match")
    magic, version, *fields, _reserved = _FIELDS.unpack_from(buffer, position)
    if magic != MAGIC:
        raise DamagedBatch(f"not a batch: it starts with {magic!r}")
    if version != VERSION:
        if version > VERSION:
            raise FormatTooNew("a batch", version, VERSION)
        raise DamagedBatch(f"there is no format version {version}")
    header = BatchHeader._make(fields)
    _check_header(header)
    return header


def _check_header(header: BatchHeader) -> None:
    """What a correct CRC does not say: that whoever computed it followed the rules."""
    if header.flags & ~KNOWN_FLAGS:
        raise DamagedBatch(f"unknown flags {header.flags:#x}")
    if header.codec not in KNOWN_CODECS:
        raise DamagedBatch(f"unknown compression codec {header.codec}")
    if header.body_size > MAX_BODY_BYTES or header.raw_size > MAX_BODY_BYTES:
        raise DamagedBatch(f"a body of {max(header.body_size, header.raw_size)} bytes is beyond every limit")
    if header.count > MAX_RECORDS or header.count > header.raw_size:
        raise DamagedBatch(f"{header.count} records cannot be in a body of {header.raw_size} bytes")
    if header.span < max(header.count, 1) or header.base_offset + header.span > _MAX_INT64:
        raise DamagedBatch(f"{header.count} records cannot cover {header.span} offsets")
    if header.span != header.count and not header.flags & SPARSE:
        raise DamagedBatch("offsets are missing, but the batch is not marked as sparse")
    if header.codec == NONE and header.body_size != header.raw_size:
        raise DamagedBatch("an uncompressed body has two sizes")
    if header.first_timestamp > header.last_timestamp:
        raise DamagedBatch("the first timestamp is after the last")


def check_body(header: BatchHeader, body: Buffer) -> None:
    if len(body) != header.body_size:
        raise DamagedBatch(f"the body has {len(body)} bytes instead of {header.body_size}")
    if crc32c(body) != header.body_crc:
        raise DamagedBatch("the CRC of the body does not match")


def split(data: Buffer) -> list[tuple[BatchHeader, memoryview]]:
    """Cuts a run of whole batches, as a client or a leader sends it, into checked headers and bodies."""
    view = memoryview(data)
    batches = []
    position = 0
    while position < len(view):
        header = unpack_header(view, position)
        body = view[position + HEADER_SIZE : position + header.size]
        check_body(header, body)
        batches.append((header, body))
        position += header.size
    return batches


# ---------------------------------------------------------------- encoding


class EncodedBatch(NamedTuple):
    """A batch before the log has given it an offset."""

    header: BatchHeader
    body: Buffer

    @property
    def size(self) -> int:
        return HEADER_SIZE + self.header.body_size

    def to_bytes(self) -> bytes:
        return pack_header(self.header) + self.body


def encode(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    *,
    timestamp: int = 0,
    timestamps: Sequence[int] | None = None,
    headers: Sequence[Headers | None] | None = None,
    codec: int = NONE,
    producer: tuple[int, int, int] = (-1, -1, -1),
    offset_deltas: Sequence[int] | None = None,
    base_offset: int = 0,
    span: int | None = None,
    leader_epoch: int = 0,
    flags: int = 0,
    checked: bool = False,
) -> EncodedBatch:
    """Builds a batch. `timestamp` holds for all records unless `timestamps` gives each its own.

    `producer` is (id, epoch, base sequence). `checked`: the caller has called `check_column` on values and keys. The
    other parameters are for compaction, which writes batches that have their place already.
    """
    count = len(values)
    if not 0 < count <= MAX_RECORDS and offset_deltas is None:
        raise InvalidRecord(f"a batch holds 1 to {MAX_RECORDS} records, not {count}")
    if keys is not None:
        _check_length("keys", keys, count)
    if not checked:
        check_column("values", values)
        if keys is not None:
            check_column("keys", keys)
    if headers is not None:
        _check_length("headers", headers, count)
        headers = _checked_headers(headers)
    if timestamps is not None:
        _check_length("timestamps", timestamps, count)
        first, last, packed_timestamps = _pack_timestamps(timestamps)
    elif type(timestamp) is int and -_MAX_INT64 <= timestamp <= _MAX_INT64:
        first, last, packed_timestamps = timestamp, timestamp, None
    else:
        first, last, packed_timestamps = _pack_timestamps([timestamp])
    columns: list[Any] = [_packable(values), _packable(keys), packed_timestamps, headers]
    if offset_deltas is not None:
        columns.append(_to_little_endian(array("I", offset_deltas)))
        flags |= SPARSE
    try:
        raw = _encoder.encode(columns)
    except (BufferError, OverflowError, TypeError, ValueError) as error:  # such as a name that UTF-8 cannot hold
        raise InvalidRecord(f"these records cannot be stored: {error}") from error
    body = compress(codec, raw)
    if len(raw) > MAX_BODY_BYTES or len(body) > MAX_BODY_BYTES:
        raise BatchTooLarge(max(len(raw), len(body)), MAX_BODY_BYTES, "body")
    producer_id, producer_epoch, base_sequence = producer
    header = BatchHeader(  # by position: names would double the time this takes
        codec,
        flags,
        len(body),
        count,
        base_offset,
        count if span is None else span,
        leader_epoch,
        first,
        last,
        producer_id,
        base_sequence,
        producer_epoch,
        len(raw),
        crc32c(body),
    )
    return EncodedBatch(header, body)


_NONE_TYPE = type(None)


class ColumnCheck(NamedTuple):
    size: int
    nulls: bool


def check_column(name: str, column: Sequence[bytes | None]) -> ColumnCheck:
    """Raises unless every item is bytes (or None); returns their total size, and whether any is None.

    Joining is the fastest way to ask: it looks at every item in C.
    """
    try:
        return ColumnCheck(len(b"".join(column)), False)  # type: ignore[arg-type]
    except BufferError as error:
        raise InvalidRecord(f"{name}: {error}") from None
    except TypeError:
        total = 0
        for number, item in enumerate(column):
            if item is None:
                continue
            if not isinstance(item, (bytes, bytearray, memoryview)):
                raise InvalidRecord(f"{name}[{number}] is {type(item).__name__}: allowed are bytes and None") from None
            total += len(item)
        return ColumnCheck(total, None in column)


def _packable(column: Sequence[Any] | None) -> Sequence[Any] | None:
    """msgpack takes lists and tuples for arrays, and no other sequence."""
    return column if column is None or isinstance(column, (list, tuple)) else list(column)


def _check_length(name: str, column: Sequence[Any], count: int) -> None:
    if len(column) != count:
        raise InvalidRecord(f"{len(column)} {name} do not go with {count} values")


def _checked_headers(headers: Sequence[Headers | None]) -> list[dict[str, bytes] | None]:
    checked: list[dict[str, bytes] | None] = []
    for number, item in enumerate(headers):
        if not item:
            checked.append(None)
            continue
        if not isinstance(item, Mapping):
            raise InvalidRecord(f"headers[{number}] is {type(item).__name__}: allowed are a mapping and None")
        for name, value in item.items():
            if not isinstance(name, str) or not isinstance(value, bytes):
                raise InvalidRecord(f"headers[{number}] must map str to bytes")
        checked.append(dict(item))
    return checked


def _pack_timestamps(timestamps: Sequence[int]) -> tuple[int, int, bytes | None]:
    try:
        first, last = operator.index(min(timestamps)), operator.index(max(timestamps))
        if not -_MAX_INT64 <= first <= last <= _MAX_INT64:
            raise OverflowError("out of range")
        if first == last:
            return first, last, None
        width = "I" if last - first < 1 << 32 else "Q"
        return first, last, _to_little_endian(array(width, [timestamp - first for timestamp in timestamps]))
    except (TypeError, OverflowError) as error:
        raise InvalidRecord(f"timestamps must be whole microseconds that fit 64 bits: {error}") from error


def _to_little_endian(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


# ---------------------------------------------------------------- decoding


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes] | None
    partition: int = 0


_make_record = partial(tuple.__new__, Record)  # what Record._make does, without its check of the length


class Batch:
    """A decoded batch: columns as Python lists."""

    __slots__ = ("_offset_deltas", "_timestamp_deltas", "header", "headers", "keys", "partition", "skipped", "values")

    def __init__(
        self,
        header: BatchHeader,
        values: list[bytes | None],
        keys: list[bytes | None] | None,
        timestamp_deltas: array[int] | None,
        headers: list[dict[str, bytes] | None] | None,
        offset_deltas: array[int] | None,
        skipped: int = 0,
        partition: int = 0,
    ) -> None:
        self.header = header
        self.partition = partition
        self.values = values
        self.keys = keys
        self.headers = headers
        self.skipped = skipped  # records of the stored batch that lie before the first one here
        self._timestamp_deltas = timestamp_deltas
        self._offset_deltas = offset_deltas

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} records from offset {self.base_offset}>"

    @property
    def base_offset(self) -> int:
        """The offset of the first record here."""
        if self._offset_deltas is None:
            return self.header.base_offset + self.skipped
        return self.header.base_offset + (self._offset_deltas[0] if self._offset_deltas else 0)

    @property
    def next_offset(self) -> int:
        """Where the next batch begins."""
        return self.header.next_offset

    @property
    def offsets(self) -> Sequence[int]:
        base = self.header.base_offset
        if self._offset_deltas is None:
            return range(base + self.skipped, base + self.skipped + len(self.values))
        return [base + delta for delta in self._offset_deltas]

    @property
    def timestamps(self) -> Sequence[int]:
        first = self.header.first_timestamp
        if self._timestamp_deltas is None:
            return [first] * len(self.values)
        return [first + delta for delta in self._timestamp_deltas]

    def records(self) -> Iterator[Record]:
        none: Iterator[None] = repeat(None)
        first = self.header.first_timestamp
        deltas = self._timestamp_deltas
        columns = zip(
            self.offsets,
            repeat(first) if deltas is None else map(first.__add__, deltas),
            none if self.keys is None else self.keys,
            self.values,
            none if self.headers is None else self.headers,
            repeat(self.partition),
        )
        return map(_make_record, columns)

    __iter__ = records

    def starting_at(self, offset: int) -> Batch:
        """The same batch without the records before an offset."""
        if self._offset_deltas is None:
            first = offset - self.base_offset
        else:
            first = sum(1 for delta in self._offset_deltas if self.header.base_offset + delta < offset)
        return self.without_first(first)

    def without_first(self, count: int) -> Batch:
        if count <= 0:
            return self
        count = min(count, len(self.values))
        return Batch(
            self.header,
            self.values[count:],
            None if self.keys is None else self.keys[count:],
            None if self._timestamp_deltas is None else self._timestamp_deltas[count:],
            None if self.headers is None else self.headers[count:],
            None if self._offset_deltas is None else self._offset_deltas[count:],
            self.skipped + count,
            self.partition,
        )

    def to_arrow(self) -> pyarrow.RecordBatch:
        """An Arrow record batch with the columns offset, timestamp, key, value and headers."""
        from dq.engine.segments.arrow import to_arrow

        return to_arrow(self)


def decode(header: BatchHeader, body: Buffer, partition: int = 0) -> Batch:
    """The columns of a batch whose body CRC has been checked; raises DamagedBatch when they make no sense."""
    return decode_raw(header, decompress(header.codec, body, header.raw_size), partition)


def decode_raw(header: BatchHeader, raw: Buffer, partition: int = 0) -> Batch:
    """The same from a body that is no longer compressed."""
    count = header.count
    try:
        columns = msgpack.unpackb(raw, max_array_len=max(count, 5), max_ext_len=0, strict_map_key=True)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise DamagedBatch(f"the body is not valid msgpack: {type(error).__name__} {error}") from error
    if type(columns) is not list or len(columns) != (5 if header.flags & SPARSE else 4):
        raise DamagedBatch("the body is not an array of columns")
    values, keys, timestamps, headers, *offsets = columns
    _check_decoded("values", values, count)
    if keys is not None:
        _check_decoded("keys", keys, count)
    if headers is not None:
        _check_decoded_headers(headers, count)
    return Batch(
        header,
        values,
        keys,
        _unpack_timestamps(timestamps, header),
        headers,
        _unpack_offsets(offsets[0], header) if offsets else None,
        partition=partition,
    )


def _check_decoded(name: str, column: Any, count: int) -> None:
    if type(column) is not list or len(column) != count:
        raise DamagedBatch(f"the column of {name} does not hold {count} items")
    try:
        b"".join(column)
    except TypeError:
        if not set(map(type, column)) <= {bytes, _NONE_TYPE}:
            raise DamagedBatch(f"the column of {name} holds something else than bytes") from None


def _check_decoded_headers(column: Any, count: int) -> None:
    if type(column) is not list or len(column) != count:
        raise DamagedBatch(f"the column of headers does not hold {count} items")
    for item in column:
        if item is None:
            continue
        if type(item) is not dict or not (set(map(type, item)) <= {str} and set(map(type, item.values())) <= {bytes}):
            raise DamagedBatch("the column of headers holds something else than maps from str to bytes")


def _unpack_timestamps(data: Any, header: BatchHeader) -> array[int] | None:
    if data is None:
        if header.first_timestamp != header.last_timestamp:
            raise DamagedBatch("the timestamps differ, but the column of timestamps is missing")
        return None
    deltas = _unpack_numbers("timestamps", data, header.count, "IQ")
    # Looking at every number is worth it only where one could be too great.
    greatest = _MAX_INT64 - header.first_timestamp
    if (deltas.itemsize == 8 or greatest < 1 << 32) and max(deltas, default=0) > greatest:
        raise DamagedBatch("the column of timestamps holds one that does not fit 64 bits")
    return deltas


def _unpack_offsets(data: Any, header: BatchHeader) -> array[int]:
    deltas = _unpack_numbers("offsets", data, header.count, "I")
    if deltas and (deltas[-1] >= header.span or any(a >= b for a, b in pairwise(deltas))):
        raise DamagedBatch("the column of offsets does not grow within the batch's span")
    return deltas


def _unpack_numbers(name: str, data: Any, count: int, codes: str) -> array[int]:
    if type(data) is bytes:
        for code in codes:
            numbers = array(code)
            if len(data) == numbers.itemsize * count:
                numbers.frombytes(data)
                if sys.byteorder == "big":
                    numbers.byteswap()
                return numbers
    raise DamagedBatch(f"the column of {name} does not hold {count} numbers")
