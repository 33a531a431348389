"""Topics: created, configured, deleted. A topic's image holds its partitions and its consumers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from immutables import Map

from dq.engine.errors import TopicExists, UnknownPartition
from dq.engine.raft.changes import TopicConfigured, TopicCreated, TopicDeleted
from dq.engine.raft.folds.brokers import with_replicas_moved
from dq.engine.raft.folds.consumers import ConsumerImage
from dq.engine.raft.folds.lookup import topic_of, with_topic
from dq.engine.raft.folds.partitions import PartitionImage
from dq.engine.raft.folds.plain import NOTHING, sorted_pairs, to_map
from dq.engine.raft.refusals import Taken

if TYPE_CHECKING:
    from dq.engine.raft.folds.rules import Rules
    from dq.engine.raft.image import Image


@dataclass(frozen=True, slots=True)
class TopicImage:
    name: str
    topic_id: bytes
    partitions: int
    config: Map[str, Any]
    created: int
    consumers: Map[str, ConsumerImage]
    assigned: Map[int, PartitionImage] = NOTHING  # those that brokers hold

    def check_partition(self, partition: int) -> None:
        if not 0 <= partition < self.partitions:
            raise UnknownPartition(self.name, partition, self.partitions)

    def to_plain(self) -> list[Any]:
        return [
            *self.head_to_plain(),
            [consumer.to_plain() for _, consumer in sorted(self.consumers.items())],
            [[number, *partition.to_plain()] for number, partition in sorted(self.assigned.items())],
        ]

    def head_to_plain(self) -> list[Any]:
        """Without what there may be many of."""
        return [self.name, self.topic_id, self.partitions, self.created, sorted_pairs(self.config)]

    @classmethod
    def from_head(
        cls, plain: list[Any], consumers: dict[str, ConsumerImage], assigned: dict[int, PartitionImage]
    ) -> TopicImage:
        name, topic_id, partitions, created, config = plain
        return cls(
            name=name,
            topic_id=topic_id,
            partitions=partitions,
            config=to_map(config),
            created=created,
            consumers=to_map(consumers),
            assigned=to_map(assigned),
        )


def create(image: Image, change: TopicCreated, time: int) -> Image:
    if change.topic in image.topics:
        raise TopicExists(change.topic)
    if change.topic_id in image.deleted:
        raise Taken(f"the topic id {change.topic_id.hex()}")
    topic = TopicImage(
        name=change.topic,
        topic_id=change.topic_id,
        partitions=change.partitions,
        config=to_map(change.config),
        created=time,
        consumers=NOTHING,
    )
    return with_topic(image, topic)


def configure(image: Image, change: TopicConfigured, time: int) -> Image:
    topic = topic_of(image, change.topic)
    config = {**topic.config, **change.config}
    kept = to_map({name: value for name, value in config.items() if value is not None})
    return with_topic(image, replace(topic, config=kept))


def delete(image: Image, change: TopicDeleted, time: int) -> Image:
    topic = topic_of(image, change.topic, change.topic_id)
    brokers = image.brokers
    for number, partition in topic.assigned.items():
        brokers = with_replicas_moved(brokers, (topic.topic_id, number), partition.replicas, ())
    consumer_ids = image.consumer_ids
    if consumer_ids:
        with consumer_ids.mutate() as ids:
            for consumer in topic.consumers.values():
                if consumer.consumer_id is not None:
                    del ids[consumer.consumer_id]
            consumer_ids = ids.finish()
    return replace(
        image,
        topics=image.topics.delete(change.topic),
        deleted=image.deleted.set(change.topic_id, change.topic),
        brokers=brokers,
        consumer_ids=consumer_ids,
    )


RULES: Rules = {TopicCreated: create, TopicConfigured: configure, TopicDeleted: delete}
