"""DQ: an event-sourced, partitioned log kept in plain append-only files.

import dq

with dq.open("./data") as log:
    orders = log.create_topic("orders", partitions=4)
    orders.append(b"hello", key=b"k")
    for record in orders.read():
        print(record.offset, record.value)
"""

from __future__ import annotations

import os

from dq.engine.clock import Clock
from dq.engine.embedded.columns import Appended
from dq.engine.embedded.consumer import Consumer, Lag
from dq.engine.embedded.delivery import Delivery
from dq.engine.embedded.producer import Producer
from dq.engine.embedded.store import EmbeddedLog
from dq.engine.embedded.topic import PartitionInfo, PendingWrite, Topic, TopicInfo, partition_of_key
from dq.engine.errors import (
    BatchTooLarge,
    Closed,
    CodecUnavailable,
    Corruption,
    DirectoryLocked,
    DiskFull,
    DQError,
    FormatTooNew,
    InvalidConfig,
    InvalidInput,
    InvalidName,
    InvalidRecord,
    NotADataDirectory,
    OffsetMismatch,
    OffsetOutOfRange,
    PartitionFailed,
    ProducerFenced,
    ReadOnly,
    SequenceError,
    StorageError,
    TopicExists,
    UnknownConsumer,
    UnknownPartition,
    UnknownTopic,
    WriteFailed,
)
from dq.engine.files import FileSystem
from dq.engine.segments.batch import Batch, Record
from dq.engine.segments.config import Flush

__version__ = "0.1.0"


def open(
    path: str | os.PathLike[str],
    *,
    flush: Flush = "always",
    flush_interval_ms: float = 100.0,
    read_only: bool = False,
    create: bool = True,
    max_open_partitions: int = 256,
    files: FileSystem | None = None,
    clock: Clock | None = None,
) -> EmbeddedLog:
    """Opens a data directory, making it if it does not exist; ":memory:" keeps nothing.

    flush: "always" acknowledges only what is on stable storage, "interval" syncs every `flush_interval_ms`, "os"
    leaves it to the page cache. One process writes; any number may open the same directory with read_only=True.
    `files` and `clock` replace the file system and the clock, for tests.
    """
    return EmbeddedLog(
        path,
        flush=flush,
        flush_interval_ms=flush_interval_ms,
        read_only=read_only,
        create=create,
        max_open_partitions=max_open_partitions,
        files=files,
        clock=clock,
    )


__all__ = [
    "Appended",
    "Batch",
    "BatchTooLarge",
    "Closed",
    "CodecUnavailable",
    "Consumer",
    "Corruption",
    "DQError",
    "Delivery",
    "DirectoryLocked",
    "DiskFull",
    "EmbeddedLog",
    "FormatTooNew",
    "InvalidConfig",
    "InvalidInput",
    "InvalidName",
    "InvalidRecord",
    "Lag",
    "NotADataDirectory",
    "OffsetMismatch",
    "OffsetOutOfRange",
    "PartitionFailed",
    "PartitionInfo",
    "PendingWrite",
    "Producer",
    "ProducerFenced",
    "ReadOnly",
    "Record",
    "SequenceError",
    "StorageError",
    "Topic",
    "TopicExists",
    "TopicInfo",
    "UnknownConsumer",
    "UnknownPartition",
    "UnknownTopic",
    "WriteFailed",
    "open",
    "partition_of_key",
]
