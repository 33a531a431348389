"""The replicated metadata log: commits of three nodes on one machine, each fsynced, and the time without a leader.

Three real processes on loopback. The callers run in the leader's process, in asyncio, as the managers' API does. Each
event creates a topic. The failover time is that from kill -9 of the leader to the next committed event, as seen by a
client in another process that tries all nodes in turn.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import TimeoutError as NotInTime
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.conftest import Record
from bench.harness import OURS, percentile
from bench.workload import Scale
from tests.raft.cluster import Cluster, Failed, Gone

CALLERS = {"one caller": (1, 1), "64 callers": (64, 1), "batches of 100": (1, 100)}
EVENTS = 3_000  # per round
KILLS = 20


@pytest.fixture(scope="module")
def cluster(module_folder: Path) -> Iterator[Cluster]:
    with Cluster(module_folder) as made:
        made.converge()
        yield made


@pytest.mark.parametrize("callers", CALLERS)
def test_commits(benchmark: BenchmarkFixture, record: Record, scale: Scale, cluster: Cluster, callers: str) -> None:
    count, at_once = CALLERS[callers]
    events = 64 if scale.name == "tiny" else EVENTS
    each = max(events // count // at_once, 1)
    figures: dict[str, list[float]] = {}

    def run() -> None:
        prefix = os.urandom(4).hex()
        *times, total = cluster.leader().call("load", prefix, count, each, at_once, timeout=300)
        for name, value in {
            "records_per_second": count * each * at_once / total,
            "p50_ms": percentile(times, 50) * 1e3,
            "p99_ms": percentile(times, 99) * 1e3,
        }.items():
            figures.setdefault(name, []).append(value)

    benchmark.pedantic(run, rounds=min(scale.rounds, 5), warmup_rounds=0 if scale.name == "tiny" else 1)
    series = {"DQ": {"role": OURS, "facts": {"nodes": 3}, "figures": figures}}
    record(f"metadata_{callers.replace(' ', '_')}", series, settings={"callers": count, "events at once": at_once})


def test_failover(benchmark: BenchmarkFixture, record: Record, scale: Scale, cluster: Cluster) -> None:
    seconds: list[float] = []
    victims: list[Any] = []

    def prepare() -> None:
        for victim in victims:
            victim.start()
            victim.wait_ready()
        victims.clear()
        cluster.converge()
        victims.append(cluster.leader())

    def fail_over() -> None:
        victims[0].kill()
        start = time.perf_counter()
        _commit_one(cluster)
        seconds.append(time.perf_counter() - start)

    benchmark.pedantic(fail_over, setup=prepare, rounds=2 if scale.name == "tiny" else KILLS)
    prepare()
    series = {"DQ": {"role": OURS, "facts": {"kills": len(seconds)}, "figures": {"failover_seconds": seconds}}}
    record("metadata_failover", series)


def _commit_one(cluster: Cluster) -> None:
    event_id, deadline = os.urandom(16).hex(), time.monotonic() + 30
    while time.monotonic() < deadline:
        for node in cluster.running():
            try:
                node.call("propose", event_id, f"after-{event_id}", 0.2, timeout=1.0)
                return
            except (Failed, Gone, NotInTime):
                time.sleep(0.005)
    raise AssertionError("no leader within 30 s")
