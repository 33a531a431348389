"""A checkpoint: the state of a partition log at one position, so that opening starts there and not at zero.

Two files may hold one. `checkpoint` speaks only of bytes that had been synced. `checkpoint.unsynced` is newer,
and good only as long as the machine has not gone down since, which its boot id tells. A checkpoint that
stands at the end of the log is the mark of a clean shutdown. Both files can be deleted at any time.
"""

from __future__ import annotations

import contextlib
import struct
from typing import NamedTuple

import msgpack

from dq.engine.files import FileSystem, read_file, replace_file
from dq.engine.segments.crc import crc32c
from dq.engine.segments.epochs import EpochHistory
from dq.engine.segments.producers import ProducerStates

_VERSION = 1
_CRC = struct.Struct("<I")
_SYNCED, _UNSYNCED = "checkpoint", "checkpoint.unsynced"


class Checkpoint(NamedTuple):
    synced: bool  # everything up to here was on stable storage when it was written
    boot_id: str  # of the machine when it was written
    segment: int  # base offset of the segment
    position: int  # in that segment
    next_offset: int
    max_timestamp: int
    producers: ProducerStates
    epochs: EpochHistory
    closed: bool = False  # the log was closed with it: every byte and every name was on stable storage


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    body: bytes = msgpack.packb(
        [
            _VERSION,
            checkpoint.boot_id,
            checkpoint.segment,
            checkpoint.position,
            checkpoint.next_offset,
            checkpoint.max_timestamp,
            checkpoint.producers.to_plain(),
            checkpoint.epochs.pairs(),
            checkpoint.closed,
        ]
    )
    return _CRC.pack(crc32c(body)) + body


def write_checkpoint(files: FileSystem, directory: str, encoded: bytes, *, synced: bool, durable: bool = False) -> None:
    """`durable`: the checkpoint itself shall be on stable storage, too, when this returns."""
    replace_file(files, f"{directory}/{_SYNCED if synced else _UNSYNCED}", encoded, sync=durable)


def read_checkpoints(files: FileSystem, directory: str) -> list[Checkpoint]:
    """The checkpoints that may be trusted, the furthest first."""
    found = []
    for name in (_SYNCED, _UNSYNCED):
        data = read_file(files, f"{directory}/{name}")
        checkpoint = None if data is None else _decode(data, name == _SYNCED)
        if checkpoint is None:
            continue
        if checkpoint.synced or (checkpoint.boot_id and checkpoint.boot_id == files.boot_id):
            found.append(checkpoint)
    return sorted(found, key=lambda checkpoint: checkpoint.next_offset, reverse=True)


def remove_checkpoints(files: FileSystem, directory: str) -> None:
    """For good: they do not come back after a power loss."""
    for name in (_SYNCED, _UNSYNCED):
        with contextlib.suppress(FileNotFoundError):
            files.remove(f"{directory}/{name}")
    files.sync_directory(directory)


def remove_unsynced_checkpoint(files: FileSystem, directory: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        files.remove(f"{directory}/{_UNSYNCED}")


def _decode(data: bytes, synced: bool) -> Checkpoint | None:
    if len(data) <= _CRC.size or _CRC.unpack_from(data)[0] != crc32c(data[_CRC.size :]):
        return None
    plain = msgpack.unpackb(data[_CRC.size :], strict_map_key=False)
    if plain[0] != _VERSION:
        return None
    _, boot_id, segment, position, next_offset, max_timestamp, producers, epochs, closed = plain
    return Checkpoint(
        synced,
        boot_id,
        segment,
        position,
        next_offset,
        max_timestamp,
        ProducerStates.from_plain(producers),
        EpochHistory([(epoch, start) for epoch, start in epochs]),
        closed,
    )
