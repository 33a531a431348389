"""Appending: batches and single records, into the page cache and to stable storage, beside ceilings and peers."""

from __future__ import annotations

import shutil
import threading
import time
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.conftest import Record
from bench.contenders import (
    PEERS_IN_PAGE_CACHE,
    PEERS_ON_STABLE_STORAGE,
    BareFile,
    Contender,
    Dq,
    installed,
)
from bench.harness import CEILING, Entrant, Race, percentile
from bench.workload import Scale, random_batches


class Appending(Entrant):
    """A contender in a new folder each round. Afterwards everything is read back and compared."""

    def __init__(self, contender: Contender, folder: Path, name: str | None = None) -> None:
        super().__init__(name or contender.name, contender.role)
        self.contender = contender
        self.facts["durability"] = contender.durability
        self._folder = folder / "contender"
        self.expected: list[bytes] = []

    def prepare(self) -> None:
        self._folder.mkdir()
        self.contender.open(self._folder)
        self.expected = [b"first"]
        # The first record makes files and tables; what is timed finds them there.
        self.contender.append(self.contender.dress_one(b"first"))

    def check(self) -> None:
        stored = list(chain.from_iterable(self.contender.stored()))
        assert len(stored) == len(self.expected), f"{self.name} lost records"
        assert self.same(stored), f"{self.name} changed records"

    def same(self, stored: list[bytes]) -> bool:
        return stored == self.expected

    def finish(self, seconds: float) -> dict[str, float]:
        figures = self.figures(seconds)
        self.check()
        self.contender.close()
        shutil.rmtree(self._folder)
        return figures

    def figures(self, seconds: float) -> dict[str, float]:
        return {"records_per_second": (len(self.expected) - 1) / seconds}


class InBatches(Appending):
    def __init__(self, contender: Contender, folder: Path, batches: list[list[bytes]]) -> None:
        super().__init__(contender, folder)
        self._batches = batches[: max(1, int(len(batches) * contender.share))]
        dressed = {id(batch): contender.dress(batch) for batch in self._batches}
        self._dressed = [dressed[id(batch)] for batch in self._batches]
        self.facts["records"] = sum(map(len, self._batches))

    def run(self) -> None:
        append_batch = self.contender.append_batch
        for batch in self._dressed:
            append_batch(batch)

    def finish(self, seconds: float) -> dict[str, float]:
        self.expected.extend(chain.from_iterable(self._batches))
        return super().finish(seconds)


@pytest.mark.parametrize("flush", ["os", "always"])
def test_append_many_beside_peers(
    benchmark: BenchmarkFixture, record: Record, folder: Path, scale: Scale, flush: Any
) -> None:
    synced = flush == "always"
    batches = random_batches(scale.synced_batches if synced else scale.batches, scale.batch_records)
    peers, skipped = installed(PEERS_ON_STABLE_STORAGE if synced else PEERS_IN_PAGE_CACHE)
    others = [InBatches(contender, folder, batches) for contender in (BareFile(sync=synced), *peers)]
    series = Race(InBatches(Dq(flush), folder, batches), others).run(benchmark, scale.rounds, settled=scale.settle)
    record(f"append_many_{flush}", series, skipped=skipped)


class OneByOne(Appending):
    """One record a call, each call timed."""

    def __init__(self, contender: Contender, folder: Path, values: list[bytes]) -> None:
        super().__init__(contender, folder)
        self._values = values
        self._dressed = [contender.dress_one(value) for value in values]
        self._seconds: list[float] = []
        self.facts["records"] = len(values)

    def run(self) -> None:
        append, clock, note = self.contender.append, time.perf_counter, self._seconds.append
        for value in self._dressed:
            start = clock()
            append(value)
            note(clock() - start)

    def finish(self, seconds: float) -> dict[str, float]:
        self.expected.extend(self._values)
        return super().finish(seconds)

    def figures(self, seconds: float) -> dict[str, float]:
        taken, self._seconds = self._seconds, []
        return {
            **super().figures(seconds),
            "p50_us": percentile(taken, 50) * 1e6,
            "p99_us": percentile(taken, 99) * 1e6,
        }


