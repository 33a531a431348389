"""Events: a change with an id, a time and an actor, as bytes and back. They are kept for good, so they stay readable.

An event on disk is a msgpack array [type, version, id, time, actor, data], where data is a map of the fields of
its class in `changes.py`. To change an event: raise its `version`, and add to `_UPCASTERS` a function that turns the
data of the version before into that of the new one. A field that is only added is declared with
`_added(version, default)`: an event that does not use it is written as before, so that older releases go on reading
it. Fields that a reader does not know are an error, not ignored.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import msgpack

from dq.engine.errors import DamagedBatch, FormatTooNew
from dq.engine.raft.changes import (
    CHANGES,
    BrokerActivated,
    BrokerDeactivated,
    BrokerFenced,
    BrokerRegistered,
    BrokerRemoved,
    Change,
    ConsumerActivated,
    ConsumerDeactivated,
    ConsumerRegistered,
    ConsumerRemoved,
    GroupRegistered,
    InSyncChanged,
    LeaderElected,
    MemberJoined,
    MemberLeft,
    PartitionsAssigned,
    PartitionsLeased,
    PartitionsReleased,
    PermissionsGranted,
    PermissionsRevoked,
    PositionsClaimed,
    PositionsCommitted,
    PositionsReset,
    ProducerDeactivated,
    ProducerRegistered,
    ProducerRemoved,
    TokenGranted,
    TokenRevoked,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
)
from dq.engine.raft.fields import INT_RANGE, Checker, checkers_of
from dq.engine.raft.refusals import InvalidChange
from dq.engine.raft.values import ID_SIZE

__all__ = [
    "CHANGES",
    "BrokerActivated",
    "BrokerDeactivated",
    "BrokerFenced",
    "BrokerRegistered",
    "BrokerRemoved",
    "Change",
    "ConsumerActivated",
    "ConsumerDeactivated",
    "ConsumerRegistered",
    "ConsumerRemoved",
    "Event",
    "GroupRegistered",
    "InSyncChanged",
    "LeaderElected",
    "MemberJoined",
    "MemberLeft",
    "PartitionsAssigned",
    "PartitionsLeased",
    "PartitionsReleased",
    "PermissionsGranted",
    "PermissionsRevoked",
    "PositionsClaimed",
    "PositionsCommitted",
    "PositionsReset",
    "ProducerDeactivated",
    "ProducerRegistered",
    "ProducerRemoved",
    "TokenGranted",
    "TokenRevoked",
    "TopicConfigured",
    "TopicCreated",
    "TopicDeleted",
    "UnknownEvent",
    "decode_event",
    "encode_event",
    "new_event",
    "validate",
]


class UnknownEvent(DamagedBatch):
    code = "unknown_event"

    def __init__(self, type_name: str) -> None:
        super().__init__(f"this release knows no metadata event {type_name!r}: a newer one may have written it")
        self.type_name = type_name


# (type, old version) -> turns the data of that version into that of the next one
_UPCASTERS: dict[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]] = {
    ("producer_registered", 1): lambda data: {**data, "topic": None},
    ("consumer_registered", 1): lambda data: {**data, "consumer_id": None},
    ("positions_committed", 1): lambda data: {**data, "member": None},
}

_CHECKERS: dict[type[Change], dict[str, Checker]] = {cls: checkers_of(cls) for cls in CHANGES.values()}
_ADDED: dict[type[Change], tuple[tuple[str, int, Any], ...]] = {
    cls: tuple((item.name, item.metadata["since"], item.default) for item in fields(cls) if "since" in item.metadata)
    for cls in CHANGES.values()
}


def validate(change: Change) -> None:
    """Raises InvalidInput unless an event of this change can be written and read again, and may make sense."""
    for name, checker in _CHECKERS[type(change)].items():
        try:
            checker(getattr(change, name))
        except (TypeError, ValueError) as error:
            raise InvalidChange(f"{change.type}: {name}: {error}") from None
    change.check_values()


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Event:
    change: Change
    id: bytes  # 16 bytes; the same event proposed again is applied once
    time: int  # microseconds since the epoch, UTC
    actor: str


def new_event(change: Change, time: int, actor: str, event_id: bytes | None = None) -> Event:
    return Event(change, event_id or uuid.uuid4().bytes, time, actor)


def encode_event(event: Event) -> bytes:
    version, data = _to_plain(event.change)
    packed: bytes = msgpack.packb([event.change.type, version, event.id, event.time, event.actor, data])
    return packed


def _to_plain(change: Change) -> tuple[int, dict[str, Any]]:
    """The oldest version that says all there is to say, and the fields of that version."""
    cls = type(change)
    data: dict[str, Any] = {}
    for name in _CHECKERS[cls]:
        value = getattr(change, name)
        data[name] = dict(value) if isinstance(value, Mapping) else value
    if not _ADDED[cls]:
        return cls.version, data
    oldest = min(since for _, since, _ in _ADDED[cls]) - 1
    version = max((since for name, since, default in _ADDED[cls] if data[name] != default), default=oldest)
    for name, since, _ in _ADDED[cls]:
        if since > version:
            del data[name]
    return version, data


def decode_event(data: bytes) -> Event:
    """An event of this or any older version; raises DamagedBatch when it is none, FormatTooNew for newer ones."""
    try:
        type_name, version, event_id, time, actor, values = msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise DamagedBatch(f"not a metadata event: {type(error).__name__} {error}") from error
    _check_envelope(type_name, version, event_id, time, actor)
    cls = CHANGES.get(type_name)
    if cls is None:
        raise UnknownEvent(type_name)
    if version > cls.version:
        raise FormatTooNew(f"metadata event {type_name}", version, cls.version)
    try:
        if not isinstance(values, dict):
            raise TypeError(f"the data are {values!r}")
        for old in range(version, cls.version):
            values = _UPCASTERS[type_name, old](values)
        checkers = _CHECKERS[cls]
        change = cls(**{name: checkers[name](value) for name, value in values.items()})
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise DamagedBatch(f"metadata event {type_name}: {type(error).__name__} {error}") from error
    return Event(change, event_id, time, actor)


def _check_envelope(type_name: object, version: object, event_id: object, time: object, actor: object) -> None:
    good = (
        type(type_name) is str
        and type(version) is int
        and version > 0
        and type(event_id) is bytes
        and len(event_id) == ID_SIZE
        and type(time) is int
        and time in INT_RANGE
        and type(actor) is str
    )
    if not good:
        raise DamagedBatch(f"not a metadata event: {[type_name, version, event_id, time, actor]!r}"[:200])
