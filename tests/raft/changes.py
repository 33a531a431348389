"""Changes for tests: one of every type, and strategies for random ones that meet each other often."""

from __future__ import annotations

import hashlib
from typing import Any

from hypothesis import strategies as st

from dq.engine.raft import events as e
from dq.engine.raft.events import Change, Event

HOUR = 3600 * 1_000_000
START = 1_700_000_000_000_000
ORDERS, LOGS = bytes(range(16)), bytes(range(16, 32))
SECRET = hashlib.sha256(b"a long random secret").digest()

# In an order in which each of them applies.
STORY: list[Change] = [
    e.BrokerRegistered(broker_id=1, address="http://127.0.0.1:9001", epoch=0, rack="a", labels={"disk": "ssd"}),
    e.BrokerRegistered(broker_id=2, address="http://127.0.0.1:9002", epoch=0),
    e.BrokerRegistered(broker_id=3, address="http://127.0.0.1:9003", epoch=0),
    e.BrokerActivated(broker_id=1),
    e.BrokerActivated(broker_id=2),
    e.TopicCreated(topic="orders", topic_id=ORDERS, partitions=4, config={"retention": HOUR, "compression": "zstd"}),
    e.TopicCreated(topic="logs", topic_id=LOGS, partitions=1),
    e.TopicConfigured(topic="orders", config={"compression": None, "compact": True}),
    e.PartitionsAssigned(topic="orders", topic_id=ORDERS, replicas={0: (1, 2), 1: (2, 1)}),
    e.LeaderElected(topic="orders", topic_id=ORDERS, partition=0, leader=1, epoch=1),
    e.InSyncChanged(topic="orders", topic_id=ORDERS, partition=0, in_sync=(1,), epoch=1, revision=2),
    e.LeaderElected(topic="orders", topic_id=ORDERS, partition=0, leader=2, epoch=2, forced=True),
    e.LeaderElected(topic="orders", topic_id=ORDERS, partition=1, leader=None, epoch=1),
    e.BrokerDeactivated(broker_id=1, reason="three heartbeats missed"),
    e.BrokerFenced(broker_id=2, epoch=0, reason="its lease ran out"),
    e.BrokerRemoved(broker_id=3),
    e.ProducerRegistered(name="till-1", producer_id=0, epoch=0),
    e.ProducerRegistered(name="till-2", producer_id=1, epoch=0, topic="orders"),
    e.ProducerRegistered(name="till-3", producer_id=2, epoch=0),
    e.ProducerDeactivated(name="till-2", reason="silent"),
    e.ProducerRemoved(name="till-3"),
    e.ConsumerRegistered(topic="orders", consumer="billing", positions={0: 0, 1: 0}),
    e.ConsumerRegistered(topic="orders", consumer="consumer-0", positions={0: 5}, consumer_id=0),
    e.ConsumerRegistered(topic="orders", consumer="audit", positions={0: 5}),
    e.ConsumerDeactivated(topic="orders", consumer="billing", reason="silent"),
    e.ConsumerActivated(topic="orders", consumer="billing"),
    e.ConsumerRemoved(topic="orders", consumer="audit"),
    e.PositionsCommitted(topic="orders", consumer="billing", positions={0: 12, 1: 4}),
    e.PositionsClaimed(topic="orders", consumer="consumer-0", generation=0, claims={0: (5, 9)}),
    e.PositionsReset(topic="orders", consumer="consumer-0", positions={0: 2}),
    e.GroupRegistered(topic="orders", group="workers", positions={0: 0, 1: 0, 2: 0, 3: 0}),
    e.MemberJoined(topic="orders", group="workers", member="w1"),
    e.MemberJoined(topic="orders", group="workers", member="w2"),
    e.PartitionsLeased(topic="orders", group="workers", member="w1", partitions=(0, 1), until=START + 10 * HOUR),
    e.PositionsCommitted(topic="orders", consumer="workers", positions={1: 7}, member="w1"),
    e.PartitionsReleased(topic="orders", group="workers", member="w1", partitions=(1,)),
    e.MemberLeft(topic="orders", group="workers", member="w2", reason="crashed"),
    e.TokenGranted(token_id="ci", secret_hash=SECRET, permissions={"produce": ("orders", "log*")}, description="CI"),
    e.TokenGranted(token_id="old", secret_hash=bytes(32), permissions={"admin": ("*",)}, expires=START + HOUR),
    e.PermissionsGranted(token_id="ci", permissions={"consume": ("orders",)}),
    e.PermissionsRevoked(token_id="ci", permissions={"produce": ("log*",)}),
    e.TokenRevoked(token_id="old"),
    e.TopicDeleted(topic="logs", topic_id=LOGS),
]


