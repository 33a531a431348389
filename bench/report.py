"""Writes docs/performance.md from recorded results. Nothing on that page is typed by hand.

    python -m bench.report                     takes the newest run into bench/results/recorded.json and renders it
    python -m bench.report RUN.json            takes that run
    python -m bench.report --output FOLDER     writes recorded.json, performance.md and the pictures there instead

Without a run, recorded.json is rendered once more.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.harness import CEILING, OURS, PEER
from bench.results import (
    RECORDED,
    Results,
    Spread,
    Workload,
    condense,
    load,
    merge,
    newest_run,
    ratio,
    save,
    spread,
    workloads_like,
)
from bench.targets import Target, outcomes
from bench.workload import VALUE_BYTES

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = "performance.md"
PICTURES = "performance"

ROLES = {OURS: "", CEILING: "ceiling", PEER: "peer"}
RATE = "records_per_second"


def render(results: Results) -> str:
    sections = [
        _introduction(results),
        _targets(results),
        _machine(results),
        _method(results),
        _append(results),
        _single(results),
        _producer(results),
        _read(results),
        _open(results),
        _lookup(results),
        _partitions(results),
        _compression(results),
        _skipped(results),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


# ---------------------------------------------------------------- numbers and tables


def number(value: float, unit: str = "") -> str:
    """Three digits, with a unit that suits the size."""
    if unit == "records/s":
        for limit, letter in ((1e6, " M"), (1e3, " k")):
            if value >= limit:
                return f"{_three(value / limit)}{letter}"
        return _three(value)
    if unit == "bytes":
        for limit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
            if abs(value) >= limit:
                return f"{_three(value / limit)} {name}"
        return f"{value:.0f} B"
    if unit == "s":
        return f"{_three(value)} s" if value >= 1 else f"{_three(value * 1e3)} ms"
    if unit == "×":
        return f"{_three(value)} ×"
    return _three(value)


def _three(value: float) -> str:
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def around(figures: Spread, unit: str = "") -> str:
    return f"{number(figures.low, unit)} – {number(figures.high, unit)}"


def table(head: list[str], rows: Iterable[list[str]], *, left: int = 1) -> str:
    """A Markdown table: the first columns on the left, the others on the right."""
    rule = ["---"] * left + ["--:"] * (len(head) - left)
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *rows])


def section(title: str, *parts: str) -> str:
    return "\n\n".join([f"## {title}", *(part for part in parts if part)])


def paragraph(text: str) -> str:
    """Wrapped; the lines of a list item are indented."""
    return textwrap.fill(text, 118, subsequent_indent="  " if text.startswith("- ") else "")


def picture(name: str, title: str) -> str:
    return f"![{title}]({PICTURES}/{name})"


def fastest_first(results: Results, workload: str, figure: str = RATE) -> list[str]:
    series = results["workloads"][workload]["series"]
    return sorted(series, key=lambda name: -spread(results, workload, name, figure).median)


# ---------------------------------------------------------------- sections


def _introduction(results: Results) -> str:
    dates = sorted({workload["date"] for workload in results["workloads"].values()})
    measured = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return (
        "# Performance\n\n"
        "<!-- Written by `./dev bench report` from bench/results/recorded.json: do not edit. -->\n\n"
        + paragraph(
            f"Measured {measured}. `./dev bench` measures again, `./dev bench --full` with the largest log too, and "
            "`./dev bench report` writes this page. Figures move with the machine; ratios taken in one run do so less."
        )
    )


def _targets(results: Results) -> str:
    rows = []
    for outcome in outcomes(results):
        target, measured = outcome
        limit = f"{'≥' if target.at_least else '≤'} {_limit(target)}"
        if measured is None:
            rows.append([target.statement, limit, "", "", outcome.word])
        else:
            rows.append(
                [
                    target.statement,
                    limit,
                    number(measured.median, target.unit),
                    around(measured, target.unit),
                    outcome.word if outcome.word == "met" else f"**{outcome.word}**",
                ]
            )
    return section("Targets", table(["target", "limit", "measured", "quartiles", ""], rows))


def _limit(target: Target) -> str:
    return number(target.limit, target.unit)


def _machine(results: Results) -> str:
    machine = results["machine"]
    rows = [
        ["processor", f"{machine['processor']}, {machine['cores']} cores"],
        ["memory", number(machine["memory_bytes"], "bytes")],
        ["system", machine["system"]],
        ["file system", machine["file_system"]],
        ["CRC-32C by", results["crc32c"]],
        ["versions", ", ".join(f"{name} {version}" for name, version in results["versions"].items() if version)],
    ]
    return section("Machine and versions", table(["", ""], rows, left=2))


def _method(results: Results) -> str:
    scale = results["scale"]
    lines = [
        f"Values are {VALUE_BYTES} random bytes, {scale['batch_records']:,} to a batch, one partition, one thread, "
        "unless a table says otherwise.",
        f"Contenders take turns in one process, A B C A B C: one round to warm up, then {scale['rounds']} "
        f"({scale['latency_rounds']} for single appends). A figure is the median of the rounds, with the quartiles "
        "beside it. A ratio is taken within each round, and is the median of those.",
        "Everyone writes new files in the same folder. The first record, which makes files and tables, and opening and "
        "closing are not timed. Before each turn nothing is left to be written from the one before.",
        "A ceiling is what the operating system does with the same bytes and nothing else. It is given batches that "
        "were encoded beforehand.",
        "Peers get whole batches, in one transaction each where they have such a thing. What they need besides the "
        "values (keys in order, a pickle) is made on the clock. Slow ones get fewer records; the tables say how many.",
        "Everything that was written is read back and compared, ours and theirs.",
    ]
    return section("How it is measured", "\n".join(paragraph(f"- {line}") for line in lines))


def _rates(results: Results, workload: str, title: str) -> str:
    """Rates of a workload, the fastest first, and what ours and the ceiling are in proportion to each."""
    if workload not in results["workloads"]:
        return ""
    series = results["workloads"][workload]["series"]
    order = fastest_first(results, workload)
    ceiling = next((name for name in order if series[name]["role"] == CEILING), None)
    rows = []
    for name in order:
        figures = spread(results, workload, name, RATE)
        rows.append(
            [
                f"**{name}**" if name == "DQ" else name,
                ROLES[series[name]["role"]],
                number(figures.median, "records/s"),
                around(figures, "records/s"),
                _against(results, workload, "DQ", name),
                _against(results, workload, ceiling, name),
                number(series[name]["facts"].get("records", 0)),
            ]
        )
    head = [title, "", "records/s", "quartiles", "DQ against it", f"{ceiling} against it", "records a round"]
    return table(head, rows, left=2)


def _against(results: Results, workload: str, name: str | None, other: str) -> str:
    if name is None or name == other:
        return ""
    return number(ratio(results, workload, name, other, RATE).median, "×")


def _append(results: Results) -> str:
    tables = [
        _rates(results, "append_many_os", "flush=os: page cache"),
        _rates(results, "append_many_always", "flush=always: stable storage"),
    ]
    return section("Appending batches", *tables, picture("append.png", "Append rates")) if any(tables) else ""


def _single(results: Results) -> str:
    parts = []
    if "append_one" in results["workloads"]:
        series = results["workloads"]["append_one"]["series"]
        rows = []
        for name in fastest_first(results, "append_one"):
            p50, p99 = (spread(results, "append_one", name, figure) for figure in ("p50_us", "p99_us"))
            times = "" if name == "DQ" else number(ratio(results, "append_one", "DQ", name, "p50_us").median, "×")
            bold = f"**{name}**" if name == "DQ" else name
            p50_text, p99_text = number(p50.median), number(p99.median)
            rows.append([bold, ROLES[series[name]["role"]], p50_text, around(p50), p99_text, around(p99), times])
        head = ["one thread", "", "p50 µs", "quartiles", "p99 µs", "quartiles", "p50 of DQ against it"]
        parts.append(table(head, rows, left=2))
    if "append_threads" in results["workloads"]:
        rows = [
            [
                name,
                number(spread(results, "append_threads", name, RATE).median, "records/s"),
                around(spread(results, "append_threads", name, RATE), "records/s"),
            ]
            for name in fastest_first(results, "append_threads")
        ]
        parts.append(table(["one partition, group commit", "records/s", "quartiles"], rows))
    text = "`append` of one record with flush=always: on stable storage when the call returns."
    return section("Appending single records", text, *parts) if parts else ""


def _producer(results: Results) -> str:
    tables = [_rates(results, f"producer_{flush}", f"flush={flush}") for flush in ("os", "always")]
    text = "One `send(value)` per record, then `flush()`, which is part of the time."
    return section("Buffered producer", text, *tables) if any(tables) else ""


def _read(results: Results) -> str:
    tables = [
        _rates(results, "read_lists", "`read_batches`: lists of values"),
        _rates(results, "read_arrow", "`read_arrow`: Arrow record batches"),
        _rates(results, "read_records", "`read`: record by record"),
    ]
    text = "From the first record to the last, out of the page cache."
    return section("Sequential read", text, *tables, picture("read.png", "Read rates")) if any(tables) else ""


def _open(results: Results) -> str:
    openings = workloads_like(results, "open_").values()
    rows = []
    for opening in sorted(openings, key=_by_tail_and_size):
        settings, figures = opening["settings"], opening["series"]["DQ"]["figures"]
        total = Spread.of(figures["seconds"])
        rows.append(
            [
                settings["tail"],
                settings["flush"],
                number(settings["log_bytes"], "bytes"),
                number(total.median, "s"),
                number(max(figures["seconds"]), "s"),
                number(Spread.of(figures["scanned_bytes"]).median, "bytes"),
                number(Spread.of(figures["clean_seconds"]).median, "s"),
            ]
        )
    text = paragraph(
        "A process appends and is killed with SIGKILL shortly before its next checkpoint, when there is most to be "
        "scanned. Then the log is opened, takes one append and gives its first record; the time is that of all three."
    )
    head = ["tail", "flush", "size", "median", "slowest", "scanned", "after a clean close"]
    if not rows:
        return ""
    return section("Opening after kill -9", text, table(head, rows, left=2), picture("open.png", "Time to open"))


def _by_tail_and_size(opening: Workload) -> tuple[str, str, int]:
    settings = opening["settings"]
    return settings["tail"], settings["flush"], settings["log_bytes"]


def _lookup(results: Results) -> str:
    if "lookup" not in results["workloads"]:
        return ""
    workload = results["workloads"]["lookup"]
    rows = []
    for name in workload["series"]:
        p50, p99 = (spread(results, "lookup", name, figure) for figure in ("p50_us", "p99_us"))
        rows.append([name, number(p50.median), around(p50), number(p99.median), around(p99)])
    size = number(workload["settings"]["log_bytes"], "bytes")
    text = paragraph(
        f"One record out of {size}, at random, from the call to the record: the batch it is in is found, read, checked "
        "and decoded. Out of the page cache."
    )
    return section("Random read", text, table(["", "p50 µs", "quartiles", "p99 µs", "quartiles"], rows))


STAGES = ("open", "append to each", "read from each")


def _partitions(results: Results) -> str:
    found = sorted(workloads_like(results, "partitions_").values(), key=lambda item: item["settings"]["partitions"])
    if not found:
        return ""
    rows = []
    for workload in found:
        figures = workload["series"]["DQ"]["figures"]
        for run in ("new", "used"):
            base = figures[f"{run}/import/resident_bytes"][0]
            for stage in STAGES:
                seconds, resident, handles = (
                    figures[f"{run}/{stage}/{name}"][0] for name in ("seconds", "resident_bytes", "file_handles")
                )
                rows.append(
                    [
                        f"{workload['settings']['partitions']:,}",
                        {"new": "empty", "used": "holding records"}[run],
                        stage,
                        number(seconds, "s"),
                        number(resident - base, "bytes"),
                        number(handles),
                    ]
                )
    opening = [
        [
            f"{workload['settings']['partitions']:,}",
            number(Spread.of(workload["series"]["DQ"]["figures"]["open_seconds"]).median, "s"),
            around(Spread.of(workload["series"]["DQ"]["figures"]["open_seconds"]), "s"),
        ]
        for workload in found
    ]
    text = paragraph(
        "A new process opens the log with flush=always, appends one record to each partition, and reads one from each. "
        "Memory is what it has more than after `import dq`; file handles include the three that every process has. "
        "A partition that was not touched yet, or not for long, is idle."
    )
    head = ["partitions", "they are", "after", "time", "memory", "file handles"]
    return section(
        "Many partitions",
        text,
        table(head, rows, left=3),
        "Opening such a log again in a warm process:",
        table(["partitions", "time", "quartiles"], opening),
    )


def _compression(results: Results) -> str:
    if "compression" not in results["workloads"]:
        return ""
    series = results["workloads"]["compression"]["series"]
    rows = []
    for name in series:
        size, append, read = (
            spread(results, "compression", name, figure)
            for figure in ("stored_bytes_per_value_byte", RATE, "read_records_per_second")
        )
        rows.append(
            [
                name,
                f"{size.median:.1%}",
                number(append.median, "records/s"),
                around(append, "records/s"),
                number(read.median, "records/s"),
                around(read, "records/s"),
            ]
        )
    facts = next(iter(series.values()))["facts"]
    text = paragraph(
        f"JSON documents of {facts['value_bytes'] / facts['records']:.0f} bytes on average, much alike. Size is what "
        "is stored in all, in proportion to the values alone. flush=os."
    )
    head = ["codec", "size", "append, records/s", "quartiles", "read, records/s", "quartiles"]
    return section("Compression", text, table(head, rows))


def _skipped(results: Results) -> str:
    lines = sorted(
        {f"- {name}: {why}" for item in results["workloads"].values() for name, why in item["skipped"].items()}
    )
    return section("Not measured", "\n".join(lines)) if lines else ""


# ---------------------------------------------------------------- command


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="./dev bench report", description="Writes docs/performance.md.")
    parser.add_argument("run", nargs="?", type=Path, help="a file that ./dev bench wrote (default: the newest)")
    parser.add_argument("--output", type=Path, help="a folder for everything that is written (default: the repository)")
    options = parser.parse_args(arguments)
    recorded = RECORDED if options.output is None else options.output / RECORDED.name
    docs = options.output or DOCS
    results = _results(options.run or (newest_run() if options.output is None else None), recorded)
    if results is None:
        parser.error("there are no results yet: ./dev bench makes them")
    docs.mkdir(parents=True, exist_ok=True)
    recorded.parent.mkdir(parents=True, exist_ok=True)
    save(results, recorded)
    results = load(recorded)  # rounded, so that the page can be made again from the file
    (docs / PAGE).write_text(render(results))
    print(f"wrote {docs / PAGE}")
    try:
        from bench import plots
    except ImportError as error:
        print(f"no pictures: {error}")
    else:
        plots.draw(results, docs / PICTURES)


def _results(run: Path | None, recorded: Path) -> Results | None:
    older = load(recorded) if recorded.exists() else None
    if run is None:
        return older
    newer: dict[str, Any] = load(run)
    return merge(older, condense(newer))


if __name__ == "__main__":
    main()