def test_append_one_beside_peers(benchmark: BenchmarkFixture, record: Record, folder: Path, scale: Scale) -> None:
    values = random_batches(1, scale.latency_appends)[0]
    peers, skipped = installed(PEERS_ON_STABLE_STORAGE)
    others = [OneByOne(contender, folder, values) for contender in (BareFile(sync=True), *peers)]
    series = Race(OneByOne(Dq(), folder, values), others).run(benchmark, scale.latency_rounds, settled=scale.settle)
    record("append_one", series, skipped=skipped)


class FromThreads(Appending):
    """Threads that append one record a call, all to the same partition."""

    def __init__(self, name: str, folder: Path, values: list[list[bytes]]) -> None:
        super().__init__(Dq(), folder, name)
        self._values = values
        self.facts["threads"] = len(values)
        self.facts["records"] = sum(map(len, values))

    def prepare(self) -> None:
        super().prepare()
        self._start = threading.Barrier(len(self._values) + 1)
        self._threads = [threading.Thread(target=self._append, args=(values,)) for values in self._values]
        for thread in self._threads:
            thread.start()

    def _append(self, values: list[bytes]) -> None:
        append = self.contender.append
        self._start.wait()
        for value in values:
            append(value)

    def run(self) -> None:
        self._start.wait()
        for thread in self._threads:
            thread.join()

    def finish(self, seconds: float) -> dict[str, float]:
        self.expected.extend(chain.from_iterable(self._values))
        return super().finish(seconds)

    def same(self, stored: list[bytes]) -> bool:
        """In any order, but in that of its thread for each of them."""
        places = {value: place for place, value in enumerate(stored)}
        in_order = all(
            [places[value] for value in values] == sorted(places[value] for value in values) for values in self._values
        )
        return in_order and sorted(stored) == sorted(self.expected)


def test_append_from_threads(benchmark: BenchmarkFixture, record: Record, folder: Path, scale: Scale) -> None:
    values = random_batches(scale.threads, scale.thread_appends)
    many = FromThreads(f"DQ, {scale.threads} threads", folder, values)
    one = FromThreads("DQ, 1 thread", folder, [list(chain.from_iterable(values[:4]))])
    series = Race(many, [one]).run(benchmark, scale.rounds, settled=scale.settle)
    record("append_threads", series, settings={"threads": scale.threads})


class Sending(Appending):
    """The buffered producer: one call per record, then one wait for all of them."""

    def __init__(self, contender: Dq, folder: Path, values: list[bytes]) -> None:
        super().__init__(contender, folder)
        self._values = values
        self.facts["records"] = len(values)

    def prepare(self) -> None:
        super().prepare()
        assert isinstance(self.contender, Dq)
        self._producer = self.contender.topic.producer()

    def run(self) -> None:
        send = self._producer.send
        for value in self._values:
            send(value)
        self._producer.flush()

    def finish(self, seconds: float) -> dict[str, float]:
        self._producer.close()
        self.expected.extend(self._values)
        return super().finish(seconds)


class _List:
    def __init__(self) -> None:
        self.values: list[bytes] = []

    def send(self, value: bytes) -> None:
        self.values.append(value)


class Calling(Entrant):
    """What the calls alone cost in Python: a method that puts its argument into a list."""

    def __init__(self, values: list[bytes]) -> None:
        super().__init__("a method that appends to a list", CEILING)
        self._values = values
        self.facts["records"] = len(values)

    def prepare(self) -> None:
        self._list = _List()

    def run(self) -> None:
        send = self._list.send
        for value in self._values:
            send(value)

    def finish(self, seconds: float) -> dict[str, float]:
        assert self._list.values == self._values
        return {"records_per_second": len(self._values) / seconds}


@pytest.mark.parametrize("flush", ["os", "always"])
def test_producer(benchmark: BenchmarkFixture, record: Record, folder: Path, scale: Scale, flush: Any) -> None:
    values = list(chain.from_iterable(random_batches(scale.sent_batches, scale.batch_records)))
    race = Race(Sending(Dq(flush), folder, values), [Calling(values)])
    series = race.run(benchmark, scale.rounds, settled=scale.settle)
    record(f"producer_{flush}", series)