def event(change: Change, number: int = 0, time: int | None = None, event_id: bytes | None = None) -> Event:
    """An event with an id made from a number, a second after the one before."""
    given = event_id or number.to_bytes(16, "big")
    return Event(change, given, START + number * 1_000_000 if time is None else time, "ada@test")


def story() -> list[Event]:
    return [event(change, number) for number, change in enumerate(STORY)]


# ---------------------------------------------------------------- random ones

_TOPICS = {"a": bytes([1] * 16), "b": bytes([2] * 16)}
_topic = st.sampled_from(sorted(_TOPICS))
_partition = st.integers(0, 3)
_broker = st.integers(1, 3)
_brokers = st.lists(_broker, min_size=1, max_size=3, unique=True).map(tuple)
_name = st.sampled_from(["x", "y"])
_member = st.sampled_from(["m1", "m2"])
_offset = st.integers(0, 30)
_positions = st.dictionaries(_partition, _offset, max_size=3)
_epoch = st.integers(0, 4)
_roles = st.dictionaries(st.sampled_from(["admin", "produce"]), st.lists(_topic, max_size=2).map(tuple), max_size=2)


def _of_topic(cls: type[Any], **fields: Any) -> st.SearchStrategy[Change]:
    """Of a topic that is known by its name and its id."""
    made: st.SearchStrategy[Change] = _topic.flatmap(
        lambda name: st.builds(cls, topic=st.just(name), topic_id=st.just(_TOPICS[name]), **fields)
    )
    return made


@st.composite
def _claims(draw: st.DrawFn) -> dict[int, tuple[int, int]]:
    starts = draw(_positions)
    return {partition: (start, start + draw(st.integers(0, 5))) for partition, start in starts.items()}


_config = st.dictionaries(st.sampled_from(["retention", "segment_bytes"]), st.none() | st.integers(0, 3), max_size=2)
_settings = st.dictionaries(st.sampled_from(["retention", "segment_bytes"]), st.integers(0, 3), max_size=2)
_until = st.integers(0, 20).map(lambda seconds: START + seconds * 1_000_000)

