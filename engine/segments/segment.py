"""A segment file: a header of 64 bytes that says what the file is, then batches. This module reads and writes one.

Header, little-endian:

    at  size  field
     0     8  magic "DQSEGMNT"
     8     2  format version (1)
    10     2  flags: bit 0 compacted
    12     4  partition
    16    16  topic id
    32     8  base offset: that of the first batch, and the file's name
    40     8  created, microseconds since the epoch, UTC
    48     8  the greatest timestamp of all earlier segments, or the smallest 64-bit number when there are none
    56     4  reserved, zero
    60     4  CRC-32C of the bytes 0 to 59
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from typing import NamedTuple

from dq.engine.errors import Corruption, DamagedBatch, FormatTooNew
from dq.engine.files import Buffer, File, FileSystem
from dq.engine.segments.batch import HEADER_SIZE, MAGIC, BatchHeader, check_body, unpack_header
from dq.engine.segments.crc import crc32c

SEGMENT_MAGIC = b"DQSEGMNT"
SEGMENT_VERSION = 1
SEGMENT_HEADER_SIZE = 64
SUFFIX = ".seg"
COMPACTED = 1 << 0
REWRITTEN = ".compacted"  # at the end of the name of a file that is to replace a segment
NO_TIMESTAMP = -(1 << 63)

_FIELDS = struct.Struct("<8sHHI16sQqq4s")
_CRC = struct.Struct("<I")

CHUNK = 1 << 20


class SegmentHeader(NamedTuple):
    flags: int
    partition: int
    topic_id: bytes
    base_offset: int
    created: int
    max_timestamp_before: int


def file_name(base_offset: int) -> str:
    return f"{base_offset:020d}{SUFFIX}"


def base_offset_of(name: str) -> int | None:
    """The base offset in a segment's file name, or None when the name is not one of a segment."""
    stem = name[: -len(SUFFIX)]
    return int(stem) if name.endswith(SUFFIX) and len(stem) == 20 and stem.isdecimal() else None


def pack_segment_header(header: SegmentHeader) -> bytes:
    fields = _FIELDS.pack(SEGMENT_MAGIC, SEGMENT_VERSION, *header, bytes(4))
    return fields + _CRC.pack(crc32c(fields))


def unpack_segment_header(data: Buffer) -> SegmentHeader:
    if len(data) < SEGMENT_HEADER_SIZE:
        raise DamagedBatch("the segment header is cut off")
    if _CRC.unpack_from(data, _FIELDS.size)[0] != crc32c(data[: _FIELDS.size]):
        raise DamagedBatch("the CRC of the segment header does not match")
    magic, version, *fields, _reserved = _FIELDS.unpack_from(data)
    if magic != SEGMENT_MAGIC:
        raise DamagedBatch(f"not a segment: it starts with {magic!r}")
    if version > SEGMENT_VERSION:
        raise FormatTooNew("a segment", version, SEGMENT_VERSION)
    if version < 1:
        raise DamagedBatch(f"there is no format version {version}")
    return SegmentHeader._make(fields)


class Placed(NamedTuple):
    """A batch and where it stands in its file."""

    position: int
    header: BatchHeader
    body: memoryview


