"""Batches as Arrow record batches. Only this file needs pyarrow, and only when it is called.

A body whose values all have one length needs no msgpack decoder: the column is a table of equal rows, and numpy
checks and cuts off the msgpack headers of all rows at once. Any other body goes through the decoder, so it is
refused for the same reasons, in the same words, as anywhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dq.engine.errors import DQError
from dq.engine.files import Buffer
from dq.engine.segments.batch import SPARSE, Batch, BatchHeader, decode_raw

try:
    import numpy
    import pyarrow as pa
except ImportError as error:
    raise DQError("Arrow needs a package: pip install 'dqsegments[arrow]'") from error

SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.map_(pa.string(), pa.binary())),
    ]
)
_Array = numpy.ndarray[Any, Any]
_INT64, _TIMESTAMP, _BINARY, _, _HEADERS = SCHEMA.types


def to_arrow(batch: Batch) -> pa.RecordBatch:
    """A decoded batch as an Arrow record batch."""
    count = len(batch)
    first = batch.header.first_timestamp
    deltas = batch._timestamp_deltas
    offsets = batch.offsets
    return _record_batch(
        numpy.arange(offsets.start, offsets.stop, dtype=numpy.int64)
        if isinstance(offsets, range)
        else numpy.array(offsets, numpy.int64),
        numpy.full(count, first, numpy.int64) if deltas is None else numpy.asarray(deltas, dtype=numpy.int64) + first,
        None if batch.keys is None else pa.array(batch.keys, _BINARY),
        pa.array(batch.values, _BINARY),
        None if batch.headers is None else _headers(batch.headers),
    )


def _headers(headers: list[dict[str, bytes] | None]) -> pa.Array:
    pairs = [None if item is None else list(item.items()) for item in headers]
    return pa.array(pairs, _HEADERS)


def _record_batch(
    offsets: _Array,
    timestamps: _Array,
    keys: pa.Array | None,
    values: pa.Array,
    headers: pa.Array | None,
) -> pa.RecordBatch:
    count = len(values)
    columns = [
        _numbers(_INT64, offsets),
        _numbers(_TIMESTAMP, timestamps),
        pa.nulls(count, _BINARY) if keys is None else keys,
        values,
        pa.nulls(count, _HEADERS) if headers is None else headers,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _numbers(kind: pa.DataType, numbers: _Array) -> pa.Array:
    """int64 numbers in the machine's order, taken over without a copy."""
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


# ---------------------------------------------------------------- straight from the body


def raw_to_arrow(header: BatchHeader, raw: Buffer) -> pa.RecordBatch:
    """The same as `to_arrow(decode_raw(header, raw))`, four times as fast where all values have one length."""
    try:
        return _read_body(header, raw)
    except (_Unusual, IndexError):  # the body is cut short, or valid in another way, or not valid
        return to_arrow(decode_raw(header, raw))


class _Unusual(Exception):
    """The fast way does not understand this body; that says nothing about whether it is valid."""


_NIL = 0xC0
_BIN_HEADERS = {0xC4: 2, 0xC5: 3, 0xC6: 5}  # by the first byte of a bin: the size of its header
_ARRAY_HEADERS = {0xDC: 3, 0xDD: 5}  # the same for arrays, other than
_SMALL_ARRAY = 0x90  # an array of up to 15 items, whose number is added to the byte

_MAX_INT64 = (1 << 63) - 1


def _read_body(header: BatchHeader, raw: Buffer) -> pa.RecordBatch:
    sparse = bool(header.flags & SPARSE)
    if not header.count or raw[0] != _SMALL_ARRAY + 4 + sparse:
        raise _Unusual
    values, at = _read_binary(raw, 1, header.count)
    keys = None
    if raw[at] == _NIL:
        at += 1
    else:
        keys, at = _read_binary(raw, at, header.count)
    timestamps, at = _read_timestamps(raw, at, header)
    if raw[at] != _NIL:
        raise _Unusual  # headers
    at += 1
    if sparse:
        offsets, at = _read_offsets(raw, at, header)
    else:
        offsets = numpy.arange(header.base_offset, header.base_offset + header.count, dtype=numpy.int64)
    if at != len(raw):
        raise _Unusual
    return _record_batch(offsets, timestamps, keys, values, None)


