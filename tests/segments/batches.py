"""Batches for tests: honest ones of every shape, and hostile ones whose checksums are right all the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack
from hypothesis import strategies as st

from dq.engine.segments.batch import (
    HEADER_SIZE,
    SPARSE,
    Batch,
    BatchHeader,
    EncodedBatch,
    Headers,
    check_body,
    decode,
    encode,
    pack_header,
    unpack_header,
)
from dq.engine.segments.compression import LZ4, NONE, ZSTD
from dq.engine.segments.crc import crc32c

CODECS = (NONE, LZ4, ZSTD)
GREATEST = (1 << 63) - 1  # of a timestamp; the smallest is its negative


def read(data: bytes) -> Batch:
    """Everything a reader does with the bytes of one batch."""
    header = unpack_header(data)
    body = memoryview(data)[HEADER_SIZE:]
    check_body(header, body)
    return decode(header, body)


# ---------------------------------------------------------------- honest


class Input(NamedTuple):
    """What a batch is made of."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None
    timestamps: Sequence[int]
    headers: Sequence[Headers | None] | None
    codec: int
    base_offset: int
    offset_deltas: Sequence[int] | None
    span: int

    def encode(self) -> EncodedBatch:
        return encode(
            self.values,
            self.keys,
            timestamp=7,
            timestamps=self.timestamps if self.values else None,
            headers=self.headers,
            codec=self.codec,
            base_offset=self.base_offset,
            offset_deltas=self.offset_deltas,
            span=self.span,
        )

    def records(self) -> list[tuple[int, int, bytes | None, bytes | None, Headers | None]]:
        """(offset, timestamp, key, value, headers) of each, as they must come back: headers that are empty are none."""
        count = len(self.values)
        deltas = range(count) if self.offset_deltas is None else self.offset_deltas
        keys = [None] * count if self.keys is None else self.keys
        headers = [None] * count if self.headers is None else self.headers
        return [
            (self.base_offset + delta, timestamp, key, value, dict(names) if names else None)
            for delta, timestamp, key, value, names in zip(
                deltas, self.timestamps, keys, self.values, headers, strict=True
            )
        ]


_HEADER_MAPS = st.dictionaries(st.text(max_size=8), st.binary(max_size=20), max_size=3)
# Around the lengths at which msgpack changes the size of a header.
_EDGES = st.sampled_from([0, 1, 255, 256, 65_535, 65_536]).map(bytes)


def _column(draw: st.DrawFn, count: int, *, large: bool) -> list[bytes | None]:
    """A column as they come: all of one length, all short, or anything."""
    kind = draw(st.sampled_from(["one length", "short", "anything"]))
    if kind == "one length":
        length = draw(st.integers(0, 300))
        return draw(st.lists(st.binary(min_size=length, max_size=length), min_size=count, max_size=count))
    blobs: st.SearchStrategy[bytes | None] = st.binary(max_size=20)
    if kind == "anything":
        blobs |= st.none()
        if large:
            blobs |= _EDGES
    return draw(st.lists(blobs, min_size=count, max_size=count))


def _header_column(draw: st.DrawFn, count: int) -> list[Headers | None]:
    return draw(st.lists(st.none() | _HEADER_MAPS, min_size=count, max_size=count))


@st.composite
def inputs(draw: st.DrawFn, sparse: bool | None = None) -> Input:
    if sparse is None:
        sparse = draw(st.booleans())
    # Few drawn records, often repeated, give batches of every size at little cost.
    drawn = draw(st.integers(0 if sparse else 1, 20))
    times = draw(st.sampled_from([1, 1, 1, 50]))
    count = drawn * times
    middle = draw(st.integers(-GREATEST, GREATEST))
    reach = draw(st.sampled_from([0, 1000, (1 << 32) + 1000, 2 * GREATEST]))
    moments = st.integers(max(middle - reach, -GREATEST), min(middle + reach, GREATEST))
    deltas = None
    span = count
    if sparse:
        gaps = draw(st.lists(st.integers(1, 1000), min_size=drawn, max_size=drawn)) * times
        deltas = [sum(gaps[: number + 1]) - 1 for number in range(count)]
        span = max(sum(gaps), 1) + draw(st.integers(0, 5))
    has_keys, has_headers = draw(st.booleans()), draw(st.booleans())
    return Input(
        values=_column(draw, drawn, large=times == 1) * times,
        keys=_column(draw, drawn, large=times == 1) * times if has_keys else None,
        timestamps=draw(st.lists(moments, min_size=drawn, max_size=drawn)) * times,
        headers=_header_column(draw, drawn) * times if has_headers else None,
        codec=draw(st.sampled_from(CODECS)),
        base_offset=draw(st.sampled_from([0, 1, 1 << 40, GREATEST - span])),
        offset_deltas=deltas,
        span=span,
    )


