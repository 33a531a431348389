"""Who belongs to the cluster, and the entries of the Raft log that are not events: control records.

A control record is a msgpack array: ["start", term] begins the term of a leader, ["barrier"] only marks a place,
["members", [[id, host, port, voter], ...]] says who belongs to the cluster from there on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgpack

from dq.engine.errors import DamagedBatch, InvalidConfig
from dq.engine.segments.batch import CONTROL, EncodedBatch, encode

START, BARRIER, MEMBERS = "start", "barrier", "members"


class Member(NamedTuple):
    id: str
    host: str
    port: int
    voter: bool = True  # or one that follows and does not count


Members = tuple[Member, ...]


def check_members(members: Iterable[Member]) -> Members:
    checked = tuple(sorted(members))
    names = [member.id for member in checked]
    if not checked or len(set(names)) != len(names) or not all(names):
        raise InvalidConfig("members", names, "one or more members with different names")
    return checked


def control_batch(kind: str, *arguments: Any, time: int = 0) -> EncodedBatch:
    return encode([msgpack.packb([kind, *arguments])], timestamp=time, flags=CONTROL)


def members_batch(members: Members, time: int) -> EncodedBatch:
    return control_batch(MEMBERS, [list(member) for member in members], time=time)


def members_in(value: bytes) -> Members | None:
    """The members that a control record names, or None when it is of another kind."""
    try:
        kind, *arguments = msgpack.unpackb(value)
        if kind != MEMBERS:
            return None
        return tuple(Member(*plain) for plain in arguments[0])
    except (ValueError, TypeError, IndexError, msgpack.UnpackException) as error:
        raise DamagedBatch(f"not a control record: {type(error).__name__} {error}") from error
