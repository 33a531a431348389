"""The state that the metadata events amount to. Immutable: a fold makes the next image and shares the rest.

An event costs O(change), however many topics and consumers there are: the maps are hash array mapped tries
(`immutables`). The image knows the offset of the event log at which it stands. The rules are in `folds/`, the image
as bytes is in `image_bytes.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgpack
from immutables import Map

from dq.engine.errors import DQError
from dq.engine.raft.changes import CHANGES, Change
from dq.engine.raft.events import Event, validate
from dq.engine.raft.folds import access, brokers, consumers, groups, partitions, producers, topics
from dq.engine.raft.folds.access import TokenImage
from dq.engine.raft.folds.brokers import BrokerImage
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
    "find_event",
    "fold",
    "preview",
    "state_hash",
]

_DIGEST_SIZE = 32


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

    # Every event needs these two; `dataclasses.replace` takes twice as long.

    def with_topics(self, topics: Map[str, TopicImage]) -> Image:
        return Image(
            self.offset,
            self.time,
            topics,
            self.deleted,
            self.producers,
            self.next_producer_id,
            self.next_consumer_id,
            self.brokers,
            self.tokens,
            self.recent,
            self.producer_names,
            self.consumer_ids,
            self.token_ids,
        )

    def moved_to(self, offset: int, time: int, recent: RecentEvents) -> Image:
        return Image(
            offset,
            time,
            self.topics,
            self.deleted,
            self.producers,
            self.next_producer_id,
            self.next_consumer_id,
            self.brokers,
            self.tokens,
            recent,
            self.producer_names,
            self.consumer_ids,
            self.token_ids,
        )


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
    return Applied(after.moved_to(at + 1, event.time, recent), refusal, known)


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


# ---------------------------------------------------------------- comparing states


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
