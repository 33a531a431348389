"""Arrow record batches hold the same records as everything else, whichever way they were made."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dq.engine.errors import DamagedBatch
from dq.engine.segments import arrow
from dq.engine.segments.arrow import SCHEMA, coalesce, raw_to_arrow, to_arrow
from dq.engine.segments.batch import SPARSE, BatchHeader, decode, decode_raw, encode
from dq.engine.segments.compression import NONE, decompress
from tests.segments.batches import Input, header_for, hostile, inputs, mangled, read
from tests.segments.test_batch import CONTRADICTING, MALFORMED


def rows(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """(offset, timestamp, key, value, headers) of each row, as `Input.records` has them."""
    batch.validate(full=True)
    assert batch.schema == SCHEMA
    columns = [batch.column(name) for name in ("offset", "timestamp", "key", "value", "headers")]
    columns[1] = columns[1].view(pa.int64())
    return [
        (*row, None if headers is None else dict(headers))
        for *row, headers in zip(*(column.to_pylist() for column in columns), strict=True)
    ]


@settings(deadline=None)
@given(inputs())
def test_arrow_holds_the_records(written: Input) -> None:
    encoded = written.encode()
    batch = read(encoded.to_bytes())
    assert rows(batch.to_arrow()) == written.records()
    raw = decompress(encoded.header.codec, encoded.body, encoded.header.raw_size)
    for buffer in (raw, bytearray(raw), memoryview(b"x" + bytes(raw))[1:]):
        assert raw_to_arrow(encoded.header, buffer).equals(batch.to_arrow())


@settings(deadline=None)
@given(inputs(), st.data())
def test_a_part_of_a_batch_is_the_same_part_in_arrow(written: Input, data: st.DataObject) -> None:
    offset = data.draw(st.integers(written.base_offset, written.base_offset + written.span))
    part = read(written.encode().to_bytes()).starting_at(offset).to_arrow()
    assert rows(part) == [record for record in written.records() if record[0] >= offset]


def outcome(convert: Callable[[BatchHeader, bytes], pa.RecordBatch], header: BatchHeader, raw: bytes) -> object:
    """The columns, or the words of the error."""
    try:
        batch = convert(header, raw)
        batch.validate(full=True)
        return batch.schema, [column.to_pylist() for column in _as_numbers(batch).columns]
    except DamagedBatch as error:
        return str(error)


def _as_numbers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """With plain numbers for timestamps: Python has no dates for many of them."""
    return batch.set_column(1, "timestamp", batch.column(1).view(pa.int64()))


def decoded_first(header: BatchHeader, raw: bytes) -> pa.RecordBatch:
    return to_arrow(decode_raw(header, raw))


@settings(max_examples=300, deadline=None)
@given(hostile())
def test_a_hostile_body_ends_the_same_either_way(made: tuple[BatchHeader, bytes]) -> None:
    assert outcome(raw_to_arrow, *made) == outcome(decoded_first, *made)


@settings(deadline=None)
@given(inputs(), st.data())
def test_a_mangled_body_ends_the_same_either_way(written: Input, data: st.DataObject) -> None:
    encoded = written._replace(codec=NONE).encode()
    raw = data.draw(mangled(bytes(encoded.body)))
    assert outcome(raw_to_arrow, encoded.header, raw) == outcome(decoded_first, encoded.header, raw)


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_body_is_refused_in_the_same_words(raw: bytes) -> None:
    assert_refused_in_the_same_words(header_for(raw, count=2, span=2), raw)


@pytest.mark.parametrize("raw, fields", CONTRADICTING.values(), ids=CONTRADICTING)
def test_a_body_that_contradicts_its_header_is_refused_in_the_same_words(raw: bytes, fields: dict[str, int]) -> None:
    assert_refused_in_the_same_words(header_for(raw, **fields), raw)


def assert_refused_in_the_same_words(header: BatchHeader, raw: bytes) -> None:
    refused = outcome(raw_to_arrow, header, raw)
    assert type(refused) is str
    assert refused == outcome(decoded_first, header, raw)


_KEYED = encode([b"12345"] * 20, [b"123"] * 20, timestamps=list(range(20)))
_SPARSE = encode([b"12345"] * 3, offset_deltas=[1, 5, 9], span=12)
_LONG = encode([b"x" * 256] * 2, [b"y" * 65_536] * 2)


@pytest.mark.parametrize("encoded", [_KEYED, _SPARSE, _LONG], ids=["keyed", "sparse", "long"])
def test_no_changed_byte_of_a_plain_body_is_overlooked(encoded: Any) -> None:
    """Of the long ones the first bytes of each value, where the lengths are."""
    raw = bytes(encoded.body)
    assert arrow._read_body(encoded.header, raw).equals(decoded_first(encoded.header, raw))
    places = [at for at in range(len(raw)) if len(raw) < 1000 or raw[at] not in b"xy"]
    for at in places:
        for byte in (0x00, 0xC0, 0xC4, 0xFF, raw[at] ^ 1, raw[at] ^ 0x10):
            changed = raw[:at] + bytes([byte]) + raw[at + 1 :]
            assert outcome(raw_to_arrow, encoded.header, changed) == outcome(decoded_first, encoded.header, changed)
        assert outcome(raw_to_arrow, encoded.header, raw[:at]) == outcome(decoded_first, encoded.header, raw[:at])


@pytest.mark.parametrize(
    "encoded",
    [
        encode([b"x" * 100] * 1000),
        encode([b"x"]),
        encode([b""] * 15, [b""] * 15),
        encode([b"x" * 300] * 70_000),
        encode([b"x" * 70_000] * 2),
        encode([b"x" * 100] * 1000, [b"k" * 8] * 1000, timestamps=list(range(1000))),
        encode([b"x" * 100] * 3, timestamp=-5, offset_deltas=[0, 7, 8], span=1 << 31),
    ],
    ids=["plain", "one", "empty values", "many", "long", "keys and timestamps", "sparse"],
)
def test_plain_bodies_take_the_fast_way(encoded: Any) -> None:
    """The fast way alone, which raises where it gives up."""
    fast = arrow._read_body(encoded.header, encoded.body)
    fast.validate(full=True)
    assert fast.equals(to_arrow(decode(encoded.header, encoded.body)))


def test_batches_of_any_count_take_the_fast_way() -> None:
    for count in (*range(1, 300), 65_535, 65_536):
        encoded = encode([b"xyz"] * count)
        assert arrow._read_body(encoded.header, encoded.body).column("value").to_pylist() == [b"xyz"] * count


def test_no_other_byte_is_taken_for_the_head_of_a_column() -> None:
    """A head of one byte says up to 15 items; some other kind of item must not pass for one that says more."""
    for byte in range(0x91, 0x100):
        count = byte - 0x90
        raw = b"\x94" + bytes([byte]) + b"\xc4\x01x" * count + b"\xc0\xc0\xc0"
        header = header_for(raw, count=count, span=count)
        assert outcome(raw_to_arrow, header, raw) == outcome(decoded_first, header, raw)


def test_lengths_in_a_wider_form_than_needed_are_read_all_the_same() -> None:
    wide = b"\x94\xdd" + struct.pack(">I", 2) + (b"\xc6" + struct.pack(">I", 1) + b"v") * 2 + b"\xc0\xc0\xc0"
    header = header_for(wide, count=2, span=2)
    assert raw_to_arrow(header, wide).column("value").to_pylist() == [b"v", b"v"]
    assert decode_raw(header, wide).values == [b"v", b"v"]


def test_a_batch_that_compaction_emptied_is_an_empty_record_batch() -> None:
    encoded = encode([], timestamp=5, offset_deltas=[], span=9)
    assert encoded.header.flags == SPARSE
    assert raw_to_arrow(encoded.header, encoded.body).equals(pa.RecordBatch.from_pylist([], SCHEMA))
    assert msgpack.unpackb(encoded.body) == [[], None, None, None, b""]


# ---------------------------------------------------------------- coalesce


def record_batch(count: int, size: int = 1, *, headers: bool = False) -> pa.RecordBatch:
    names = [{"n": b"v"}] * count if headers else None
    encoded = encode([b"v" * size] * count, headers=names, offset_deltas=None if count else [], span=count or 1)
    return to_arrow(decode(encoded.header, encoded.body))


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.booleans())),
    st.integers(1, 40),
    st.integers(1, 3000),
)
def test_coalescing_keeps_every_row_and_the_limits(
    sizes: list[tuple[int, int, bool]], most: int, bytes_limit: int
) -> None:
    batches = [record_batch(count, size, headers=headers) for count, size, headers in sizes]
    if batches:
        batches[0] = batches[0].slice(len(batches[0]) // 3)
    merged = list(coalesce(batches, most, bytes_limit))
    assert [row for batch in merged for row in rows(batch)] == [row for batch in batches for row in rows(batch)]
    for batch in merged:
        assert 0 < batch.num_rows <= most
        nulls = batch.num_rows  # more than the bits that say which are null, where only some batches had them
        assert batch.num_rows == 1 or batch.nbytes <= bytes_limit + nulls


def test_small_batches_become_batches_of_the_size_asked_for() -> None:
    assert [len(batch) for batch in coalesce(record_batch(1000) for _ in range(25))] == [10_000, 10_000, 5000]


def test_batches_of_many_bytes_are_cut() -> None:
    merged = list(coalesce([record_batch(1000, 20_000)]))
    assert all(batch.nbytes <= 4 << 20 for batch in merged)
    assert sum(map(len, merged)) == 1000
    assert len(merged) <= 8


def test_a_batch_of_the_right_size_is_handed_on_as_it_is() -> None:
    batch = record_batch(10_000)
    assert next(coalesce([batch, batch])) is batch


def test_coalescing_takes_no_more_batches_than_it_needs() -> None:
    taken = []

    def batches() -> Any:
        for number in range(100):
            taken.append(number)
            yield record_batch(1000)

    next(coalesce(batches()))
    assert len(taken) == 11
