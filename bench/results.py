"""Results as they are kept: what a run recorded, without what belongs to one machine alone, and how to sum it up.

A run leaves a file of pytest-benchmark's. `condense` takes out of it what the report needs; that is what
`recorded.json` holds, and all that the report is made from.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parent / "results"
RECORDED = FOLDER / "recorded.json"

Results = dict[str, Any]
Workload = dict[str, Any]


class Spread(NamedTuple):
    """A figure over the rounds of a run: the median, and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        if len(samples) == 1:
            return cls(samples[0], samples[0], samples[0])
        low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(median, low, high)


def condense(run: dict[str, Any]) -> Results:
    """What is kept of a file that pytest-benchmark wrote."""
    return {
        **run["machine_info"],
        "scale": run["scale"],
        "workloads": {
            benchmark["extra_info"]["workload"]: {**benchmark["extra_info"], "date": run["datetime"][:10]}
            for benchmark in run["benchmarks"]
        },
    }


def merge(older: Results | None, newer: Results) -> Results:
    """The newer results; workloads that they do not have are kept, if the machine and the versions are the same."""
    if older is None or any(older[part] != newer[part] for part in ("machine", "versions", "crc32c")):
        return newer
    return {**newer, "workloads": {**older["workloads"], **newer["workloads"]}}


def load(path: Path) -> Results:
    results: Results = json.loads(path.read_text())
    return results


def save(results: Results, path: Path) -> None:
    """Rounded to what can be measured."""
    path.write_text(json.dumps(_rounded(results), indent=1, sort_keys=True) + "\n")


def _rounded(item: Any) -> Any:
    if isinstance(item, dict):
        return {key: _rounded(value) for key, value in item.items()}
    if isinstance(item, (list, tuple)):
        return [_rounded(value) for value in item]
    return float(f"{item:.6g}") if isinstance(item, float) else item


def newest_run() -> Path | None:
    return max(FOLDER.glob("run-*.json"), default=None)


# ---------------------------------------------------------------- figures


def samples(results: Results, workload: str, name: str, figure: str) -> list[float]:
    found: list[float] = results["workloads"][workload]["series"][name]["figures"][figure]
    return found


def spread(results: Results, workload: str, name: str, figure: str) -> Spread:
    return Spread.of(samples(results, workload, name, figure))


def ratio(results: Results, workload: str, name: str, other: str, figure: str) -> Spread:
    """How many times the other's figure, taken round by round."""
    pairs = zip(samples(results, workload, name, figure), samples(results, workload, other, figure), strict=True)
    return Spread.of([ours / theirs for ours, theirs in pairs])


def workloads_like(results: Results, prefix: str) -> dict[str, Workload]:
    return {name: found for name, found in results["workloads"].items() if name.startswith(prefix)}
