"""Every change of metadata is one of these events. They are kept for good, so what is written here stays readable.

An event on disk is a msgpack array [type, version, id, time, actor, data], where data is a map of the fields of
its class. To change an event: raise its `version`, and add to `_UPCASTERS` a function that turns the data of the
version before into that of the new one. Fields that a reader does not know are an error, not ignored.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

import msgpack

from dq.engine.errors import DamagedBatch, FormatTooNew


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What happened, without who and when. Each subclass is one type of event."""

    type: ClassVar[str]
    version: ClassVar[int] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCreated(Change):
    type: ClassVar[str] = "topic_created"

    topic: str
    topic_id: bytes
    partitions: int
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfigured(Change):
    """Settings that changed; one that is None goes back to its default."""

    type: ClassVar[str] = "topic_configured"

    topic: str
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeleted(Change):
    type: ClassVar[str] = "topic_deleted"

    topic: str
    topic_id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerRegistered(Change):
    """A name got a producer id, or came back: then its epoch grows, and fences those who used it before."""

    type: ClassVar[str] = "producer_registered"

    name: str
    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRegistered(Change):
    """A named consumer of a topic, and from which offset it begins on each partition."""

    type: ClassVar[str] = "consumer_registered"

    topic: str
    consumer: str
    positions: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionsCommitted(Change):
    """The offsets that a consumer goes on from; partitions that are not named keep theirs."""

    type: ClassVar[str] = "positions_committed"

    topic: str
    consumer: str
    positions: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRemoved(Change):
    type: ClassVar[str] = "consumer_removed"

    topic: str
    consumer: str


CHANGES: dict[str, type[Change]] = {
    cls.type: cls
    for cls in (
        TopicCreated,
        TopicConfigured,
        TopicDeleted,
        ProducerRegistered,
        ConsumerRegistered,
        PositionsCommitted,
        ConsumerRemoved,
    )
}

# (type, old version) -> turns the data of that version into that of the next one
_UPCASTERS: dict[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]] = {}


@dataclass(frozen=True, slots=True)
class Event:
    change: Change
    id: bytes  # 16 bytes; the same event proposed again is applied once
    time: int  # microseconds since the epoch, UTC
    actor: str


def new_event(change: Change, time: int, actor: str) -> Event:
    return Event(change, uuid.uuid4().bytes, time, actor)


def encode_event(event: Event) -> bytes:
    change = event.change
    packed: bytes = msgpack.packb(
        [change.type, change.version, event.id, event.time, event.actor, asdict(change)], strict_types=False
    )
    return packed


def decode_event(data: bytes) -> Event:
    """Reads an event of this or any older version; raises DamagedBatch when it is none."""
    try:
        type_name, version, event_id, time, actor, values = msgpack.unpackb(data, strict_map_key=False)
        cls = CHANGES[type_name]
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise DamagedBatch(f"not a metadata event: {type(error).__name__} {error}") from error
    if version > cls.version:
        raise FormatTooNew(f"metadata event {type_name}", version, cls.version)
    while version < cls.version:
        values = _UPCASTERS[type_name, version](values)
        version += 1
    known = {item.name for item in fields(cls)}
    if not isinstance(values, dict) or not set(values) <= known:
        raise DamagedBatch(f"metadata event {type_name} has fields that nobody knows: {values!r}")
    try:
        return Event(cls(**values), event_id, time, actor)
    except TypeError as error:
        raise DamagedBatch(f"metadata event {type_name} lacks fields: {error}") from error