def _read_timestamps(raw: Buffer, at: int, header: BatchHeader) -> tuple[_Array, int]:
    if raw[at] == _NIL and header.first_timestamp == header.last_timestamp:
        return numpy.full(header.count, header.first_timestamp, numpy.int64), at + 1
    if header.first_timestamp > _MAX_INT64 - (1 << 32):
        raise _Unusual  # a sum may be too great
    deltas, at = _read_numbers(raw, at, header.count)
    return deltas + header.first_timestamp, at


def _read_offsets(raw: Buffer, at: int, header: BatchHeader) -> tuple[_Array, int]:
    deltas, at = _read_numbers(raw, at, header.count)
    if deltas[-1] >= header.span or not (deltas[1:] > deltas[:-1]).all():
        raise _Unusual
    return deltas + header.base_offset, at


def _read_numbers(raw: Buffer, at: int, count: int) -> tuple[_Array, int]:
    """A bin of 4-byte numbers."""
    size, length = _header(_BIN_HEADERS, raw, at)
    at += size
    if length != 4 * count or at + length > len(raw):
        raise _Unusual
    return numpy.frombuffer(raw, "<u4", count, at).astype(numpy.int64), at + length


def _read_binary(raw: Buffer, at: int, count: int) -> tuple[pa.Array, int]:
    """An array of `count` bins, and where it ends."""
    if count < 16 and raw[at] == _SMALL_ARRAY + count:
        at += 1
    else:
        size, length = _header(_ARRAY_HEADERS, raw, at)
        if length != count:
            raise _Unusual
        at += size
    size, length = _header(_BIN_HEADERS, raw, at)
    stride = size + length
    end = at + count * stride
    if end > len(raw) or raw[at + stride * (count - 1)] != raw[at]:
        raise _Unusual
    # Rows that all begin with the header of a bin as long as the rest of the row are the items.
    if _every(stride, raw, at, count, size).tobytes() != bytes(raw[at : at + size]) * count:
        raise _Unusual
    return _binary_of_one_length(raw, at + size, count, length, stride), end


def _header(sizes: dict[int, int], raw: Buffer, at: int) -> tuple[int, int]:
    """The size of a msgpack header and the length it states."""
    size = sizes.get(raw[at])
    if size is None:
        raise _Unusual
    return size, int.from_bytes(raw[at + 1 : at + size], "big")


def _every(stride: int, raw: Buffer, at: int, count: int, length: int) -> _Array:
    """Pieces of `length` bytes, one every `stride` bytes; copied piece by piece and not byte by byte."""
    pieces: _Array = numpy.ndarray((count,), f"V{length}", raw, at, (stride,))
    return pieces


def _binary_of_one_length(raw: Buffer, at: int, count: int, length: int, stride: int) -> pa.Array:
    data: Any = b""
    ends = numpy.zeros(count + 1, numpy.int32)
    if length:
        data = _every(stride, raw, at, count, length).copy()
        ends = numpy.arange(0, count * length + 1, length, dtype=numpy.int32)
    return pa.Array.from_buffers(_BINARY, count, [None, pa.py_buffer(ends), pa.py_buffer(data)])


# ---------------------------------------------------------------- to the size that suits a consumer


def coalesce(
    batches: Iterable[pa.RecordBatch], rows: int = 10_000, bytes_limit: int = 4 << 20
) -> Iterator[pa.RecordBatch]:
    """The same rows in batches as large as the limits allow: small ones are put together, large ones are cut.

    Only a single row may go over `bytes_limit`. Empty batches are left out.
    """
    waiting: list[pa.RecordBatch] = []
    count = size = 0
    for batch in batches:
        for piece, piece_size in _pieces(batch, rows, bytes_limit):
            if waiting and (count + piece.num_rows > rows or size + piece_size > bytes_limit):
                yield _concatenated(waiting)
                waiting, count, size = [], 0, 0
            waiting.append(piece)
            count += piece.num_rows
            size += piece_size
    if waiting:
        yield _concatenated(waiting)


def _pieces(batch: pa.RecordBatch, rows: int, bytes_limit: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    count, size = batch.num_rows, batch.get_total_buffer_size()
    if size > bytes_limit // 8:
        size = batch.nbytes  # exact for slices as well, but thirty times as slow to tell
    if count > 1 and (count > rows or size > bytes_limit):
        yield from _pieces(batch.slice(0, count // 2), rows, bytes_limit)
        yield from _pieces(batch.slice(count // 2), rows, bytes_limit)
    elif count:
        yield batch, size


def _concatenated(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
