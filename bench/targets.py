"""What the engine is held to, each stated once and computed from recorded results."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bench.results import Results, Spread, ratio, spread, workloads_like

RATE = "records_per_second"
FLAT = 1.5  # the same, as far as so short a time can be measured
SMALL = 16 << 10  # bytes
GIGABYTE = 1_000_000_000


class Target(NamedTuple):
    statement: str
    measure: Callable[[Results], Spread]
    limit: float
    at_least: bool  # or at most
    unit: str

    def met(self, measured: Spread) -> bool:
        return measured.median >= self.limit if self.at_least else measured.median <= self.limit


class Outcome(NamedTuple):
    target: Target
    measured: Spread | None  # None: not in these results

    @property
    def word(self) -> str:
        if self.measured is None:
            return "not measured"
        return "met" if self.target.met(self.measured) else "missed"


def outcomes(results: Results) -> list[Outcome]:
    found = []
    for target in TARGETS:
        try:
            measured = target.measure(results)
        except (KeyError, ValueError):  # the workload, or the peer, is not there
            measured = None
        found.append(Outcome(target, measured))
    return found


def _ratio(workload: str, ours: str, other: str, figure: str = RATE) -> Callable[[Results], Spread]:
    return lambda results: ratio(results, workload, ours, other, figure)


def _rate(workload: str) -> Callable[[Results], Spread]:
    return lambda results: spread(results, workload, "DQ", RATE)


def _threads(results: Results) -> Spread:
    threads = results["workloads"]["append_threads"]["settings"]["threads"]
    return ratio(results, "append_threads", f"DQ, {threads} threads", "DQ, 1 thread", RATE)


def _slowest_opening(results: Results) -> Spread:
    """Over all sizes and kinds of tail: a small log has as much to scan as a large one."""
    openings = workloads_like(results, "open_").values()
    return max(Spread.of(opening["series"]["DQ"]["figures"]["seconds"]) for opening in openings)


def _growth_of_opening(results: Results) -> Spread:
    """Medians of the largest log against the one of 1 GB, or the smallest there is; the worst of all kinds of tail."""
    by_tail: dict[tuple[str, str], dict[int, float]] = {}
    for opening in workloads_like(results, "open_").values():
        settings = opening["settings"]
        by_size = by_tail.setdefault((settings["tail"], settings["flush"]), {})
        by_size[settings["log_bytes"]] = Spread.of(opening["series"]["DQ"]["figures"]["seconds"]).median
    ratios = []
    for by_size in by_tail.values():
        smaller, larger = GIGABYTE if GIGABYTE in by_size else min(by_size), max(by_size)
        if smaller == larger:
            raise ValueError("one size is not enough")
        ratios.append(by_size[larger] / by_size[smaller])
    return Spread.of([max(ratios)])


def _idle_handles(results: Results) -> Spread:
    """File handles that opening takes for each partition more, with something stored in each."""
    return _per_partition(results, "used/open/file_handles")


def _idle_memory(results: Results) -> Spread:
    """Memory for each partition more, when each was written to and read from once."""
    return _per_partition(results, "used/read from each/resident_bytes")


def _per_partition(results: Results, figure: str) -> Spread:
    by_count = {
        found["settings"]["partitions"]: found["series"]["DQ"]["figures"][figure]
        for found in workloads_like(results, "partitions_").values()
    }
    few, many = min(by_count), max(by_count)
    if few == many:
        raise ValueError("one number of partitions is not enough")
    return Spread.of([(b - a) / (many - few) for a, b in zip(by_count[few], by_count[many], strict=True)])


def _beside_peers(flush: str, ceiling: str, part: float, peers: list[tuple[str, float]]) -> list[Target]:
    workload = f"append_many_{flush}"
    return [
        Target(
            f"`append_many`, flush={flush}, against {ceiling} of the same bytes",
            _ratio(workload, "DQ", ceiling),
            part,
            True,
            "×",
        ),
        *(
            Target(f"`append_many`, flush={flush}, against {peer}", _ratio(workload, "DQ", peer), times, True, "×")
            for peer, times in peers
        ),
    ]


TARGETS = [
    *_beside_peers("os", "bare write", 0.5, [("SQLite, WAL NORMAL", 8), ("LMDB, nosync", 1), ("RocksDB, plain", 1)]),
    *_beside_peers(
        "always", "bare write + fdatasync", 0.6, [("SQLite, WAL FULL", 8), ("LMDB, sync", 1), ("RocksDB, sync", 1)]
    ),
    Target("buffered producer, one `send` per record, flush=os", _rate("producer_os"), 2e6, True, "records/s"),
    Target("buffered producer, one `send` per record, flush=always", _rate("producer_always"), 2e6, True, "records/s"),
    Target(
        "`append` of one record, flush=always, median latency against bare write + fdatasync",
        _ratio("append_one", "DQ", "bare write + fdatasync", "p50_us"),
        1.3,
        False,
        "×",
    ),
    Target("`append` from 16 threads against one thread, flush=always", _threads, 4, True, "×"),
    Target("`read_batches` to lists", _rate("read_lists"), 10e6, True, "records/s"),
    Target("`read_arrow` to Arrow record batches", _rate("read_arrow"), 12e6, True, "records/s"),
    Target("`read` record by record", _rate("read_records"), 2e6, True, "records/s"),
    Target(
        "open after kill -9, first append and first read: the slowest size and kind of tail",
        _slowest_opening,
        1,
        False,
        "s",
    ),
    Target(
        "open after kill -9: the largest log measured against 1 GB, worst kind of tail",
        _growth_of_opening,
        FLAT,
        False,
        "×",
    ),
    Target("file handles of an idle partition", _idle_handles, 0, False, "handles"),
    Target("memory of an idle partition", _idle_memory, SMALL, False, "bytes"),
]
