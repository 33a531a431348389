"""Finding one record in a large log, by offset and by time, out of the page cache."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import dq
from bench.conftest import Record
from bench.harness import CEILING, OURS, Entrant, Race, percentile
from bench.workload import VALUE_BYTES, Scale, random_batches
from dq.engine.clock import SystemClock
from dq.engine.segments.batch import HEADER_SIZE, BatchHeader, check_body, decode, unpack_header
from dq.engine.segments.segment import Segment

BEGINNING = 1_700_000_000_000_000
STEP = 1_000  # microseconds from one batch to the next


class SteppingClock(SystemClock):
    """Gives every batch a time of its own."""

    __slots__ = ("moment",)

    def __init__(self) -> None:
        self.moment = BEGINNING

    def now(self) -> int:
        return self.moment


class LargeLog:
    def __init__(self, path: Path, scale: Scale) -> None:
        self.batches = random_batches(100, scale.batch_records)
        self.batch_records = scale.batch_records
        self.count = max(1, scale.lookup_bytes // (VALUE_BYTES * scale.batch_records))  # batches
        clock = SteppingClock()
        self.log = dq.open(path, flush="os", clock=clock)
        self.topic = self.log.create_topic("bench")
        for number in range(self.count):
            clock.moment = BEGINNING + number * STEP
            self.topic.append_many(self.batches[number % len(self.batches)])
        self.places = list(self._places())

    def _places(self) -> Iterator[tuple[str, int, BatchHeader]]:
        """File, position and header of each batch."""
        partition = self.topic.log(0)
        for base in partition.segments():
            segment = Segment.open(partition.files, partition.directory, base)
            for position, header in segment.headers():
                yield segment.path, position, header
            segment.close()

    def value_at(self, offset: int) -> bytes:
        batch, place = divmod(offset, self.batch_records)
        return self.batches[batch % len(self.batches)][place]

    def by_offset(self, offset: int) -> tuple[int, bytes | None]:
        record = next(self.topic.read(0, start=offset))
        return record.offset, record.value

    def by_time(self, offset: int) -> tuple[int, bytes | None]:
        """Looks for a moment shortly before the batch of an offset; finds the first record of that batch."""
        moment = BEGINNING + offset // self.batch_records * STEP - STEP // 2
        record = next(self.topic.read(0, start=datetime.fromtimestamp(moment / 1e6, tz=timezone.utc)))
        return record.offset + offset % self.batch_records, self.value_at(offset) if record.value else None

    def bare(self, offset: int) -> tuple[int, bytes | None]:
        """The least there is to do for somebody who knows the place: open, read, check and decode one batch."""
        path, position, header = self.places[offset // self.batch_records]
        fd = os.open(path, os.O_RDONLY)
        try:
            data = os.pread(fd, header.size, position)
        finally:
            os.close(fd)
        header = unpack_header(data)
        body = memoryview(data)[HEADER_SIZE:]
        check_body(header, body)
        place = offset - header.base_offset
        return header.base_offset + place, decode(header, body).values[place]


class LookingUp(Entrant):
    def __init__(
        self, name: str, role: str, log: LargeLog, look: Callable[[int], tuple[int, bytes | None]], count: int
    ) -> None:
        super().__init__(name, role)
        self._log = log
        self._look = look
        self._count = count
        self._random = random.Random(name)
        self.facts["lookups"] = count

    def prepare(self) -> None:
        most = self._log.count * self._log.batch_records
        self._offsets = [self._random.randrange(most) for _ in range(self._count)]
        self._found: list[tuple[int, bytes | None]] = []
        self._seconds: list[float] = []

    def run(self) -> None:
        look, clock = self._look, time.perf_counter
        for offset in self._offsets:
            start = clock()
            found = look(offset)
            self._seconds.append(clock() - start)
            self._found.append(found)

    def finish(self, seconds: float) -> dict[str, float]:
        assert self._found == [(offset, self._log.value_at(offset)) for offset in self._offsets]
        return {"p50_us": percentile(self._seconds, 50) * 1e6, "p99_us": percentile(self._seconds, 99) * 1e6}


@pytest.fixture
def log(folder: Path, scale: Scale) -> Iterator[LargeLog]:
    large = LargeLog(folder / "dq", scale)
    yield large
    large.log.close()


def test_random_lookups(benchmark: BenchmarkFixture, record: Record, scale: Scale, log: LargeLog) -> None:
    by_offset = LookingUp("DQ, by offset", OURS, log, log.by_offset, scale.lookups)
    by_time = LookingUp("DQ, by time", OURS, log, log.by_time, scale.lookups)
    bare = LookingUp("bare open + read + decode of the batch", CEILING, log, log.bare, scale.lookups)
    series = Race(by_offset, [by_time, bare]).run(benchmark, scale.rounds, settled=scale.settle)
    record("lookup", series, settings={"log_bytes": log.count * log.batch_records * VALUE_BYTES})
