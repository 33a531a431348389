"""Options, folders, and the way from a race to the file of results."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench import environment
from bench.report import number
from bench.targets import outcomes
from bench.workload import SCALES, Scale

REPOSITORY = Path(__file__).resolve().parent.parent
MEASURED = pytest.StashKey[dict[str, Any]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("DQ benchmarks")
    group.addoption("--full", action="store_const", const="full", dest="scale", help="adds the log of 10 GB")
    group.addoption("--tiny", action="store_const", const="tiny", dest="scale", help="proves only that the code works")


def _place() -> Path:
    """Where files are written: on a disk, which a system's temporary folder need not be."""
    place = Path(os.environ.get("DQ_BENCH_FOLDER", REPOSITORY / ".cache" / "bench"))
    place.mkdir(parents=True, exist_ok=True)
    return place


@pytest.fixture(scope="session")
def scale(request: pytest.FixtureRequest) -> Scale:
    return SCALES[request.config.getoption("scale") or "default"]


@pytest.fixture(scope="module")
def module_folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(dir=_place()))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(dir=_place()))
    yield path
    shutil.rmtree(path)


class Record(Protocol):
    def __call__(
        self,
        workload: str,
        series: dict[str, Any],
        *,
        settings: dict[str, Any] | None = None,
        skipped: dict[str, str] | None = None,
    ) -> None: ...


@pytest.fixture
def record(benchmark: BenchmarkFixture, pytestconfig: pytest.Config) -> Record:
    """Puts a workload's series into the file of results."""

    def put(
        workload: str,
        series: dict[str, Any],
        *,
        settings: dict[str, Any] | None = None,
        skipped: dict[str, str] | None = None,
    ) -> None:
        entry = {"workload": workload, "series": series, "settings": settings or {}, "skipped": skipped or {}}
        benchmark.extra_info.update(entry)
        pytestconfig.stash.setdefault(MEASURED, {})[workload] = entry

    return put


def pytest_benchmark_generate_machine_info() -> dict[str, Any]:
    return environment.describe(_place())


def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    output_json["scale"] = SCALES[config.getoption("scale") or "default"].to_plain()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The targets that this run says something about."""
    measured = config.stash.get(MEASURED, {})
    if not measured:
        return
    terminalreporter.section("targets")
    for outcome in outcomes({"workloads": measured}):
        target, found = outcome
        if found is not None:
            line = f"{outcome.word:>6}  {number(found.median, target.unit):>10}  {target.statement}"
            terminalreporter.write_line(line, red=outcome.word == "missed")
