"""The batch codec: what goes in comes out, and whatever is not a batch is refused in a typed way."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from textwrap import dedent
from typing import Any

import lz4.block
import msgpack
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from dq.engine.errors import BatchTooLarge, DamagedBatch, FormatTooNew, InvalidRecord
from dq.engine.segments import batch as batch_module
from dq.engine.segments.batch import (
    AFTER_SYNC,
    MAX_BODY_BYTES,
    MAX_RECORDS,
    SPARSE,
    Batch,
    BatchHeader,
    EncodedBatch,
    check_body,
    decode,
    decode_raw,
    encode,
    pack_header,
    split,
    unpack_header,
)
from dq.engine.segments.compression import LZ4, NONE, ZSTD, decompress
from dq.engine.segments.crc import crc32c, crcmod_crc32c
from tests.segments.batches import CODECS, GREATEST, Input, header_for, hostile, inputs, read, sealed

REPOSITORY = Path(__file__).resolve().parents[2]

# ---------------------------------------------------------------- round trips


@settings(deadline=None)
@given(inputs())
def test_what_was_encoded_is_what_is_decoded(written: Input) -> None:
    encoded = written.encode()
    batch = read(encoded.to_bytes())
    assert [record[:5] for record in batch.records()] == written.records()
    assert len(batch) == len(written.values)
    assert list(batch.offsets) == [record[0] for record in written.records()]
    assert list(batch.timestamps) == [record[1] for record in written.records()]
    assert (batch.header.base_offset, batch.next_offset) == (written.base_offset, written.base_offset + written.span)
    if written.values:
        assert batch.header.first_timestamp == min(written.timestamps)
        assert batch.header.last_timestamp == max(written.timestamps)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "value",
    [None, b"", b"\0", b"x", b"\xc4" * 257, bytes(1 << 20), random.Random(1).randbytes(3 << 20)],
    ids=["a tombstone", "empty", "a zero byte", "one byte", "looks like msgpack", "a megabyte of zeros", "large"],
)
def test_single_values_of_every_kind_survive(codec: int, value: bytes | None) -> None:
    batch = read(encode([value], [b"key"], timestamp=3, codec=codec).to_bytes())
    assert [tuple(record[:5]) for record in batch.records()] == [(0, 3, b"key", value, None)]


def test_one_batch_holds_as_many_records_as_the_limit_and_no_more() -> None:
    assert len(read(encode([b""] * MAX_RECORDS).to_bytes())) == MAX_RECORDS
    with pytest.raises(InvalidRecord):
        encode([b""] * (MAX_RECORDS + 1))


def test_a_header_survives_with_every_field_at_its_limits() -> None:
    limits = BatchHeader(
        ZSTD,
        SPARSE | AFTER_SYNC,
        1 << 30,
        1 << 20,
        1 << 62,
        (1 << 32) - 1,
        (1 << 32) - 1,
        -GREATEST - 1,
        GREATEST,
        GREATEST,
        GREATEST,
        (1 << 31) - 1,
        1 << 30,
        (1 << 32) - 1,
    )
    assert unpack_header(pack_header(limits)) == limits


def test_any_sequence_of_anything_like_bytes_can_be_stored() -> None:
    values = deque([b"a", bytearray(b"b"), memoryview(b"xcx")[1:2], None])
    assert read(encode(values, tuple(values)).to_bytes()).values == [b"a", b"b", b"c", None]  # type: ignore[arg-type]


def test_empty_header_maps_are_stored_as_none() -> None:
    assert read(encode([b"a", b"b"], headers=[{}, {"n": b"v"}]).to_bytes()).headers == [None, {"n": b"v"}]


def test_timestamps_that_are_all_equal_take_no_space() -> None:
    assert encode([b"a"] * 9, timestamps=[5] * 9) == encode([b"a"] * 9, timestamp=5)


@pytest.mark.parametrize(
    "arguments",
    [
        {"values": []},
        {"values": ["text"]},
        {"values": [b"", 7]},
        {"values": b"bytes"},
        {"values": [memoryview(b"abcd")[::2]]},
        {"values": [b""], "keys": ["text"]},
        {"values": [b""], "keys": []},
        {"values": [b""], "timestamps": [1, 2]},
        {"values": [b""], "timestamps": [1.5]},
        {"values": [b"", b""], "timestamps": [1, "2"]},
        {"values": [b""], "timestamps": [1 << 63]},
        {"values": [b""], "timestamp": 1 << 63},
        {"values": [b""], "timestamp": -1 << 63},
        {"values": [b""], "timestamp": 1.0},
        {"values": [b""], "headers": [{"name": "text"}]},
        {"values": [b""], "headers": [{b"name": b""}]},
        {"values": [b""], "headers": [["name"]]},
        {"values": [b""], "headers": [{"\ud800": b""}]},
        {"values": [b""], "headers": []},
    ],
    ids=str,
)
def test_what_cannot_be_stored_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidRecord):
        encode(**arguments)


@pytest.mark.parametrize("codec", CODECS)
def test_a_body_that_no_reader_would_accept_is_not_written(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compression makes it small enough for every limit of the log; what counts is what readers have to hold."""
    monkeypatch.setattr(batch_module, "MAX_BODY_BYTES", 10_000)
    encode([bytes(9_000)], codec=codec)
    with pytest.raises(BatchTooLarge) as refused:
        encode([bytes(10_000)], codec=codec)
    assert refused.value.size > refused.value.limit == 10_000


