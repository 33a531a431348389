"""`dq cat`: what segment files hold, batch by batch. Goes on behind damage."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

import dq
from dq.cli.errors import FAILED
from dq.cli.options import DEFAULT_DATA, Data, Json, open_to_read
from dq.cli.output import err, write_bytes
from dq.cli.records import time_text, to_json, to_text
from dq.engine.embedded.verify import LAST_OFFSET, Damaged, lock_holder, visible_end_of, walk
from dq.engine.errors import Corruption, DamagedBatch
from dq.engine.files import OsFiles
from dq.engine.segments.batch import AFTER_SYNC, CONTROL, SPARSE, BatchHeader, decode
from dq.engine.segments.compression import NAMES
from dq.engine.segments.recovery import list_segments
from dq.engine.segments.segment import Placed, Segment, base_offset_of

_FLAGS = {CONTROL: "control", SPARSE: "sparse", AFTER_SYNC: "after-sync"}
_CODECS = {codec: name for name, codec in NAMES.items()}
_COLUMNS = "{:>10}  {:<16} {:>7} {:>5} {:<8} {:<4} {:>8}  {:<3} {}"


class _Source(NamedTuple):
    """A segment file, and which offsets to expect of it."""

    path: str
    limit: int = LAST_OFFSET
    visible_end: int = LAST_OFFSET


def cat(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH", help="Segment files, directories of partitions or topics, or topic names."),
    ],
    headers: Annotated[bool, typer.Option("--headers", help="Show the headers of batches, not the records.")] = False,
    as_json: Json = False,
    data: Data = DEFAULT_DATA,
) -> None:
    """Show what segment files hold.

    Damaged parts are named and passed over; the exit code is then 1.
    """
    damaged = False
    for path in paths:
        for source in _sources(path, data):
            damaged |= _cat(source, headers, as_json)
    if damaged:
        raise typer.Exit(FAILED)


# ---------------------------------------------------------------- which files


def _sources(path: str, data: Path) -> Iterator[_Source]:
    if os.path.isfile(path):
        yield _Source(path, visible_end=_visible_end(os.path.dirname(path)))
    elif os.path.isdir(path):
        directories = _partitions(path)
        if not directories:
            raise dq.InvalidInput(f"{path} holds no segments: name a partition's or a topic's directory, or a topic")
        for directory in directories:
            yield from _segments(directory)
    else:
        with open_to_read(data) as log:
            topic = log.topic(path)
            parent = os.path.join(log.path, "topics", topic.directory_name)
        for number in range(topic.partitions):
            yield from _segments(os.path.join(parent, str(number)))


def _partitions(path: str) -> list[str]:
    if list_segments(OsFiles(), path):
        return [path]
    numbers = sorted(int(name) for name in os.listdir(path) if name.isdecimal())
    return [os.path.join(path, str(number)) for number in numbers]


def _segments(directory: str) -> Iterator[_Source]:
    bases = list_segments(OsFiles(), directory)
    visible_end = _visible_end(directory)
    for base, following in zip(bases, [*bases[1:], LAST_OFFSET], strict=True):
        yield _Source(f"{directory}/{base:020d}.seg", following, visible_end)


def _visible_end(directory: str) -> int:
    """Where a running writer lets readers see to; without one, everything is shown."""
    root = os.path.join(directory or ".", "..", "..", "..")
    visible_end = visible_end_of(OsFiles(), directory or ".")
    if visible_end is None or lock_holder(OsFiles(), root) is None:
        return LAST_OFFSET
    return visible_end


# ---------------------------------------------------------------- what they hold


def _cat(source: _Source, headers: bool, as_json: bool) -> bool:
    """Shows one segment; True when it is damaged."""
    files = OsFiles()
    named = base_offset_of(os.path.basename(source.path))
    segment = Segment(source.path, named or 0, files.open(source.path))
    try:
        show = _Headers(segment, as_json) if headers else _Records(segment, as_json)
        try:
            header = segment.read_header()
            show.partition = header.partition
            if named is None:
                segment.base_offset = header.base_offset
        except Corruption as damage:
            show.damage(Damaged(0, 0, segment.base_offset, segment.base_offset, damage.reason))
        for item in walk(segment, limit=source.limit, visible_end=source.visible_end):
            if isinstance(item, Damaged):
                show.damage(item)
            else:
                show.batch(item)
        return show.damaged
    finally:
        segment.close()


class _Records:
    """Record by record."""

    def __init__(self, segment: Segment, as_json: bool) -> None:
        self._segment = segment
        self._as_json = as_json
        self.partition = 0
        self.damaged = False

    def batch(self, placed: Placed) -> None:
        header = placed.header
        try:
            batch = decode(header, placed.body, self.partition)
        except DamagedBatch as error:
            end = placed.position + header.size
            self.damage(Damaged(placed.position, end, header.base_offset, header.next_offset, str(error)))
            return
        to_line = to_json if self._as_json else _record_line
        lines = [to_line(record) + "\n" for record in batch.records()]
        write_bytes("".join(lines).encode("utf-8", "surrogatepass"))

    def damage(self, damaged: Damaged) -> None:
        self.damaged = True
        err.print("[bold red]damaged:[/]", _damage_text(self._segment, damaged), soft_wrap=True, markup=True)


def _record_line(record: dq.Record) -> str:
    key = "" if record.key is None else to_text(record.key)
    line = f"{record.partition}:{record.offset}\t{time_text(record.timestamp)}\t{key}\t{to_text(record.value)}"
    if record.headers:
        line += "\t" + " ".join(f"{to_text(name.encode())}={to_text(value)}" for name, value in record.headers.items())
    return line


def _damage_text(segment: Segment, damaged: Damaged) -> str:
    where = f"{segment.path} at byte {damaged.position}"
    if damaged.end > damaged.position:
        where += f" up to {damaged.end}"
    if damaged.next_offset is None:
        where += f", offsets from {damaged.offset} on"
    elif damaged.next_offset > damaged.offset:
        where += f", offsets {damaged.offset} to {damaged.next_offset - 1}"
    return f"{where}: {damaged.reason}".replace("[", r"\[")


class _Headers(_Records):
    """Batch header by batch header."""

    def __init__(self, segment: Segment, as_json: bool) -> None:
        super().__init__(segment, as_json)
        if not as_json:
            titles = ("position", "offsets", "records", "epoch", "producer", "codec", "bytes", "CRC", "flags")
            print(segment.path)
            print(_COLUMNS.format(*titles))

    def batch(self, placed: Placed) -> None:
        if self._as_json:
            print(json.dumps({"file": self._segment.path, "position": placed.position, **_header_json(placed.header)}))
            return
        header = placed.header
        producer = "-"
        if header.producer_id >= 0:
            producer = f"{header.producer_id}/{header.producer_epoch}/{header.base_sequence}"
        print(
            _COLUMNS.format(
                placed.position,
                f"{header.base_offset}-{header.next_offset - 1}",
                header.count,
                header.leader_epoch,
                producer,
                _CODECS[header.codec],
                header.size,
                "ok",
                " ".join(_flags(header)),
            ).rstrip()
        )

    def damage(self, damaged: Damaged) -> None:
        self.damaged = True
        if self._as_json:
            print(json.dumps({"file": self._segment.path, "crc": "damaged", **damaged._asdict()}))
        else:
            print(_damage_text(self._segment, damaged))


def _flags(header: BatchHeader) -> list[str]:
    return [name for flag, name in _FLAGS.items() if header.flags & flag]


def _header_json(header: BatchHeader) -> dict[str, Any]:
    return {
        **header._asdict(),
        "codec": _CODECS[header.codec],
        "flags": _flags(header),
        "next_offset": header.next_offset,
        "size": header.size,
        "crc": "ok",
    }
