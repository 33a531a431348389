"""`dq produce`: records from the command line, from standard input or from a file."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

import dq
from dq.cli.options import DEFAULT_DATA, Data, TopicName, open_to_write
from dq.cli.output import err, out, plural, rate, seconds, size
from dq.cli.records import Parsed, from_json


def produce(
    topic: TopicName,
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="VALUES", help="One record each; without any, the lines of stdin.", show_default=False),
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option("--from-file", "-f", metavar="FILE", help="The lines of a file.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of every record.")] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-s", metavar="SEP", help="What stands before this is the key.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="A header of every record.")
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", help="Where all records go.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help='Lines are {"value", "key", "headers", "timestamp"}.')
    ] = False,
    data: Data = DEFAULT_DATA,
) -> None:
    """Append records to a topic.

    A line that is not JSON is stored as it is, byte for byte, without the newline at its end.
    """
    if values and from_file is not None:
        raise typer.BadParameter("give values or --from-file, not both")
    if as_json and (key is not None or key_separator is not None):
        raise typer.BadParameter("with --json, keys are part of the lines")
    headers = _headers(header)
    with ExitStack() as stack:
        log = stack.enter_context(open_to_write(data))
        target = log.topic(topic)
        lines = _lines(values, from_file, stack)
        count = length = 0
        begin = time.monotonic()
        with target.producer() as producer:
            for number, line in enumerate(lines, 1):
                record = from_json(line, number) if as_json else _split(line, key, key_separator, number)
                producer.send(
                    record.value,
                    record.key,
                    partition=partition,
                    headers=record.headers or headers,
                    timestamp=record.timestamp,
                )
                count += 1
                length += len(record.value or b"")
        elapsed = time.monotonic() - begin
    speed = rate(count, elapsed, "records")
    out.print(f"{plural(count, 'record')} ({size(length)}) in {seconds(elapsed)}, {speed}")


def _headers(options: list[str] | None) -> dict[str, bytes] | None:
    headers = {}
    for option in options or []:
        name, equals, value = option.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{option!r} is no header: write NAME=VALUE", param_hint="--header")
        headers[name] = value.encode()
    return headers or None


def _lines(values: list[str] | None, from_file: Path | None, stack: ExitStack) -> Iterator[bytes]:
    if values:
        return (value.encode("utf-8", "surrogateescape") for value in values)
    if from_file is not None:
        return _stripped(stack.enter_context(from_file.open("rb")))
    if sys.stdin.isatty():
        err.print("[dim]One record per line; Ctrl-D ends.[/]")
    return _stripped(sys.stdin.buffer)


def _stripped(stream: BinaryIO) -> Iterator[bytes]:
    for line in stream:
        yield line[:-1] if line.endswith(b"\n") else line


def _split(line: bytes, key: str | None, separator: str | None, number: int) -> Parsed:
    if separator is None:
        return Parsed(line, None if key is None else key.encode())
    before, found, value = line.partition(separator.encode())
    if not found:
        raise dq.InvalidRecord(f"line {number} has no {separator!r} between key and value")
    return Parsed(value, before)