# ---------------------------------------------------------------- damage


def _example(codec: int) -> EncodedBatch:
    return encode([b"value", None], [b"k", b"l"], timestamps=[5, 6], headers=[{"n": b"v"}, None], codec=codec)


_EXAMPLE = _example(NONE)


@pytest.mark.parametrize("codec", CODECS)
def test_any_flipped_bit_is_found(codec: int) -> None:
    data = encode(
        [b"value", None], [b"k", b"l"], timestamps=[5, 6], headers=[{"n": b"v"}, None], codec=codec
    ).to_bytes()
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedBatch):
            read(bytes(flipped))


def test_batches_cut_at_any_byte_are_refused() -> None:
    one = _EXAMPLE.to_bytes()
    for length in range(1, 2 * len(one)):
        if length == len(one):
            continue
        with pytest.raises(DamagedBatch):
            split((one + one)[:length])
    assert [header for header, _ in split(one + one)] == [_EXAMPLE.header] * 2
    assert split(b"") == []


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_not_a_batch(data: bytes) -> None:
    with pytest.raises(DamagedBatch):
        unpack_header(data)


@given(st.binary(min_size=92, max_size=92))
def test_arbitrary_headers_with_a_right_checksum_raise_nothing_but_typed_errors(fields: bytes) -> None:
    for start in (fields[:5], b"DQRB\x01"):
        data = start + fields[5:]
        try:
            unpack_header(data + struct.pack("<I", crc32c(data)))
        except (DamagedBatch, FormatTooNew):
            pass


def test_a_header_in_the_middle_of_a_buffer_is_read_there() -> None:
    data = b"xyz" + _EXAMPLE.to_bytes()
    for buffer in (data, bytearray(data), memoryview(data)):
        assert unpack_header(buffer, 3) == _EXAMPLE.header


def _with_version(version: int) -> bytes:
    fields = bytearray(_EXAMPLE.to_bytes()[:92])
    fields[4] = version
    return bytes(fields) + struct.pack("<I", crc32c(fields)) + _EXAMPLE.body


def test_a_newer_version_is_not_called_damage() -> None:
    with pytest.raises(FormatTooNew) as error:
        read(_with_version(2))
    assert (error.value.version, error.value.supported) == (2, 1)
    with pytest.raises(DamagedBatch):
        read(_with_version(0))


def test_a_reader_ignores_the_reserved_bytes() -> None:
    fields = bytearray(_EXAMPLE.to_bytes()[:92])
    fields[76:92] = b"\xff" * 16
    assert read(bytes(fields) + struct.pack("<I", crc32c(fields)) + _EXAMPLE.body).values == [b"value", None]


_ONE = msgpack.packb([[b"v"], None, None, None])