class Segment:
    """An open segment file. Reading is safe from any thread; writing belongs to the partition log alone."""

    __slots__ = ("_file", "base_offset", "path")

    def __init__(self, path: str, base_offset: int, file: File) -> None:
        self.path = path
        self.base_offset = base_offset
        self._file = file

    @classmethod
    def open(cls, files: FileSystem, directory: str, base_offset: int, *, write: bool = False) -> Segment:
        path = f"{directory}/{file_name(base_offset)}"
        return cls(path, base_offset, files.open(path, write=write))

    @classmethod
    def create(cls, files: FileSystem, directory: str, header: SegmentHeader, *, sync: bool) -> Segment:
        path = f"{directory}/{file_name(header.base_offset)}"
        file = files.open(path, write=True, create=True)
        try:
            file.truncate(0)
            file.write([pack_segment_header(header)], 0)
            if sync:
                file.sync()
                files.sync_directory(directory)
        except BaseException:
            file.close()
            with contextlib.suppress(OSError):
                files.remove(path)
            raise
        return cls(path, header.base_offset, file)

    def read_header(self) -> SegmentHeader:
        try:
            header = unpack_segment_header(self._file.pread(SEGMENT_HEADER_SIZE, 0))
            if header.base_offset != self.base_offset:
                raise DamagedBatch(f"it begins at offset {header.base_offset}, which is not what its name says")
            return header
        except DamagedBatch as error:
            raise Corruption(self.path, 0, str(error)) from None

    def write(self, buffers: list[Buffer], position: int) -> int:
        return self._file.write(buffers, position)

    def read(self, size: int, position: int) -> bytes:
        return self._file.pread(size, position)

    def sync(self) -> None:
        self._file.sync()

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()

    def batches(self, position: int = SEGMENT_HEADER_SIZE, *, end: int | None = None) -> Iterator[Placed]:
        """Every batch from a position on, headers and bodies checked; a Corruption at the first that is not whole."""
        end = self.size() if end is None else end
        while position < end:
            chunk = memoryview(self.read(min(CHUNK, end - position), position))
            consumed = 0
            while consumed < len(chunk):
                if len(chunk) - consumed < HEADER_SIZE and position + len(chunk) < end:
                    break
                try:
                    header = unpack_header(chunk, consumed)
                    if position + consumed + header.size > end:
                        raise DamagedBatch("the batch is cut off")
                    if consumed + header.size > len(chunk):
                        if consumed:
                            break
                        chunk = memoryview(self.read(header.size, position))
                    body = chunk[consumed + HEADER_SIZE : consumed + header.size]
                    check_body(header, body)
                except DamagedBatch as error:
                    raise Corruption(self.path, position + consumed, str(error)) from None
                yield Placed(position + consumed, header, body)
                consumed += header.size
            position += consumed
            if not len(chunk):
                raise Corruption(self.path, position, "the file is shorter than expected")

    def headers(
        self, position: int = SEGMENT_HEADER_SIZE, *, end: int | None = None
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Positions and headers alone, bodies unread: for finding a place in a file that is known to be whole."""
        end = self.size() if end is None else end
        chunk, chunk_at = b"", position
        while position < end:
            at = position - chunk_at
            if at + HEADER_SIZE > len(chunk):
                # Small batches are read many at a time; big ones one header each.
                chunk, chunk_at, at = self.read(min(_HEADER_CHUNK, end - position), position), position, 0
            try:
                header = unpack_header(chunk, at)
            except DamagedBatch as error:
                raise Corruption(self.path, position, str(error)) from None
            yield position, header
            position += header.size

    def behind_damage(self, position: int) -> int:
        """Where the search for the next batch begins: behind the damaged one, if at least its header is intact.

        A body may hold anything, whole batches too, which must not be taken for the log's own.
        """
        try:
            return position + unpack_header(self.read(HEADER_SIZE, position)).size
        except DamagedBatch:
            return position + 1

    def find_batch_after(self, position: int, least_offset: int, *, end: int | None = None) -> Placed | None:
        """The first intact batch beyond a damaged place, found by its magic; None when nothing follows.

        One that is followed by its successor, or by the end, is preferred: what only looks like a batch, because
        somebody stored one in a value, is not.
        """
        end = self.size() if end is None else end
        alone = None
        for candidate in self._places_of_magic(position, end):
            placed = self._intact_batch(candidate, least_offset, end)
            if placed is not None:
                if self._has_successor(placed, end):
                    return placed
                alone = alone or placed
        return alone

    def _places_of_magic(self, position: int, end: int) -> Iterator[int]:
        while position < end:
            chunk = self.read(min(CHUNK + len(MAGIC) - 1, end - position), position)
            found = chunk.find(MAGIC)
            while found >= 0:
                yield position + found
                found = chunk.find(MAGIC, found + 1)
            position += CHUNK

    def _has_successor(self, placed: Placed, end: int) -> bool:
        after = placed.position + placed.header.size
        try:
            return after == end or unpack_header(self.read(HEADER_SIZE, after)).base_offset == placed.header.next_offset
        except (DamagedBatch, FormatTooNew):
            return False

    def _intact_batch(self, position: int, least_offset: int, end: int) -> Placed | None:
        try:
            header = unpack_header(self.read(HEADER_SIZE, position))
            if header.base_offset < least_offset or position + header.size > end:
                return None
            body = self.read(header.body_size, position + HEADER_SIZE)
            check_body(header, body)
        except (DamagedBatch, FormatTooNew):
            return None
        return Placed(position, header, memoryview(body))


_HEADER_CHUNK = 16 << 10
