"""Every type of change of the metadata. Each is kept for good as an event: `events.py` has the rules for changing one.

A change whose values make no sense whatever the state is says so in `check_values`; what the state has to say is in
`engine/raft/folds`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from dq.engine.raft.values import (
    HASH_SIZE,
    check_id,
    check_names,
    check_numbers,
    check_permissions,
    check_positions,
    check_set,
    require,
)

T = TypeVar("T")


def _added(version: int, default: T) -> T:
    """A field that came with a version: without it, or with its default, the event is still one of those before."""
    made: T = field(default=default, metadata={"since": version})
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What happened, without who and when. Each subclass is one type of event."""

    type: ClassVar[str]
    version: ClassVar[int] = 1

    def check_values(self) -> None:
        """Raises InvalidInput when no state could make sense of the values."""


# ---------------------------------------------------------------- topics


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCreated(Change):
    type: ClassVar[str] = "topic_created"

    topic: str
    topic_id: bytes
    partitions: int
    config: Mapping[str, Any] = field(default_factory=dict)

    def check_values(self) -> None:
        check_names(topic=self.topic)
        check_id("topic_id", self.topic_id)
        require(self.partitions > 0, f"a topic has at least one partition, not {self.partitions}")
        require(None not in self.config.values(), "settings that are left to their defaults are not named")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfigured(Change):
    """Settings that changed; one that is None goes back to its default."""

    type: ClassVar[str] = "topic_configured"

    topic: str
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeleted(Change):
    type: ClassVar[str] = "topic_deleted"

    topic: str
    topic_id: bytes


# ---------------------------------------------------------------- partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsAssigned(Change):
    """Which brokers hold the replicas of partitions. Those that are not named stay where they are."""

    type: ClassVar[str] = "partitions_assigned"

    topic: str
    topic_id: bytes
    replicas: Mapping[int, tuple[int, ...]]  # partition -> brokers, the preferred leader first

    def check_values(self) -> None:
        for partition, brokers in self.replicas.items():
            require(bool(brokers), f"partition {partition} needs a replica")
            check_set(f"replicas of partition {partition}", brokers)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderElected(Change):
    """A partition has a new leader, or none (None). `forced`: an operator chose one that was not in sync."""

    type: ClassVar[str] = "leader_elected"

    topic: str
    topic_id: bytes
    partition: int
    leader: int | None
    epoch: int
    forced: bool = False

    def check_values(self) -> None:
        require(not self.forced or self.leader is not None, "a forced election needs a leader")


@dataclass(frozen=True, slots=True, kw_only=True)
class InSyncChanged(Change):
    """The replicas that hold everything below the high watermark. Epoch and revision are those the leader knows."""

    type: ClassVar[str] = "in_sync_changed"

    topic: str
    topic_id: bytes
    partition: int
    in_sync: tuple[int, ...]
    epoch: int
    revision: int

    def check_values(self) -> None:
        require(bool(self.in_sync), "the in-sync set cannot be empty")
        check_set("in_sync", self.in_sync)


# ---------------------------------------------------------------- brokers


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistered(Change):
    """A broker came, or came back: then its epoch grows, and whoever used the id before is fenced."""

    type: ClassVar[str] = "broker_registered"

    broker_id: int
    address: str
    epoch: int
    rack: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    def check_values(self) -> None:
        check_numbers("broker_id", [self.broker_id])
        check_numbers("epoch", [self.epoch])
        require(bool(self.address), "a broker needs an address")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerActivated(Change):
    type: ClassVar[str] = "broker_activated"

    broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDeactivated(Change):
    """No new replicas and no leaderships for it; it may be activated again."""

    type: ClassVar[str] = "broker_deactivated"

    broker_id: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFenced(Change):
    """It lost its lease: it has to register again, with a greater epoch, before it counts for anything."""

    type: ClassVar[str] = "broker_fenced"

    broker_id: int
    epoch: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRemoved(Change):
    type: ClassVar[str] = "broker_removed"

    broker_id: int


# ---------------------------------------------------------------- producers


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerRegistered(Change):
    """A name got a producer id, or came back: then its epoch grows, and fences those who used it before."""

    type: ClassVar[str] = "producer_registered"
    version: ClassVar[int] = 2

    name: str
    producer_id: int
    epoch: int
    topic: str | None = _added(2, None)  # the only one it writes to, if it said so

    def check_values(self) -> None:
        check_names(producer=self.name)
        check_numbers("producer_id", [self.producer_id])
        check_numbers("epoch", [self.epoch])


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerDeactivated(Change):
    """It stopped reporting. It is active again once it registers."""

    type: ClassVar[str] = "producer_deactivated"

    name: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerRemoved(Change):
    type: ClassVar[str] = "producer_removed"

    name: str


