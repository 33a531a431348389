"""Races: entrants do the same work in turns, A B C A B C, so that a noisy moment hits all of them alike.

Every figure is taken once per round. Ratios are taken within a round and then summed up by their median, so a
machine that is slower in one round than in the next moves both sides of them.
"""

from __future__ import annotations

import gc
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from pytest_benchmark.fixture import BenchmarkFixture

OURS, CEILING, PEER = "ours", "ceiling", "peer"


class Entrant(ABC):
    """One side of a race. Only `run` is timed."""

    def __init__(self, name: str, role: str) -> None:
        self.name = name
        self.role = role
        self.facts: dict[str, Any] = {}  # what stands beside the figures: how durable, how much

    def prepare(self) -> None:  # noqa: B027
        """Everything up to the moment the clock starts; nothing, if there is nothing to do."""

    @abstractmethod
    def run(self) -> None: ...

    @abstractmethod
    def finish(self, seconds: float) -> dict[str, float]:
        """Checks the work, cleans up, and returns the figures of this round."""


class Race:
    """Ours is timed by pytest-benchmark, and so has a line in its table; the others run between our rounds."""

    def __init__(self, ours: Entrant, others: Sequence[Entrant] = ()) -> None:
        self._ours = ours
        self._others = list(others)
        self._figures: dict[str, dict[str, list[float]]] = {entrant.name: {} for entrant in (ours, *others)}
        self._seconds = 0.0
        self._warming_up = True
        self._settled = True

    def run(self, benchmark: BenchmarkFixture, rounds: int, *, settled: bool = True) -> dict[str, Any]:
        """Runs one round to warm up and then the given number; returns the series of all entrants."""
        self._settled = settled
        benchmark.pedantic(
            self._run_ours, setup=self._before_ours, teardown=self._after_ours, rounds=rounds, warmup_rounds=1
        )
        return {
            entrant.name: {"role": entrant.role, "facts": entrant.facts, "figures": self._figures[entrant.name]}
            for entrant in (self._ours, *self._others)
        }

    def _before_ours(self) -> None:
        for other in self._others:
            other.prepare()
            settle(disk=self._settled)
            self._note(other, timed(other))
        self._others = self._others[1:] + self._others[:1]  # so that the one before ours is not always the same
        self._ours.prepare()
        settle(disk=self._settled)

    def _run_ours(self) -> None:
        self._seconds = timed(self._ours)

    def _after_ours(self) -> None:
        self._note(self._ours, self._seconds)
        self._warming_up = False

    def _note(self, entrant: Entrant, seconds: float) -> None:
        figures = entrant.finish(seconds)
        if not self._warming_up:
            for figure, value in figures.items():
                self._figures[entrant.name].setdefault(figure, []).append(value)


def timed(entrant: Entrant) -> float:
    start = time.perf_counter()
    entrant.run()
    return time.perf_counter() - start


def settle(*, disk: bool = True) -> None:
    """Leaves nothing to do from the turn before: neither garbage nor pages that wait to be written."""
    gc.collect()
    if disk:
        os.sync()


def percentile(samples: Sequence[float], percent: float) -> float:
    """The smallest sample that is not below so many percent of them."""
    ordered = sorted(samples)
    return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)]
