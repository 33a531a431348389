"""The state that the metadata events amount to. Immutable: a fold makes the next image and shares the rest.

An event costs O(change), however many topics and consumers there are: the maps are hash array mapped tries
(`immutables`). The image knows the offset of the event log at which it stands. The rules are in `folds/`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgpack
from immutables import Map

from dq.engine.errors import DQError, FormatTooNew, StorageError
from dq.engine.raft.changes import CHANGES, Change
from dq.engine.raft.events import Event, validate
from dq.engine.raft.folds import access, brokers, consumers, groups, partitions, producers, topics
from dq.engine.raft.folds.access import TokenImage
from dq.engine.raft.folds.brokers import BrokerImage, with_replicas_moved
from dq.engine.raft.folds.consumers import ConsumerImage
from dq.engine.raft.folds.leases import GroupImage, Lease
from dq.engine.raft.folds.partitions import PartitionImage
from dq.engine.raft.folds.plain import DERIVED, sorted_pairs
from dq.engine.raft.folds.producers import ProducerImage
from dq.engine.raft.folds.topics import TopicImage
from dq.engine.raft.recent_events import RecentEvents

__all__ = [
    "EMPTY",
    "Applied",
    "BrokerImage",
    "ConsumerImage",
    "DamagedImage",
    "GroupImage",
    "Image",
    "Lease",
    "PartitionImage",
    "ProducerImage",
    "TokenImage",
    "TopicImage",
    "advance",
    "apply_event",
    "check",
    "decode_image",
    "encode_image",
    "find_event",
    "fold",
    "preview",
    "state_hash",
]

IMAGE_VERSION = 2
_DIGEST_SIZE = 32


class DamagedImage(StorageError):
    """Bytes that are not an image. The events can make it anew."""

    code = "damaged_image"


@dataclass(frozen=True, slots=True)
class Image:
    offset: int  # the next event to be folded
    time: int  # of the last event
    topics: Map[str, TopicImage]
    deleted: Map[bytes, str]  # ids of deleted topics, so that their files can be told from unknown ones
    producers: Map[str, ProducerImage]
    next_producer_id: int
    next_consumer_id: int
    brokers: Map[int, BrokerImage]
    tokens: Map[str, TokenImage]
    recent: RecentEvents = field(metadata=DERIVED)
    # These follow from the others:
    producer_names: Map[int, str] = field(metadata=DERIVED)
    consumer_ids: Map[int, tuple[str, str]] = field(metadata=DERIVED)  # -> topic, name
    token_ids: Map[bytes, str] = field(metadata=DERIVED)  # by the hash of the secret


EMPTY = Image(
    offset=0,
    time=0,
    topics=Map(),
    deleted=Map(),
    producers=Map(),
    next_producer_id=0,
    next_consumer_id=0,
    brokers=Map(),
    tokens=Map(),
    recent=RecentEvents(),
    producer_names=Map(),
    consumer_ids=Map(),
    token_ids=Map(),
)

_RULES: dict[type[Change], Callable[[Image, Any, int], Image]] = {
    **topics.RULES,
    **partitions.RULES,
    **brokers.RULES,
    **producers.RULES,
    **consumers.RULES,
    **groups.RULES,
    **access.RULES,
}
assert set(_RULES) == set(CHANGES.values())


# ---------------------------------------------------------------- fold


class Applied(NamedTuple):
    image: Image
    refusal: DQError | None = None  # why the event changed nothing
    duplicate_of: int | None = None  # the offset at which it was folded before


def apply_event(image: Image, event: Event, offset: int | None = None) -> Applied:
    """The image after one more event, and what became of it. Offsets may be missing, but never go back."""
    at = image.offset if offset is None else offset
    if at < image.offset:
        raise ValueError(f"event {at} was folded already: the image stands at {image.offset}")
    recent = image.recent.moved_to(at, event.time)
    known = recent.find(event.id)
    refusal: DQError | None = None
    after = image
    if known is None:
        try:
            after = _RULES[type(event.change)](image, event.change, event.time)
        except DQError as error:
            refusal = error
        recent = recent.with_event(event.id, at, event.time)
    return Applied(replace(after, offset=at + 1, time=event.time, recent=recent), refusal, known)


def fold(image: Image, event: Event, offset: int | None = None) -> Image:
    """The image after one more event. Events that do not apply (a topic deleted twice) change nothing."""
    return apply_event(image, event, offset).image


def advance(image: Image, offset: int) -> Image:
    """The same state at a later offset, when there are no events between."""
    return image if offset <= image.offset else replace(image, offset=offset)


def find_event(image: Image, event_id: bytes) -> int | None:
    """At which offset an event was folded, if that was lately."""
    return image.recent.find(event_id)


def preview(image: Image, change: Change, time: int | None = None) -> Image:
    """The state that a change would lead to; raises a typed error when it would be refused. Offsets do not move."""
    validate(change)
    return _RULES[type(change)](image, change, image.time if time is None else time)


def check(image: Image, change: Change, time: int | None = None) -> None:
    """Raises what a proposer should know before proposing. `time` is that of the event to be, for leases."""
    preview(image, change, time)


# ---------------------------------------------------------------- images as bytes


def _state_parts(image: Image) -> Iterator[Any]:
    """What is the state, however it came about: without the offset, the time and the recent events."""
    yield [topic.to_plain() for _, topic in sorted(image.topics.items())]
    yield sorted_pairs(image.deleted)
    yield [[name, *producer.to_plain()] for name, producer in sorted(image.producers.items())]
    yield [image.next_producer_id, image.next_consumer_id]
    yield [broker.to_plain() for _, broker in sorted(image.brokers.items())]
    yield [token.to_plain() for _, token in sorted(image.tokens.items())]


def state_hash(image: Image) -> str:
    """Equal for equal states, whatever the history. Linear in the size of the state."""
    digest = hashlib.blake2b(digest_size=_DIGEST_SIZE)
    packer = msgpack.Packer()
    for part in _state_parts(image):
        digest.update(packer.pack(len(part)))
        for item in part:
            digest.update(packer.pack(item))
    return digest.hexdigest()


def encode_image(image: Image) -> bytes:
    """Sorted throughout, so that equal images give equal bytes."""
    plain = [IMAGE_VERSION, image.offset, image.time, image.recent.to_plain(), *_state_parts(image)]
    packed: bytes = msgpack.packb(plain)
    return packed


def decode_image(data: bytes) -> Image:
    """Raises DamagedImage, or FormatTooNew when a newer release made it."""
    try:
        version, *plain = msgpack.unpackb(data, strict_map_key=False)
        if type(version) is int and version > IMAGE_VERSION:
            raise FormatTooNew("an image of the metadata", version, IMAGE_VERSION)
        if version != IMAGE_VERSION:
            raise ValueError(f"it has version {version}, which is made anew from the events")
        return _from_plain(plain)
    except (ValueError, TypeError, LookupError, AttributeError, struct.error, msgpack.UnpackException) as error:
        raise DamagedImage(f"not an image of the metadata: {type(error).__name__} {error}") from error


def _from_plain(plain: list[Any]) -> Image:
    offset, time, recent, all_topics, deleted, all_producers, next_ids, all_brokers, tokens = plain
    next_producer_id, next_consumer_id = next_ids
    made_topics = Map({topic.name: topic for topic in map(TopicImage.from_plain, all_topics)})
    made_producers = Map({name: ProducerImage.from_plain(rest) for name, *rest in all_producers})
    made_tokens = Map({token.token_id: token for token in map(TokenImage.from_plain, tokens)})
    return Image(
        offset=offset,
        time=time,
        topics=made_topics,
        deleted=Map(deleted),
        producers=made_producers,
        next_producer_id=next_producer_id,
        next_consumer_id=next_consumer_id,
        brokers=_with_replicas(map(BrokerImage.from_plain, all_brokers), made_topics),
        tokens=made_tokens,
        recent=RecentEvents.from_plain(recent),
        producer_names=Map({producer.producer_id: name for name, producer in made_producers.items()}),
        consumer_ids=Map(
            {
                consumer.consumer_id: (topic.name, consumer.name)
                for topic in made_topics.values()
                for consumer in topic.consumers.values()
                if consumer.consumer_id is not None
            }
        ),
        token_ids=Map({token.secret_hash: token.token_id for token in made_tokens.values()}),
    )


def _with_replicas(found: Iterator[BrokerImage], made_topics: Map[str, TopicImage]) -> Map[int, BrokerImage]:
    made = Map({broker.broker_id: broker for broker in found})
    for topic in made_topics.values():
        for number, partition in topic.assigned.items():
            made = with_replicas_moved(made, (topic.topic_id, number), (), partition.replicas)
    return made
