"""`dq consume`: records of a topic as lines of text or JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Annotated

import typer

import dq
from dq.cli.options import DEFAULT_DATA, Data, TopicName, open_to_read, open_to_write
from dq.cli.output import write_bytes
from dq.cli.records import NOTHING, to_json, to_text
from dq.cli.values import Start, parse_start

_POLL = 0.5  # seconds: how long a named consumer that follows waits at a time
_MOST = 1000  # records from one commit to the next


def consume(
    topic: TopicName,
    start: Annotated[
        str, typer.Option("--from", metavar="START", help="earliest, latest, an offset, or an ISO time.")
    ] = "earliest",
    partition: Annotated[int | None, typer.Option("--partition", "-p", help="Only this one.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more; Ctrl-C ends.")] = False,
    most: Annotated[int | None, typer.Option("--max", "-n", min=1, help="End after so many records.")] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0, help="With --follow: end after so many seconds without any.")
    ] = None,
    consumer: Annotated[
        str | None,
        typer.Option("--consumer", "-c", metavar="NAME", help="Go on where this consumer was, and commit."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Values as they are, without escapes.")] = False,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-s", metavar="SEP", help="Print the key and this first.")
    ] = None,
    offsets: Annotated[bool, typer.Option("--offsets", "-o", help="Print partition and offset first.")] = False,
    data: Data = DEFAULT_DATA,
) -> None:
    """Print the records of a topic.

    One line each: bytes that are no UTF-8, and control characters, are escaped.
    Works beside a running writer, except with --consumer, which writes positions.
    """
    if consumer is not None and partition is not None:
        raise typer.BadParameter("a consumer reads all partitions: leave out --partition")
    if as_json and raw:
        raise typer.BadParameter("choose --json or --raw")
    position = parse_start(start, "--from")
    to_line = _as_json if as_json else _as_text(raw, key_separator, offsets)
    if consumer is not None:
        _consume_named(data, topic, consumer, position, follow, most, timeout, to_line)
        return
    with open_to_read(data) as log:
        batches = log.topic(topic).read_batches(partition, position, follow=follow, timeout=timeout)
        for records in _limited(batches, most):
            _write(records, to_line)


def _limited(batches: Iterator[dq.Batch], most: int | None) -> Iterator[list[dq.Record]]:
    """Batch by batch, up to so many records in all."""
    left = most
    for batch in batches:
        records = list(islice(batch.records(), left))
        yield records
        if left is not None:
            left -= len(records)
            if left == 0:
                return


def _consume_named(
    data: Data,
    topic: str,
    name: str,
    start: Start,
    follow: bool,
    most: int | None,
    timeout: float | None,
    to_line: Callable[[dq.Record], bytes],
) -> None:
    """Commits what was printed: interrupted in between, it prints some records again, and leaves out none."""
    with open_to_write(data) as log, log.topic(topic).consumer(name, start=start) as consumer:
        left = most
        idle = 0.0
        while left != 0:
            wait = min(_POLL, _POLL if timeout is None else timeout) if follow else 0.0
            records = consumer.poll(_MOST if left is None else min(left, _MOST), timeout=wait)
            _write(records, to_line)
            consumer.commit()
            if left is not None:
                left -= len(records)
            idle = 0.0 if records else idle + wait
            if not records and (not follow or (timeout is not None and idle >= timeout)):
                return


def _write(records: Iterable[dq.Record], to_line: Callable[[dq.Record], bytes]) -> None:
    write_bytes(b"".join(map(to_line, records)))


def _as_json(record: dq.Record) -> bytes:
    return to_json(record).encode("utf-8", "surrogatepass") + b"\n"


def _as_text(raw: bool, key_separator: str | None, offsets: bool) -> Callable[[dq.Record], bytes]:
    def as_bytes(value: bytes | None) -> bytes:
        if raw:
            return NOTHING.encode() if value is None else value
        return to_text(value).encode("utf-8", "surrogatepass")

    def to_line(record: dq.Record) -> bytes:
        line = as_bytes(record.value) + b"\n"
        if key_separator is not None:
            line = (b"" if record.key is None else as_bytes(record.key)) + key_separator.encode() + line
        return b"%d:%d\t" % (record.partition, record.offset) + line if offsets else line

    return to_line
