"""`dq repair`: makes a damaged log readable throughout again, and keeps what it takes away."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from dq.cli.errors import FAILED
from dq.cli.options import DEFAULT_DATA, Data, Directory, Json
from dq.cli.output import byte_progress, number, out, plural, print_json, size, table
from dq.cli.verify import finding_to_json, where
from dq.engine.embedded.repair import RepairReport
from dq.engine.embedded.repair import repair as repair_directory
from dq.engine.segments.segment import base_offset_of

_WORDS = {
    "replace": "replace damage",
    "fill": "fill a gap",
    "cut": "cut a torn tail",
    "correct": "correct a header",
    "forget": "forget an entry",
}


def repair(
    directory: Directory = None,
    apply: Annotated[bool, typer.Option("--apply", help="Do it. Without this, only say what would be done.")] = False,
    data: Data = DEFAULT_DATA,
    as_json: Json = False,
) -> None:
    """Say what a repair would do; with --apply, do it.

    Damaged bytes are kept under DIR/repair before anything changes. Nobody may be writing meanwhile.
    """
    with byte_progress("repairing" if apply else "looking") as update:
        report = repair_directory(directory or data, apply=apply, progress=update)
    if as_json:
        print_json(_to_json(report))
    else:
        _print_report(report)
    if report.left_alone or (report.steps and not apply):
        raise typer.Exit(FAILED)


def _print_report(report: RepairReport) -> None:
    if not report.steps and not report.left_alone:
        out.print("[green]nothing to repair[/]")
        return
    if report.steps:
        last = "done" if report.applied else "to do"
        listing = table("partition", ">segment", ">at byte", ">bytes", "offsets lost", last)
        for step in report.steps:
            listing.add_row(
                f"{step.topic}/{step.partition}",
                str(base_offset_of(os.path.basename(step.file)) or 0),
                number(step.position),
                number(step.bytes),
                f"{step.offset}-{step.next_offset - 1}" if step.lost_offsets else "none",
                _WORDS[step.action],
            )
        out.print(listing)
    for finding in report.left_alone:
        out.print(f"[yellow]left alone[/] {finding.kind} {where(report.path, finding)}", soft_wrap=True)
    lost = plural(report.lost_offsets, "offset")
    taken = size(sum(step.bytes for step in report.steps))
    if not report.applied:
        out.print(f"{lost} would be lost, {taken} kept aside. Nothing was changed: [bold]--apply[/] does it.")
    elif report.kept_in:
        out.print(f"[green]repaired[/]. {lost} lost; {taken} kept in {report.kept_in}", soft_wrap=True)
    else:
        out.print(f"[green]repaired[/]. {lost} lost")


def _to_json(report: RepairReport) -> dict[str, Any]:
    return {
        "path": report.path,
        "applied": report.applied,
        "lost_offsets": report.lost_offsets,
        "kept_in": report.kept_in,
        "steps": [step._asdict() for step in report.steps],
        "left_alone": [finding_to_json(finding) for finding in report.left_alone],
    }
