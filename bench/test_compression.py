"""The codecs on values that compress well: how small, how fast in, how fast out."""

from __future__ import annotations

import shutil
from itertools import chain
from pathlib import Path

from pytest_benchmark.fixture import BenchmarkFixture

from bench.conftest import Record
from bench.contenders import Dq
from bench.harness import OURS, Entrant, Race, timed
from bench.workload import Scale, json_batches
from dq.engine.errors import CodecUnavailable
from dq.engine.segments.compression import NAMES, codec_number


class Compressing(Entrant):
    """Appending is the race; reading and the size are taken from what it left."""

    def __init__(self, codec: str, folder: Path, batches: list[list[bytes]]) -> None:
        super().__init__(codec, OURS)
        self._contender = Dq("os", compression=codec)
        self._folder = folder / "contender"
        self._batches = batches
        self.facts["records"] = sum(map(len, batches))
        self.facts["value_bytes"] = sum(map(len, chain.from_iterable(batches)))

    def prepare(self) -> None:
        self._folder.mkdir()
        self._contender.open(self._folder)

    def run(self) -> None:
        for batch in self._batches:
            self._contender.append_batch(batch)

    def finish(self, seconds: float) -> dict[str, float]:
        reading = _Reading(self._contender)
        read_seconds = timed(reading)
        assert reading.count == self.facts["records"]
        stored = list(chain.from_iterable(self._contender.stored()))
        assert stored == list(chain.from_iterable(self._batches)), f"{self.name} changed records"
        size = self._contender.topic.describe().size
        self._contender.close()
        shutil.rmtree(self._folder)
        records = self.facts["records"]
        return {
            "records_per_second": records / seconds,
            "read_records_per_second": records / read_seconds,
            "stored_bytes_per_value_byte": size / self.facts["value_bytes"],
        }


class _Reading(Entrant):
    def __init__(self, contender: Dq) -> None:
        super().__init__("reading", OURS)
        self._contender = contender
        self.count = 0

    def run(self) -> None:
        for values in self._contender.read():
            self.count += len(values)

    def finish(self, seconds: float) -> dict[str, float]:
        return {}


def test_codecs(benchmark: BenchmarkFixture, record: Record, folder: Path, scale: Scale) -> None:
    batches = json_batches(scale.compressed_batches, scale.batch_records)
    entrants, skipped = [], {}
    for codec in NAMES:
        try:
            codec_number(codec)
        except CodecUnavailable as error:
            skipped[codec] = str(error)
        else:
            entrants.append(Compressing(codec, folder, batches))
    series = Race(entrants[0], entrants[1:]).run(benchmark, scale.rounds, settled=scale.settle)
    record("compression", series, skipped=skipped)
