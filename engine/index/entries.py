"""Index entries as LMDB keeps them, and the searches among them. Everything works on a cursor; nothing opens files.

    key    topic id (16 bytes), partition (u32), offset (u64): big-endian, so that LMDB's order is the log's
    value  segment (u64), position (u64), max timestamp (i64), CRC-32C of the key and these fields (u32): little-endian

There is no second table for times: timestamps never fall as offsets grow, so `floor_time` bisects the offsets.
"""

from __future__ import annotations

import struct

import lmdb

from dq.engine.segments.crc import crc32c
from dq.engine.segments.positions import IndexEntry

MAX_OFFSET = (1 << 64) - 1
MAX_PARTITION = (1 << 32) - 1

_PREFIX = struct.Struct(">16sI")
_OFFSET = struct.Struct(">Q")
_FIELDS = struct.Struct("<QQq")
_CRC = struct.Struct("<I")
_KEY_SIZE = _PREFIX.size + _OFFSET.size
_VALUE_SIZE = _FIELDS.size + _CRC.size
_INTACT = 0x48674BC7  # the CRC-32C of any bytes that are followed by their own CRC-32C


class DamagedEntry(Exception):
    """An entry that is not what was written: nothing in its environment can be trusted."""


def prefix_of(topic_id: bytes, partition: int) -> bytes:
    """What all keys of a partition begin with."""
    return _PREFIX.pack(topic_id, partition)


def key_of(prefix: bytes, offset: int) -> bytes:
    return prefix + _OFFSET.pack(min(max(offset, 0), MAX_OFFSET))


def pack(prefix: bytes, entry: IndexEntry) -> tuple[bytes, bytes]:
    key = prefix + _OFFSET.pack(entry.offset)
    fields = _FIELDS.pack(entry.segment, entry.position, entry.max_timestamp)
    return key, fields + _CRC.pack(crc32c(key + fields))


def unpack(key: bytes, value: bytes) -> IndexEntry:
    if len(key) != _KEY_SIZE or len(value) != _VALUE_SIZE or crc32c(key + value) != _INTACT:
        raise DamagedEntry("an entry's CRC does not match")
    return IndexEntry(_OFFSET.unpack_from(key, _PREFIX.size)[0], *_FIELDS.unpack_from(value))


def floor(cursor: lmdb.Cursor[bytes], prefix: bytes, offset: int) -> IndexEntry | None:
    """The last entry at or before an offset; the cursor then stands on it."""
    if offset < 0:
        return None
    wanted = key_of(prefix, offset)
    if cursor.set_range(wanted):
        found = cursor.key() == wanted or cursor.prev()
    else:
        found = cursor.last()
    return _entry_at(cursor, prefix) if found else None


def floor_time(cursor: lmdb.Cursor[bytes], prefix: bytes, timestamp: int) -> IndexEntry | None:
    """The last entry before which all timestamps are smaller than this one."""
    low = _entry_at(cursor, prefix) if cursor.set_range(key_of(prefix, 0)) else None
    if low is None or low.max_timestamp >= timestamp:
        return None
    high = floor(cursor, prefix, MAX_OFFSET)
    if high is None or high.max_timestamp < timestamp:
        return high
    while True:  # low is before the time, high is not
        entry = floor(cursor, prefix, (low.offset + high.offset) // 2)
        if entry == low:
            entry = _entry_at(cursor, prefix) if cursor.next() else None
        if entry is None or entry.offset >= high.offset:
            return low
        low, high = (entry, high) if entry.max_timestamp < timestamp else (low, entry)


def delete_range(txn: lmdb.Transaction[bytes], first: bytes, last: bytes) -> None:
    """Deletes the entries from one key to another, both included."""
    cursor = txn.cursor()
    found = cursor.set_range(first)
    while found and cursor.key() <= last:
        cursor.delete()  # leaves the cursor on the next one
        found = bool(cursor.key())


def _entry_at(cursor: lmdb.Cursor[bytes], prefix: bytes) -> IndexEntry | None:
    key, value = cursor.item()
    return unpack(key, value) if key.startswith(prefix) else None
