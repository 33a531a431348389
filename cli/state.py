"""`dq state`: the metadata now, as of an event or a time, or what differs between two of these."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from dq.cli.events import metadata_log, parse_moment
from dq.cli.options import DEFAULT_DATA, Data, Json
from dq.cli.output import number, out, print_json, table
from dq.cli.records import time_text
from dq.engine.raft.history import Difference, History, describe, diff
from dq.engine.raft.image import Image, state_hash


def state(
    as_of: Annotated[
        str | None,
        typer.Option("--as-of", metavar="POINT", help="The offset of an event, an ISO time, or 2h, 7d: so long ago."),
    ] = None,
    between: Annotated[
        tuple[str, str] | None,
        typer.Option("--diff", metavar="A B", help="What differs between two points; now is one, too."),
    ] = None,
    as_json: Json = False,
    data: Data = DEFAULT_DATA,
) -> None:
    """Show topics, consumers, brokers and whatever else the metadata holds, now or in the past.

    The state as of an event is the one after it. Works beside a running writer.
    """
    if as_of is not None and between is not None:
        raise typer.BadParameter("choose --as-of or --diff")
    with metadata_log(data) as log:
        history = History(log.files, log)
        if between is not None:
            before, after = (_image(history, point, "--diff") for point in between)
            _show_differences(diff(before, after), as_json)
            return
        image = history.latest() if as_of is None else _image(history, as_of, "--as-of")
    if as_json:
        print_json(_plain(image))
    else:
        _show(image)


def _image(history: History, point: str, option: str) -> Image:
    if point == "now":
        return history.latest()
    if point.isdecimal():
        return history.after(int(point))
    return history.at_time(parse_moment(point, option))


def _plain(image: Image) -> dict[str, Any]:
    plain: dict[str, Any] = describe(image)
    del plain["offset"], plain["time"]
    return {
        "event": image.offset - 1 if image.offset else None,
        "time": time_text(image.time) if image.offset else None,
        "state_hash": state_hash(image),
        **plain,
    }


# ---------------------------------------------------------------- differences


def _show_differences(differences: list[Difference], as_json: bool) -> None:
    if as_json:
        print_json([{**item._asdict(), "path": list(item.path)} for item in differences])
        return
    if not differences:
        out.print("Nothing is different.")
        return
    listing = table("", "what", "before", "after")
    for item in differences:
        before = "" if item.kind == "added" else _text(item.before)
        after = "" if item.kind == "removed" else _text(item.after)
        listing.add_row(item.kind, escape("/".join(item.path)), before, after)
    out.print(listing)


def _text(value: Any) -> str:
    return escape(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


# ---------------------------------------------------------------- a state


def _show(image: Image) -> None:
    if not image.offset:
        out.print("There are no events yet.")
        return
    last = f"as of event {number(image.offset - 1)}, {time_text(image.time)}"
    out.print(f"[bold]{last}[/]  [dim]state {state_hash(image)[:16]}[/]")
    for made in (_topics, _partitions, _consumers, _producers, _brokers, _tokens):
        listing = made(image)
        if listing.row_count:
            out.print()
            out.print(listing)


def _topics(image: Image) -> Table:
    listing = table("topic", ">partitions", "settings", ">consumers", "created")
    for name, topic in sorted(image.topics.items()):
        settings = " ".join(f"{key}={value}" for key, value in sorted(topic.config.items()))
        listing.add_row(
            f"[bold]{escape(name)}[/]",
            number(topic.partitions),
            escape(settings),
            number(len(topic.consumers)),
            time_text(topic.created),
        )
    return listing


def _partitions(image: Image) -> Table:
    listing = table("topic", ">partition", ">leader", ">epoch", "replicas", "in sync")
    for name, topic in sorted(image.topics.items()):
        for partition, item in sorted(topic.assigned.items()):
            leader = "[red]none[/]" if item.leader is None else str(item.leader)
            replicas, in_sync = (" ".join(map(str, brokers)) for brokers in (item.replicas, item.in_sync))
            listing.add_row(escape(name), str(partition), leader, number(item.epoch), replicas, in_sync)
    return listing


def _consumers(image: Image) -> Table:
    listing = table("topic", "consumer", ">id", "state", "positions", "members")
    for name, topic in sorted(image.topics.items()):
        for consumer, item in sorted(topic.consumers.items()):
            positions = " ".join(f"{partition}:{offset}" for partition, offset in sorted(item.positions.items()))
            members = "" if item.group is None else " ".join(sorted(item.group.members)) or "none"
            listing.add_row(
                escape(name),
                escape(consumer),
                "" if item.consumer_id is None else str(item.consumer_id),
                _activity(item.active),
                positions,
                escape(members),
            )
    return listing


def _producers(image: Image) -> Table:
    listing = table("producer", ">id", ">epoch", "topic", "state")
    for name, item in sorted(image.producers.items()):
        state_text = _activity(item.active)
        listing.add_row(escape(name), str(item.producer_id), number(item.epoch), escape(item.topic or ""), state_text)
    return listing


def _brokers(image: Image) -> Table:
    listing = table(">broker", "address", "rack", "state", "since", "reason", ">replicas")
    for broker_id, item in sorted(image.brokers.items()):
        listing.add_row(
            str(broker_id),
            escape(item.address),
            escape(item.rack or ""),
            item.state,
            time_text(item.since),
            escape(item.reason),
            number(len(item.replicas)),
        )
    return listing


def _tokens(image: Image) -> Table:
    listing = table("token", "permits", "expires", "description")
    for token_id, item in sorted(image.tokens.items()):
        permits = ", ".join(f"{role} {' '.join(topics)}" for role, topics in sorted(item.permissions.items()))
        expires = "never" if item.expires is None else time_text(item.expires)
        listing.add_row(escape(token_id), escape(permits), expires, escape(item.description))
    return listing


def _activity(active: bool) -> str:
    return "active" if active else "inactive"
