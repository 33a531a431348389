"""Finding what a change speaks of, and putting it back changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from dq.engine.errors import UnknownConsumer, UnknownTopic

if TYPE_CHECKING:
    from dq.engine.raft.folds.consumers import ConsumerImage
    from dq.engine.raft.folds.topics import TopicImage
    from dq.engine.raft.image import Image


def topic_of(image: Image, name: str, topic_id: bytes | None = None) -> TopicImage:
    """Raises UnknownTopic; with an id also when the name belongs to another topic by now."""
    topic = image.topics.get(name)
    if topic is None or (topic_id is not None and topic.topic_id != topic_id):
        raise UnknownTopic(name)
    return topic


def consumer_of(topic: TopicImage, name: str) -> ConsumerImage:
    consumer = topic.consumers.get(name)
    if consumer is None:
        raise UnknownConsumer(topic.name, name)
    return consumer


def with_topic(image: Image, topic: TopicImage) -> Image:
    return image.with_topics(image.topics.set(topic.name, topic))


def with_consumer(
    image: Image,
    topic_name: str,
    name: str,
    partitions: Iterable[int],
    edit: Callable[[ConsumerImage], ConsumerImage],
) -> Image:
    """Edits a consumer; raises unless it is there and its topic has these partitions."""
    topic = topic_of(image, topic_name)
    consumer = consumer_of(topic, name)
    for partition in partitions:
        topic.check_partition(partition)
    return with_topic(image, replace(topic, consumers=topic.consumers.set(name, edit(consumer))))
