"""`dq verify`: checks everything that is stored."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer

import dq
from dq.cli.errors import FAILED, MISUSED, show_error
from dq.cli.options import DEFAULT_DATA, Data, Directory, Json
from dq.cli.output import byte_progress, number, out, plural, print_json, size, table
from dq.engine.embedded.verify import Finding, PartitionReport, VerifyReport
from dq.engine.embedded.verify import verify as verify_directory


def verify(directory: Directory = None, data: Data = DEFAULT_DATA, as_json: Json = False) -> None:
    """Read and check everything that is stored.

    Changes nothing, and works beside a running writer. Exit code 0: all is well, 1: damage was found.
    """
    try:
        report = check(directory or data)
    except dq.DQError as error:
        show_error(error)
        raise typer.Exit(MISUSED) from None
    if as_json:
        print_json(_to_json(report))
    else:
        print_report(report)
    if not report.ok:
        raise typer.Exit(FAILED)


def check(path: Path | str) -> VerifyReport:
    with byte_progress("verifying") as update:
        return verify_directory(path, progress=update)


def print_report(report: VerifyReport) -> None:
    listing = table("topic", ">partition", ">segments", ">batches", ">records", ">size", "state")
    for item in report.partitions:
        listing.add_row(
            item.topic,
            str(item.partition),
            number(item.segments),
            number(item.batches),
            number(item.records),
            size(item.bytes),
            _state(item),
        )
    out.print(listing)
    for item in report.partitions:
        for finding in item.findings:
            out.print(f"[red]{finding.kind}[/] {where(report.path, finding)}", soft_wrap=True)
        _print_notes(report, item)
    total = sum(item.bytes for item in report.partitions)
    records = sum(item.records for item in report.partitions)
    if report.ok:
        out.print(f"[green]all is well[/]: {plural(records, 'record')}, {size(total)}")
    else:
        count = plural(len(report.findings), "problem")
        out.print(
            f"[bold red]{count} found[/]. [dim]`dq repair {report.path}` says what can be done.[/]", soft_wrap=True
        )


def _state(item: PartitionReport) -> str:
    if item.findings:
        return f"[bold red]{plural(len(item.findings), 'problem')}[/]"
    return "[yellow]torn tail[/]" if item.torn_tail else "[green]ok[/]"


def _print_notes(report: VerifyReport, item: PartitionReport) -> None:
    tail = item.torn_tail
    if tail is not None:
        name = os.path.relpath(tail.file, report.path)
        out.print(
            f"[yellow]torn tail[/] {name} at byte {tail.position}: {size(tail.bytes)} that a crash left of writes "
            "which were never acknowledged. Opening the log for writing cuts it off.",
            soft_wrap=True,
        )
    if item.undecoded:
        out.print(
            f"[yellow]not decoded[/] {plural(item.undecoded, 'batch')} of {item.topic}/{item.partition}: their CRC is "
            "good, but their codec is not installed. [dim]pip install 'dqsegments\\[compression]'[/]",
            soft_wrap=True,
        )


def where(root: str, finding: Finding) -> str:
    text = f"{os.path.relpath(finding.file, root)} at byte {finding.position}"
    if finding.offset is not None and finding.next_offset is not None and finding.next_offset > finding.offset:
        last = finding.next_offset - 1
        text += f", offset {finding.offset}" if last == finding.offset else f", offsets {finding.offset} to {last}"
    return f"{text}: {finding.reason}".replace("[", r"\[")


def _to_json(report: VerifyReport) -> dict[str, Any]:
    return {
        "path": report.path,
        "ok": report.ok,
        "partitions": [
            {
                "topic": item.topic,
                "partition": item.partition,
                "segments": item.segments,
                "batches": item.batches,
                "records": item.records,
                "bytes": item.bytes,
                "start_offset": item.start_offset,
                "end_offset": item.end_offset,
                "undecoded": item.undecoded,
                "torn_tail": None if item.torn_tail is None else item.torn_tail._asdict(),
                "findings": [finding_to_json(finding) for finding in item.findings],
            }
            for item in report.partitions
        ],
    }


def finding_to_json(finding: Finding) -> dict[str, Any]:
    names = ("kind", "file", "position", "end", "offset", "next_offset", "reason")
    return {name: getattr(finding, name) for name in names}
