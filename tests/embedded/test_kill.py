"""Kill -9 of a writing process at random moments: what it acknowledged is there, in order, once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import dq

# The writer tells on its standard output what was acknowledged, one line each: partition, offset, number.
WRITER = r"""
import os, random, sys, threading
import dq

path, seed = sys.argv[1], int(sys.argv[2])
rng = random.Random(seed)
flush = rng.choice(["always", "always", "interval", "os"])
log = dq.open(path, flush=flush, flush_interval_ms=5)
topic = log.create_topic("t", partitions=2, segment_bytes=rng.choice([4096, 20_000, 1 << 20]), exist_ok=True)
out = sys.stdout.buffer

def say(appended, numbers):
    out.write(b"".join(b"%d %d %d\n" % (appended.partition, appended.offset + i, n) for i, n in enumerate(numbers)))
    out.flush()

base = int(sys.argv[3])

def write(thread, rng):
    number = base + thread * 1_000_000
    producer = topic.producer(linger_ms=0.2, batch_records=20) if rng.random() < 0.3 else None
    while True:
        kind = rng.random()
        if producer is not None:
            sent = [(producer.send(b"%d" % (number + i), partition=thread % 2), number + i) for i in range(10)]
            for delivery, n in sent:
                say(delivery.result(), [n])
            number += 10
        elif kind < 0.6:
            say(topic.append(b"%d" % number, partition=thread % 2), [number])
            number += 1
        else:
            numbers = list(range(number, number + rng.randrange(1, 30)))
            (appended,) = topic.append_many([b"%d" % n for n in numbers], partition=thread % 2)
            say(appended, numbers)
            number += len(numbers)

threads = [
    threading.Thread(target=write, args=(number, random.Random(seed * 10 + number)), daemon=True)
    for number in range(rng.choice([1, 1, 4]))
]
out.write(b"ready\n"); out.flush()
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def run_and_kill(path: Path, seed: int, base: int) -> list[tuple[int, int, int]]:
    """Starts a writer, kills it after a random while, and returns what it acknowledged."""
    rng = random.Random(seed * 7919 + base)
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(seed), str(base)], stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        killer = threading.Timer(rng.uniform(0.0, 0.06), os.kill, (writer.pid, signal.SIGKILL))
        killer.start()
        output = writer.stdout.read()
        killer.join()
    lines = output.split(b"\n")[:-1]  # the last line may be cut off
    return [tuple(map(int, line.split())) for line in lines]  # type: ignore[misc]


def check(path: Path, acknowledged: list[tuple[int, int, int]], seed: int) -> None:
    with dq.open(path) as log:
        stored: dict[tuple[int, int], int] = {}
        for partition in range(2):
            offsets = []
            by_thread: dict[int, int] = {}
            for record in log.topic("t").read(partition):
                number = int(record.value or b"-1")
                offsets.append(record.offset)
                stored[partition, record.offset] = number
                thread = number // 1_000_000
                assert by_thread.get(thread, -1) < number, f"seed {seed}: out of order or twice at {record}"
                by_thread[thread] = number
            assert offsets == list(range(len(offsets))), f"seed {seed}: offsets are not contiguous"
        assert len(set(stored.values())) == len(stored), f"seed {seed}: a record is stored twice"
        for partition, offset, number in acknowledged:
            assert stored.get((partition, offset)) == number, f"seed {seed}: {number} at {partition}/{offset} is lost"


def kill_repeatedly(path: Path, seed: int, rounds: int) -> None:
    acknowledged: list[tuple[int, int, int]] = []
    for turn in range(rounds):
        acknowledged += run_and_kill(path, seed, turn * 100_000_000)
        check(path, acknowledged, seed)


@pytest.mark.parametrize("start", range(0, 200, 20))
def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, start: int) -> None:
    """200 seeds, each with a writer of its own; a directory takes two kills in a row."""
    for seed in range(start, start + 20, 2):
        path = tmp_path / str(seed)
        acknowledged = run_and_kill(path, seed, 0)
        check(path, acknowledged, seed)
        acknowledged += run_and_kill(path, seed + 1, 100_000_000)
        check(path, acknowledged, seed + 1)


@pytest.mark.soak
@pytest.mark.parametrize("start", range(200, 2200, 100))
def test_what_was_acknowledged_survives_many_kills(tmp_path: Path, start: int) -> None:
    for seed in range(start, start + 100, 4):
        kill_repeatedly(tmp_path / str(seed), seed, 4)


def test_opening_after_a_kill_reads_only_the_tail(tmp_path: Path) -> None:
    """A log of many segments, killed: recovery looks at what came after the last checkpoint, not at all of it."""
    code = """
import dq, os, sys
log = dq.open(sys.argv[1], flush="os")
topic = log.create_topic("t", segment_bytes=1 << 20)
for _ in range(200):
    topic.append_many([b"x" * 100] * 1000)
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "data")], timeout=60)
    started = time.perf_counter()
    with dq.open(tmp_path / "data", flush="os") as log:
        partition = log.topic("t").log(0)
        took = time.perf_counter() - started
        assert isinstance(partition, dq.engine.segments.log.PartitionLog)
        assert partition.next_offset == 200_000
        assert partition.recovered.scanned_bytes < 2 << 20, f"took {took}"
