"""Reading from the first record to the last, out of the page cache: as lists, as Arrow, record by record."""

from __future__ import annotations

import os
import shutil
from abc import abstractmethod
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.conftest import Record
from bench.contenders import PEERS_IN_PAGE_CACHE, Contender, Dq, PersistQueue, installed
from bench.harness import CEILING, OURS, Entrant, Race
from bench.workload import VALUE_BYTES, Scale, random_batches

READ_BYTES = 1 << 20


class Reading(Entrant):
    """Counts on the clock, every time. After the first time the same is read once more and compared."""

    def __init__(self, name: str, role: str, expected: list[bytes]) -> None:
        super().__init__(name, role)
        self.expected = expected
        self.facts["records"] = len(expected)
        self.count = 0
        self._compared = False

    def finish(self, seconds: float) -> dict[str, float]:
        assert self.count == len(self.expected), f"{self.name} lost records"
        if not self._compared:
            self.compare()
            self._compared = True
        return {"records_per_second": self.count / seconds}

    @abstractmethod
    def compare(self) -> None: ...


class ContenderReading(Reading):
    """Filled before the first round, or before each when reading takes the records away."""

    def __init__(self, contender: Contender, folder: Path, batches: list[list[bytes]]) -> None:
        self._contender = contender
        self._folder = folder / contender.name
        self._batches = batches[: max(1, int(len(batches) * contender.read_share))]
        super().__init__(contender.name, contender.role, list(chain.from_iterable(self._batches)))

    def prepare(self) -> None:
        if self._contender.consumes and self._folder.exists():
            self.close()
        if not self._folder.exists():
            self._folder.mkdir()
            self._contender.open(self._folder)
            for batch in self._batches:
                self._contender.append_batch(self._contender.dress(batch))
            self._compare(self._contender.stored())

    def run(self) -> None:
        count = 0
        for values in self._contender.read():
            count += len(values)
        self.count = count

    def compare(self) -> None:
        if not self._contender.consumes:
            self._compare(self._contender.read())

    def _compare(self, batches: Iterator[list[bytes]]) -> None:
        assert list(chain.from_iterable(batches)) == self.expected, f"{self.name} changed records"

    def close(self) -> None:
        self._contender.close()
        shutil.rmtree(self._folder)


class DqReading(Reading):
    """Reads a log that is there already."""

    def __init__(self, name: str, contender: Dq, expected: list[bytes]) -> None:
        super().__init__(name, OURS, expected)
        self.topic = contender.topic


class Lists(DqReading):
    def run(self) -> None:
        count = 0
        for batch in self.topic.read_batches():
            count += len(batch.values)
        self.count = count

    def compare(self) -> None:
        batches = self.topic.read_batches()
        assert list(chain.from_iterable(batch.values for batch in batches)) == self.expected


class Arrow(DqReading):
    def run(self) -> None:
        count = 0
        for batch in self.topic.read_arrow():
            count += batch.num_rows
        self.count = count

    def compare(self) -> None:
        batches = self.topic.read_arrow()
        assert list(chain.from_iterable(batch.column("value").to_pylist() for batch in batches)) == self.expected


class Records(DqReading):
    def run(self) -> None:
        count = 0
        for _record in self.topic.read():
            count += 1
        self.count = count

    def compare(self) -> None:
        records = list(self.topic.read())
        assert [record.value for record in records] == self.expected
        assert [record.offset for record in records] == list(range(len(records)))


class BareReading(Reading):
    """The values in a file of their own, one behind the other; `sliced` makes Python objects of them."""

    def __init__(self, path: Path, expected: list[bytes], *, sliced: bool) -> None:
        super().__init__("bare read, sliced into values" if sliced else "bare read", CEILING, expected)
        self._path = path
        self._sliced = sliced

    def prepare(self) -> None:
        if not self._path.exists():
            self._path.write_bytes(b"".join(self.expected))

    def _chunks(self) -> Iterator[bytes]:
        fd = os.open(self._path, os.O_RDONLY)
        try:
            while chunk := os.read(fd, READ_BYTES // VALUE_BYTES * VALUE_BYTES):
                yield chunk
        finally:
            os.close(fd)

    def run(self) -> None:
        count = 0
        for chunk in self._chunks():
            if self._sliced:
                count += len([chunk[at : at + VALUE_BYTES] for at in range(0, len(chunk), VALUE_BYTES)])
            else:
                count += len(chunk) // VALUE_BYTES
        self.count = count

    def compare(self) -> None:
        assert b"".join(self._chunks()) == b"".join(self.expected)


@pytest.fixture
def batches(scale: Scale) -> list[list[bytes]]:
    return random_batches(scale.read_batches, scale.batch_records)


@pytest.fixture
def filled(folder: Path, batches: list[list[bytes]]) -> Iterator[Dq]:
    contender = Dq("os")
    contender.open(folder)
    for batch in batches:
        contender.append_batch(batch)
    yield contender
    contender.close()


def test_read_lists_beside_peers(
    benchmark: BenchmarkFixture, record: Record, folder: Path, scale: Scale, filled: Dq, batches: list[list[bytes]]
) -> None:
    expected = list(chain.from_iterable(batches))
    peers, skipped = installed((*PEERS_IN_PAGE_CACHE, PersistQueue))
    reading = [ContenderReading(contender, folder, batches) for contender in peers]
    bare = [BareReading(folder / "bare", expected, sliced=sliced) for sliced in (False, True)]
    series = Race(Lists("DQ", filled, expected), [*bare, *reading]).run(benchmark, scale.rounds, settled=scale.settle)
    for entrant in reading:
        entrant.close()
    record("read_lists", series, skipped=skipped)


def test_read_arrow(
    benchmark: BenchmarkFixture, record: Record, folder: Path, scale: Scale, filled: Dq, batches: list[list[bytes]]
) -> None:
    pytest.importorskip("pyarrow")
    expected = list(chain.from_iterable(batches))
    bare = BareReading(folder / "bare", expected, sliced=False)
    series = Race(Arrow("DQ", filled, expected), [bare]).run(benchmark, scale.rounds, settled=scale.settle)
    record("read_arrow", series)


def test_read_records(
    benchmark: BenchmarkFixture, record: Record, folder: Path, scale: Scale, filled: Dq, batches: list[list[bytes]]
) -> None:
    expected = list(chain.from_iterable(batches))
    bare = BareReading(folder / "bare", expected, sliced=True)
    series = Race(Records("DQ", filled, expected), [bare]).run(benchmark, scale.rounds, settled=scale.settle)
    record("read_records", series)
