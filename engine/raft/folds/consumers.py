"""Consumers of a topic and their positions. A group is a consumer that is shared by members (`groups.py`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from immutables import Map

from dq.engine.raft.changes import (
    ConsumerActivated,
    ConsumerDeactivated,
    ConsumerRegistered,
    ConsumerRemoved,
    PositionsClaimed,
    PositionsCommitted,
    PositionsReset,
)
from dq.engine.raft.folds.leases import GroupImage
from dq.engine.raft.folds.lookup import consumer_of, topic_of, with_consumer, with_topic
from dq.engine.raft.folds.plain import NOTHING, sorted_pairs, to_map
from dq.engine.raft.refusals import NotAGroup, StalePosition, Taken

if TYPE_CHECKING:
    from dq.engine.raft.folds.rules import Rules
    from dq.engine.raft.image import Image


@dataclass(frozen=True, slots=True)
class ConsumerImage:
    name: str
    positions: Map[int, int]  # committed, by partition
    consumer_id: int | None = None
    active: bool = True
    claimed: Map[int, int] = NOTHING  # everything below is handed out, by partition
    generation: int = 0  # how often the positions were reset
    group: GroupImage | None = None

    def next_offset(self, partition: int) -> int | None:
        """What is to be handed out next; None when the consumer does not read the partition."""
        return self.claimed.get(partition, self.positions.get(partition))

    def to_plain(self) -> list[Any]:
        return [
            self.name,
            sorted_pairs(self.positions),
            self.consumer_id,
            self.active,
            sorted_pairs(self.claimed),
            self.generation,
            None if self.group is None else self.group.to_plain(),
        ]

    @classmethod
    def from_plain(cls, plain: list[Any]) -> ConsumerImage:
        name, positions, consumer_id, active, claimed, generation, group = plain
        shared = None if group is None else GroupImage.from_plain(group)
        return cls(name, to_map(positions), consumer_id, active, to_map(claimed), generation, shared)


def with_new_consumer(image: Image, topic_name: str, consumer: ConsumerImage) -> Image:
    topic = topic_of(image, topic_name)
    if consumer.name in topic.consumers:
        raise Taken(f"consumer {consumer.name!r} of topic {topic_name!r}")
    for partition in consumer.positions:
        topic.check_partition(partition)
    return with_topic(image, replace(topic, consumers=topic.consumers.set(consumer.name, consumer)))


def register(image: Image, change: ConsumerRegistered, time: int) -> Image:
    number = change.consumer_id
    if number is not None and number < image.next_consumer_id:
        raise Taken(f"the consumer id {number}")
    consumer = ConsumerImage(change.consumer, to_map(change.positions), number)
    image = with_new_consumer(image, change.topic, consumer)
    if number is None:
        return image
    return replace(
        image,
        consumer_ids=image.consumer_ids.set(number, (change.topic, change.consumer)),
        next_consumer_id=number + 1,
    )


def activate(image: Image, change: ConsumerActivated, time: int) -> Image:
    return with_consumer(image, change.topic, change.consumer, (), lambda known: replace(known, active=True))


def deactivate(image: Image, change: ConsumerDeactivated, time: int) -> Image:
    return with_consumer(image, change.topic, change.consumer, (), lambda known: replace(known, active=False))


def remove(image: Image, change: ConsumerRemoved, time: int) -> Image:
    topic = topic_of(image, change.topic)
    consumer = consumer_of(topic, change.consumer)
    if consumer.consumer_id is not None:
        image = replace(image, consumer_ids=image.consumer_ids.delete(consumer.consumer_id))
    return with_topic(image, replace(topic, consumers=topic.consumers.delete(change.consumer)))


def commit(image: Image, change: PositionsCommitted, time: int) -> Image:
    def edit(consumer: ConsumerImage) -> ConsumerImage:
        if change.member is not None:
            if consumer.group is None:
                raise NotAGroup(change.topic, change.consumer)
            consumer.group.check_leased(change.topic, change.consumer, change.member, change.positions)
        return replace(consumer, positions=consumer.positions.update(change.positions))

    return with_consumer(image, change.topic, change.consumer, change.positions, edit)


def claim(image: Image, change: PositionsClaimed, time: int) -> Image:
    """A claim may leave offsets out (retention may have removed them) but never begins before what is handed out."""

    def edit(consumer: ConsumerImage) -> ConsumerImage:
        if change.generation != consumer.generation:
            raise StalePosition(
                change.topic,
                change.consumer,
                f"its positions were reset: generation {consumer.generation}, not {change.generation}",
            )
        claimed = consumer.claimed
        for partition, (start, end) in change.claims.items():
            known = claimed.get(partition, 0)
            if start < known or end < start:
                raise StalePosition(
                    change.topic, change.consumer, f"partition {partition} is handed out up to {known}, not {start}"
                )
            claimed = claimed.set(partition, end)
        return replace(consumer, claimed=claimed)

    return with_consumer(image, change.topic, change.consumer, change.claims, edit)


def reset(image: Image, change: PositionsReset, time: int) -> Image:
    def edit(consumer: ConsumerImage) -> ConsumerImage:
        claimed = {number: end for number, end in consumer.claimed.items() if number not in change.positions}
        return replace(
            consumer,
            positions=consumer.positions.update(change.positions),
            claimed=to_map(claimed),
            generation=consumer.generation + 1,
        )

    return with_consumer(image, change.topic, change.consumer, change.positions, edit)


RULES: Rules = {
    ConsumerRegistered: register,
    ConsumerActivated: activate,
    ConsumerDeactivated: deactivate,
    ConsumerRemoved: remove,
    PositionsCommitted: commit,
    PositionsClaimed: claim,
    PositionsReset: reset,
}