@pytest.mark.parametrize(
    "fields",
    [
        {"flags": 1 << 3},
        {"flags": 1 << 15},
        {"codec": 3},
        {"codec": 255},
        {"body_size": MAX_BODY_BYTES + 1, "raw_size": MAX_BODY_BYTES + 1},
        {"codec": ZSTD, "raw_size": MAX_BODY_BYTES + 1},
        {"count": MAX_RECORDS + 1, "span": MAX_RECORDS + 1, "codec": ZSTD, "raw_size": 1 << 30},
        {"count": len(_ONE) + 1, "span": len(_ONE) + 1},
        {"count": 0},
        {"count": 0, "span": 0, "flags": SPARSE},
        {"span": 2},
        {"count": 2, "flags": SPARSE},
        {"base_offset": (1 << 63) - 1},
        {"base_offset": (1 << 64) - 1},
        {"raw_size": len(_ONE) + 1},
        {"first_timestamp": 1},
    ],
    ids=str,
)
def test_a_header_that_contradicts_itself_is_refused(fields: dict[str, int]) -> None:
    with pytest.raises(DamagedBatch):
        unpack_header(sealed(_ONE, **fields))


# ---------------------------------------------------------------- hostile bodies


@settings(max_examples=200, deadline=None)
@given(hostile())
def test_hostile_bodies_give_records_of_the_right_types_or_a_typed_error(made: tuple[BatchHeader, bytes]) -> None:
    header, raw = made
    try:
        records = list(decode_raw(header, raw))
    except DamagedBatch:
        return
    assert len(records) == header.count
    for record in records:
        assert -GREATEST - 1 <= record.timestamp <= GREATEST
        assert header.base_offset <= record.offset < header.next_offset
        assert record.key is None or type(record.key) is bytes
        assert record.value is None or type(record.value) is bytes
        for name, value in (record.headers or {}).items():
            assert (type(name), type(value)) == (str, bytes)


def _columns(*columns: Any) -> bytes:
    packed: bytes = msgpack.packb(list(columns))
    return packed


_NUMBERS = struct.pack("<II", 0, 1)

MALFORMED = {
    "nothing": b"",
    "not an array": msgpack.packb({"values": []}),
    "three columns": _columns([b"a", b"b"], None, None),
    "a column too many": _columns([b"a", b"b"], None, None, None, _NUMBERS),
    "bytes behind the end": _columns([b"a", b"b"], None, None, None) + b"\xc0",
    "no values": _columns(None, None, None, None),
    "too few values": _columns([b"a"], None, None, None),
    "too many values": _columns([b"a", b"b", b"c"], None, None, None),
    "a str among the values": _columns([b"a", "b"], None, None, None),
    "a number among the values": _columns([b"a", 1], None, None, None),
    "an array among the values": _columns([b"a", []], None, None, None),
    "an empty extension among the values": _columns([b"a", msgpack.ExtType(5, b"")], None, None, None),
    "an extension among the values": _columns([b"a", msgpack.ExtType(5, b"abcd")], None, None, None),
    "a msgpack timestamp among the values": _columns([b"a", msgpack.Timestamp(1)], None, None, None),
    "a map for the values": _columns({"a": b"", "b": b""}, None, None, None),
    "too few keys": _columns([b"a", b"b"], [b"k"], None, None),
    "a bin for the keys": _columns([b"a", b"b"], b"kk", None, None),
    "a float among the keys": _columns([b"a", b"b"], [b"k", 1.5], None, None),
    "a list of timestamps": _columns([b"a", b"b"], None, [0, 1], None),
    "a timestamp too few": _columns([b"a", b"b"], None, bytes(4), None),
    "half a timestamp too many": _columns([b"a", b"b"], None, bytes(10), None),
    "a number for the timestamps": _columns([b"a", b"b"], None, 0, None),
    "a map for the headers": _columns([b"a", b"b"], None, None, {}),
    "too few headers": _columns([b"a", b"b"], None, None, [None]),
    "a header that is not a map": _columns([b"a", b"b"], None, None, [None, b"h"]),
    "a header name that is bytes": _columns([b"a", b"b"], None, None, [None, {b"n": b"v"}]),
    "a header value that is text": _columns([b"a", b"b"], None, None, [None, {"n": "v"}]),
    "a header value that is a map": _columns([b"a", b"b"], None, None, [None, {"n": {}}]),
    "a header name that is a number": b"\x94\x92\xc4\x00\xc4\x00\xc0\xc0\x92\xc0\x81\x01\xc4\x00",
    "a header name that is not UTF-8": b"\x94\x92\xc4\x00\xc4\x00\xc0\xc0\x92\xc0\x81\xa1\xff\xc4\x00",
    "a header name that is half a character": b"\x94\x92\xc4\x00\xc4\x00\xc0\xc0\x92\xc0\x81\xa3\xed\xa0\x80\xc4\x00",
    "the byte that msgpack never uses": b"\x94\x92\xc4\x00\xc1\xc0\xc0\xc0",
}


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_body_is_refused(raw: bytes) -> None:
    with pytest.raises(DamagedBatch):
        read(sealed(raw or b"\xc1\xc1", count=2, span=2))
    with pytest.raises(DamagedBatch):
        decode_raw(header_for(raw, count=2, span=2), raw)


