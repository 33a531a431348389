"""Many partitions: what opening them costs, in time, memory and file handles, and what those cost that are idle."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import dq
from bench.conftest import REPOSITORY, Record
from bench.crash_writer import TOPIC
from bench.harness import OURS, settle
from bench.workload import SCALES, Scale

COUNTS = max(len(scale.partitions) for scale in SCALES.values())


def probe(path: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "bench.partition_probe", str(path)]
    result = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, check=True)
    stages: list[dict[str, Any]] = json.loads(result.stdout)
    return stages


@pytest.mark.parametrize("number", range(COUNTS))
def test_many_partitions(benchmark: BenchmarkFixture, record: Record, folder: Path, scale: Scale, number: int) -> None:
    if number >= len(scale.partitions):
        pytest.skip("not at this scale")
    count = scale.partitions[number]
    path = folder / "dq"
    with dq.open(path) as log:
        log.create_topic(TOPIC, partitions=count)
    # First with new partitions; then again, now that all of them hold something.
    figures: dict[str, list[float]] = {}
    for run in ("new", "used"):
        for stage in probe(path):
            for name in ("seconds", "resident_bytes", "file_handles"):
                figures[f"{run}/{stage['stage']}/{name}"] = [stage[name]]
    seconds = []

    def reopen() -> None:
        start = time.perf_counter()
        opened.append(dq.open(path))
        opened[-1].topic(TOPIC)
        seconds.append(time.perf_counter() - start)

    def close() -> None:
        opened.pop().close()
        settle(disk=scale.settle)

    opened: list[dq.EmbeddedLog] = []
    benchmark.pedantic(reopen, teardown=close, rounds=scale.rounds)
    figures["open_seconds"] = seconds
    series = {"DQ": {"role": OURS, "facts": {}, "figures": figures}}
    record(f"partitions_{count}", series, settings={"partitions": count})
