"""What is stored and how much of it: the records that every contender gets, and the sizes of a run."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import asdict, dataclass
from typing import Any

VALUE_BYTES = 100
DISTINCT_BATCHES = 100  # a longer run starts again from the first


@dataclass(frozen=True, slots=True)
class Scale:
    """How much a run does. `tiny` proves that the code works, its figures mean nothing."""

    name: str
    rounds: int = 7
    batch_records: int = 1_000
    batches: int = 500  # into the page cache: 50 MB
    synced_batches: int = 300  # to stable storage
    read_batches: int = 500
    sent_batches: int = 400  # through the producer, record by record
    latency_rounds: int = 15
    latency_appends: int = 300  # per round
    threads: int = 16
    thread_appends: int = 200  # each, per round
    lookup_bytes: int = 1_000_000_000
    lookups: int = 500  # per round
    log_bytes: tuple[int, ...] = (100_000_000, 1_000_000_000, 3_000_000_000)
    kills: int = 2
    tail: float = 1.0  # how much is written before a kill, as a part of what a log may leave to be scanned
    partitions: tuple[int, ...] = (1, 100, 1_000)
    compressed_batches: int = 200
    settle: bool = True  # wait for the disk between turns

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)


SCALES = {
    "default": Scale("default"),
    "full": Scale("full", log_bytes=(100_000_000, 1_000_000_000, 3_000_000_000, 10_000_000_000), kills=4),
    "tiny": Scale(
        "tiny",
        rounds=2,
        batch_records=50,
        batches=20,
        synced_batches=4,
        read_batches=20,
        sent_batches=20,
        latency_rounds=2,
        latency_appends=5,
        threads=3,
        thread_appends=3,
        lookup_bytes=500_000,
        lookups=5,
        log_bytes=(200_000, 400_000),
        kills=1,
        tail=0.01,
        partitions=(1, 5),
        compressed_batches=4,
        settle=False,
    ),
}


def random_batches(count: int, records: int) -> list[list[bytes]]:
    """Batches of random values; the same ones in every run."""
    source = random.Random(1)
    distinct = [[source.randbytes(VALUE_BYTES) for _ in range(records)] for _ in range(min(count, DISTINCT_BATCHES))]
    return list(itertools.islice(itertools.cycle(distinct), count))


def json_batches(count: int, records: int) -> list[list[bytes]]:
    """Batches of small JSON documents, as an application logs them: much alike, never the same."""
    source = random.Random(2)
    number = itertools.count(1)

    def document() -> bytes:
        event = {
            "id": next(number),
            "user": f"user-{source.randrange(5_000)}",
            "event": source.choice(["view", "click", "add_to_cart", "purchase"]),
            "page": f"/products/{source.randrange(1_000)}",
            "ms": source.randrange(2_000),
        }
        return json.dumps(event).encode()

    distinct = [[document() for _ in range(records)] for _ in range(min(count, DISTINCT_BATCHES))]
    return list(itertools.islice(itertools.cycle(distinct), count))
