"""Producers: a name, an id that is never given out twice, and an epoch that fences."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dq.engine.errors import ProducerFenced, UnknownTopic
from dq.engine.raft.changes import ProducerDeactivated, ProducerRegistered, ProducerRemoved
from dq.engine.raft.refusals import Taken, UnknownProducer

if TYPE_CHECKING:
    from dq.engine.raft.folds.rules import Rules
    from dq.engine.raft.image import Image


@dataclass(frozen=True, slots=True)
class ProducerImage:
    producer_id: int
    epoch: int
    topic: str | None = None
    active: bool = True

    def to_plain(self) -> list[Any]:
        return [self.producer_id, self.epoch, self.topic, self.active]

    @classmethod
    def from_plain(cls, plain: list[Any]) -> ProducerImage:
        producer_id, epoch, topic, active = plain
        return cls(producer_id, epoch, topic, active)


def _producer(image: Image, name: str) -> ProducerImage:
    producer = image.producers.get(name)
    if producer is None:
        raise UnknownProducer(name)
    return producer


def register(image: Image, change: ProducerRegistered, time: int) -> Image:
    known = image.producers.get(change.name)
    if known is not None:
        if change.producer_id != known.producer_id:
            raise Taken(f"producer {change.name!r}, with the id {known.producer_id},")
        if change.epoch <= known.epoch:
            raise ProducerFenced(change.producer_id, change.epoch, known.epoch)
    elif change.producer_id < image.next_producer_id:
        raise Taken(f"the producer id {change.producer_id}")
    if change.topic is not None and change.topic not in image.topics:
        raise UnknownTopic(change.topic)
    producer = ProducerImage(change.producer_id, change.epoch, change.topic)
    return replace(
        image,
        producers=image.producers.set(change.name, producer),
        producer_names=image.producer_names.set(change.producer_id, change.name),
        next_producer_id=max(image.next_producer_id, change.producer_id + 1),
    )


def deactivate(image: Image, change: ProducerDeactivated, time: int) -> Image:
    producer = _producer(image, change.name)
    return replace(image, producers=image.producers.set(change.name, replace(producer, active=False)))


def remove(image: Image, change: ProducerRemoved, time: int) -> Image:
    producer = _producer(image, change.name)
    return replace(
        image,
        producers=image.producers.delete(change.name),
        producer_names=image.producer_names.delete(producer.producer_id),
    )


RULES: Rules = {ProducerRegistered: register, ProducerDeactivated: deactivate, ProducerRemoved: remove}
