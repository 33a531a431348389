"""A process that writes to a log: fills it and ends, or appends until it is killed.

    python -m bench.crash_writer fill FOLDER BYTES
    python -m bench.crash_writer append FOLDER FLUSH RECORDS

The second writes the end offset of what was acknowledged to its standard output, a line at a time.
"""

from __future__ import annotations

import sys
from typing import Any, cast

import dq
from bench.workload import VALUE_BYTES, random_batches

TOPIC = "bench"
FILL_RECORDS = 5_000  # a batch
IN_FLIGHT = 100  # single records that share one wait for the disk


def value_at(offset: int) -> bytes:
    return b"%020d" % offset + b"." * (VALUE_BYTES - 20)


def fill(folder: str, size: int) -> None:
    """Appends until the topic has the given size, and closes the log."""
    batches = random_batches(20, FILL_RECORDS)
    with dq.open(folder, flush="os") as log:
        topic = log.create_topic(TOPIC, exist_ok=True)
        missing = size - topic.describe().size
        number = 0
        while missing > 0:
            least = max(1, min(FILL_RECORDS, missing // VALUE_BYTES))
            topic.append_many(batches[number % len(batches)][:least])
            missing -= least * VALUE_BYTES
            number += 1


def append(folder: str, flush: str, records: int) -> None:
    """Appends batches of so many records for ever. Single ones are sent many at a time, one batch each."""
    with dq.open(folder, flush=cast(Any, flush)) as log:
        topic = log.topic(TOPIC)
        end = topic.describe().partitions[0].next_offset
        while True:
            if records > 1:
                (appended,) = topic.append_many([value_at(offset) for offset in range(end, end + records)])
                end = appended.next_offset
            else:
                pending = [topic.submit([value_at(offset)]) for offset in range(end, end + IN_FLIGHT)]
                end = [write.result().next_offset for writes in pending for write in writes][-1]
            sys.stdout.write(f"{end}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] == "fill":
        fill(sys.argv[2], int(sys.argv[3]))
    else:
        append(sys.argv[2], sys.argv[3], int(sys.argv[4]))