def _two(timestamps: Any = None, *offsets: Any, **fields: int) -> tuple[bytes, dict[str, int]]:
    """The body of two records, and what its header says."""
    return _columns([b"a", b"b"], None, timestamps, None, *offsets), {"count": 2, "span": 2, **fields}


def _two_sparse(offsets: Any) -> tuple[bytes, dict[str, int]]:
    return _two(None, offsets, span=3, flags=SPARSE)


_LATE = {"first_timestamp": GREATEST - 8, "last_timestamp": GREATEST}

CONTRADICTING = {
    "no offsets": _two(span=3, flags=SPARSE),
    "nil for the offsets": _two_sparse(None),
    "a list of offsets": _two_sparse([0, 1]),
    "an offset too few": _two_sparse(bytes(4)),
    "offsets of 8 bytes": _two_sparse(struct.pack("<QQ", 0, 1)),
    "the same offset twice": _two_sparse(struct.pack("<II", 1, 1)),
    "offsets that fall": _two_sparse(struct.pack("<II", 2, 1)),
    "an offset beyond the span": _two_sparse(struct.pack("<II", 0, 3)),
    "no timestamps, although they differ": _two(first_timestamp=5, last_timestamp=6),
    "a timestamp that is too great": _two(struct.pack("<II", 0, 9), **_LATE),
    "a timestamp that is much too great": _two(struct.pack("<QQ", 0, 9), **_LATE),
    "a timestamp that alone is too great": _two(struct.pack("<QQ", 0, 1 << 63), last_timestamp=GREATEST),
}


@pytest.mark.parametrize("raw, fields", CONTRADICTING.values(), ids=CONTRADICTING)
def test_a_body_that_contradicts_its_header_is_refused(raw: bytes, fields: dict[str, int]) -> None:
    with pytest.raises(DamagedBatch):
        read(sealed(raw, **fields))


def test_of_header_names_that_come_twice_the_last_counts() -> None:
    raw = b"\x94\x91\xc4\x00\xc0\xc0\x91\x82\xa1n\xc4\x01a\xa1n\xc4\x01b"
    assert read(sealed(raw)).headers == [{"n": b"b"}]


@pytest.mark.parametrize("codec", [LZ4, ZSTD])
def test_a_compressed_body_must_be_exactly_what_the_header_says(codec: int) -> None:
    raw = _columns([bytes(1000)], None, None, None)
    body = bytes(encode([bytes(1000)], codec=codec).body)
    assert read(sealed(raw, body, codec=codec)).values == [bytes(1000)]
    wrong: list[tuple[bytes, int]] = [
        (body, len(raw) - 1),
        (body, len(raw) + 1),
        (body[:-1], len(raw)),
        (body + b"\0", len(raw)),
        (body + body, len(raw)),
        (b"", len(raw)),
        (b"\0" * 20, len(raw)),
    ]
    for stored, raw_size in wrong:
        with pytest.raises(DamagedBatch):
            read(sealed(raw, stored, codec=codec, raw_size=raw_size))


