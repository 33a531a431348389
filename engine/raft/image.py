"""The state that the metadata events amount to. Immutable: a fold makes the next image and shares the rest.

An event costs O(change), however many topics and consumers there are: the maps are hash array mapped tries
(`immutables`). The image knows the offset of the event log at which it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any

import msgpack
from immutables import Map

from dq.engine.raft.events import (
    Change,
    ConsumerRegistered,
    ConsumerRemoved,
    Event,
    PositionsCommitted,
    ProducerRegistered,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
)


@dataclass(frozen=True, slots=True)
class TopicImage:
    name: str
    topic_id: bytes
    partitions: int
    config: Map[str, Any]
    created: int
    consumers: Map[str, ConsumerImage]


@dataclass(frozen=True, slots=True)
class ConsumerImage:
    name: str
    positions: Map[int, int]


@dataclass(frozen=True, slots=True)
class ProducerImage:
    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Image:
    offset: int  # the next event to be folded
    time: int  # of the last event
    topics: Map[str, TopicImage]
    deleted: Map[bytes, str]  # ids of deleted topics, so that their files can be told from unknown ones
    producers: Map[str, ProducerImage]
    next_producer_id: int


EMPTY = Image(offset=0, time=0, topics=Map(), deleted=Map(), producers=Map(), next_producer_id=0)


def fold(image: Image, event: Event) -> Image:
    """The image after one more event. Events that do not apply (a topic deleted twice) change nothing."""
    return replace(_apply(event.change, image, event), offset=image.offset + 1, time=event.time)


@singledispatch
def _apply(change: Change, image: Image, event: Event) -> Image:
    raise TypeError(f"no rule for {change!r}")


@_apply.register
def _(change: TopicCreated, image: Image, event: Event) -> Image:
    if change.topic in image.topics:
        return image
    topic = TopicImage(
        name=change.topic,
        topic_id=change.topic_id,
        partitions=change.partitions,
        config=Map(change.config),
        created=event.time,
        consumers=Map(),
    )
    return replace(image, topics=image.topics.set(change.topic, topic))


@_apply.register
def _(change: TopicConfigured, image: Image, event: Event) -> Image:
    def configure(topic: TopicImage) -> TopicImage:
        config = {**topic.config, **change.config}
        return replace(topic, config=Map({name: value for name, value in config.items() if value is not None}))

    return _with_topic(image, change.topic, configure)


@_apply.register
def _(change: TopicDeleted, image: Image, event: Event) -> Image:
    topic = image.topics.get(change.topic)
    if topic is None or topic.topic_id != change.topic_id:
        return image
    return replace(
        image,
        topics=image.topics.delete(change.topic),
        deleted=image.deleted.set(change.topic_id, change.topic),
    )


@_apply.register
def _(change: ProducerRegistered, image: Image, event: Event) -> Image:
    return replace(
        image,
        producers=image.producers.set(change.name, ProducerImage(change.producer_id, change.epoch)),
        next_producer_id=max(image.next_producer_id, change.producer_id + 1),
    )


@_apply.register
def _(change: ConsumerRegistered, image: Image, event: Event) -> Image:
    def register(topic: TopicImage) -> TopicImage:
        if change.consumer in topic.consumers:
            return topic
        consumer = ConsumerImage(change.consumer, Map(change.positions))
        return replace(topic, consumers=topic.consumers.set(change.consumer, consumer))

    return _with_topic(image, change.topic, register)


@_apply.register
def _(change: PositionsCommitted, image: Image, event: Event) -> Image:
    def commit(topic: TopicImage) -> TopicImage:
        consumer = topic.consumers.get(change.consumer)
        if consumer is None:
            return topic
        moved = replace(consumer, positions=consumer.positions.update(change.positions))
        return replace(topic, consumers=topic.consumers.set(change.consumer, moved))

    return _with_topic(image, change.topic, commit)


@_apply.register
def _(change: ConsumerRemoved, image: Image, event: Event) -> Image:
    def remove(topic: TopicImage) -> TopicImage:
        if change.consumer not in topic.consumers:
            return topic
        return replace(topic, consumers=topic.consumers.delete(change.consumer))

    return _with_topic(image, change.topic, remove)


def _with_topic(image: Image, name: str, edit: Callable[[TopicImage], TopicImage]) -> Image:
    topic = image.topics.get(name)
    if topic is None:
        return image
    return replace(image, topics=image.topics.set(name, edit(topic)))


# ---------------------------------------------------------------- images as bytes, for snapshots


def encode_image(image: Image) -> bytes:
    """Sorted throughout, so that equal images give equal bytes."""
    topics = [
        [
            topic.name,
            topic.topic_id,
            topic.partitions,
            topic.created,
            _sorted(topic.config),
            [[consumer.name, _sorted(consumer.positions)] for _, consumer in sorted(topic.consumers.items())],
        ]
        for _, topic in sorted(image.topics.items())
    ]
    producers = [[name, item.producer_id, item.epoch] for name, item in sorted(image.producers.items())]
    packed: bytes = msgpack.packb(
        [image.offset, image.time, topics, _sorted(image.deleted), producers, image.next_producer_id]
    )
    return packed


def decode_image(data: bytes) -> Image:
    offset, time, topics, deleted, producers, next_producer_id = msgpack.unpackb(data, strict_map_key=False)
    return Image(
        offset=offset,
        time=time,
        topics=Map({topic.name: topic for topic in map(_topic_from_plain, topics)}),
        deleted=Map(deleted),
        producers=Map({name: ProducerImage(producer_id, epoch) for name, producer_id, epoch in producers}),
        next_producer_id=next_producer_id,
    )


def _topic_from_plain(plain: list[Any]) -> TopicImage:
    name, topic_id, partitions, created, config, consumers = plain
    return TopicImage(
        name=name,
        topic_id=topic_id,
        partitions=partitions,
        config=Map(config),
        created=created,
        consumers=Map({item: ConsumerImage(item, Map(positions)) for item, positions in consumers}),
    )


def _sorted(mapping: Mapping[Any, Any]) -> list[list[Any]]:
    return [[key, value] for key, value in sorted(mapping.items())]
