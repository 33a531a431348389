"""Groups: the members that share a consumer's partitions, and who has which one to itself until when.

Whether a lease has run out is judged by the time of the event that wants to take it over, never by a local clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from dq.engine.raft.changes import (
    GroupRegistered,
    MemberJoined,
    MemberLeft,
    PartitionsLeased,
    PartitionsReleased,
)
from dq.engine.raft.folds.consumers import ConsumerImage, with_new_consumer
from dq.engine.raft.folds.leases import GroupImage, Lease
from dq.engine.raft.folds.lookup import with_consumer
from dq.engine.raft.folds.plain import to_map
from dq.engine.raft.refusals import LeaseHeld, NotAGroup, Taken

if TYPE_CHECKING:
    from dq.engine.raft.folds.rules import Rules
    from dq.engine.raft.image import Image


def _with_group(
    image: Image, topic: str, name: str, partitions: Iterable[int], edit: Callable[[GroupImage], GroupImage]
) -> Image:
    def edit_consumer(consumer: ConsumerImage) -> ConsumerImage:
        if consumer.group is None:
            raise NotAGroup(topic, name)
        return replace(consumer, group=edit(consumer.group))

    return with_consumer(image, topic, name, partitions, edit_consumer)


def register(image: Image, change: GroupRegistered, time: int) -> Image:
    return with_new_consumer(
        image, change.topic, ConsumerImage(change.group, to_map(change.positions), group=GroupImage())
    )


def join(image: Image, change: MemberJoined, time: int) -> Image:
    def edit(group: GroupImage) -> GroupImage:
        if change.member in group.members:
            raise Taken(f"member {change.member!r} of group {change.group!r} of topic {change.topic!r}")
        return replace(group, members=group.members.set(change.member, time))

    return _with_group(image, change.topic, change.group, (), edit)


def leave(image: Image, change: MemberLeft, time: int) -> Image:
    def edit(group: GroupImage) -> GroupImage:
        group.check_member(change.topic, change.group, change.member)
        kept = {partition: lease for partition, lease in group.leases.items() if lease.member != change.member}
        return GroupImage(group.members.delete(change.member), to_map(kept))

    return _with_group(image, change.topic, change.group, (), edit)


def lease(image: Image, change: PartitionsLeased, time: int) -> Image:
    def edit(group: GroupImage) -> GroupImage:
        group.check_member(change.topic, change.group, change.member)
        leases = group.leases
        for partition in change.partitions:
            held = leases.get(partition)
            if held is not None and held.member != change.member and held.until > time:
                raise LeaseHeld(change.topic, change.group, partition, held.member, held.until)
            leases = leases.set(partition, Lease(change.member, change.until))
        return replace(group, leases=leases)

    return _with_group(image, change.topic, change.group, change.partitions, edit)


def release(image: Image, change: PartitionsReleased, time: int) -> Image:
    def edit(group: GroupImage) -> GroupImage:
        group.check_leased(change.topic, change.group, change.member, change.partitions)
        leases = group.leases
        for partition in set(change.partitions):
            leases = leases.delete(partition)
        return replace(group, leases=leases)

    return _with_group(image, change.topic, change.group, (), edit)


RULES: Rules = {
    GroupRegistered: register,
    MemberJoined: join,
    MemberLeft: leave,
    PartitionsLeased: lease,
    PartitionsReleased: release,
}