@given(st.sampled_from([LZ4, ZSTD]), st.binary(max_size=60), st.integers(0, 5000))
def test_arbitrary_bytes_decompress_to_the_right_size_or_are_refused(codec: int, body: bytes, size: int) -> None:
    for start in (b"", zstandard.compress(bytes(size))[:9]):
        try:
            assert len(decompress(codec, start + body, size)) == size
        except DamagedBatch:
            pass


def test_a_zstd_frame_that_does_not_state_its_size_is_refused() -> None:
    raw = _columns([bytes(1000)], None, None, None)
    body = zstandard.ZstdCompressor(write_content_size=False).compress(raw)
    with pytest.raises(DamagedBatch):
        read(sealed(raw, body, codec=ZSTD))


_CLAIM = struct.pack(">I", (1 << 32) - 1)
_MANY = 1 << 20


def _bombs() -> dict[str, bytes]:
    """Small batches that ask for a lot. Each one's checksums are right."""
    bombs = {}
    for name, kind in {"bin": b"\xc6", "str": b"\xdb", "array": b"\xdd", "map": b"\xdf", "extension": b"\xc9"}.items():
        claim = kind + _CLAIM + b"\5"
        bombs[f"values: {name} of 4 GiB"] = sealed(b"\x94" + claim)
        bombs[f"a value: {name} of 4 GiB"] = sealed(b"\x94\x91" + claim)
        bombs[f"the body: {name} of 4 GiB"] = sealed(claim)
    claim = b"\xdd" + struct.pack(">I", _MANY)
    nested = {"arrays": b"\x91", "maps": b"\x81\xa0", "arrays that claim a million items each": claim}
    for name, opening in nested.items():
        raw = (b"\x94" + claim + opening * 5000).ljust(_MANY, b"\xc0")
        bombs[f"deeply nested {name}"] = sealed(raw, count=_MANY, span=_MANY)
    for name, item in {"maps": b"\x80", "arrays": b"\x90", "numbers": b"\xcd\x01\x02", "floats": b"\xca1234"}.items():
        raw = b"\x94" + claim + item * _MANY + b"\xc0\xc0\xc0"
        bombs[f"a million {name} for values"] = sealed(raw, count=_MANY, span=_MANY)
        raw = b"\x94\x91\xc0\xc0\xc0\x91\x81\xa0" + claim + item * _MANY
        bombs[f"a million {name} in a header"] = sealed(raw, count=1)
    flat = bytes(64 << 20)
    for name, body in {"lz4": lz4.block.compress(flat, store_size=False), "zstd": zstandard.compress(flat)}.items():
        codec = {"lz4": LZ4, "zstd": ZSTD}[name]
        bombs[f"{name}: 64 MiB that the header calls 1,000 bytes"] = sealed(bytes(1000), body, codec=codec)
        bombs[f"{name}: 64 MiB that the header calls a gigabyte"] = sealed(b"", body, codec=codec, raw_size=1 << 30)
        bombs[f"{name}: 64 MiB of zeros"] = sealed(flat, body, codec=codec)
        bombs[f"{name}: a few bytes that claim a gigabyte"] = sealed(b"", body[:50], codec=codec, raw_size=1 << 30)
    frame_of_a_gigabyte = b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", 1 << 30) + b"\x01\x00\x00"
    bombs["zstd: a frame that claims a gigabyte"] = sealed(b"", frame_of_a_gigabyte, codec=ZSTD, raw_size=1 << 30)
    return bombs


