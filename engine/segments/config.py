"""The settings of a partition log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dq.engine.segments.batch import MAX_BATCH_BYTES

Flush = Literal["always", "interval", "os"]
FLUSH_MODES: tuple[Flush, ...] = ("always", "interval", "os")

DAY = 24 * 3600 * 1_000_000  # microseconds


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Times are in microseconds, sizes in bytes; None is 'without limit'.

    flush: "always" acknowledges only what is on stable storage; "interval" syncs every so often; "os" leaves it
    to the page cache.
    publish: with "flush" readers see what is as durable as the flush mode promises; with "owner" they see only what
    the owner calls `PartitionLog.publish` for, because others decide what can no longer be rolled back.
    """

    flush: Flush = "always"
    publish: Literal["flush", "owner"] = "flush"
    segment_bytes: int = 256 << 20
    segment_age: int | None = 7 * DAY
    max_batch_bytes: int = MAX_BATCH_BYTES
    retention_age: int | None = None
    retention_bytes: int | None = None
    compact: bool = False
    tombstone_age: int = DAY
    checkpoint_bytes: int = 32 << 20
    checkpoint_batches: int = 20_000
