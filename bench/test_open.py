"""Opening a log whose writer was killed: the time until it takes an append and gives a record, by size of the log.

A real process writes, and SIGKILL ends it while it appends, shortly before its next checkpoint is due: then there is
most to be scanned. One log grows from size to size.
"""

from __future__ import annotations

import subprocess
import sys
import time
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import dq
from bench.conftest import REPOSITORY, Record
from bench.crash_writer import TOPIC, value_at
from bench.harness import OURS, settle
from bench.workload import SCALES, VALUE_BYTES, Scale
from dq.engine.segments.config import LogConfig

TAILS = {"batches of 1,000": 1_000, "single records": 1}
SIZES = max(len(scale.log_bytes) for scale in SCALES.values())
AFTER = b"after the crash"


class GrowingLog:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "dq"

    def grow_to(self, size: int) -> None:
        self._writer("fill", str(self.path), str(size), wait=True)

    def kill_a_writer(self, flush: str, records: int, amount: int) -> tuple[int, int]:
        """Kills it once it has had so many records acknowledged; returns the offsets of its first and its end."""
        with dq.open(self.path, read_only=True) as log:
            first = log.topic(TOPIC).describe().partitions[0].next_offset
        process = self._writer("append", str(self.path), flush, str(records), wait=False)
        assert process.stdout is not None
        acknowledged = first
        for line in process.stdout:
            acknowledged = int(line)
            if acknowledged - first >= amount:
                break
        assert process.poll() is None, "the writer ended by itself"
        process.kill()
        rest = process.stdout.read().rpartition(b"\n")[0].split()
        process.stdout.close()
        process.wait()
        return first, int(rest[-1]) if rest else acknowledged

    def _writer(self, *arguments: str, wait: bool) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "bench.crash_writer", *arguments]
        process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE)
        if wait:
            process.communicate()
            assert process.returncode == 0
        return process


class Opening:
    """Opens the log, appends a record and reads the first one; then checks what the killed writer left."""

    def __init__(self, path: Path, flush: Any) -> None:
        self._path = path
        self._flush = flush
        self.figures: dict[str, list[float]] = {}

    def open_and_use(self) -> None:
        start = time.perf_counter()
        self._log = dq.open(self._path, flush=self._flush)
        self._topic = self._log.topic(TOPIC)
        opened = time.perf_counter()
        self._appended = self._topic.append(AFTER)
        appended = time.perf_counter()
        self._first = next(self._topic.read(0))
        end = time.perf_counter()
        self._seconds = {
            "seconds": end - start,
            "open_seconds": opened - start,
            "append_seconds": appended - opened,
            "read_seconds": end - appended,
        }

    def check(self, first: int, acknowledged: int) -> None:
        """Everything acknowledged is there, in order, and nothing else but what was on its way."""
        assert self._first.offset == 0
        assert self._appended.offset >= acknowledged
        expected = first
        for batch in self._topic.read_batches(0, start=first):
            for offset, value in zip(batch.offsets, batch.values, strict=True):
                assert offset == expected
                assert value == (AFTER if offset == self._appended.offset else value_at(offset))
                expected += 1
        assert expected == self._appended.next_offset

    def finish(self, *, settled: bool) -> None:
        """Closes, and notes beside the crash what opening costs after a clean end."""
        scanned = self._topic.writable(0).recovered.scanned_bytes
        for name, seconds in {**self._seconds, "scanned_bytes": scanned}.items():
            self.figures.setdefault(name, []).append(seconds)
        self._log.close()
        settle(disk=settled)
        self.open_and_use()
        self.figures.setdefault("clean_seconds", []).append(self._seconds["seconds"])
        self._log.close()


@pytest.fixture(scope="module")
def log(module_folder: Path) -> GrowingLog:
    return GrowingLog(module_folder)


@pytest.mark.parametrize("flush", ["always", "os"])
@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("size", range(SIZES))
def test_open_after_a_kill(
    benchmark: BenchmarkFixture, record: Record, scale: Scale, log: GrowingLog, size: int, tail: str, flush: str
) -> None:
    if size >= len(scale.log_bytes):
        pytest.skip("only with --full")
    log.grow_to(scale.log_bytes[size])
    opening = Opening(log.path, flush)
    limits = LogConfig()
    most = min(limits.checkpoint_batches * TAILS[tail], limits.checkpoint_bytes // VALUE_BYTES)
    parts = cycle([0.9, 1.9])
    left: tuple[int, int] = (0, 0)

    def crash() -> None:
        nonlocal left
        left = log.kill_a_writer(flush, TAILS[tail], int(most * next(parts) * scale.tail))

    def finish() -> None:
        opening.check(*left)
        opening.finish(settled=scale.settle)

    benchmark.pedantic(opening.open_and_use, setup=crash, teardown=finish, rounds=scale.kills)
    series = {"DQ": {"role": OURS, "facts": {}, "figures": opening.figures}}
    settings = {"log_bytes": scale.log_bytes[size], "tail": tail, "flush": flush}
    record(f"open_{scale.log_bytes[size]}_{TAILS[tail]}_{flush}", series, settings=settings)
