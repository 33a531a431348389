"""Images as bytes, for snapshots: a sequence of small parts, so that a large image is written bit by bit.

Each part is a msgpack array that begins with its kind. The first is ["image", version, offset, time, next producer
id, next consumer id]. Then come the items of the image, up to PART_ITEMS in each part: ["topics", [item, ...]] and so
on, in this order and each kind as often as needed, and the window of recent events as columns: ["recent", ids,
offsets, times]. The last one, ["end", number of parts before it], tells a whole image from one that was cut.

What follows from other parts of the image (`DERIVED`) is not stored. Items come in the order in which the image has
them, which is not the same in every process: it is `state_hash` that tells equal states.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import msgpack
from immutables import Map

from dq.engine.errors import FormatTooNew, StorageError
from dq.engine.raft.folds.access import TokenImage
from dq.engine.raft.folds.brokers import BrokerImage, with_replicas_moved
from dq.engine.raft.folds.consumers import ConsumerImage
from dq.engine.raft.folds.partitions import PartitionImage
from dq.engine.raft.folds.producers import ProducerImage
from dq.engine.raft.folds.topics import TopicImage
from dq.engine.raft.image import Image
from dq.engine.raft.recent_events import RecentEvents

IMAGE_VERSION = 2
PART_ITEMS = 128  # well below a millisecond of work

_KINDS = ("topics", "consumers", "partitions", "deleted", "producers", "brokers", "tokens", "recent")
_DAMAGE = (ValueError, TypeError, LookupError, AttributeError, struct.error, msgpack.UnpackException)


class DamagedImage(StorageError):
    """Bytes that are not an image. The events can make it anew."""

    code = "damaged_image"


# ---------------------------------------------------------------- to bytes


def encode_image(image: Image) -> bytes:
    return b"".join(image_parts(image))


def image_parts(image: Image) -> Iterator[bytes]:
    """The encoded image, part by part: joined they are what `decode_image` takes."""
    pack = msgpack.Packer().pack
    count = 0
    for part in _parts(image):
        yield pack(part)
        count += 1
    yield pack(["end", count])


def _parts(image: Image) -> Iterator[list[Any]]:
    yield ["image", IMAGE_VERSION, image.offset, image.time, image.next_producer_id, image.next_consumer_id]
    topics = image.topics.values
    yield from _chunks("topics", (topic.head_to_plain() for topic in topics()))
    yield from _chunks(
        "consumers",
        ([topic.name, *consumer.to_plain()] for topic in topics() for consumer in topic.consumers.values()),
    )
    yield from _chunks(
        "partitions",
        ([topic.name, number, *item.to_plain()] for topic in topics() for number, item in topic.assigned.items()),
    )
    yield from _chunks("deleted", image.deleted.items())
    yield from _chunks("producers", ([name, *item.to_plain()] for name, item in image.producers.items()))
    yield from _chunks("brokers", (broker.to_plain() for broker in image.brokers.values()))
    yield from _chunks("tokens", (token.to_plain() for token in image.tokens.values()))
    for columns in image.recent.columns(8 * PART_ITEMS):
        yield ["recent", *columns]


def _chunks(kind: str, items: Iterable[Any]) -> Iterator[list[Any]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, PART_ITEMS)):
        yield [kind, chunk]


# ---------------------------------------------------------------- from bytes


def decode_image(data: bytes) -> Image:
    """Raises DamagedImage, or FormatTooNew when a newer release made it."""
    try:
        unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=max(len(data), 1))
        unpacker.feed(data)
        head = _checked_head(next(unpacker, None))
        found: dict[str, list[Any]] = {kind: [] for kind in _KINDS}
        count = 1
        for kind, *rest in unpacker:
            if kind == "end":
                if rest != [count] or unpacker.tell() != len(data):
                    raise ValueError("parts are missing")
                return _from_parts(head, found)
            found[kind].append(rest) if kind == "recent" else found[kind].extend(*rest)
            count += 1
        raise ValueError("it ends early")
    except _DAMAGE as error:
        raise DamagedImage(f"not an image of the metadata: {type(error).__name__} {error}") from error


def _checked_head(head: Any) -> list[Any]:
    if not isinstance(head, list) or len(head) < 2 or head[0] != "image" or type(head[1]) is not int:
        raise ValueError("it does not begin as one")
    if head[1] > IMAGE_VERSION:
        raise FormatTooNew("an image of the metadata", head[1], IMAGE_VERSION)
    if head[1] != IMAGE_VERSION:
        raise ValueError(f"it has version {head[1]}, which is made anew from the events")
    return head


def _from_parts(head: list[Any], found: dict[str, list[Any]]) -> Image:
    _, _, offset, time, next_producer_id, next_consumer_id = head
    topics = _topics(found)
    producers = Map({name: ProducerImage.from_plain(rest) for name, *rest in found["producers"]})
    tokens = Map({token.token_id: token for token in map(TokenImage.from_plain, found["tokens"])})
    return Image(
        offset=offset,
        time=time,
        topics=topics,
        deleted=Map(found["deleted"]),
        producers=producers,
        next_producer_id=next_producer_id,
        next_consumer_id=next_consumer_id,
        brokers=_with_replicas(map(BrokerImage.from_plain, found["brokers"]), topics),
        tokens=tokens,
        recent=RecentEvents.from_columns(found["recent"]),
        producer_names=Map({producer.producer_id: name for name, producer in producers.items()}),
        consumer_ids=Map(
            {
                consumer.consumer_id: (topic.name, consumer.name)
                for topic in topics.values()
                for consumer in topic.consumers.values()
                if consumer.consumer_id is not None
            }
        ),
        token_ids=Map({token.secret_hash: token.token_id for token in tokens.values()}),
    )


def _topics(found: dict[str, list[Any]]) -> Map[str, TopicImage]:
    consumers: dict[str, dict[str, ConsumerImage]] = {}
    for topic_name, *rest in found["consumers"]:
        consumer = ConsumerImage.from_plain(rest)
        consumers.setdefault(topic_name, {})[consumer.name] = consumer
    assigned: dict[str, dict[int, PartitionImage]] = {}
    for topic_name, number, *rest in found["partitions"]:
        assigned.setdefault(topic_name, {})[number] = PartitionImage.from_plain(rest)
    made = {}
    for head in found["topics"]:
        topic = TopicImage.from_head(head, consumers.pop(head[0], {}), assigned.pop(head[0], {}))
        made[topic.name] = topic
    if consumers or assigned:
        raise ValueError("it speaks of topics that it does not have")
    return Map(made)


def _with_replicas(found: Iterator[BrokerImage], topics: Map[str, TopicImage]) -> Map[int, BrokerImage]:
    made = Map({broker.broker_id: broker for broker in found})
    for topic in topics.values():
        for number, partition in topic.assigned.items():
            made = with_replicas_moved(made, (topic.topic_id, number), (), partition.replicas)
    return made