def _run(script: str) -> str:
    """What a script prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", dedent(script)], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_bombs_are_refused_within_bounded_memory_and_time() -> None:
    assert "refused all" in _run("from tests.segments.test_batch import set_off_bombs; set_off_bombs()")


def set_off_bombs() -> None:
    """Reads all bombs with no more than half a gigabyte to spare. For a process of its own: the limit stays."""
    import resource

    bombs = _bombs()
    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (512 << 20), resource.RLIM_INFINITY))
    for name, data in bombs.items():
        started = time.perf_counter()
        try:
            read(data)
        except DamagedBatch:
            pass
        else:
            raise AssertionError(f"accepted: {name}")
        took = time.perf_counter() - started
        assert took < 5, f"{name}: took {took:.1f} seconds"
    print("refused all")


# ---------------------------------------------------------------- a part of a batch


@settings(deadline=None)
@given(inputs(), st.data())
def test_starting_at_leaves_out_exactly_the_records_before_an_offset(written: Input, data: st.DataObject) -> None:
    batch = read(written.encode().to_bytes())
    places = st.integers(written.base_offset - 2, written.base_offset + written.span + 2)
    offset = data.draw(places | st.sampled_from([record[0] for record in written.records()] or [0]))
    part = batch.starting_at(offset)
    expected = [record for record in written.records() if record[0] >= offset]
    _assert_holds(part, expected)
    assert part.skipped == len(written.values) - len(expected)
    assert part.next_offset == batch.next_offset
    _assert_holds(part.starting_at(offset), expected)
    later = data.draw(places)
    _assert_holds(part.starting_at(later), [record for record in expected if record[0] >= later])


def _assert_holds(batch: Batch, expected: list[Any]) -> None:
    assert [record[:5] for record in batch] == expected
    assert len(batch) == len(expected)
    assert list(batch.offsets) == [record[0] for record in expected]
    assert list(batch.timestamps) == [record[1] for record in expected]
    if expected:
        assert batch.base_offset == expected[0][0]


def test_nothing_is_left_of_a_batch_that_ends_before_the_offset() -> None:
    part = read(_EXAMPLE.to_bytes()).starting_at(100)
    assert (list(part), part.base_offset, part.next_offset, part.skipped) == ([], 2, 2, 2)


def test_a_part_keeps_its_partition() -> None:
    batch = decode(_EXAMPLE.header, _EXAMPLE.body, partition=3).starting_at(1)
    assert [record.partition for record in batch] == [3]


# ---------------------------------------------------------------- checksums


def test_the_checksum_is_crc_32c() -> None:
    for function in (crc32c, crcmod_crc32c):
        assert function(b"123456789") == 0xE3069283
        assert function(b"") == 0
        assert function(bytes(32)) == 0x8A9136AA


@given(st.binary(max_size=5000), st.integers(0, 20))
def test_both_implementations_of_the_checksum_agree(data: bytes, start: int) -> None:
    expected = crcmod_crc32c(data[start:])
    for buffer in (
        data[start:],
        bytearray(data[start:]),
        memoryview(data)[start:],
        memoryview(bytearray(data))[start:],
    ):
        assert crc32c(buffer) == crcmod_crc32c(buffer) == expected


def test_both_implementations_agree_on_a_large_buffer() -> None:
    data = random.Random(2).randbytes(1 << 20)
    assert crc32c(data) == crcmod_crc32c(data)


@pytest.mark.parametrize("missing", [["crc32c"], ["crc32c", "crcmod._crcfunext"]], ids=str)
def test_without_the_fast_package_the_same_bytes_are_written_and_read(missing: list[str]) -> None:
    script = f"""
        import sys
        for name in {missing!r}:
            sys.modules[name] = None
        from dq.engine.segments import crc
        from dq.engine.segments.batch import encode
        from tests.segments.batches import read
        assert crc.implementation == "crcmod", crc.implementation
        data = encode([b"value"] * 100, [b"key"] * 100, timestamp=5).to_bytes()
        assert read(data).values == [b"value"] * 100
        print(data.hex())
    """
    assert bytes.fromhex(_run(script)) == encode([b"value"] * 100, [b"key"] * 100, timestamp=5).to_bytes()


def test_a_body_that_is_shorter_or_longer_than_its_header_says_is_refused() -> None:
    for body in (bytes(_EXAMPLE.body)[:-1], bytes(_EXAMPLE.body) + b"\0", b""):
        with pytest.raises(DamagedBatch):
            check_body(_EXAMPLE.header, body)
