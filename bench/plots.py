"""The pictures of the report. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no display

import matplotlib.pyplot as plt
from matplotlib.patches import Patch

from bench.harness import CEILING, OURS, PEER
from bench.results import Results, Spread, spread, workloads_like

COLOURS = {OURS: "#1668b8", CEILING: "#9a9a9a", PEER: "#d98c2b"}
LABELS = {CEILING: "ceiling", OURS: "DQ", PEER: "peer"}
MARKERS = "osD^"


def draw(results: Results, folder: Path) -> list[str]:
    """Draws what the results allow; returns the names of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, draw_one in PICTURES.items():
        figure = draw_one(results)
        if figure is not None:
            # Without the date and version that matplotlib adds, the same results give the same file.
            figure.savefig(folder / name, dpi=110, bbox_inches="tight", metadata={"Software": None})
            plt.close(figure)
            drawn.append(name)
    return drawn


def _rates(results: Results, workloads: Sequence[tuple[str, str]]) -> Any:
    """Bars of records per second, on a logarithmic axis, a panel for each workload."""
    present = [(workload, title) for workload, title in workloads if workload in results["workloads"]]
    if not present:
        return None
    figure, axes = plt.subplots(1, len(present), figsize=(5.5 * len(present), 3.4), squeeze=False)
    for axis, (workload, title) in zip(axes[0], present, strict=True):
        series = results["workloads"][workload]["series"]
        bars = sorted((spread(results, workload, name, "records_per_second"), name) for name in series)
        medians = [figures.median for figures, _ in bars]
        around = [
            [figures.median - figures.low for figures, _ in bars],
            [figures.high - figures.median for figures, _ in bars],
        ]
        names = [name for _, name in bars]
        axis.barh(names, medians, xerr=around, color=[COLOURS[series[name]["role"]] for name in names], capsize=2)
        axis.set_xscale("log")
        axis.set_xlim(right=max(figures.high for figures, _ in bars) * 6)
        for place, (figures, _) in enumerate(bars):
            axis.text(figures.high * 1.2, place, _short(figures.median), va="center", fontsize=8)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("records/s")
    roles = {series["role"] for workload, _ in present for series in results["workloads"][workload]["series"].values()}
    patches = [Patch(color=COLOURS[role], label=LABELS[role]) for role in LABELS if role in roles]
    axes[0][-1].legend(handles=patches, fontsize=8, loc="lower right")
    figure.tight_layout()
    return figure


def _short(number: float) -> str:
    for limit, unit in ((1e6, " M"), (1e3, " k")):
        if number >= limit:
            return f"{number / limit:.3g}{unit}"
    return f"{number:.3g}"


def _append(results: Results) -> Any:
    return _rates(
        results, [("append_many_os", "append_many, page cache"), ("append_many_always", "append_many, stable storage")]
    )


def _read(results: Results) -> Any:
    return _rates(results, [("read_lists", "sequential read into lists")])


def _open(results: Results) -> Any:
    """Seconds to open, append and read after a kill, by size of the log."""
    lines: dict[tuple[str, str], dict[int, Spread]] = {}
    for workload in workloads_like(results, "open_").values():
        settings = workload["settings"]
        line = lines.setdefault((settings["tail"], settings["flush"]), {})
        line[settings["log_bytes"]] = Spread.of(workload["series"]["DQ"]["figures"]["seconds"])
    if not lines:
        return None
    figure, axis = plt.subplots(figsize=(6.5, 3.6))
    for marker, ((tail, flush), line) in zip(MARKERS, sorted(lines.items()), strict=False):
        sizes = sorted(line)
        around = [
            [line[size].median - line[size].low for size in sizes],
            [line[size].high - line[size].median for size in sizes],
        ]
        axis.errorbar(
            [size / 1e9 for size in sizes],
            [line[size].median for size in sizes],
            yerr=around,
            marker=marker,
            capsize=2,
            label=f"{tail}, flush={flush}",
        )
    axis.axhline(1.0, color="#b03030", linestyle="--", linewidth=1, label="limit")
    axis.set_xscale("log")
    axis.set_ylim(bottom=0)
    axis.set_xlabel("size of the log, GB")
    axis.set_ylabel("seconds")
    axis.set_title("kill -9, then open + first append + first read", fontsize=10)
    axis.legend(fontsize=8)
    figure.tight_layout()
    return figure


PICTURES = {"append.png": _append, "read.png": _read, "open.png": _open}