# ---------------------------------------------------------------- hostile


def header_for(raw: bytes, body: bytes | None = None, **fields: int) -> BatchHeader:
    """A header that fits a body, true checksums included; `fields` overrides what it says."""
    stored = raw if body is None else body
    header = BatchHeader(
        codec=NONE,
        flags=0,
        body_size=len(stored),
        count=1,
        base_offset=0,
        span=1,
        leader_epoch=0,
        first_timestamp=0,
        last_timestamp=0,
        producer_id=-1,
        base_sequence=-1,
        producer_epoch=-1,
        raw_size=len(raw),
        body_crc=crc32c(stored),
    )
    return header._replace(**fields)


def sealed(raw: bytes, body: bytes | None = None, **fields: int) -> bytes:
    """The bytes of a batch that nobody should have written."""
    return pack_header(header_for(raw, body, **fields)) + (raw if body is None else body)


_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.binary(max_size=12)
    | st.text(max_size=6)
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=12))
)
_NAMES = st.text(max_size=4) | st.binary(max_size=4)
_TREES = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4) | st.binary(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


def _hostile_column(draw: st.DrawFn, count: int) -> Any:
    kind = draw(st.sampled_from(["right", "nil", "numbers", "one odd item", "tree"]))
    if kind == "nil":
        return None
    if kind == "numbers":
        width, length = draw(st.sampled_from([4, 4, 8])), draw(st.sampled_from([count, count, count + 1]))
        if draw(st.booleans()):
            return b"".join(number.to_bytes(width, "little") for number in range(length))
        return draw(st.sampled_from([b"\0", b"\x01", b"\xff"])) * (width * length)
    if kind == "tree":
        return draw(_TREES)
    column: list[Any] = draw(st.lists(st.binary(min_size=3, max_size=3), min_size=count, max_size=count))
    if kind == "one odd item" and count:
        column[draw(st.integers(0, count - 1))] = draw(_TREES)
    return column


@st.composite
def hostile(draw: st.DrawFn) -> tuple[BatchHeader, bytes]:
    """A header and an uncompressed body that the rules of the format may or may not allow."""
    count = draw(st.integers(0, 12))
    width = draw(st.sampled_from([4, 4, 4, 5, 5, 3, 6]))
    columns = [_hostile_column(draw, count) for _ in range(width)]
    raw: bytes = msgpack.packb(columns if draw(st.integers(0, 9)) else draw(_TREES))
    if draw(st.booleans()):
        raw = draw(mangled(raw))
    sparse = draw(st.sampled_from([width == 5, width == 5, True, False]))
    first = draw(st.sampled_from([0, 0, -5, GREATEST - 3, -GREATEST - 1]))
    header = header_for(
        raw,
        count=count,
        span=draw(st.integers(max(count, 1), (1 << 32) - 1)) if sparse else max(count, 1),
        flags=SPARSE if sparse else 0,
        first_timestamp=first,
        last_timestamp=first + draw(st.sampled_from([0, 0, 3])),
    )
    return header, raw


def mangled(raw: bytes) -> st.SearchStrategy[bytes]:
    """A few bytes changed, or some cut off, or some added."""
    position = st.integers(0, len(raw) - 1)

    def change(edits: list[tuple[int, int]]) -> bytes:
        changed = bytearray(raw)
        for at, byte in edits:
            changed[at] = byte
        return bytes(changed)

    interesting = st.integers(0, 255) | st.sampled_from([0xC0, 0xC4, 0xC5, 0xC6, 0x90, 0x94, 0x95, 0xDC, 0xDD, 0xFF])
    return (
        st.lists(st.tuples(position, interesting), min_size=1, max_size=4).map(change)
        | position.map(lambda at: raw[:at])
        | st.binary(min_size=1, max_size=4).map(lambda more: raw + more)
    )
