"""Partitions that brokers hold: replicas, the in-sync set, the leader and its epoch.

The safety of replication rests on these rules: epochs only grow, a leader comes from the in-sync set unless it is
forced, and the in-sync set is changed only by somebody who knows the partition as it is now.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dq.engine.errors import StaleEpoch
from dq.engine.raft.changes import InSyncChanged, LeaderElected, PartitionsAssigned
from dq.engine.raft.folds.brokers import broker_of, check_active, with_replicas_moved
from dq.engine.raft.folds.lookup import topic_of, with_topic
from dq.engine.raft.refusals import NotInSync, StaleRevision

if TYPE_CHECKING:
    from dq.engine.raft.folds.rules import Rules
    from dq.engine.raft.folds.topics import TopicImage
    from dq.engine.raft.image import Image


@dataclass(frozen=True, slots=True)
class PartitionImage:
    replicas: tuple[int, ...]  # broker ids, the preferred leader first
    in_sync: tuple[int, ...]  # sorted
    leader: int | None
    epoch: int  # of the leader; 0 when there never was one
    revision: int  # grows with every change of this partition

    def to_plain(self) -> list[Any]:
        return [self.replicas, self.in_sync, self.leader, self.epoch, self.revision]

    @classmethod
    def from_plain(cls, plain: list[Any]) -> PartitionImage:
        replicas, in_sync, leader, epoch, revision = plain
        return cls(tuple(replicas), tuple(in_sync), leader, epoch, revision)


def assign(image: Image, change: PartitionsAssigned, time: int) -> Image:
    topic = topic_of(image, change.topic, change.topic_id)
    brokers = image.brokers
    assigned = topic.assigned
    for number, replicas in change.replicas.items():
        topic.check_partition(number)
        known = assigned.get(number)
        before = () if known is None else known.replicas
        for broker_id in replicas:
            if broker_id in before:
                broker_of(image, broker_id)
            else:
                check_active(image, broker_id)
        brokers = with_replicas_moved(brokers, (topic.topic_id, number), before, replicas)
        assigned = assigned.set(number, _reassigned(change.topic, number, known, replicas))
    return with_topic(replace(image, brokers=brokers), replace(topic, assigned=assigned))


def _reassigned(topic: str, number: int, known: PartitionImage | None, replicas: tuple[int, ...]) -> PartitionImage:
    if known is None:  # there is nothing in it yet, so all of them have all of it
        return PartitionImage(replicas, tuple(sorted(replicas)), None, 0, 1)
    in_sync = tuple(broker_id for broker_id in known.in_sync if broker_id in replicas)
    if not in_sync:
        raise NotInSync(topic, number, f"none of the new replicas {list(replicas)} is in sync")
    leader = known.leader if known.leader in replicas else None
    return replace(known, replicas=replicas, in_sync=in_sync, leader=leader, revision=known.revision + 1)


def elect(image: Image, change: LeaderElected, time: int) -> Image:
    topic = topic_of(image, change.topic, change.topic_id)
    partition = _partition(topic, change)
    if change.epoch <= partition.epoch:
        raise StaleEpoch(change.epoch, partition.epoch)
    in_sync = partition.in_sync
    if change.leader is not None:
        check_active(image, change.leader)
        if change.leader not in partition.replicas:
            raise NotInSync(change.topic, change.partition, f"broker {change.leader} holds no replica")
        if change.forced:
            in_sync = (change.leader,)
        elif change.leader not in in_sync:
            raise NotInSync(change.topic, change.partition, f"broker {change.leader} is not in sync")
    elected = replace(
        partition, leader=change.leader, in_sync=in_sync, epoch=change.epoch, revision=partition.revision + 1
    )
    return with_topic(image, replace(topic, assigned=topic.assigned.set(change.partition, elected)))


def change_in_sync(image: Image, change: InSyncChanged, time: int) -> Image:
    topic = topic_of(image, change.topic, change.topic_id)
    partition = _partition(topic, change)
    if change.epoch != partition.epoch:
        raise StaleEpoch(change.epoch, partition.epoch)
    if change.revision != partition.revision:
        raise StaleRevision(change.topic, change.partition, change.revision, partition.revision)
    in_sync = tuple(sorted(change.in_sync))
    for broker_id in in_sync:
        if broker_id not in partition.replicas:
            raise NotInSync(change.topic, change.partition, f"broker {broker_id} holds no replica")
        if broker_id not in partition.in_sync:
            check_active(image, broker_id)
    if not in_sync or (partition.leader is not None and partition.leader not in in_sync):
        raise NotInSync(change.topic, change.partition, f"the leader {partition.leader} is always in sync")
    changed = replace(partition, in_sync=in_sync, revision=partition.revision + 1)
    return with_topic(image, replace(topic, assigned=topic.assigned.set(change.partition, changed)))


def _partition(topic: TopicImage, change: LeaderElected | InSyncChanged) -> PartitionImage:
    topic.check_partition(change.partition)
    partition = topic.assigned.get(change.partition)
    if partition is None:
        raise NotInSync(topic.name, change.partition, "no broker holds it yet")
    return partition


RULES: Rules = {PartitionsAssigned: assign, LeaderElected: elect, InSyncChanged: change_in_sync}