# ---------------------------------------------------------------- consumers and groups


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRegistered(Change):
    """A named consumer of a topic, and from which offset it begins on each of its partitions."""

    type: ClassVar[str] = "consumer_registered"
    version: ClassVar[int] = 2

    topic: str
    consumer: str
    positions: Mapping[int, int]
    consumer_id: int | None = _added(2, None)  # for those who are known by a number

    def check_values(self) -> None:
        check_names(consumer=self.consumer)
        check_positions(self.positions)
        check_numbers("consumer_id", [self.consumer_id or 0])


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerActivated(Change):
    type: ClassVar[str] = "consumer_activated"

    topic: str
    consumer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerDeactivated(Change):
    """It stopped reporting; its positions stay."""

    type: ClassVar[str] = "consumer_deactivated"

    topic: str
    consumer: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRemoved(Change):
    """Of groups as well."""

    type: ClassVar[str] = "consumer_removed"

    topic: str
    consumer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionsCommitted(Change):
    """The offsets that a consumer goes on from; partitions that are not named keep theirs.

    A member of a group says who it is, and commits only what is leased to it.
    """

    type: ClassVar[str] = "positions_committed"
    version: ClassVar[int] = 2

    topic: str
    consumer: str
    positions: Mapping[int, int]
    member: str | None = _added(2, None)

    def check_values(self) -> None:
        check_positions(self.positions)


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionsClaimed(Change):
    """Offsets [start, end) of partitions are handed out, and never again to this consumer, until it is reset."""

    type: ClassVar[str] = "positions_claimed"

    topic: str
    consumer: str
    generation: int  # of the consumer's positions, as the one who claims knows them
    claims: Mapping[int, tuple[int, int]]

    def check_values(self) -> None:
        for partition, (start, end) in self.claims.items():
            require(partition >= 0 <= start <= end, f"claim {start} to {end} of partition {partition} is no range")


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionsReset(Change):
    """The consumer was sent to other offsets (a seek): claims made before count no more."""

    type: ClassVar[str] = "positions_reset"

    topic: str
    consumer: str
    positions: Mapping[int, int]

    def check_values(self) -> None:
        check_positions(self.positions)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRegistered(Change):
    """A consumer whose partitions are shared among members. Positions belong to the group."""

    type: ClassVar[str] = "group_registered"

    topic: str
    group: str
    positions: Mapping[int, int]

    def check_values(self) -> None:
        check_names(group=self.group)
        check_positions(self.positions)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberJoined(Change):
    type: ClassVar[str] = "member_joined"

    topic: str
    group: str
    member: str

    def check_values(self) -> None:
        check_names(member=self.member)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLeft(Change):
    """By itself, or because it stopped reporting. Its leases end."""

    type: ClassVar[str] = "member_left"

    topic: str
    group: str
    member: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsLeased(Change):
    """A member has partitions to itself until a time; also how a lease is renewed."""

    type: ClassVar[str] = "partitions_leased"

    topic: str
    group: str
    member: str
    partitions: tuple[int, ...]
    until: int  # microseconds since the epoch, UTC

    def check_values(self) -> None:
        check_set("partitions", self.partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsReleased(Change):
    type: ClassVar[str] = "partitions_released"

    topic: str
    group: str
    member: str
    partitions: tuple[int, ...]


# ---------------------------------------------------------------- access


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGranted(Change):
    """A bearer token. The log holds only the SHA-256 of its secret, which is random and long."""

    type: ClassVar[str] = "token_granted"

    token_id: str
    secret_hash: bytes
    permissions: Mapping[str, tuple[str, ...]]  # role -> topics, or prefixes that end with *
    description: str = ""
    expires: int | None = None  # microseconds since the epoch, UTC

    def check_values(self) -> None:
        check_names(token=self.token_id)
        require(len(self.secret_hash) == HASH_SIZE, f"secret_hash has {HASH_SIZE} bytes: it is a hash, not the secret")
        check_permissions(self.permissions)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRevoked(Change):
    type: ClassVar[str] = "token_revoked"

    token_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionsGranted(Change):
    type: ClassVar[str] = "permissions_granted"

    token_id: str
    permissions: Mapping[str, tuple[str, ...]]

    def check_values(self) -> None:
        check_permissions(self.permissions)


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionsRevoked(Change):
    type: ClassVar[str] = "permissions_revoked"

    token_id: str
    permissions: Mapping[str, tuple[str, ...]]


CHANGES: dict[str, type[Change]] = {
    cls.type: cls
    for cls in (
        TopicCreated,
        TopicConfigured,
        TopicDeleted,
        PartitionsAssigned,
        LeaderElected,
        InSyncChanged,
        BrokerRegistered,
        BrokerActivated,
        BrokerDeactivated,
        BrokerFenced,
        BrokerRemoved,
        ProducerRegistered,
        ProducerDeactivated,
        ProducerRemoved,
        ConsumerRegistered,
        ConsumerActivated,
        ConsumerDeactivated,
        ConsumerRemoved,
        PositionsCommitted,
        PositionsClaimed,
        PositionsReset,
        GroupRegistered,
        MemberJoined,
        MemberLeft,
        PartitionsLeased,
        PartitionsReleased,
        TokenGranted,
        TokenRevoked,
        PermissionsGranted,
        PermissionsRevoked,
    )
}
