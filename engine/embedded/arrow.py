"""Reading into Arrow record batches. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow

from dq.engine.errors import DamagedBatch
from dq.engine.segments.arrow import raw_to_arrow
from dq.engine.segments.compression import decompress
from dq.engine.segments.reader import RawBatch


def arrow_batches(batches: Iterator[RawBatch], starts: dict[int, int]) -> Iterator[pyarrow.RecordBatch]:
    for raw in batches:
        start = starts.get(raw.partition, 0)
        if start > raw.header.base_offset:
            batch = raw.decode().starting_at(start)
            if len(batch):
                yield batch.to_arrow()
        else:
            yield _converted(raw)


def _converted(raw: RawBatch) -> pyarrow.RecordBatch:
    header = raw.header
    try:
        return raw_to_arrow(header, decompress(header.codec, raw.body, header.raw_size))
    except DamagedBatch as error:
        raise raw.corruption(error) from None
