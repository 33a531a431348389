"""The benchmarks still work: a run so small that its figures mean nothing, and the report made from it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from bench import report  # noqa: E402
from bench.results import RECORDED, condense, load, merge  # noqa: E402
from bench.targets import TARGETS, outcomes  # noqa: E402

WORKLOADS = {
    "append_many_os",
    "append_many_always",
    "append_one",
    "append_threads",
    "producer_os",
    "producer_always",
    "read_lists",
    "read_arrow",
    "read_records",
    *(
        f"open_{size}_{tail}_{flush}"
        for size in (200_000, 400_000)
        for tail in (1_000, 1)
        for flush in ("always", "os")
    ),
    "lookup",
    "partitions_1",
    "partitions_5",
    "compression",
    "metadata_one_caller",
    "metadata_64_callers",
    "metadata_batches_of_100",
    "metadata_failover",
}
PEERS = {"SQLite", "LMDB", "RocksDB", "litequeue", "persist-queue"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a tiny run recorded."""
    path = tmp_path_factory.mktemp("bench") / "run.json"
    command = [sys.executable, "-m", "pytest", "bench", "--tiny", "--benchmark-enable", "--benchmark-only"]
    result = subprocess.run(
        [*command, f"--benchmark-json={path}"], cwd=REPOSITORY, capture_output=True, text=True, timeout=200
    )
    assert result.returncode == 0, result.stdout
    recorded: dict[str, Any] = json.loads(path.read_text())
    return recorded


def test_every_workload_leaves_figures(run: dict[str, Any]) -> None:
    workloads = condense(run)["workloads"]
    assert set(workloads) == WORKLOADS
    for name, workload in workloads.items():
        for contender, series in workload["series"].items():
            assert series["figures"], f"{contender} left nothing in {name}"
            assert all(series["figures"].values()), f"{contender} left nothing in {name}"


def test_every_peer_takes_part_or_is_named_as_missing(run: dict[str, Any]) -> None:
    workloads = condense(run)["workloads"].values()
    named = {name.split(",")[0] for item in workloads for name in (*item["series"], *item["skipped"])}
    assert named >= PEERS


def test_the_results_do_not_name_the_machine(run: dict[str, Any]) -> None:
    kept = json.dumps(condense(run))
    assert str(REPOSITORY) not in kept
    assert "node" not in condense(run)["machine"]


def test_every_target_is_computed_and_on_the_page(run: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(run))
    report.main([str(tmp_path / "run.json"), "--output", str(tmp_path)])
    page = (tmp_path / report.PAGE).read_text()
    for target in TARGETS:
        assert f"| {target.statement} |" in page
    skipped = any(workload["skipped"] for workload in condense(run)["workloads"].values())
    assert skipped or all(outcome.measured is not None for outcome in outcomes(condense(run)))
    pictures = {line.partition("](")[2].rstrip(")") for line in page.splitlines() if line.startswith("![")}
    assert pictures
    assert all((tmp_path / picture).exists() for picture in pictures)


def test_a_partial_run_keeps_the_other_workloads_of_the_same_machine(run: dict[str, Any]) -> None:
    whole = condense(run)
    part = {**whole, "workloads": {"lookup": whole["workloads"]["lookup"]}}
    assert set(merge(whole, part)["workloads"]) == WORKLOADS
    elsewhere = {**part, "machine": {**part["machine"], "cores": 1_000}}
    assert set(merge(whole, elsewhere)["workloads"]) == {"lookup"}


@pytest.mark.skipif(not RECORDED.exists(), reason="nothing is recorded yet")
def test_the_page_is_what_the_recorded_results_render_to() -> None:
    assert (report.DOCS / report.PAGE).read_text() == report.render(load(RECORDED))
