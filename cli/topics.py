"""`dq topics`: list, create, describe, configure, delete."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

import dq
from dq.cli.options import DEFAULT_DATA, Data, Json, TopicName, open_to_read, open_to_write
from dq.cli.output import duration, number, out, plural, print_json, seconds, size, table
from dq.cli.values import parse_duration, parse_size

app = typer.Typer(help="List, create, describe, configure and delete topics.", invoke_without_command=True)

_DURATIONS = ("retention", "tombstone_retention", "segment_age")
_SIZES = ("retention_bytes", "segment_bytes", "max_batch_bytes")

Retention = Annotated[
    str | None, typer.Option(metavar="TIME", help="Keep records for so long: 7d, 12h, 30m; none: for good.")
]
RetentionBytes = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Keep so much of each partition: 10GiB; none: no limit.")
]
Compact = Annotated[
    bool | None, typer.Option("--compact/--no-compact", help="Keep only the latest record of each key.")
]
TombstoneRetention = Annotated[str | None, typer.Option(metavar="TIME", help="Compaction keeps deletions for so long.")]
SegmentBytes = Annotated[str | None, typer.Option(metavar="SIZE", help="Begin a new file after so much.")]
SegmentAge = Annotated[str | None, typer.Option(metavar="TIME", help="Begin a new file after so long.")]
Compression = Annotated[str | None, typer.Option(metavar="CODEC", help="none, lz4 or zstd.")]
MaxBatchBytes = Annotated[str | None, typer.Option(metavar="SIZE", help="Refuse batches that are larger.")]


@app.callback()
def topics(context: typer.Context, data: Data = DEFAULT_DATA, as_json: Json = False) -> None:
    context.obj = data
    if context.invoked_subcommand is None:
        _list(data, as_json)


@app.command("list")
def list_topics(data: Data = DEFAULT_DATA, as_json: Json = False) -> None:
    """List all topics."""
    _list(data, as_json)


def _list(data: Path, as_json: bool) -> None:
    with open_to_read(data) as log:
        rows = [_summary(topic) for topic in log.topics()]
    if as_json:
        print_json(rows)
        return
    if not rows:
        out.print("There are no topics yet. [dim]`dq topics create NAME` makes one.[/]")
        return
    listing = table("topic", ">partitions", ">records", ">size", "codec", "kept", ">consumers")
    for row in rows:
        listing.add_row(
            f"[bold]{row['name']}[/]",
            number(row["partitions"]),
            number(row["records"]),
            size(row["bytes"]),
            row["compression"],
            row["kept"],
            number(row["consumers"]),
        )
    out.print(listing)


def _summary(topic: dq.Topic) -> dict[str, Any]:
    logs = [topic.log(partition) for partition in range(topic.partitions)]
    return {
        "name": topic.name,
        "partitions": topic.partitions,
        "records": sum(log.visible_end() - log.start_offset for log in logs),
        "bytes": sum(log.size() for log in logs),
        "compression": topic.config.compression,
        "kept": _kept(topic.config),
        "consumers": len(topic.consumers()),
    }


def _kept(config: Any) -> str:
    """Retention in a few words."""
    limits = []
    if config.retention is not None:
        limits.append(duration(config.retention))
    if config.retention_bytes is not None:
        limits.append(size(config.retention_bytes))
    if config.compact:
        limits.insert(0, "latest per key")
    return ", ".join(limits) or "for good"


@app.command()
def create(
    name: TopicName,
    partitions: Annotated[int, typer.Option("--partitions", "-p", help="How many partitions.")] = 1,
    retention: Retention = None,
    retention_bytes: RetentionBytes = None,
    compact: Compact = None,
    tombstone_retention: TombstoneRetention = None,
    segment_bytes: SegmentBytes = None,
    segment_age: SegmentAge = None,
    compression: Compression = None,
    max_batch_bytes: MaxBatchBytes = None,
    if_missing: Annotated[bool, typer.Option("--if-missing", help="Do nothing if the topic exists.")] = False,
    data: Data = DEFAULT_DATA,
) -> None:
    """Create a topic, and the data directory if there is none."""
    settings = _settings(
        retention=retention,
        retention_bytes=retention_bytes,
        compact=compact,
        tombstone_retention=tombstone_retention,
        segment_bytes=segment_bytes,
        segment_age=segment_age,
        compression=compression,
        max_batch_bytes=max_batch_bytes,
    )
    with open_to_write(data, create=True) as log:
        topic = log.create_topic(name, partitions, exist_ok=if_missing, **settings)
        out.print(f"topic [bold]{topic.name}[/] with {plural(topic.partitions, 'partition')} in {log.path}")


@app.command()
def configure(
    name: TopicName,
    retention: Retention = None,
    retention_bytes: RetentionBytes = None,
    compact: Compact = None,
    tombstone_retention: TombstoneRetention = None,
    segment_bytes: SegmentBytes = None,
    segment_age: SegmentAge = None,
    compression: Compression = None,
    max_batch_bytes: MaxBatchBytes = None,
    data: Data = DEFAULT_DATA,
) -> None:
    """Change settings of a topic; those that are not named stay as they are."""
    settings = _settings(
        retention=retention,
        retention_bytes=retention_bytes,
        compact=compact,
        tombstone_retention=tombstone_retention,
        segment_bytes=segment_bytes,
        segment_age=segment_age,
        compression=compression,
        max_batch_bytes=max_batch_bytes,
    )
    if not settings:
        raise typer.BadParameter("name at least one setting to change, as --retention 7d")
    with open_to_write(data) as log:
        topic = log.configure_topic(name, **settings)
        _print_settings(topic.config)


def _settings(**options: str | bool | None) -> dict[str, Any]:
    """What was given, as dq.create_topic takes it."""
    settings: dict[str, Any] = {}
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if value is None:
            continue
        if name in _DURATIONS:
            settings[name] = parse_duration(str(value), option)
        elif name in _SIZES:
            settings[name] = parse_size(str(value), option)
        else:
            settings[name] = value
    return settings


@app.command()
def describe(name: TopicName, data: Data = DEFAULT_DATA, as_json: Json = False) -> None:
    """Show the settings, partitions and consumers of a topic."""
    with open_to_read(data) as log:
        topic = log.topic(name)
        info = topic.describe()
        lags = {consumer: _lag(topic, consumer) for consumer in info.consumers}
    if as_json:
        print_json(_described(info, lags))
        return
    created = f"{info.created:%Y-%m-%d %H:%M:%S} UTC"
    out.print(f"[bold]{info.name}[/]  [dim]{info.topic_id}, created {created}[/]\n")
    _print_settings(info.config)
    out.print()
    listing = table(">partition", ">first", ">next", ">records", ">size", ">segments", "last record")
    for item in info.partitions:
        listing.add_row(
            str(item.partition),
            number(item.start_offset),
            number(item.next_offset),
            number(item.next_offset - item.start_offset),
            size(item.size),
            number(item.segments),
            "" if item.last_timestamp is None else f"{item.last_timestamp:%Y-%m-%d %H:%M:%S}",
        )
    out.print(listing)
    if lags:
        out.print()
        listing = table("consumer", ">behind", ">by time")
        for consumer, lag in lags.items():
            if lag is None:
                listing.add_row(consumer, "[red]damage[/]", "")
            else:
                listing.add_row(consumer, plural(lag.records, "record"), seconds(lag.seconds) if lag.records else "")
        out.print(listing)


def _lag(topic: dq.Topic, name: str) -> dq.Lag | None:
    """None when what the consumer would read next is damaged."""
    try:
        with topic.consumer(name) as consumer:
            return consumer.lag()
    except dq.Corruption:
        return None


def _print_settings(config: Any) -> None:
    settings = table("setting", "value")
    for name, value in asdict(config).items():
        if name in _DURATIONS:
            text = duration(value)
        elif name in _SIZES:
            text = "no limit" if value is None else size(value)
        else:
            text = str(value).lower()
        settings.add_row(name.replace("_", " "), text)
    out.print(settings)


def _described(info: dq.TopicInfo, lags: dict[str, dq.Lag | None]) -> dict[str, Any]:
    plain = asdict(info)
    plain["created"] = info.created.isoformat()
    for name in _DURATIONS:
        length = plain["config"].pop(name)
        plain["config"][f"{name}_seconds"] = None if length is None else length / 1_000_000
    for partition, item in zip(plain["partitions"], info.partitions, strict=True):
        moment = item.last_timestamp
        partition["last_timestamp"] = None if moment is None else moment.isoformat()
    plain["consumers"] = [{"name": name, **_lag_json(lag)} for name, lag in lags.items()]
    return plain


def _lag_json(lag: dq.Lag | None) -> dict[str, Any]:
    if lag is None:
        return {"lag_records": None, "lag_seconds": None, "partitions": {}}
    return {
        "lag_records": lag.records,
        "lag_seconds": round(lag.seconds, 6),
        "partitions": {partition: item.records for partition, item in lag.partitions.items()},
    }


@app.command()
def delete(
    name: TopicName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    data: Data = DEFAULT_DATA,
) -> None:
    """Delete a topic and everything in it."""
    with open_to_write(data) as log:
        summary = _summary(log.topic(name))
        what = f"{plural(summary['records'], 'record')}, {size(summary['bytes'])}"
        if not yes:
            typer.confirm(f"Delete topic {name} with {what}?", abort=True)
        log.delete_topic(name)
        out.print(f"deleted topic [bold]{name}[/] with {what}")
