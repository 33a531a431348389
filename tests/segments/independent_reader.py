"""A reader of partitions written from docs/format.md alone: it shares no code with the engine, and must not.

It is as plain as possible, not fast. `read(directory)` yields (offset, timestamp, key, value, headers).
"""

from __future__ import annotations

import os
import re
import struct
import sys
from collections.abc import Iterator
from typing import Any

import lz4.block
import msgpack
import zstandard

CONTROL, SPARSE, KNOWN_FLAGS = 1, 2, 7

SEGMENT_HEADER = struct.Struct("<8s H H I 16s Q q q 4s I")
BATCH_HEADER = struct.Struct("<4s B B H I I Q I I q q q q i I I 16s I")

Row = tuple[int, int, "bytes | None", "bytes | None", "dict[str, bytes] | None"]


class Unreadable(Exception):
    pass


def _crc_table_entry(number: int) -> int:
    for _ in range(8):
        number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
    return number


_CRC_TABLE = [_crc_table_entry(number) for number in range(256)]


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def need(condition: object, why: str) -> None:
    if not condition:
        raise Unreadable(why)


def read(directory: str, start: int = 0) -> Iterator[Row]:
    with open(f"{directory}/visible", "rb") as file:
        end = int.from_bytes(file.read(8), sys.byteorder, signed=True)
    bases = sorted(int(name[:20]) for name in os.listdir(directory) if re.fullmatch(r"[0-9]{20}\.seg", name))
    need(not bases or start >= bases[0], "start was removed by retention")
    expected = None
    for number, base in enumerate(bases):
        if number + 1 < len(bases) and bases[number + 1] <= start:
            continue
        need(expected in (None, base), "offsets are missing")
        expected = base
        with open(f"{directory}/{base:020}.seg", "rb") as file:
            data = file.read()
        check_segment_header(data[:64], base)
        position = 64
        while expected < end and position < len(data):
            header = BatchHeader(data[position : position + 96])
            need(header.base_offset == expected, "damaged")
            if header.base_offset + header.span > end:
                return
            body = data[position + 96 : position + 96 + header.body_size]
            position += 96 + header.body_size
            expected += header.span
            if expected > start and not header.flags & CONTROL:
                yield from (row for row in rows(header, body) if row[0] >= start)
        if expected >= end:
            return


def check_segment_header(data: bytes, base: int) -> None:
    need(len(data) == 64, "cut off")
    magic, version, _flags, _partition, _topic, base_offset, _created, _before, _, crc = SEGMENT_HEADER.unpack(data)
    need(crc == crc32c(data[:60]) and magic == b"DQSEGMNT", "damaged")
    need(version == 1, "too new")
    need(base_offset == base, "misplaced file")


class BatchHeader:
    def __init__(self, data: bytes) -> None:
        need(len(data) == 96, "cut off")
        (
            magic, version, self.codec, self.flags, self.body_size, self.count, self.base_offset, self.span, _epoch,
            self.first_timestamp, self.last_timestamp, _producer, _sequence, _producer_epoch, self.raw_size,
            self.body_crc, _reserved, crc,
        ) = BATCH_HEADER.unpack(data)  # fmt: skip
        need(crc == crc32c(data[:92]) and magic == b"DQRB", "damaged")
        need(version == 1, "too new")
        need(self.codec <= 2 and self.flags <= KNOWN_FLAGS, "damaged")
        need(self.span >= 1 and self.count <= self.span, "damaged")
        need(self.flags & SPARSE or self.count == self.span, "damaged")
        need(self.count <= min(1 << 20, self.raw_size), "damaged")
        need(max(self.body_size, self.raw_size) <= 1 << 30, "damaged")
        need(self.first_timestamp <= self.last_timestamp, "damaged")


def rows(header: BatchHeader, body: bytes) -> Iterator[Row]:
    need(len(body) == header.body_size and crc32c(body) == header.body_crc, "damaged")
    values, keys, timestamps, headers, *offsets = msgpack.unpackb(decompress(header, body))
    for i in range(header.count):
        yield (
            header.base_offset + (number(offsets[0], i, 4) if header.flags & SPARSE else i),
            header.first_timestamp + (number(timestamps, i, len(timestamps) // header.count) if timestamps else 0),
            keys[i] if keys else None,
            values[i],
            headers[i] if headers else None,
        )


def decompress(header: BatchHeader, body: bytes) -> bytes:
    raw = body
    if header.codec == 1:
        raw = lz4.block.decompress(body, uncompressed_size=header.raw_size)
    if header.codec == 2:
        raw = zstandard.ZstdDecompressor().decompress(body)
    need(len(raw) == header.raw_size, "damaged")
    return raw


def number(column: Any, i: int, width: int) -> int:
    return int.from_bytes(column[i * width : (i + 1) * width], "little")
