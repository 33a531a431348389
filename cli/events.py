"""`dq events`: who changed what, and when: the history of the metadata."""

from __future__ import annotations

import fnmatch
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from dq.cli.options import DEFAULT_DATA, Data, open_to_read
from dq.cli.records import time_text, to_text
from dq.cli.values import parse_duration, parse_time
from dq.engine.embedded.reading import Partition, to_microseconds
from dq.engine.raft.event_log import METADATA_TOPIC
from dq.engine.raft.events import CHANGES, Event
from dq.engine.raft.history import EventFilter, describe

_COLUMNS = "{:>8}  {:<27}  {:<20}  {:<16}  {}"


def events(
    types: Annotated[
        list[str] | None,
        typer.Option("--type", "-t", metavar="TYPE", help="Only these: topic_created, 'broker_*'; may be repeated."),
    ] = None,
    topic: Annotated[str | None, typer.Option(help="Only those of this topic.")] = None,
    actor: Annotated[str | None, typer.Option(help="Only what this one did.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="From then on: an ISO time, or 2h, 7d: so long ago.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Before then.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more; Ctrl-C ends.")] = False,
    most: Annotated[int | None, typer.Option("--max", "-n", min=1, help="End after so many events.")] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0, help="With --follow: end after so many seconds without any.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
    data: Data = DEFAULT_DATA,
) -> None:
    """Show the events that made the metadata what it is.

    Works beside a running writer.
    """
    chosen = EventFilter(
        types=_types(types or []),
        topic=topic,
        actor=actor,
        since=None if since is None else parse_moment(since, "--since"),
        until=None if until is None else parse_moment(until, "--until"),
    )
    with metadata_log(data) as log:
        if not as_json:
            _write(_COLUMNS.format("offset", "time", "event", "actor", "what"))
        found = chosen.select(log, follow=follow, timeout=timeout)
        for offset, event in islice(found, most):
            _write(event_json(offset, event) if as_json else _line(offset, event))


@contextmanager
def metadata_log(data: Path) -> Iterator[Partition]:
    with open_to_read(data) as log:
        yield log.topic(METADATA_TOPIC).log(0)


def _types(patterns: list[str]) -> set[str]:
    chosen: set[str] = set()
    for pattern in patterns:
        matching = fnmatch.filter(CHANGES, pattern)
        if not matching:
            message = f"there is no event {pattern!r}: allowed are {', '.join(CHANGES)}"
            raise typer.BadParameter(message, param_hint="--type")
        chosen.update(matching)
    return chosen


def parse_moment(text: str, option: str) -> int:
    """A time, as microseconds: an ISO time (without a zone it is local), or a duration: so long ago."""
    moment = parse_time(text)
    try:
        if moment is not None:
            return to_microseconds(moment)
        ago = parse_duration(text, option)
        if ago is not None:
            return time.time_ns() // 1000 - ago // _MICROSECOND
    except (typer.BadParameter, OverflowError, ValueError):
        pass
    message = f"{text!r} is no time: write 2026-01-31T12:00:00Z, or 2h, 7d for so long ago"
    raise typer.BadParameter(message, param_hint=option)


_MICROSECOND = datetime.resolution


def event_json(offset: int, event: Event) -> str:
    plain: dict[str, Any] = {
        "offset": offset,
        "time": time_text(event.time),
        "type": event.change.type,
        "actor": event.actor,
        "id": event.id.hex(),
        "data": describe(event.change),
    }
    return json.dumps(plain, ensure_ascii=False)


def _line(offset: int, event: Event) -> str:
    return _COLUMNS.format(
        offset,
        time_text(event.time),
        event.change.type,
        _printable(event.actor),
        _printable(" ".join(_words(describe(event.change)))),
    )


def _words(plain: dict[str, Any]) -> Iterator[str]:
    for name, value in plain.items():
        if value in (None, "", {}, []):
            continue
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        yield f"{name}={text}"


def _printable(text: str) -> str:
    return to_text(text.encode("utf-8", "backslashreplace"))


def _write(line: str) -> None:
    sys.stdout.buffer.write(line.encode("utf-8", "backslashreplace") + b"\n")
    sys.stdout.buffer.flush()