random_change: st.SearchStrategy[Change] = st.one_of(
    _topic.flatmap(
        lambda name: st.builds(
            e.TopicCreated,
            topic=st.just(name),
            topic_id=st.just(_TOPICS[name]) | st.binary(min_size=16, max_size=16),
            partitions=st.integers(1, 4),
            config=_settings,
        )
    ),
    st.builds(e.TopicConfigured, topic=_topic, config=_config),
    _of_topic(e.TopicDeleted),
    _of_topic(e.PartitionsAssigned, replicas=st.dictionaries(_partition, _brokers, min_size=1, max_size=3)),
    _of_topic(e.LeaderElected, partition=_partition, leader=st.none() | _broker, epoch=_epoch, forced=st.just(False)),
    _of_topic(e.LeaderElected, partition=_partition, leader=_broker, epoch=_epoch, forced=st.booleans()),
    _of_topic(e.InSyncChanged, partition=_partition, in_sync=_brokers, epoch=_epoch, revision=st.integers(1, 5)),
    st.builds(e.BrokerRegistered, broker_id=_broker, address=st.just("http://b"), epoch=_epoch),
    st.builds(e.BrokerActivated, broker_id=_broker),
    st.builds(e.BrokerActivated, broker_id=_broker),
    st.builds(e.BrokerDeactivated, broker_id=_broker),
    st.builds(e.BrokerFenced, broker_id=_broker, epoch=_epoch),
    st.builds(e.BrokerRemoved, broker_id=_broker),
    st.builds(
        e.ProducerRegistered,
        name=_name,
        producer_id=st.integers(0, 4),
        epoch=_epoch,
        topic=st.none() | _topic,
    ),
    st.builds(e.ProducerDeactivated, name=_name),
    st.builds(e.ProducerRemoved, name=_name),
    st.builds(
        e.ConsumerRegistered,
        topic=_topic,
        consumer=_name,
        positions=_positions,
        consumer_id=st.none() | st.integers(0, 5),
    ),
    st.builds(e.ConsumerActivated, topic=_topic, consumer=_name),
    st.builds(e.ConsumerDeactivated, topic=_topic, consumer=_name),
    st.builds(e.ConsumerRemoved, topic=_topic, consumer=_name),
    st.builds(e.PositionsCommitted, topic=_topic, consumer=_name, positions=_positions, member=st.none() | _member),
    st.builds(e.PositionsClaimed, topic=_topic, consumer=_name, generation=st.integers(0, 2), claims=_claims()),
    st.builds(e.PositionsReset, topic=_topic, consumer=_name, positions=_positions),
    st.builds(e.GroupRegistered, topic=_topic, group=_name, positions=_positions),
    st.builds(e.MemberJoined, topic=_topic, group=_name, member=_member),
    st.builds(e.MemberLeft, topic=_topic, group=_name, member=_member),
    st.builds(
        e.PartitionsLeased,
        topic=_topic,
        group=_name,
        member=_member,
        partitions=st.lists(_partition, max_size=3, unique=True).map(tuple),
        until=_until,
    ),
    st.builds(
        e.PartitionsReleased,
        topic=_topic,
        group=_name,
        member=_member,
        partitions=st.lists(_partition, max_size=3, unique=True).map(tuple),
    ),
    st.builds(
        e.TokenGranted,
        token_id=_name,
        secret_hash=st.sampled_from([bytes(32), SECRET]),
        permissions=_roles,
        expires=st.none() | _until,
    ),
    st.builds(e.TokenRevoked, token_id=_name),
    st.builds(e.PermissionsGranted, token_id=_name, permissions=_roles),
    st.builds(e.PermissionsRevoked, token_id=_name, permissions=_roles),
)

# A topic with consumers and brokers is there from the start, so that most changes have something to meet.
_SETTING: list[Change] = [
    *(e.BrokerRegistered(broker_id=number, address="http://b", epoch=0) for number in (1, 2, 3)),
    *(e.BrokerActivated(broker_id=number) for number in (1, 2, 3)),
    e.TopicCreated(topic="a", topic_id=_TOPICS["a"], partitions=4),
    e.PartitionsAssigned(topic="a", topic_id=_TOPICS["a"], replicas={0: (1, 2, 3), 1: (2, 3)}),
    e.ConsumerRegistered(topic="a", consumer="x", positions={0: 0}),
    e.GroupRegistered(topic="a", group="y", positions={0: 0, 1: 0}),
    e.MemberJoined(topic="a", group="y", member="m1"),
    e.PartitionsLeased(topic="a", group="y", member="m1", partitions=(0, 1), until=START + 5_000_000),
]


@st.composite
def random_events(draw: st.DrawFn, max_size: int = 40) -> list[Event]:
    """Events of which some come twice, with a clock that may go back."""
    changes = _SETTING + draw(st.lists(random_change, max_size=max_size))
    made: list[Event] = []
    time = START
    for number, change in enumerate(changes):
        time += draw(st.integers(-1_000_000, 3_000_000))
        made.append(event(change, number, time))
        if draw(st.integers(0, 9)) == 0:
            made.append(draw(st.sampled_from(made)))
    return made
